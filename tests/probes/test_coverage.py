"""Which test stands for which row of the list of probes: every row has some, or says why not yet."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

NUMBERS = (
    *(1, 2, 4, 5, 6, 7, 8, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 33, 34),
    *(36, 37, 38, 39, 41, 42, 43, 45, 46, 47, 48, 50, 51, 52, 54, 55, 59, 60, 61, 62, 63, 64),
)
"""The rows that there are; the numbers between are of rows that were merged into others."""

NOT_YET = "not yet: "

INIT = ("init/act_upon_init_is_refused", "init/act_upon_a_process_like_any_other_goes_through")
CALLS = ("system_calls/call_is_refused", "system_calls/call_goes_through_outside")
UNFILTERED = (*CALLS, "system_calls/call_is_refused_without_filters_too")
FILTER_ALONE = (*CALLS, "system_calls/call_goes_through_without_filters")
CHANGING = ("files/name_that_changes_carries_nothing", "files/name_that_changes_is_followed_with_the_defence_off")

TABLE: dict[int, tuple[str, ...]] = {
    1: (*INIT, "executables/running_program_cannot_be_rewritten", "executables/program_of_the_sandbox_is_its_own"),
    2: ("descriptors/only_three_descriptors_are_open", "descriptors/stdin_is_shared_with_nobody"),
    4: ("descriptors/only_three_descriptors_are_open", "descriptors/descriptors_are_seen_with_the_defence_off"),
    5: ("descriptors/a_request_with_another_number_of_descriptors_is_refused",),
    6: ("images/start_refuses_what_is_no_directory", "images/mount_follows_a_link_with_the_defence_off"),
    7: (
        "images/bind_goes_through_no_link",
        "images/link_elsewhere_resolves_inside",
        "images/links_below_dev_are_covered",
    ),
    8: ("images/proc_of_the_image_is_covered", "images/start_refuses_what_is_no_directory"),
    10: ("files/link_carries_nothing_out", "files/link_is_followed_with_the_defence_off", *CHANGING),
    11: ("files/link_carries_nothing_in", "files/link_is_followed_with_the_defence_off", *CHANGING),
    13: ("files/owner_of_a_foreign_file_stays", "files/removing_a_tree_of_ours_spares_what_it_links_to"),
    14: ("archives/member_stays_inside_or_is_refused", "archives/member_leads_out_with_the_defence_off"),
    15: (
        "data_only/nothing_of_ours_can_turn_data_into_code",
        "data_only/what_a_sandbox_wrote_is_bytes",
        "data_only/bomb_acts_with_the_defence_off",
    ),
    16: ("terminal/terminal_takes_no_injection", "terminal/terminal_takes_injections_without_filters"),
    17: ("ipc/keys_cannot_be_left", "ipc/keys_can_be_left_without_filters", "ipc/keys_are_private_without_filters_too"),
    18: (*INIT, *FILTER_ALONE, "executables/command_cannot_be_reached_before_it_executes"),
    19: (*FILTER_ALONE, "system_calls/clone3_is_unknown_so_that_libraries_fall_back"),
    20: FILTER_ALONE,
    21: (*UNFILTERED, *FILTER_ALONE),
    22: UNFILTERED,
    23: ("proc/nothing_of_the_kernel_can_be_written", "proc/the_kernel_can_be_written_with_the_defence_off"),
    24: ("proc/secrets_of_the_kernel_cannot_be_read", "root_switch/no_way_leads_out_of_the_root"),
    25: ("mounts/control_groups_are_absent", "mounts/bound_control_groups_cannot_be_written"),
    26: (*UNFILTERED, "devices/shipped_device_cannot_be_opened", "devices/device_can_be_opened_with_the_defence_off"),
    27: (
        "privileges/privileged_file_gives_no_privilege",
        "privileges/setuid_file_gives_privilege_with_the_defence_off",
    ),
    28: (
        "mounts/mount_below_a_bound_directory_is_not_shown",
        "mounts/mount_below_a_bound_directory_is_writable_with_the_defence_off",
    ),
    29: ("crash/crash_leaves_no_core", "crash/crash_is_none_of_a_handlers_business"),
    30: ("sockets/abstract_socket_of_the_host_is_out_of_reach", "sockets/abstract_socket_of_a_sibling_is_out_of_reach"),
    31: ("sockets/no_socket_of_the_host_has_a_path_inside", "sockets/a_socket_that_is_bound_is_seen_and_reached"),
    33: ("ipc/objects_are_seen_by_no_sibling_and_no_successor",),
    34: ("sockets/only_harmless_sockets_can_be_made", "sockets/packet_and_raw_sockets_can_be_made_outside"),
    36: ("limits/fork_bomb_stops_at_its_limit", "limits/forking_for_ever_leaves_the_host_alone"),
    37: ("limits/no_orphan_survives_its_sandbox", "limits/cpu_time_is_that_of_the_whole_tree"),
    38: ("limits/cpu_time_is_that_of_the_whole_tree",),
    39: (*INIT, "signals/ignoring_signals_puts_no_end_off", "signals/signals_to_everybody_spare_init"),
    41: ("signals/no_signal_is_ignored_or_blocked", "signals/signals_are_inherited_with_the_defence_off"),
    42: UNFILTERED,
    43: ("memory/memory_is_that_of_the_whole_sandbox", "memory/socket_buffers_are_memory_of_the_sandbox"),
    45: ("disk/disk_is_full_at_its_limit", "disk/disk_is_not_full_with_the_defence_off"),
    46: ("disk/disk_is_full_at_its_limit", "disk/disk_is_not_full_with_the_defence_off"),
    47: ("output/flood_ends_at_its_limit", "output/stdin_that_is_not_read_keeps_nobody_waiting"),
    48: ("output/background_child_holds_nothing_up", "output/background_child_that_writes_is_not_listened_to"),
    50: (*INIT, *UNFILTERED),
    51: ("entries/foreign_entry_is_the_end_of_the_process", "entries/foreign_entry_works_with_the_defence_off"),
    52: (*FILTER_ALONE, "sockets/only_harmless_sockets_can_be_made", "terminal/terminal_takes_no_injection"),
    54: ("death/nothing_outlives_its_supervisor", "death/children_outlive_a_killed_parent_with_the_defence_off"),
    55: ("signals/a_signal_to_a_command_that_is_over_hits_nobody",),
    59: ("entries/new_call_works_or_is_unknown", "entries/new_call_is_killed_by_a_careless_filter"),
    60: (
        "data_only/import_of_an_image_executes_nothing",
        "data_only/compiler_in_a_sandbox_embeds_no_file_of_the_host",
    ),
    61: (
        "host_files/files_of_the_host_are_absent",
        "host_files/what_is_written_to_one_is_absent_from_others",
        "data_only/hidden_tests_are_absent_before_during_and_after",
    ),
    62: ("nested/product_refuses_to_run_in_its_own_sandbox", "nested/product_works_in_a_box_that_lacks_nothing"),
    63: (
        "root_switch/no_way_leads_out_of_the_root",
        "root_switch/ways_lead_out_of_a_chroot",
        "root_switch/ways_lead_beneath_a_root_that_may_be_unmounted",
    ),
    64: (
        *INIT,
        "root_switch/no_way_leads_out_of_the_root",
        "root_switch/no_way_leads_out_of_one_started_ahead",
        NOT_YET + "from a forked template: there are none",
    ),
}
"""Each test as module/name, both without their `test_`."""


def docstrings_of(module: str) -> dict[str, str]:
    """Return the tests of a module of this directory with their docstrings."""
    tree = ast.parse((Path(__file__).parent / f"test_{module}.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {function.name: ast.get_docstring(function) or "" for function in functions}


def rows_in(docstring: str) -> set[int]:
    """Return the rows that a docstring begins with: "Row 7: ...", "Rows 1, 5 and 7, ...", "Rows 18 to 22: ..."."""
    match = re.match(r"Rows? (\d+(?:(?:, | and | to )\d+)*)", docstring)
    if match is None:
        return set()
    ranges = re.findall(r"(\d+)(?: to (\d+))?", match[1])
    return {row for first, last in ranges for row in range(int(first), int(last or first) + 1)}


def test_every_row_is_in_the_table() -> None:
    """A row that is missing, or that nobody has heard of, shows."""
    assert set(NUMBERS) == set(TABLE)
    assert all(TABLE.values())


@pytest.mark.parametrize("row", TABLE)
def test_row_is_what_its_tests_say_they_test(row: int) -> None:
    """Each test that the table names exists, and begins its docstring with the row."""
    for name in TABLE[row]:
        if name.startswith(NOT_YET):
            assert len(name) > len(NOT_YET) + 20
            continue
        module, _, test = name.partition("/")
        docstring = docstrings_of(module).get(f"test_{test}")

        assert docstring is not None, name
        assert row in rows_in(docstring), name


def test_rows_of_a_docstring_are_understood() -> None:
    """Single rows, lists and ranges; and nothing where there is none."""
    assert {7} == rows_in("Row 7: a sentence with 8 things.")
    assert {1, 5, 7} == rows_in("Rows 1, 5 and 7: a sentence.")
    assert {18, 19, 20, 26} == rows_in("Rows 18 to 20, 26: a sentence.")
    assert {30} == rows_in("Row 30, of TCP: a sentence.")
    assert set() == rows_in("A sentence about row 3.")

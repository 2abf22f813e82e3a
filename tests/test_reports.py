"""What users of other sandboxes reported, kind by kind: which test shows that it does not happen here, or why not yet.

Reports are of sandboxes for agents, tool reports of the tools that isolate. The numbers are those of our collection;
docstrings of tests name them ("Report 29: ...", "Tool report 4: ...").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

NO_JUDGE = "not yet: there is no judge"

REPORTS = {
    1: "test_parallel.py::test_a_start_that_never_becomes_ready_holds_no_other",
    2: "test_parallel.py::test_a_burst_of_starts_is_served_evenly",
    3: "test_parallel.py::test_opening_and_closing_over_and_over_uses_nothing_up",
    4: "test_parallel.py::test_a_burst_of_starts_is_served_evenly",
    6: "not yet: there is no HTTP server",
    7: "test_crashes.py::test_nothing_survives_a_killed_supervisor",
    8: "test_crashes.py::test_nothing_survives_a_killed_supervisor",
    9: "test_parallel.py::test_opening_and_closing_over_and_over_uses_nothing_up",
    10: "test_crashes.py::test_a_sandbox_ends_with_its_lifetime",
    12: "test_parallel.py::test_timed_out_commands_leave_no_zombie",
    13: "not yet: there is no integration with Ray; what its actors own dies with them as with any process (8)",
    15: "test_cancellation.py::test_an_exception_in_the_block_leaves_nothing",
    16: "test_limits.py::test_wall_time_ends_the_whole_tree",
    17: "test_limits.py::test_a_busy_loop_ends_at_its_wall_time",
    18: NO_JUDGE,
    19: "test_crashes.py::test_a_killed_launcher_breaks_what_it_started",
    21: "test_output.py::test_a_megabyte_comes_whole_within_a_second",
    22: "test_output.py::test_bytes_that_are_no_text_come_as_they_are",
    23: "test_output.py::test_characters_are_whole_across_chunks",
    25: "test_terminal.py::test_50_megabytes_come_through_intact",
    26: "test_output.py::test_stderr_is_read_too",
    27: "test_sandbox.py::test_a_string_is_a_shell_script",
    29: "test_output.py::test_a_background_process_that_holds_the_pipe_is_not_waited_for",
    30: "test_output.py::test_a_timed_out_command_does_not_wait_for_what_left_its_session",
    32: "test_files.py::test_64_mebibytes_make_the_round_trip",
    33: "test_files.py::test_an_upload_to_a_full_disk_raises",
    35: "not yet: there is no mode for ordinary users",
    36: "test_cancellation.py::test_closing_kills_what_runs_and_is_prompt",
    37: "test_doctor.py::test_missing_capability_is_found_by_looking_and_by_trying",
    38: NO_JUDGE,
    40: NO_JUDGE,
    41: "test_slots.py::test_a_slot_in_use_is_never_handed_out",
    42: "not yet: there are no tasks whose images could be examined",
    43: NO_JUDGE,
    44: NO_JUDGE,
    45: NO_JUDGE,
    47: NO_JUDGE,
    48: "not yet: there is no network but none and the host's; that none is none, tests/probes/test_sockets.py shows",
    49: "test_limits.py::test_a_child_killed_for_memory_is_not_overlooked",
    51: "test_parallel.py::test_killing_everything_inside_reaches_nobody_else",
}

TOOL_REPORTS = {
    1: "test_cgroup.py::test_memory_limit_kills_and_is_counted",
    2: "test_cgroup_tree.py::test_supervisor_makes_room_in_its_own_group",
    3: "test_crashes.py::test_the_tree_is_below_our_own_group",
    4: "test_limits.py::test_cpu_time_is_that_of_the_whole_tree",
    6: "test_limits_counts.py::test_orphans_are_reaped",
    8: "test_sandbox.py::test_only_stdin_stdout_and_stderr_are_open_inside",
    9: "test_faults.py::test_a_step_that_fails_is_named_and_nothing_runs",
    10: "test_faults.py::test_a_mount_or_descriptor_call_that_fails_ends_the_start",
    11: "test_files.py::test_a_bind_of_a_tree_shows_no_mount_below_it",
    12: "not yet: no test can make a pid be used again between fork and map: that child is not reaped before",
    13: "test_host.py::test_unprivileged_user_namespaces_need_every_switch",
    14: "test_sandbox.py::test_address_space_is_not_limited",
    16: "test_crashes.py::test_a_killed_launcher_breaks_what_it_started",
    18: "test_limits_counts.py::test_many_small_files_fill_the_disk_as_one_large_one",
    19: "test_limits.py::test_cpu_time_is_that_of_the_whole_tree",
    20: "test_limits.py::test_the_second_run_starts_at_zero",
    21: "test_limits.py::test_a_limit_does_not_outlive_its_sandbox",
    22: "test_limits.py::test_reading_a_large_file_is_no_memory_of_the_program",
    23: "test_sandbox.py::test_sandboxes_share_nothing",
    24: "test_output.py::test_a_flood_ends_at_its_limit",
    25: "test_files.py::test_links_on_the_way_stay_inside",
    27: "test_limits.py::test_a_megabyte_is_enough_for_hello_world",
    28: "test_files.py::test_only_a_regular_file_is_written",
    29: "test_cgroup.py::test_memory_limit_kills_and_is_counted",
    31: "test_limits.py::test_cpu_time_of_the_background_is_watched",
    32: "test_sandbox.py::test_a_command_runs_and_says_what_it_did",
    33: "test_faults.py::test_a_step_that_fails_is_named_and_nothing_runs",
    34: "test_limits.py::test_a_child_killed_for_memory_is_not_overlooked",
    35: "test_cancellation.py::test_a_frozen_command_is_killed",
    37: "test_cancellation.py::test_closing_kills_what_runs_and_is_prompt",
    38: "test_crashes.py::test_two_supervisors_have_nothing_in_common",
    39: "not yet: thousands of live sandboxes are for a benchmark",
    40: "test_parallel.py::test_a_start_has_a_deadline",
    41: "test_sandbox.py::test_only_stdin_stdout_and_stderr_are_open_inside",
    42: "test_parallel.py::test_a_thousand_short_commands",
    43: "test_sandbox.py::test_only_stdin_stdout_and_stderr_are_open_inside",
    45: "test_sandbox.py::test_output_can_be_opened_by_name",
    46: "not yet: nothing of ours freezes a sandbox, so that no error can leave one frozen",
    48: "test_terminal.py::test_nothing_can_be_typed_for_somebody_else",
    49: "not yet: needs a container whose /proc is masked",
    51: "test_sandbox.py::test_nothing_is_written_to_the_host",
    52: "not yet: no system call is decided by a process of ours",
    53: "not yet: no system call is decided by a process of ours",
    54: "test_output.py::test_both_streams_are_read_at_once",
    55: "test_crashes.py::test_nothing_survives_a_killed_supervisor",
    56: "test_files.py::test_only_a_regular_file_is_read",
    58: "probes/test_sockets.py::test_no_socket_of_the_host_has_a_path_inside",
    60: "test_limits_counts.py::test_a_fork_bomb_stops_at_its_limit",
    61: "test_limits_counts.py::test_one_process_is_enough_for_one",
    62: "test_limits.py::test_a_child_killed_for_memory_is_not_overlooked",
}

NUMBERS = {
    "report": "1-4 6-10 12-13 15-19 21-23 25-27 29-30 32-33 35-38 40-45 47-49 51-51",
    "tool report": "1-4 6-6 8-14 16-16 18-25 27-29 31-35 37-43 45-46 48-49 51-56 58-58 60-62",
}
"""Every row of the collection, as ranges."""

TABLES = {"report": REPORTS, "tool report": TOOL_REPORTS}
ROWS = [(kind, number, place) for kind, table in TABLES.items() for number, place in table.items()]
NAMED = re.compile(r"(tool reports?|(?<!tool )reports?) ((?:\d+, )*\d+)(?=[:;)]|, tool)", re.IGNORECASE)


@cache
def docstrings(file: str) -> dict[str, str]:
    """Return the docstring of each test of a file."""
    tree = ast.parse((TESTS / file).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions if node.name.startswith("test_")}


def rows_named(docstring: str) -> Iterator[tuple[str, int]]:
    """Yield kind and number of each row that a docstring names."""
    for kind, numbers in NAMED.findall(docstring):
        for number in numbers.split(", "):
            yield kind.lower().rstrip("s"), int(number)


@pytest.mark.parametrize("kind", TABLES)
def test_every_row_has_its_place(kind: str) -> None:
    """No row of the collection is missing, and none is made up."""
    ranges = [map(int, each.split("-")) for each in NUMBERS[kind].split()]

    assert [number for first, last in ranges for number in range(first, last + 1)] == sorted(TABLES[kind])


@pytest.mark.parametrize(("kind", "number", "place"), ROWS)
def test_a_row_names_a_test_or_a_reason(kind: str, number: int, place: str) -> None:
    """The test is there, and one that was written for the row says so."""
    if place.startswith("not yet: "):
        return
    file, _, name = place.partition("::")
    written_for = [row for docstring in docstrings(file).values() for row in rows_named(docstring)]

    assert name in docstrings(file)
    assert not written_for or (kind, number) in rows_named(docstrings(file)[name])


def test_what_a_docstring_names_is_in_the_tables() -> None:
    """A number in a docstring is that of a row which has a test."""
    files = sorted(path.name for path in TESTS.glob("test_*.py") if path != Path(__file__))
    named = {row for file in files for docstring in docstrings(file).values() for row in rows_named(docstring)}
    tested = {(kind, number) for kind, number, place in ROWS if not place.startswith("not yet: ")}

    assert set() == named - tested


def test_rows_in_a_docstring_are_found() -> None:
    """Alone, as a list, of both kinds, and in the middle of a sentence."""
    docstring = "Reports 2, 4, tool report 61: it is so (tool reports 45, 46). Of 3 reports 5 are old."

    assert [("report", 2), ("report", 4), ("tool report", 61), ("tool report", 45), ("tool report", 46)] == list(
        rows_named(docstring)
    )

"""The scripts of tests/lanes: they tell what they lack, and hand on exactly what pytest said in a lane."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("lanes") / "run"
SETUP = RUN.with_name("setup")
LANES = ("host", "host-user", "v1", "box", "box-docker", "v2", "v2-user", "uml61", "qemu", "qemu61")
NOT_TO_BE_HAD, TIMED_OUT, NO_EXIT_CODE = 77, 124, 125


def lane(*words: str | Path, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run tests/lanes/run to its end, with another cache than the real one where given."""
    environment = os.environ | ({"MINISANDBOX_LANES": str(cache)} if cache else {})
    command = [str(RUN), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def pytest_file(directory: Path, body: str) -> Path:
    """Write a file with one test of these lines, outside the checkout."""
    path = directory / "test_trivial.py"
    path.write_text(
        "import os, pathlib, time\n\ndef test_trivial():\n" + "".join(f"    {each}\n" for each in body.split("\n"))
    )
    return path


@pytest.fixture
def not_in_a_lane() -> None:
    """Skip in a lane other than the host's own: none is started within another."""
    within = os.environ.get("MINISANDBOX_LANE", "host")
    if within != "host":
        pytest.skip(f"this is lane {within} already")


@pytest.fixture
def guest(not_in_a_lane: None) -> None:
    """Skip where no guest with control groups v2 can be started, with the reason that the scripts tell."""
    listed = re.search(r"^v2 .*\[not now: (.*)\]$", lane("--list").stdout, re.MULTILINE)
    if listed:
        pytest.skip(f"no lane v2: {listed[1]}")


def test_every_lane_is_listed_with_what_it_is() -> None:
    """The list has each lane once, and a lane that cannot be had now says why."""
    listed = lane("--list")

    assert (0, "") == (listed.returncode, listed.stderr)
    assert list(LANES) == [line.split()[0] for line in listed.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["v3"], "run: no lane v3; there are: host host-user "),
        ([], "run: which lane? There are: host host-user "),
        (["--fast", "host"], "run: no option --fast; "),
    ],
)
def test_wrong_usage_is_told(words: list[str], message: str) -> None:
    """Neither an unknown lane nor an unknown option starts anything."""
    run = lane(*words)

    assert (2, "") == (run.returncode, run.stdout)
    assert run.stderr.startswith(message)


def test_setup_of_an_unknown_lane_is_refused(tmp_path: Path) -> None:
    """Nothing is fetched, and no cache is made."""
    cache = tmp_path / "cache"
    run = subprocess.run(
        [SETUP, "v3"], env={**os.environ, "MINISANDBOX_LANES": str(cache)}, capture_output=True, text=True
    )

    assert (2, "") == (run.returncode, run.stdout)
    assert run.stderr.startswith("setup: no lane v3; there are: host host-user ")
    assert not cache.exists()


def test_what_guests_do_not_repeat_is_there() -> None:
    """A file of that list which has another name by now would be run in each guest."""
    words: list[str | Path] = [
        "bash",
        "-c",
        'source "$0"; printf "%s\\n" "${SAME_EVERYWHERE[@]}"',
        RUN.with_name("catalogue.sh"),
    ]
    listed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.split()

    assert listed
    assert [] == [name for name in listed if not (RUN.parents[1] / name).exists()]


@pytest.mark.parametrize("name", ["v2", "v2-user", "uml61", "qemu", "qemu61"])
def test_lane_that_is_not_set_up_says_so(tmp_path: Path, name: str) -> None:
    """A guest is never fetched by the way: the message names the command that does it, or what else is missing."""
    run = lane(name, cache=tmp_path)

    assert (NOT_TO_BE_HAD, "") == (run.returncode, run.stdout)
    assert re.match(rf"run: lane {name}: (needs|not set up|its kernel is for) ?", run.stderr)


@pytest.mark.requires_root
@pytest.mark.usefixtures("not_in_a_lane")
@pytest.mark.parametrize(("claim", "code"), [("True", 0), ("False", 1)])
def test_exit_code_and_arguments_are_handed_on(tmp_path: Path, claim: str, code: int) -> None:
    """What pytest is told arrives word by word, and its exit code comes back."""
    directory = tmp_path / "two  words, $HOME and 'a quote"
    directory.mkdir()
    file = pytest_file(directory, f"assert {claim} and os.environ['MINISANDBOX_LANE'] == 'host'")
    run = lane("host", "--", "-q", "-p", "no:cacheprovider", file, "-k", "trivial and not other")

    assert code == run.returncode, run.stdout + run.stderr
    assert ("1 passed" if code == 0 else "1 failed") in run.stdout


@pytest.mark.slow
@pytest.mark.requires_root
@pytest.mark.usefixtures("not_in_a_lane")
def test_lane_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    """pytest is interrupted, so that it still says what it was at."""
    file = pytest_file(tmp_path, "import threading; threading.Event().wait()")
    run = lane("--timeout", "10", "host", "--", "-p", "no:cacheprovider", file)

    assert TIMED_OUT == run.returncode
    assert "run: stopped after 10 s\n" == run.stderr
    assert "KeyboardInterrupt" in run.stdout


@pytest.mark.slow
@pytest.mark.lanes
@pytest.mark.requires_root
@pytest.mark.usefixtures("not_in_a_lane")
def test_loss_of_every_guest_is_seen(tmp_path: Path) -> None:
    """Without any lane of control groups v2 the run of all fails, though each lane that could be had passed."""
    with tempfile.TemporaryDirectory() as readable:
        Path(readable).chmod(0o755)
        file = pytest_file(Path(readable), "assert True")
        run = lane("--all", "--", "-p", "no:cacheprovider", file, cache=tmp_path / "cache")
    rows = {words[0]: words[1:] for line in run.stdout.splitlines() if (words := line.split())}

    assert 1 == run.returncode
    assert run.stderr.endswith("run: no lane with control groups v2 could be had\n")
    assert [*LANES] == [name for name in rows if name != "lane"]
    assert {("1", "0", "0")} == {tuple(row[:3]) for name, row in rows.items() if name != "lane" and row[0] != "not"}
    assert "1" == rows["host"][0]
    assert "not run: not set up: tests/lanes/setup v2".split() == rows["v2"]


@pytest.mark.slow
@pytest.mark.lanes
@pytest.mark.requires_root
@pytest.mark.usefixtures("not_in_a_lane")
@pytest.mark.parametrize(
    ("at_most", "claim", "code"),
    [("1", "mark.exists() or mark.touch()", 0), ("0", "mark.touch()", 1), ("1", "False", 1)],
)
def test_what_fails_once_is_run_again_and_named(tmp_path: Path, at_most: str, claim: str, code: int) -> None:
    """What fails twice has failed, and without being asked nothing is run again."""
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o777)
        body = [f"mark = pathlib.Path({open_to_all!r}, os.environ['MINISANDBOX_LANE'])", f"assert {claim}"]
        file = pytest_file(Path(open_to_all), "\n".join(body))
        arguments = ("--again", at_most, "host", "host-user", "--", "-p", "no:cacheprovider", file)
        run = lane(*arguments, cache=tmp_path / "cache")

    assert code == run.returncode, run.stdout + run.stderr
    assert (2 if code == 0 else 0) == run.stderr.count("failed at first, and passed when run again:")


@pytest.mark.slow
@pytest.mark.lanes
@pytest.mark.usefixtures("guest")
@pytest.mark.parametrize(("claim", "code"), [("True", 0), ("False", 1)])
def test_guest_runs_the_tests_in_a_delegated_group_of_its_own(tmp_path: Path, claim: str, code: int) -> None:
    """The exit code is that of pytest, the group has the controllers, and nothing that is written reaches the host."""
    body = [
        f"pathlib.Path({str(tmp_path / 'written')!r}).touch()",
        "own = pathlib.Path('/proc/self/cgroup').read_text().strip().removeprefix('0::')",
        "group = pathlib.Path('/sys/fs/cgroup' + own)",
        "assert str(os.getpid()) in (group / 'cgroup.procs').read_text().split()",
        "assert {'cpu', 'memory', 'pids'} <= set((group / 'cgroup.controllers').read_text().split())",
        f"assert {claim}",
    ]
    run = lane("v2", "--", "-q", "-p", "no:cacheprovider", pytest_file(tmp_path, "\n".join(body)))

    assert code == run.returncode, run.stdout + run.stderr
    assert ("1 passed" if code == 0 else "1 failed") in run.stdout
    assert "    assert False\n" in run.stdout or code == 0
    assert not (tmp_path / "written").exists()


@pytest.mark.slow
@pytest.mark.lanes
@pytest.mark.usefixtures("guest")
def test_output_of_a_guest_arrives_byte_by_byte(tmp_path: Path) -> None:
    """A megabyte of every byte but the end of a line is neither changed nor cut."""
    body = "os.write(2, bytes(number for number in range(256) if number != 10) * 4096)"
    command = [str(RUN), "v2", "--", "-q", "-s", "-p", "no:cacheprovider", str(pytest_file(tmp_path, body))]
    run = subprocess.run(command, capture_output=True, timeout=300, check=False)

    assert 0 == run.returncode, run.stderr
    assert bytes(number for number in range(256) if number != 10) * 4096 in run.stdout


@pytest.mark.slow
@pytest.mark.lanes
@pytest.mark.usefixtures("guest")
def test_guest_that_dies_is_not_taken_for_a_result(tmp_path: Path) -> None:
    """A kernel that panics gives no exit code of pytest, and its last words are shown."""
    file = pytest_file(tmp_path, "pathlib.Path('/proc/sysrq-trigger').write_text('c')")
    run = lane("v2", "--", "-q", "-p", "no:cacheprovider", file)

    assert NO_EXIT_CODE == run.returncode, run.stdout + run.stderr
    assert "Kernel panic" in run.stderr


def test_kernel_is_found_in_an_image_behind_chance_matches(tmp_path: Path) -> None:
    """Bytes that look like the begin of a packed stream are passed over."""
    import lzma

    image, kernel = tmp_path / "image", tmp_path / "kernel"
    image.write_bytes(
        b"boot\xfd7zXZ\0no\x1f\x8b\x08no" + lzma.compress(b"text") + lzma.compress(b"\x7fELF kernel") + b"end"
    )
    script = RUN.with_name("extract_vmlinux.py")
    subprocess.run([sys.executable, script, image, kernel], check=True)

    assert b"\x7fELF kernel" == kernel.read_bytes()


def test_image_without_a_kernel_is_refused(tmp_path: Path) -> None:
    """No file is written then."""
    (tmp_path / "image").write_bytes(bytes(1000))
    script = RUN.with_name("extract_vmlinux.py")
    run = subprocess.run(
        [sys.executable, script, tmp_path / "image", tmp_path / "kernel"], capture_output=True, text=True
    )

    assert (1, f"no kernel in {tmp_path / 'image'} that is packed with xz, zstd or gzip\n") == (
        run.returncode,
        run.stderr,
    )
    assert not (tmp_path / "kernel").exists()

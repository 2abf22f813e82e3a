"""Sandboxes of an ordinary user: with subordinate ids and without, with a delegated control group and without."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox import UsageError
from minisandbox.degradation import LIMITS_OF, MISSING, Degradation, parse_degradations, refusal
from minisandbox.kernel.cgroup import detect_layout
from minisandbox.launcher import binary_path
from tests.user_box import FIRST_SUBORDINATE, UserBox

pytestmark = [pytest.mark.requires_root, pytest.mark.slow]
"""Root alone can be any user. What holds for the user who runs the tests, the other tests of the suite show."""

HERE = Path(__file__).parent
PYTHON = "/usr/bin/python3"
LIMITS = tuple(LIMITS_OF)
UNTRACKED = Degradation.CONTROL_GROUPS
SINGLE = Degradation.SINGLE_ID


@pytest.fixture
def home() -> Iterator[Path]:
    """A home for a user whom nobody else is."""
    with tempfile.TemporaryDirectory(prefix="minisandbox-user-") as place:
        uid = 200_000_000 + secrets.randbelow(1_000_000)
        os.chown(place, uid, uid)
        yield Path(place)


@pytest.fixture(scope="module")
def mappers() -> Iterator[Path]:
    """newuidmap and newgidmap, setuid root."""
    with tempfile.TemporaryDirectory(prefix="minisandbox-mappers-") as place:
        built = Path(place) / "newuidmap"
        if (compiler := shutil.which("cc")) is None:
            pytest.skip("this host has no C compiler")
        subprocess.run([compiler, "-static", "-o", built, HERE / "newidmap.c"], check=True)
        shutil.copy(built, built.with_name("newgidmap"))
        for name in ("newuidmap", "newgidmap"):
            built.with_name(name).chmod(0o4755)
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.fixture
def group(home: Path) -> Iterator[Path]:
    """A group of the unified hierarchy that is delegated to the user; nothing of it stays."""
    layout = detect_layout()
    if layout.unified is None:
        pytest.skip("this host has no unified hierarchy")
    place = layout.unified / f"test-user-{home.stat().st_uid}"
    place.mkdir()
    for path in (place, *(place / name for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"))):
        os.chown(path, home.stat().st_uid, home.stat().st_uid)
    yield place
    left = [str(path) for path in place.rglob("*") if path.is_dir() and path.name != "minisandbox-supervisor"]
    with contextlib.suppress(OSError):
        (place / "minisandbox-supervisor").rmdir()
    place.rmdir()
    assert [] == left


@pytest.fixture
def single(home: Path) -> UserBox:
    """A user without subordinate ids and without control groups."""
    if not os.access(binary_path(), os.X_OK) or any(not path.stat().st_mode & 1 for path in binary_path().parents):
        pytest.skip("an ordinary user cannot reach this checkout")
    return UserBox(home=home, uid=home.stat().st_uid, degrade=(UNTRACKED, SINGLE))


@pytest.fixture
def ranged(single: UserBox, mappers: Path) -> UserBox:
    """A user with subordinate ids and without control groups."""
    return replace(single, mappers=mappers, degrade=(UNTRACKED,))


@pytest.fixture(params=["single", "ranged"])
def either(request: pytest.FixtureRequest) -> UserBox:
    """A user with or without subordinate ids."""
    box: UserBox = request.getfixturevalue(request.param)
    return box


def test_commands_and_files_work(either: UserBox) -> None:
    """A sandbox of an ordinary user runs, writes to its root, and takes and gives files."""
    found = either.run("""
await box.write_file("/srv/a", b"abc", mode=0o640)
result = await box.run("touch /x && rm /etc/hosts && mkdir /etc/hosts && mv /etc/hosts /y && cat /srv/a && id -u")
return [result.stdout.decode(), result.stderr.decode(), result.exit_code, (await box.read_file("/srv/a")).decode()]
""")

    assert ["abc0\n", "", 0, "abc"] == found


def test_results_say_what_they_were_done_without(either: UserBox) -> None:
    """Each result carries all that was agreed to and had to be, and nothing that the host gives."""
    found = either.run("return list((await box.run(['true'])).degraded)")

    assert [*([] if either.mappers else [SINGLE]), UNTRACKED, *LIMITS] == sorted(found, key=_order)


def _order(name: str) -> int:
    return [SINGLE, UNTRACKED, *LIMITS].index(Degradation(name))


@pytest.mark.parametrize("missing", [UNTRACKED, SINGLE])
def test_what_is_not_agreed_to_is_refused(missing: Degradation, single: UserBox) -> None:
    """The error names what is missing, the degradation and what to do."""
    box = replace(single, degrade=tuple({UNTRACKED, SINGLE} - {missing}))
    ended = box.start(box.program("return 0"))
    what, advice = MISSING[missing]

    assert ended.stderr.strip().endswith(str(refusal(missing)))
    assert what in ended.stderr
    assert advice in ended.stderr
    assert f"--degrade {missing}" in ended.stderr


def test_a_limit_that_is_not_agreed_away_is_refused(single: UserBox, group: Path) -> None:
    """With a control group that has no controllers, a sandbox with a limit is refused, and one without opens."""
    if detect_layout().unified_controllers:
        pytest.skip("the unified hierarchy of this host has controllers")
    box = replace(single, group=group, degrade=(SINGLE, Degradation.PROCESSES_LIMIT))
    ended = box.start(box.program("return 0"))

    assert str(refusal(Degradation.MEMORY_LIMIT)) in ended.stderr


def test_processes_and_cpu_time_are_told_by_a_delegated_group(single: UserBox, group: Path) -> None:
    """Processes of one command are killed without the others, and CPU time is measured, without any controller."""
    box = replace(single, group=group, degrade=(SINGLE, *LIMITS))
    found = box.run("""
background = await box.run("sleep 100 >/dev/null 2>&1 & echo $!")
result = await box.run("setsid sleep 300 & while :; do :; done", limits=minisandbox.Limits(cpu_time_s=0.2))
alive = await box.run(f"kill -0 {int(background.stdout)} && pgrep -c sleep")
return [result.exit_reason.value, result.usage.cpu_time_s >= 0.2, alive.stdout.decode()]
""")

    assert ["cpu_time", True, "1\n"] == found


def test_subordinate_users_start_in_a_delegated_group(ranged: UserBox, group: Path) -> None:
    """An init that is not the user himself clones commands into the user's groups."""
    box = replace(ranged, group=group, degrade=LIMITS)
    found = box.run("""
result = await box.run("id -u; sleep 200", user=1000, limits=minisandbox.Limits(wall_time_s=0.5))
return [result.stdout.decode(), result.exit_reason.value, result.usage.cpu_time_s > 0, list(result.degraded)]
""")

    assert ["1000\n", "wall_time", True, list(LIMITS)] == found


def test_without_groups_a_kill_takes_all_processes_even_those_that_fork(single: UserBox) -> None:
    """Whatever a command started is gone after its wall time, and the sandbox works on."""
    found = single.run("""
bomb = "import os\\nwhile True:\\n    try:\\n        os.fork() or os.setsid()\\n    except OSError:\\n        pass"
result = await box.run(
    ["sh", "-c", "for i in 1 2 3 4; do setsid sh -c 'while :; do (sleep 60 & ) ; sleep 0.01; done' & done; wait"],
    limits=minisandbox.Limits(wall_time_s=0.5),
)
left = await box.run("ls -d /proc/[0-9]* | wc -l")
return [result.exit_reason.value, int(left.stdout)]
""")

    assert "wall_time" == found[0]
    assert found[1] <= 4


def test_users_of_a_single_id_are_refused(single: UserBox) -> None:
    """Root is the only user there, and the error says so."""
    message = single.run("""
try:
    await box.run(["true"], user=1000)
except minisandbox.UsageError as error:
    return str(error)
""")

    assert "root alone is in this sandbox" in message


def test_subordinate_ids_are_the_users_inside(ranged: UserBox) -> None:
    """Files can be given to every id; what nobody has outside cannot be had inside."""
    found = ranged.run("""
result = await box.run("touch /a; chown 1:65534 /a; stat -c %u:%g /a; chown 65535 /a; grep Groups /proc/self/status")
return result.stdout.decode()
""")

    assert "1:65534\nGroups:\t \n" == found
    assert FIRST_SUBORDINATE > 65536


def test_the_network_is_its_own(either: UserBox) -> None:
    """Nothing but `lo`, used again only while it is clean, and an allow list is served."""
    found = either.run("""
names = []
for _ in range(3):
    async with supervisor.open_sandbox() as other:
        await other.set_network(allow=["localhost:1"])
        result = await other.run("cat /proc/net/dev | tail -n +3 | cut -d: -f1; echo $HTTP_PROXY; "
            "python3 -c 'import socket; s=socket.create_connection((\\"127.0.0.1\\", 3128))' 2>&1 | tail -1")
        names.append(result.stdout.decode().split())
return names
""")

    assert ["lo"] == sorted({names[0] for names in found})


ATTACKS = {
    "kill": "kill -KILL 1; kill -TERM 1; kill -STOP 1; kill -ABRT 1; kill -SEGV 1",
    "memory": "cat /proc/1/mem | head -c 1",
    "environment": "test -z \"$(cat /proc/1/environ | tr -d '\\0')\" || cat /proc/1/environ",
    "root": "ls /proc/1/root/",
    "descriptors": "cat /proc/1/fd/61; readlink /proc/1/fd/61",
    "maps": "head -1 /proc/1/maps",
    "stack": "cat /proc/1/stack",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_init_is_out_of_reach_though_it_is_the_same_user(attack: str, either: UserBox) -> None:
    """No attack on init reads or ends anything of it."""
    found = either.run(f"""
result = await box.run({ATTACKS[attack]!r})
after = await box.run("echo works")
return [result.stdout.decode(), after.stdout.decode()]
""")

    assert ["", "works\n"] == found


def test_init_cannot_be_traced(either: UserBox) -> None:
    """ptrace(2) and process_vm_readv(2) of init are refused also where no filter is in their way."""
    program = (
        "import ctypes; c = ctypes.CDLL(None, use_errno=True); "
        "print(c.ptrace(16, 1, 0, 0), ctypes.get_errno(), c.process_vm_readv(1, 0, 0, 0, 0, 0))"
    )
    found = either.run(f"""
policy = minisandbox.load_policy("default")
import msgspec
policy = msgspec.structs.replace(policy, seccomp=())
async with supervisor.open_sandbox(policy=policy) as other:
    return (await other.run(["python3", "-c", {program!r}])).stdout.decode()
""")

    assert found.startswith("-1 1 ")


def test_nothing_of_the_host_is_reached(either: UserBox) -> None:
    """The user's own files are out of sight, and those of the host cannot be changed."""
    (either.home / "secret").write_text("secret")
    os.chown(either.home / "secret", either.uid, either.uid)
    found = either.run(f"""
result = await box.run("cat {either.home}/secret; touch /usr/x; mount -t tmpfs x /mnt; "
    "mount -o remount,rw,bind /usr; mknod /dev/sda b 8 0; hostname x; cat /proc/kcore | head -c1")
return [result.stdout.decode(), (await box.run("ls -A /mnt; test -w /usr && echo w; true")).stdout.decode()]
""")

    assert ["", ""] == found


def test_nothing_is_left(either: UserBox) -> None:
    """After the end no process of the user is there."""
    either.run("await box.run('sleep 100 & setsid sleep 100 &'); return 0")
    left = [path for path in Path("/proc").glob("[0-9]*") if _uid(path) == either.uid]

    assert [] == left


def _uid(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_uid
    return None


def test_doctor_tells_the_truth(single: UserBox) -> None:
    """Without agreement it says no and what to do; with it, it says what is done without and exits with 0."""
    program = "sys.exit(minisandbox.cli.main.main(['doctor', '--json', '--state-dir', sys.argv[3], *sys.argv[4:]]))"
    place = str(single.home / "state")
    bare = single.start(program, [place])
    agreed = single.start(program, [place, *(word for name in single.degrade for word in ("--degrade", name))])
    missing = {finding["name"]: finding for finding in json.loads(bare.stdout)["findings"] if finding["ok"] is False}

    assert {"control groups", "controllers", "subordinate ids", "launcher"} == set(missing)
    assert all("--degrade" in finding["advice"] + finding["detail"] for finding in missing.values())
    assert 1 == bare.returncode
    assert (0, True) == (agreed.returncode, json.loads(agreed.stdout)["enforceable"])
    assert {SINGLE, UNTRACKED, *LIMITS} == set(json.loads(agreed.stdout)["degraded"])


def test_a_name_that_is_no_degradation_is_a_usage_error() -> None:
    """The set is closed, and the error lists it."""
    with pytest.raises(UsageError, match="single-id"):
        parse_degradations(["everything"])


FORKED = """
from minisandbox.runtime.standing import stand_by
look = "import os; print(os.getuid(), os.getppid(), len(os.listdir('/proc/self/fd')), os.path.exists('/tmp/mark'))"
attack = %r
async with supervisor.open_template(python=%r, preload=["json"]) as template:
    said = []
    for ahead in (False, True):
        async with supervisor.open_sandbox(template=template) as sandbox:
            if ahead:
                await stand_by(sandbox)
            said += [await sandbox.run_warm(look), await sandbox.run_warm(attack), await sandbox.run("touch /tmp/mark")]
            said.append(await sandbox.run_warm(look, user=1000))
    slow = minisandbox.Limits(wall_time_s=0.5)
    async with supervisor.open_sandbox(template=template) as sandbox:
        said.append(await sandbox.run_warm("import time; time.sleep(60)", limits=slow))
    return [[result.stdout.decode(), result.exit_reason.value] for result in said] + [template.replaced]
"""

REACH = """
import os, signal
for pid in {1, os.getppid(), *(int(name) for name in os.listdir('/proc') if name.isdigit())} - {os.getpid()}:
    for file in ('mem', 'environ', 'root/etc', 'fd/0'):
        try:
            os.open(f'/proc/{pid}/{file}', os.O_RDONLY)
            print('opened', pid, file)
        except OSError:
            pass
    try:
        os.kill(pid, signal.SIGKILL)
        print('signalled', pid)
    except OSError:
        pass
for fd in range(3, 100):
    try:
        os.write(fd, b'x')
        print('wrote', fd)
    except OSError:
        pass
"""


@pytest.mark.skipif(not os.access(PYTHON, os.X_OK), reason=f"this host has no {PYTHON}")
@pytest.mark.parametrize("groups", [False, True], ids=["no groups", "delegated group"])
def test_templates_work_with_subordinate_ids(ranged: UserBox, group: Path, groups: bool) -> None:
    """On demand and ahead: forks are processes of their sandboxes, and reach neither init nor the warm process."""
    box = replace(ranged, group=group, degrade=LIMITS) if groups else ranged
    *said, replaced = box.run(FORKED % (REACH, PYTHON))
    once = [["0 1 4 False\n", "exited"], ["", "exited"], ["", "exited"], ["1000 1 4 True\n", "exited"]]

    assert ([*once, *once, ["", "wall_time"]], 0) == (said, replaced)


def test_templates_are_refused_with_a_single_id(single: UserBox) -> None:
    """The warm process needs an id of its own."""
    found = single.run("""
try:
    async with supervisor.open_template():
        return "opened"
except minisandbox.HostError as error:
    return str(error)
""")

    assert "subordinate ids" in found

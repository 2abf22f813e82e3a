"""Commands in a sandbox: arguments, environment, directory, user, stdin, how they end, what they leave to the next."""

from __future__ import annotations

import mmap
import os
import resource
import signal
from pathlib import Path

import pytest
import trio

from minisandbox import ClosedError, ExitReason, Limits, Sandbox, Supervisor, open_supervisor


async def output(sandbox: Sandbox, command: str | list[str]) -> bytes:
    """Return what a command prints that must succeed."""
    result = await sandbox.run(command)
    assert (ExitReason.EXITED, 0, b"") == (result.exit_reason, result.exit_code, result.stderr)
    return result.stdout


async def test_a_command_runs_and_says_what_it_did(sandbox: Sandbox) -> None:
    """Tool report 32: a program of the host's own libc runs under the default policy and ends by itself."""
    result = await sandbox.run(["printf", "%s", "hello"])

    assert (b"hello", b"", ExitReason.EXITED, 0, None) == (
        result.stdout,
        result.stderr,
        result.exit_reason,
        result.exit_code,
        result.signal,
    )
    assert result.ok
    assert result.limits == sandbox.limits


@pytest.mark.parametrize(
    "words",
    [["a b", "", "*", "$HOME", "-n", "'\"\\"], ["\n\t\x01\x7f"], ["☕", os.fsdecode(b"\xff\xfe")], ["x" * 131_071]],
    ids=["shell", "control", "bytes", "longest"],
)
async def test_arguments_arrive_exactly(sandbox: Sandbox, words: list[str]) -> None:
    """Nothing is split, expanded, decoded or shortened."""
    result = await sandbox.run(["printf", "%s\\0", *words])

    assert b"".join(os.fsencode(word) + b"\0" for word in words) == result.stdout


async def test_megabytes_of_arguments_arrive(sandbox: Sandbox) -> None:
    """What is too long for one datagram, but not for the kernel, takes another way."""
    words = [f"{number:0100000d}" for number in range(19)]

    assert "".join(words).encode() == await output(sandbox, ["printf", "%s", *words])


@pytest.mark.parametrize(
    ("command", "stdout", "code"),
    [
        ("printf '\\nx'", b"\nx", 0),
        ("cat <<EOF\n$((1+1))\r\n\tEOF\nEOF\n", b"2\r\n\tEOF\n", 0),
        ("A=1;false", b"", 1),
        ("exit 255", b"", 255),
        ("printf '\\033[?2004h$ '; exit 3", b"\x1b[?2004h$ ", 3),
        ("", b"", 0),
    ],
)
async def test_a_string_is_a_shell_script(sandbox: Sandbox, command: str, stdout: bytes, code: int) -> None:
    """Report 27: output has exactly the bytes that the script wrote, and the code is the script's."""
    result = await sandbox.run(command)

    assert (stdout, b"", code) == (result.stdout, result.stderr, result.exit_code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGPIPE])
async def test_a_signal_is_reported_as_one(sandbox: Sandbox, number: signal.Signals) -> None:
    """A program that a signal ended has no exit code, and no limit is blamed."""
    result = await sandbox.run(["sh", "-c", f"kill -{number.value} $$"])

    assert (ExitReason.SIGNALED, None, number) == (result.exit_reason, result.exit_code, result.signal)
    assert not result.ok


async def test_a_shells_137_is_not_a_signal(sandbox: Sandbox) -> None:
    """Report 49: what looks like a kill to a shell is an exit code as long as the main process exited."""
    result = await sandbox.run("sh -c 'kill -9 $$'; exit $?")

    assert (ExitReason.EXITED, 137, None) == (result.exit_reason, result.exit_code, result.signal)


async def test_no_signal_is_ignored_or_blocked_inside(sandbox: Sandbox) -> None:
    """Every command begins with default dispositions and an empty mask, whatever this process (as SIGPIPE) ignores."""
    status = (await output(sandbox, ["cat", "/proc/self/status"])).decode()
    masks = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Sig")}

    assert (16 * "0", 16 * "0") == (masks["SigBlk"], masks["SigIgn"])


async def test_environment_is_only_what_was_asked_for(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of our own gets in; a command's variables go before the sandbox's, and these before the rootfs' own."""
    monkeypatch.setenv("SECRET_TOKEN", "of the host")
    async with open_supervisor(state_dir=state_dir) as supervisor:
        async with supervisor.open_sandbox(env={"A": "sandbox", "HOME": "/tmp"}) as sandbox:
            result = await sandbox.run(["env"], env={"A": "command", "B": "two words\nand a line", "EMPTY": ""})
            again = await sandbox.run(["printenv", "A"])

    assert b"SECRET_TOKEN" not in result.stdout
    assert b"A=command\n" in result.stdout
    assert b"HOME=/tmp\n" in result.stdout
    assert b"B=two words\nand a line\nEMPTY=\n" in result.stdout
    assert again.stdout == b"sandbox\n"


async def test_a_program_is_found_on_the_path_of_its_own_environment(sandbox: Sandbox) -> None:
    """PATH is the one that the command will see."""
    await sandbox.write_file("/tmp/answer", b"#!/bin/sh\necho 42\n", mode=0o755)
    result = await sandbox.run(["answer"], env={"PATH": "/nowhere:/etc/passwd:/tmp"})

    assert result.stdout == b"42\n"


async def test_working_directory_is_the_one_asked_for(sandbox: Sandbox) -> None:
    """The root by default."""
    await sandbox.run(["mkdir", "/tmp/a b"])
    results = [await sandbox.run(["pwd"], cwd=cwd) for cwd in ("/", "/tmp/a b", "/usr/bin/../lib")]

    assert [b"/\n", b"/tmp/a b\n", b"/usr/lib\n"] == [result.stdout for result in results]


@pytest.mark.parametrize(
    ("user", "ids"), [(None, b"0 0 0"), ("root", b"0 0 0"), ("nobody", b"65534 65534 65534"), (1234, b"1234 1234 1234")]
)
async def test_a_command_runs_as_its_user(sandbox: Sandbox, user: str | int | None, ids: bytes) -> None:
    """Uid, gid and groups are those of the user alone."""
    result = await sandbox.run("echo $(id -u) $(id -g) $(id -G)", user=user)

    assert ids + b"\n" == result.stdout


async def test_an_ordinary_user_is_not_root(sandbox: Sandbox) -> None:
    """It can write to /tmp, and neither to the root's files nor kill the root's processes; root can chown."""
    result = await sandbox.run("touch /tmp/mine && ! touch /etc/not && ! touch /root/not", user="nobody")
    chowned = await sandbox.run("chown 1000:1000 /tmp/mine && stat -c %u:%g /tmp/mine")

    assert result.exit_code == 0
    assert chowned.stdout == b"1000:1000\n"


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 5_000_000])
async def test_stdin_is_read_to_its_end(sandbox: Sandbox, size: int) -> None:
    """All bytes arrive, and then the end of the file."""
    data = bytes(range(256)) * (size // 256 + 1)
    result = await sandbox.run(["cat"], stdin=data[:size], limits=Limits(output_kept_bytes=8 << 20))

    assert data[:size] == result.stdout


async def test_stdin_is_empty_by_default(sandbox: Sandbox) -> None:
    """A program that reads sees the end of the file at once."""
    assert await output(sandbox, ["cat"]) == b""


async def test_a_sandbox_keeps_its_files_between_commands(sandbox: Sandbox) -> None:
    """What one command wrote, the next reads, anywhere it may write."""
    await output(sandbox, "for d in /tmp /run /root /etc /opt /dev/shm; do echo $d > $d/note; done")

    assert b"/tmp\n/run\n/root\n/etc\n/opt\n/dev/shm\n" == await output(
        sandbox, "cat /tmp/note /run/note /root/note /etc/note /opt/note /dev/shm/note"
    )


async def test_sandboxes_share_nothing(supervisor: Supervisor) -> None:
    """Tool reports 23, 62: neither files, nor /dev/shm, nor System V memory, nor processes, nor the host name."""
    look = "ls /tmp /dev/shm /run; ipcs -m | grep -c 0x; ps -e -o comm= | grep -c sleep; hostname"
    mess = "touch /tmp/x /dev/shm/x /run/x; ipcmk -M 4096 >/dev/null; sleep 60 & exec 1>&- 2>&-"
    async with supervisor.open_sandbox(hostname="one") as one, supervisor.open_sandbox(hostname="two") as two:
        await one.run(mess)
        own, other = await one.run(look), await two.run(look)

    assert own.stdout == b"/dev/shm:\nx\n\n/run:\nx\n\n/tmp:\nx\n1\n1\none\n"
    assert other.stdout == b"/dev/shm:\n\n/run:\n\n/tmp:\n0\n0\ntwo\n"


async def test_a_new_sandbox_in_a_used_slot_is_clean(supervisor: Supervisor) -> None:
    """Tool report 38: the next sandbox sees nothing of the last one, and its first command lives."""
    seen = []
    for number in range(5):
        async with supervisor.open_sandbox() as sandbox:
            seen.append(await output(sandbox, f"ls /tmp /dev/shm; touch /tmp/{number} /dev/shm/{number}"))

    assert [b"/dev/shm:\n\n/tmp:\n"] * 5 == seen


async def test_nothing_is_written_to_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    """Tool report 51: a file made inside, under a path that the host has too, is not there outside."""
    name = f"canary-{os.getpid()}"
    await output(sandbox, f"mkdir -p {tmp_path} && touch {tmp_path}/{name} /tmp/{name} /etc/{name}")

    assert [] == [place for place in (tmp_path, Path("/tmp"), Path("/etc")) if (place / name).exists()]


async def test_only_stdin_stdout_and_stderr_are_open_inside(supervisor: Supervisor) -> None:
    """Tool reports 8, 41, 43: not even a descriptor that was made inheritable, however high its number."""
    leaked = os.open("/", os.O_RDONLY)
    high = min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)
    os.dup2(leaked, high, inheritable=True)
    try:
        async with supervisor.open_sandbox() as sandbox:
            first = await output(sandbox, ["ls", "/proc/self/fd"])
            second = await sandbox.run(["ls", "/proc/self/fd"], stdin=b"x")
    finally:
        os.close(high)
        os.close(leaked)

    assert first == second.stdout == b"0\n1\n2\n3\n"  # 3 is the directory that ls reads


async def test_output_can_be_opened_by_name(sandbox: Sandbox) -> None:
    """Scripts write to /dev/stdout and /dev/stderr; /dev/null swallows and stays a device (tool report 45)."""
    result = await sandbox.run("echo out >/dev/stdout; echo err >/dev/stderr; echo x >/dev/null; stat -c %F /dev/null")
    reader = await sandbox.run("cat /dev/stdin", stdin=b"in", user="nobody")

    assert (b"out\ncharacter special file\n", b"err\n") == (result.stdout, result.stderr)
    assert reader.stdout == b"in"


async def test_address_space_is_not_limited(sandbox: Sandbox) -> None:
    """Tool report 14: runtimes that reserve terabytes of addresses and use little work under the default policy."""
    try:
        mmap.mmap(-1, 1 << 40, flags=0x4022).close()  # MAP_NORESERVE, MAP_ANONYMOUS and MAP_PRIVATE
    except OSError:
        pytest.skip("a process of this host has no terabyte of addresses")
    reserve = "import mmap; print(len(mmap.mmap(-1, 1 << 40, flags=0x4022)))"

    assert await output(sandbox, ["python3", "-c", reserve]) == b"%d\n" % (1 << 40)


@pytest.mark.skipif(not Path("/usr/bin/node").exists(), reason="the host has no /usr/bin/node")
async def test_node_runs_under_the_default_policy(sandbox: Sandbox) -> None:
    """Tool report 14: with its threads, its address space and its memory."""
    assert await output(sandbox, ["node", "-e", "console.log(6 * 7)"]) == b"42\n"


async def test_commands_of_one_sandbox_run_side_by_side(sandbox: Sandbox) -> None:
    """Each has its own output and its own end; one that waits for another gets what that one wrote."""
    results: dict[int, bytes] = {}

    async def run(number: int) -> None:
        other = f"/tmp/{(number + 1) % 8}"
        script = (
            f"mkfifo {other} 2>/dev/null; echo {number} > {other} & mkfifo /tmp/{number} 2>/dev/null; cat /tmp/{number}"
        )
        results[number] = (await sandbox.run(script, limits=Limits(wall_time_s=20))).stdout

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(run, number)

    assert {number: b"%d\n" % ((number - 1) % 8) for number in range(8)} == results


async def test_a_closed_sandbox_cannot_be_used(supervisor: Supervisor) -> None:
    """Every call raises ClosedError."""
    async with supervisor.open_sandbox() as sandbox:
        pass
    with pytest.raises(ClosedError, match="closed"):
        await sandbox.run(["true"])
    with pytest.raises(ClosedError, match="closed"):
        await sandbox.read_file("/etc/passwd")
    with pytest.raises(ClosedError, match="closed"):
        await sandbox.write_file("/tmp/x", b"")
    with pytest.raises(ClosedError, match="closed"):
        await sandbox.kill_all()


async def test_a_closed_supervisor_opens_no_sandbox(state_dir: Path) -> None:
    """It raises ClosedError and says what to do."""
    async with open_supervisor(state_dir=state_dir) as supervisor:
        pass
    with pytest.raises(ClosedError, match="open another"):
        async with supervisor.open_sandbox():
            pass

"""Sessions: a shell that keeps its state, exact output of each command, and how commands and the shell are ended."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from minisandbox import (
    BrokenError,
    BusyError,
    ClosedError,
    ExitReason,
    Limits,
    ProtocolError,
    Sandbox,
    Session,
    SessionEndedError,
    SessionResult,
    Supervisor,
    UsageError,
    open_supervisor,
)
from minisandbox.runtime.shell_driver import Report, ReportReader
from tests import observer

pytestmark = pytest.mark.enforces("control-groups")

MARK = "4711.25"
"""An odd number of seconds to sleep, so that such a process can be told from others."""

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=100)

STUBBORN = "python3 -c 'import signal; signal.signal(2, signal.SIG_IGN); signal.pause()'"


@pytest.fixture
async def session(sandbox: Sandbox) -> AsyncIterator[Session]:
    """An open session of a sandbox with the default policy."""
    async with sandbox.open_session() as opened:
        yield opened


def sleepers() -> list[psutil.Process]:
    """Return the processes that sleep for the marked time, in whatever sandbox."""
    return [process for process in psutil.process_iter(["cmdline"]) if MARK in " ".join(process.info["cmdline"] or ())]


async def printed(session: Session, command: str) -> bytes:
    """Return what a command prints that must succeed."""
    result = await session.run(command)
    assert (ExitReason.EXITED, 0, b"") == (result.exit_reason, result.exit_code, result.stderr)
    return result.stdout


async def _wait_until_runs(sandbox: Sandbox, path: str) -> None:
    """Wait for a file that a shell itself makes: while it has a child that ends well, it ignores interrupts."""
    await sandbox.run(f"until test -e {path}; do sleep 0.01; done")


# ---- exact output


@pytest.mark.parametrize(
    ("command", "stdout", "stderr", "code"),
    [
        ("printf '\\nx'", b"\nx", b"", 0),
        ("cat <<EOF\n$((1+1))\r\n\tEOF\nEOF", b"2\r\n\tEOF\n", b"", 0),
        ("cat <<'E' >&2; false\n$x\nE\n", b"", b"$x\n", 1),
        ("A=();false", b"", b"", 1),
        ("echo a # and no more", b"a\n", b"", 0),
        ("", b"", b"", 0),
        ("\n\n", b"", b"", 0),
        ("(exit 255)", b"", b"", 255),
        ("true | (exit 3)", b"", b"", 3),
        ("sh -c 'kill -9 $$'", b"", b"bash: line 1:     N Killed                  sh -c 'kill -9 $$'\n", 137),
        ("printf '\\xff\\xfe\\xc3('", b"\xff\xfe\xc3(", b"", 0),
        ("echo ☕ >&2", b"", "☕\n".encode(), 0),
        ("printf '\\033[?2004h$ \\0'", b"\x1b[?2004h$ \0", b"", 0),
        ("nosuch", b"", b"bash: line 1: nosuch: command not found\n", 127),
        ("true\nnosuch", b"", b"bash: line 2: nosuch: command not found\n", 127),
        ("if", b"", b"bash: eval: line 2: syntax error: unexpected end of file\n", 2),
        ("echo $LINENO $0 $# $-", b"1 bash 0 hBc\n", b"", 0),
        ("break", b"", b"", 0),
        ("continue", b"", b"", 0),
        ("set -x; echo a; set +x", b"a\n", b"++ echo a\n++ set +x\n", 0),
        ("trap 'echo once' ERR; false", b"once\n", b"", 1),
        ("shopt -s expand_aliases; cat < /dev/null", b"", b"", 0),
        ("readlink /proc/self/fd/0", b"/dev/null\n", b"", 0),
    ],
)
async def test_a_command_gives_its_exact_output(
    session: Session, command: str, stdout: bytes, stderr: bytes, code: int
) -> None:
    """Reports 22, 27: no prompt, echo, mark or decoding, and `$?` as the shell has it; none of these ends the shell."""
    result = await session.run(command)

    assert (stdout, stderr, code, ExitReason.EXITED) == (
        result.stdout,
        re.sub(rb"\d+ Killed", b"N Killed", result.stderr),  # the first number of a command is the engine's affair
        result.exit_code,
        result.exit_reason,
    )
    assert b"here\n" == (await session.run("echo here")).stdout


@pytest.mark.slow
@pytest.mark.requires_root
@settings(max_examples=10, deadline=None)
@given(st.lists(TEXTS, min_size=10, max_size=40))
def test_any_text_arrives_as_it_is(state_dir: Path, texts: list[str]) -> None:
    """Report 27: a command of any characters, whatever they mean to a shell, is one argument when it is quoted."""

    async def echo() -> list[bytes]:
        async with open_supervisor(state_dir=state_dir) as supervisor, supervisor.open_sandbox() as sandbox:
            async with sandbox.open_session() as session:
                return [(await session.run(f"printf %s {shlex.quote(text)}")).stdout for text in texts]

    assert [text.encode() for text in texts] == trio.run(echo)


async def test_a_megabyte_of_each_stream_is_whole(session: Session) -> None:
    """Reports 21, 26: much output neither blocks nor loses a byte, though nobody reads it as it comes."""
    result = await session.run("python3 -c 'print(\"x\" * 1_000_000)'; head -c 300000 /dev/zero >&2; echo ok")

    assert b"x" * 1_000_000 + b"\nok\n" == result.stdout
    assert bytes(300_000) == result.stderr


async def test_characters_are_not_torn_at_chunk_borders(session: Session) -> None:
    """Report 23: 100,000 characters of three bytes come out as they went in."""
    result = await session.run('python3 -c \'print("☕" * 100_000, end="")\'')

    assert ("☕" * 100_000).encode() == result.stdout


async def test_output_is_kept_in_part_beyond_its_cap(sandbox: Sandbox) -> None:
    """The result has the beginning and the end, and says so; the next one is whole again."""
    async with sandbox.open_session(limits=Limits(output_kept_bytes=1000)) as session:
        result = await session.run("seq 1000000")
        after = await session.run("echo ok")

    assert result.stdout.startswith(b"1\n2\n")
    assert result.stdout.endswith(b"999999\n1000000\n")
    assert (True, False) == (result.stdout_truncated, result.stderr_truncated)
    assert (b"ok\n", False) == (after.stdout, after.stdout_truncated)


async def test_a_large_command_is_run(session: Session) -> None:
    """A megabyte of text is read at once, not byte by byte."""
    text = "x" * (1 << 20)

    assert len(text) + 1 == len(await printed(session, f"echo {text}"))


# ---- state


@pytest.mark.parametrize(
    ("first", "then", "stdout"),
    [
        ("cd /tmp", "pwd", b"/tmp\n"),
        ("X='a  b'", 'echo "$X"', b"a  b\n"),
        ("export Y=1", "sh -c 'echo $Y'", b"1\n"),
        ("declare -A m=([k]=v)", "echo ${m[k]}", b"v\n"),
        ("f() { echo f$1; }", "f 2", b"f2\n"),
        ("alias ll='echo LL'", "ll x", b"LL x\n"),
        ("set -- a b", 'echo "$2" $#', b"b 2\n"),
        ("set -f", "echo /*", b"/*\n"),
        ("shopt -s nullglob", "echo /nosuch*", b"\n"),
        ("umask 077", "umask", b"0077\n"),
        (
            "exec 3>/tmp/three 10>/tmp/ten; echo 3 >&3; echo 10 >&10",
            "echo x >&3; cat /tmp/three /tmp/ten",
            b"3\nx\n10\n",
        ),
        ("false", "echo $?", b"1\n"),
        ("(exit 42)", "echo $?", b"42\n"),
        ("set -e; false && true", "echo $? $-", b"1 ehBc\n"),
        ("trap 'echo trapped' USR1", "kill -USR1 $$", b"trapped\n"),
        ("trap 'echo mine' INT", "kill -INT $$", b"mine\n"),
        ("ulimit -n 100", "ulimit -n", b"100\n"),
        ("set -a; Z=1", "sh -c 'echo $Z'; env | grep -c minisandbox", b"1\n0\n"),
        ("sleep 300 & disown; P=$!", "kill -0 $P && echo lives", b"lives\n"),
        ("set -o posix", "echo posix", b"posix\n"),
        ("set -u", 'echo "${nosuch-unset}"', b"unset\n"),
    ],
)
async def test_state_is_kept_between_commands(session: Session, first: str, then: str, stdout: bytes) -> None:
    """Directory, variables, functions, options, traps, descriptors, limits and `$?` are as they were left."""
    await session.run(first)
    result = await session.run(then)

    assert (stdout, b"") == (result.stdout, result.stderr)


async def test_programs_get_no_descriptor_of_ours(session: Session) -> None:
    """Probe 2: beside the one that `ls` opens itself, there are three."""
    assert b"0\n1\n2\n3\n" == await printed(session, "ls /proc/self/fd")


async def test_nothing_of_ours_is_in_the_environment(session: Session) -> None:
    """Variables and functions of the driver are not exported, whatever the options."""
    assert b"" == await printed(session, "set -a; f() { :; }; env | grep -i minisandbox; true")


async def test_a_session_has_user_directory_and_variables(sandbox: Sandbox) -> None:
    """They are those that were asked for, and a small limit of open files is no obstacle."""
    async with sandbox.open_session(user=1000, cwd="/tmp", env={"A": "b c"}, limits=Limits(open_files=20)) as session:
        assert b"1000 /tmp b c 20\n" == await printed(session, "echo $(id -u) $PWD $A $(ulimit -n)")


# ---- the end of the shell


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("echo out; echo err >&2; exit 7", 7),
        ("set -e; echo out; echo err >&2; (exit 3)", 3),
        ("exec sh -c 'echo out; echo err >&2; exit 9'", 9),
        ("f() { echo out; echo err >&2; exit 5; }; f", 5),
        ("trap 'exit 4' EXIT; echo out; echo err >&2; exit 1", 4),
        ("echo out; echo err >&2; break 5", 1),
    ],
)
async def test_a_command_that_ends_the_shell_is_an_error_with_its_code(
    sandbox: Sandbox, command: str, code: int
) -> None:
    """It says what the shell's exit code and last output were; the session stays ended, the sandbox does not."""
    async with sandbox.open_session() as session:
        with pytest.raises(SessionEndedError) as caught:
            await session.run(command)
        with pytest.raises(SessionEndedError):
            await session.run("true")
    async with sandbox.open_session() as another:
        after = await printed(another, "echo ok")

    error = caught.value
    assert (code, None, b"out\n", b"err\n") == (error.exit_code, error.signal, error.stdout, error.stderr)
    assert b"ok\n" == after


async def test_a_killed_shell_is_an_error_with_its_signal(session: Session) -> None:
    """No result is made up for the command."""
    with pytest.raises(SessionEndedError) as caught:
        await session.run("kill -KILL $$")

    assert (None, 9) == (caught.value.exit_code, caught.value.signal)


async def test_trap_of_exit_runs_when_the_session_is_closed(sandbox: Sandbox) -> None:
    """bash ends by itself, as at the end of a script."""
    async with sandbox.open_session() as session:
        await session.run("trap 'echo bye > /tmp/bye' EXIT")

    assert b"bye\n" == await sandbox.read_file("/tmp/bye")


@pytest.mark.parametrize("forged", ["x\\0h\\0\\0", "256\\0h\\0\\0", "0\\0-;\\0\\0", "0\\0\\0\\0"], ids=range(4))
async def test_a_forged_report_ends_the_session(session: Session, forged: str) -> None:
    """A command can speak for the shell that runs it; that costs its session, and nobody waits for ever."""
    with trio.fail_after(20), pytest.raises(SessionEndedError):
        await session.run(f"printf '{forged}' >&250; sleep 0.2")
        await session.run("true")


async def test_init_that_dies_is_no_output(supervisor: Supervisor) -> None:
    """The sandbox is gone, typed, whatever ran in its session."""
    async with supervisor.open_sandbox(lifetime_s=1.0) as sandbox, sandbox.open_session() as session:
        with pytest.raises(BrokenError):
            await session.run("sleep 60")
        with pytest.raises(BrokenError):
            await session.run("true")


async def test_kill_all_ends_a_session(sandbox: Sandbox, session: Session) -> None:
    """What `kill_all` kills is reported as killed, and another session can be opened."""
    await sandbox.kill_all()
    with pytest.raises(SessionEndedError):
        await session.run("true")
    async with sandbox.open_session() as another:
        assert b"ok\n" == await printed(another, "echo ok")


async def test_closed_things_say_so(supervisor: Supervisor) -> None:
    """A closed session and one of a closed sandbox raise ClosedError."""
    async with supervisor.open_sandbox() as sandbox:
        async with sandbox.open_session() as session:
            await session.run("true")
        with pytest.raises(ClosedError):
            await session.run("true")
        async with sandbox.open_session() as other:
            await supervisor.aclose()
            with pytest.raises(ClosedError):
                await other.run("true")


# ---- commands that must end


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        f"sleep {MARK}; echo no",
        f"sleep {MARK} & sleep {MARK}",
        f"sh -c 'sleep {MARK} & sleep {MARK}'",
        f"setsid sh -c 'trap \"\" INT TERM HUP; sleep {MARK}' & wait",
        "while :; do :; done; echo no",
        "python3 -c 'while 1: pass'; echo no",
        f"{STUBBORN}; echo no",
        f"f() {{ g; echo no; }}; g() {{ for i in 1 2; do sleep {MARK}; echo no; done; }}; f; echo no",
        f"f() {{ {STUBBORN}; }}; while f; do echo no; done; echo no",
        f"trap 'echo no' INT; while :; do sleep {MARK}; done",
        f"trap '' INT; while :; do sleep {MARK}; done",
        f"set -e; f() {{ sleep {MARK}; }}; f; echo no",
        f"sleep {MARK} | cat | cat; echo no",
        f"x=$(sleep {MARK}); echo no",
        f"set -m; sleep {MARK}; echo no",
        f"kill -STOP $$; sleep {MARK}",
    ],
)
async def test_a_timeout_ends_the_command_and_not_the_session(session: Session, command: str) -> None:
    """Reports 16, 17: all it started is gone, what came before it is not, and the shell has its state."""
    await session.run(f"X=kept; sleep {MARK}1 & true")
    begun = trio.current_time()
    result = await session.run(command, timeout_s=0.3)
    taken_s = trio.current_time() - begun
    after = await session.run("echo $X $?; trap - INT; set +em")

    assert (ExitReason.WALL_TIME, 124) == (result.exit_reason, result.exit_code)
    assert b"" == result.stdout.replace(b"no\n", b"", command.startswith("trap 'echo no'"))
    assert taken_s < 3.0
    assert (b"kept 124\n", b"") == (after.stdout, after.stderr)
    assert 1 == len(sleepers())


async def test_a_shell_that_hangs_itself_ends_with_the_timeout(sandbox: Sandbox) -> None:
    """Report 17: nothing but its end helps a bash that waits in a system call; the error says for which limit."""
    async with sandbox.open_session() as session:
        begun = trio.current_time()
        with pytest.raises(SessionEndedError, match="wall_time"):
            await session.run("mkfifo /tmp/fifo; read x < /tmp/fifo", timeout_s=0.2)
        taken_s = trio.current_time() - begun

    assert taken_s < 6.0
    assert b"ok\n" == (await sandbox.run("echo ok")).stdout


async def test_the_wall_time_limit_holds_for_each_command(sandbox: Sandbox) -> None:
    """A session may be older than the limit; a command may not, unless it has a time of its own."""
    async with sandbox.open_session(limits=Limits(wall_time_s=0.4)) as session:
        shorter = [await session.run("sleep 0.25") for _ in range(3)]
        longer = await session.run("sleep 30")
        own = await session.run("sleep 0.6", timeout_s=30)

    assert [True] * 3 == [result.ok for result in shorter]
    assert ExitReason.WALL_TIME is longer.exit_reason
    assert own.ok


@pytest.mark.parametrize(
    "command",
    [
        ": >/tmp/runs; sleep 30; touch /tmp/after",
        ": >/tmp/runs; while :; do :; done; touch /tmp/after",
        ": >/tmp/runs; sleep 30 && touch /tmp/after; touch /tmp/after",
        "f() { g; touch /tmp/after; }; g() { : >/tmp/runs; sleep 30; touch /tmp/after; }; f; touch /tmp/after",
        "set -e; f() { : >/tmp/runs; sleep 30; touch /tmp/after; }; for i in 1 2; do f; done",
        "f() { : >/tmp/runs; sleep 30; }; for ((i = 0; i < 3; i++)); do f; touch /tmp/after; done; touch /tmp/after",
        "f() { : >/tmp/runs; sleep 30; }; while ((1)); do for i in 1; do f; done; done; touch /tmp/after",
        "f() { : >/tmp/runs; sleep 30; }; f; while ((1)); do ((1)); done; touch /tmp/after",
        "f() { : >/tmp/runs; sleep 30; }; while [[ 1 ]]; do case x in x) f; ((1)) ;; esac; done; touch /tmp/after",
        "source <(echo ': >/tmp/runs; sleep 30; touch /tmp/after'); touch /tmp/after",
        "(: >/tmp/runs; sleep 30; touch /tmp/after); touch /tmp/after",
    ],
)
async def test_interrupt_is_like_ctrl_c(sandbox: Sandbox, session: Session, command: str) -> None:
    """The foreground ends, nothing of the command comes after it, its state is kept, and the session goes on."""
    results: list[SessionResult] = []

    async def run() -> None:
        results.append(await session.run(f"X=kept; {command}"))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await _wait_until_runs(sandbox, "/tmp/runs")
            if "sleep" in command:  # the moment between fork and exec is bash's own, who may miss a signal in it
                await observer.wait_until(_someone_sleeps, trio.lowlevel.checkpoint)
            await session.interrupt()
    after = await session.run("echo $? $X; set +e; ls /tmp/after")

    assert (ExitReason.SIGNALED, 130) == (results[0].exit_reason, results[0].exit_code)
    assert b"130 kept\n" == after.stdout


def _someone_sleeps() -> bool:
    return "sleep" in map(observer.name_of, observer.workload())


async def test_interrupt_runs_the_trap_of_the_command(sandbox: Sandbox, session: Session) -> None:
    """Who has a trap for SIGINT goes on after it, as in any shell."""
    results: list[SessionResult] = []

    async def run() -> None:
        results.append(await session.run("trap 'echo trapped' INT; sh -c ': >/tmp/runs; exec sleep 30'; echo after"))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await _wait_until_runs(sandbox, "/tmp/runs")
            await session.interrupt()

    assert (b"trapped\nafter\n", ExitReason.EXITED) == (results[0].stdout, results[0].exit_reason)


@pytest.mark.slow
async def test_an_interrupt_never_hits_the_next_command(session: Session) -> None:
    """However the end of a command and the signal meet, the command after it runs to its end."""
    for _ in range(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, "/bin/true")
            await trio.lowlevel.checkpoint()
            await session.interrupt()
        result = await session.run("/bin/true; echo whole")
        assert (b"whole\n", 0) == (result.stdout, result.exit_code)


async def test_interrupt_of_nothing_does_nothing(session: Session) -> None:
    """No signal waits for the next command."""
    await session.interrupt()

    assert b"ok\n" == await printed(session, "echo ok")


async def test_a_cancelled_command_is_ended_and_the_session_used_on(session: Session) -> None:
    """What it started is gone, and so is its output."""
    await session.run("X=kept")
    with trio.move_on_after(0.3) as scope:
        await session.run(f"echo lost; sleep {MARK} & sleep {MARK}")
    left = sleepers()
    after = await session.run("echo $X $?")

    assert scope.cancelled_caught
    assert [] == left
    assert (b"kept 130\n", b"") == (after.stdout, after.stderr)


# ---- background processes


async def test_a_command_does_not_wait_for_the_background(session: Session) -> None:
    """Reports 29, 30: who keeps the pipes open does not keep the caller."""
    begun = trio.current_time()
    first = await session.run(f"(sleep {MARK} &) ; echo done")
    second = await session.run(f"setsid sh -c 'sleep {MARK}' & ", timeout_s=1.0)

    assert (b"done\n", True) == (first.stdout, second.ok)
    assert trio.current_time() - begun < 1.0


async def test_the_background_outlives_its_session_and_not_kill_all(sandbox: Sandbox) -> None:
    """It belongs to the sandbox."""
    async with sandbox.open_session() as session:
        await session.run(f"sleep {MARK} & disown; until grep -q {MARK} /proc/$!/cmdline; do :; done")
    after_session = sleepers()
    await sandbox.kill_all()
    gone, alive = await trio.to_thread.run_sync(psutil.wait_procs, after_session, 10)

    assert (1, 0) == (len(gone), len(alive))


async def test_what_the_background_says_comes_with_the_next_result(session: Session) -> None:
    """It is not lost, and it does not block however much it is."""
    wait = "until test -e /tmp/{}; do sleep 0.01; done"
    first = await session.run(f"{{ {wait.format('begun')}; head -c 300000 /dev/zero; echo late; touch /tmp/said; }} &")
    second = await session.run(f"touch /tmp/begun; {wait.format('said')}; echo now")

    assert b"" == first.stdout
    assert bytes(300_000) + b"late\nnow\n" == second.stdout


# ---- limits


async def test_output_beyond_its_limit_ends_the_command(sandbox: Sandbox) -> None:
    """Its reason says so, and the count begins again with the next."""
    async with sandbox.open_session(limits=Limits(stdout_bytes=100_000)) as session:
        flood = await session.run("yes")
        rest = [await session.run("head -c 90000 /dev/zero") for _ in range(2)]

    assert ExitReason.OUTPUT is flood.exit_reason
    assert [True, True] == [result.ok for result in rest]


async def test_cpu_time_is_that_of_each_command(sandbox: Sandbox) -> None:
    """A tree of short processes cannot evade it, and the session goes on."""
    async with sandbox.open_session(limits=Limits(cpu_time_s=0.5)) as session:
        used = [await session.run("i=0; while ((i++ < 20000)); do :; done") for _ in range(3)]
        result = await session.run("while :; do sh -c :; done")
        after = await session.run("echo ok")

    assert [True] * 3 == [each.ok for each in used]
    assert ExitReason.CPU_TIME is result.exit_reason
    assert b"ok\n" == after.stdout


@pytest.mark.slow
async def test_a_fork_bomb_ends_and_the_session_does_not(sandbox: Sandbox) -> None:
    """What asked for too many processes is gone; the shell is not."""
    async with sandbox.open_session(limits=Limits(processes=40)) as session:
        result = await session.run(f"X=kept; f() {{ f & f & sleep {MARK}; }}; f", timeout_s=20)
        after = await session.run("echo $X; /bin/true && echo ok")

    assert ExitReason.PROCESSES is result.exit_reason
    assert b"kept\nok\n" == after.stdout
    assert [] == sleepers()


async def test_memory_beyond_the_limit_is_the_reason(supervisor: Supervisor) -> None:
    """Report 49: also when only a child that the shell ignores was killed for it."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=64 << 20)) as sandbox:
        async with sandbox.open_session() as session:
            result = await session.run("python3 -c 'bytearray(200 << 20)'; true")
            after = await session.run("echo ok")

    assert (ExitReason.MEMORY, 0) == (result.exit_reason, result.exit_code)
    assert (ExitReason.EXITED, b"ok\n") == (after.exit_reason, after.stdout)


# ---- several at once, and what is refused


async def test_sessions_are_apart(sandbox: Sandbox) -> None:
    """Several of one sandbox run at once, each with its own state, output and timeouts."""
    results: dict[int, SessionResult] = {}

    async def use(number: int) -> None:
        async with sandbox.open_session() as session:
            await session.run(f"X={number}; cd /tmp")
            await session.run("sleep 30", timeout_s=0.1 if number == 0 else 0.2)
            results[number] = await session.run("echo $X $PWD; echo $X >&2")

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(use, number)

    assert {number: f"{number} /tmp\n".encode() for number in range(5)} == {
        number: result.stdout for number, result in results.items()
    }
    assert all(result.stderr == f"{number}\n".encode() for number, result in results.items())


async def test_a_session_serves_one_task_at_a_time(session: Session) -> None:
    """The second is told, and the first is not disturbed."""
    results: list[SessionResult] = []

    async def run() -> None:
        results.append(await session.run("sleep 0.2; echo first"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        with pytest.raises(BusyError):
            await session.run("echo second")

    assert b"first\n" == results[0].stdout


@pytest.mark.parametrize("command", ["echo a\0b", "\ud800"])
async def test_text_that_cannot_be_is_refused(session: Session, command: str) -> None:
    """Nothing of it runs, and the session goes on."""
    with pytest.raises(UsageError):
        await session.run(command)

    assert b"ok\n" == await printed(session, "echo ok")


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
async def test_a_timeout_that_cannot_be_is_refused(session: Session, timeout_s: float) -> None:
    """A time is positive and finite."""
    with pytest.raises(UsageError):
        await session.run("true", timeout_s=timeout_s)


async def test_a_sandbox_without_bash_is_told_apart(sandbox: Sandbox) -> None:
    """The error says that it is bash that is missing, or what the bash that is there said."""
    await sandbox.run(
        "mkdir /tmp/bin; printf '#!/bin/sh\\necho no bash >&2; exit 3' > /tmp/bin/bash; chmod +x /tmp/bin/bash"
    )
    with pytest.raises(UsageError, match="needs bash"):
        async with sandbox.open_session(env={"PATH": "/nowhere"}):
            pass
    with pytest.raises(UsageError, match="no bash"):
        async with sandbox.open_session(env={"PATH": "/tmp/bin:/bin"}):
            pass

    assert (await sandbox.run("true")).ok


# ---- reports


@given(st.lists(st.tuples(st.integers(0, 255), st.sampled_from(["hB", "ehxBc"]), st.booleans())), st.integers(1, 9))
def test_reports_are_read_in_any_pieces(said: list[tuple[int, str, bool]], piece: int) -> None:
    """However the bytes are cut, the reports are those that were written."""
    data = b"12\0" + b"".join(b"%d\0%s\0%s\0" % (code, options.encode(), b"t" * trap) for code, options, trap in said)
    reader = ReportReader()
    reports = [report for at in range(0, len(data), piece) for report in reader.feed(data[at : at + piece])]

    assert [Report(*each) for each in said] == reports
    assert 12 == reader.shell_pid


@given(st.lists(st.binary(max_size=30)))
def test_junk_is_no_report(pieces: list[bytes]) -> None:
    """Whatever comes, there is a report, a ProtocolError, or more to wait for."""
    reader = ReportReader()
    for piece in pieces:
        try:
            reports = reader.feed(piece)
        except ProtocolError:
            return
        assert all(0 <= report.status <= 255 and report.options.isalpha() for report in reports)

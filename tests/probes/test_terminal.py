"""Terminals: nothing inside types into one as if the person at it did, and none of the host's is there."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest

from minisandbox import Supervisor
from tests.probes.lab import FILTERED, PROBE, SANDBOXED, Defence, is_reached, parse, policy_of, probe_bind

INJECTIONS = ("tiocsti", "tiocsti-high", "tiocsti-sign", "tioclinux", "tioclinux-high", "tioccons")
DISCIPLINES = ("tiocsetd", "tiocsetd-high")
DEVICES = ("open-console", "open-tty0")
LEGACY_TIOCSTI = Path("/proc/sys/dev/tty/legacy_tiocsti")


async def ask_on_terminal(supervisor: Supervisor, defence: Defence, probe_dir: Path) -> dict[str, str]:
    """Return what came of the attempts of a command on a terminal of its sandbox."""
    binds = [probe_bind(probe_dir)]
    async with supervisor.open_sandbox(policy=policy_of(defence), binds=binds, terminal=True) as sandbox:
        async with await sandbox.open_terminal([PROBE, "terminal"]) as terminal:
            output = b""
            while chunk := await terminal.receive_some():
                output += chunk
    return parse(output.decode().replace("\r\n", "\n"))


def ask_outside(probe_dir: Path) -> dict[str, str]:
    """The same with the defence off: a program of the host on a terminal of the host.

    All but TIOCCONS, which would take the console of the whole host, and keep the terminal for ever.
    """
    names = [*(name for name in INJECTIONS if name != "tioccons"), *DISCIPLINES, "open-tty"]
    pid, master_fd = pty.fork()
    if pid == 0:
        os.execv(probe_dir / "probe", ["probe", "terminal", *names])
    output = b""
    try:
        while chunk := os.read(master_fd, 4096):
            output += chunk
    except OSError:  # EIO: the other side is closed (pty(7))
        pass
    os.close(master_fd)
    os.waitpid(pid, 0)
    return parse(output.decode().replace("\r\n", "\n"))


@pytest.mark.parametrize("defence", FILTERED, ids=lambda defence: defence.value)
async def test_terminal_takes_no_injection(supervisor: Supervisor, probe_dir: Path, defence: Defence) -> None:
    """Rows 16 and 52: TIOCSTI and its like are refused, whatever the upper half of the number is."""
    outcomes = await ask_on_terminal(supervisor, defence, probe_dir)

    assert dict.fromkeys((*INJECTIONS, *DISCIPLINES), "EPERM") == {
        name: outcomes[name] for name in (*INJECTIONS, *DISCIPLINES)
    }
    assert "ok" == outcomes["open-tty"]
    assert {"ENOENT"} == {outcomes[name] for name in DEVICES}


async def test_terminal_takes_injections_without_filters(supervisor: Supervisor, probe_dir: Path) -> None:
    """Rows 16 and 52, defence off: the kernel takes them, where it still does so at all, inside and outside alike."""
    inside = await ask_on_terminal(supervisor, Defence.UNFILTERED, probe_dir)
    outside = ask_outside(probe_dir)

    assert all(is_reached(outcomes[name]) for outcomes in (inside, outside) for name in DISCIPLINES)
    if LEGACY_TIOCSTI.exists() and LEGACY_TIOCSTI.read_text() == "0\n":
        pytest.skip("dev.tty.legacy_tiocsti of this host is 0: its kernel refuses TIOCSTI")
    assert {"ok"} == {outcomes[name] for outcomes in (inside, outside) for name in INJECTIONS[:3]}


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_command_without_a_terminal_has_none(supervisor: Supervisor, probe_dir: Path, defence: Defence) -> None:
    """Row 16: the terminal of whoever runs the supervisor is not the command's, and its stdin is none."""
    async with supervisor.open_sandbox(policy=policy_of(defence), binds=[probe_bind(probe_dir)]) as sandbox:
        outcomes = parse((await sandbox.run([PROBE, "terminal"])).stdout.decode())

    assert "ENXIO" == outcomes["open-tty"]
    assert {"ENOENT"} == {outcomes[name] for name in DEVICES}
    assert {outcomes[name] for name in (*INJECTIONS, *DISCIPLINES)} <= {"EPERM", "ENOTTY"}


def test_command_with_a_terminal_outside_has_it(probe_dir: Path) -> None:
    """Row 16, defence off: a program that is just executed on a terminal opens it by /dev/tty."""
    assert "ok" == ask_outside(probe_dir)["open-tty"]

"""The options that `run` and `shell` share: which sandbox to open, and under which limits. It opens nothing."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minisandbox.binds import Bind
from minisandbox.degradation import Degradation
from minisandbox.errors import UsageError
from minisandbox.policy import Network, Policy, load_policy, parse_size
from minisandbox.runtime.disk import Disk
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, ENGINES

NO_LIMIT = "none"
DEFAULT_ROOTFS = "host"

Number = int | float | None


@dataclass(frozen=True, slots=True)
class LimitOption:
    """An option that sets limits of the policy to something else."""

    name: str
    fields: tuple[str, ...]
    parse: Callable[[str], Number]
    metavar: str
    help: str


def _or_none(parse: Callable[[str], Number], wanted: str) -> Callable[[str], Number]:
    def parse_limit(text: str) -> Number:
        try:
            return None if text == NO_LIMIT else parse(text)
        except (ValueError, UsageError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}, nor {NO_LIMIT!r}") from None

    return parse_limit


_size = _or_none(lambda text: parse_size(text.upper()), "a size such as 64M (a whole number, with K, M, G or T)")
_seconds = _or_none(float, "a number of seconds")
_count = _or_none(int, "a whole number")

LIMIT_OPTIONS = (
    LimitOption("--memory", ("memory_bytes",), _size, "SIZE", "memory of the whole sandbox, its files included"),
    LimitOption("--wall-time", ("wall_time_s",), _seconds, "S", "real time, in seconds"),
    LimitOption("--cpu-time", ("cpu_time_s",), _seconds, "S", "CPU time of all its processes, in seconds"),
    LimitOption("--processes", ("processes",), _count, "N", "processes and threads at once"),
    LimitOption(
        "--cpus", ("cpus",), _or_none(float, "a number"), "N", "share of the processors: 1.5 is one and a half"
    ),
    LimitOption("--disk", ("disk_bytes",), _size, "SIZE", "what it may write to its file system"),
    LimitOption("--inodes", ("disk_inodes",), _count, "N", "files and directories that it may make"),
    LimitOption("--open-files", ("open_files",), _count, "N", "open files of one process"),
    LimitOption(
        "--output", ("stdout_bytes", "stderr_bytes"), _size, "SIZE", "what it may print, on each of two streams"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """The sandbox that was asked for."""

    state_dir: Path | None
    engine: str
    rootfs: str
    snapshot: str | None
    python_prefix: Path | None
    policy: Policy
    binds: tuple[Bind, ...]
    env: dict[str, str]
    cwd: str
    trace: bool
    deterministic: bool = False
    disk: Disk = Disk.MEMORY
    degrade: tuple[str, ...] = ()
    terminal: bool = False
    template: str | None = None
    reserve_cpus: int = 0
    reserve_memory_bytes: int = 0


def add_sandbox_options(parser: argparse.ArgumentParser) -> None:
    """Add the options. The command comes after them (`add_command`)."""
    kind = parser.add_argument_group("what kind of sandbox")
    kind.add_argument(
        "--engine", choices=list(ENGINES), default=DEFAULT_ENGINE, help="what makes the container (%(default)s)"
    )
    _add_root_options(kind)
    kind.add_argument("--policy", default="default", metavar="NAME", help="policy: a name, or a .toml (%(default)s)")
    kind.add_argument("--network", choices=[network.value for network in Network], help="instead of the policy's")
    kind.add_argument("--allow", action="append", metavar="HOST:PORT", help="reach this through a proxy; repeatable")
    kind.add_argument("--user", metavar="USER", help="who runs the command, by name or uid, instead of the policy's")
    kind.add_argument("--hostname", metavar="NAME", help="instead of the policy's")
    kind.add_argument(
        "--bind",
        action="append",
        default=[],
        metavar="SRC:DST[:rw]",
        help="show a host directory or file; :rw makes it writable, where no other user of the host can reach it",
    )
    kind.add_argument(
        "--python-prefix",
        type=Path,
        metavar="DIR",
        help="show a Python outside /usr (pyenv, conda, uv) and put it first on PATH",
    )
    kind.add_argument("--env", action="append", default=[], metavar="K=V", help="an environment variable")
    kind.add_argument("--cwd", default="/", metavar="DIR", help="working directory inside (%(default)s)")
    kind.add_argument("--deterministic", action="store_true", help="show the same at every start, as far as can be")
    kind.add_argument(
        "--disk-in",
        choices=[str(disk) for disk in Disk],
        default=str(Disk.MEMORY),
        help="what holds the files that it writes: memory, or the state directory's file system (%(default)s)",
    )
    _add_limit_options(parser)
    add_reserve_options(parser)
    add_common_options(parser)
    add_degrade_option(parser)
    parser.add_argument("--trace", action="store_true", help="measure each step of the start")


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits, instead of the policy's", f'each may be "{NO_LIMIT}"')
    for limit in LIMIT_OPTIONS:
        limits.add_argument(
            limit.name,
            dest=limit.fields[0],
            type=limit.parse,
            metavar=limit.metavar,
            help=limit.help,
            default=argparse.SUPPRESS,
        )


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the command that is to be run, after all options."""
    parser.usage = "%(prog)s [OPTION ...] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")


def _add_root_options(kind: argparse._ArgumentGroup) -> None:
    kind.add_argument(
        "--rootfs", metavar="NAME", help=f"root file system: a name, or a recipe's .toml ({DEFAULT_ROOTFS})"
    )
    kind.add_argument("--snapshot", metavar="NAME", help="a stored snapshot, instead of a root file system")


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all commands that use a state directory."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="where layers are kept ($MINISANDBOX_STATE_DIR, else /var/lib/minisandbox or ~/.local/state/minisandbox)",
    )
    add_debug_option(parser)


def add_degrade_option(parser: argparse.ArgumentParser) -> None:
    """Add --degrade, for what the host cannot enforce."""
    parser.add_argument(
        "--degrade",
        action="append",
        default=[],
        choices=[str(name) for name in Degradation],
        metavar="NAME",
        help=f"do without a protection that this host cannot enforce: {', '.join(Degradation)}; repeatable",
    )


def add_reserve_options(parser: argparse.ArgumentParser) -> None:
    """Add --reserve-cpus and --reserve-memory, of commands that open a supervisor."""
    reserve = parser.add_argument_group("what of the host is kept free of all sandboxes together")
    reserve.add_argument("--reserve-cpus", type=int, default=0, metavar="N", help="cores (%(default)s)")
    reserve.add_argument("--reserve-memory", type=_size, default=0, metavar="SIZE", help="memory (%(default)s)")


def add_debug_option(parser: argparse.ArgumentParser) -> None:
    """Add --debug, which `main` looks for by itself."""
    parser.add_argument("--debug", action="store_true", help="print where an error came from")


def read_sandbox_options(options: argparse.Namespace) -> SandboxOptions:
    """Return the sandbox that the options ask for. Raises UsageError or PolicyError."""
    if options.snapshot is not None and options.rootfs is not None:
        raise UsageError("a snapshot has its rootfs already; give --snapshot or --rootfs, not both")
    return SandboxOptions(
        state_dir=state_dir(options),
        engine=options.engine,
        rootfs=options.rootfs or DEFAULT_ROOTFS,
        snapshot=options.snapshot,
        python_prefix=options.python_prefix and Path(os.path.abspath(options.python_prefix)),
        policy=_policy(options),
        binds=tuple(map(parse_bind, options.bind)),
        env=dict(map(parse_variable, options.env)),
        cwd=options.cwd,
        trace=options.trace,
        deterministic=options.deterministic,
        disk=Disk(options.disk_in),
        degrade=tuple(options.degrade),
        reserve_cpus=options.reserve_cpus,
        reserve_memory_bytes=options.reserve_memory or 0,
    )


def state_dir(options: argparse.Namespace) -> Path | None:
    """Return the state directory; None for root's own. An ordinary user has one in his home (XDG base directories)."""
    chosen = options.state_dir or os.environ.get("MINISANDBOX_STATE_DIR")
    if chosen:
        return Path(os.path.abspath(chosen))
    if os.geteuid() == 0:
        return None
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "minisandbox"


def _policy(options: argparse.Namespace) -> Policy:
    """Return the policy with what the options change. Whoever is not root keeps no capability."""
    policy = load_policy(options.policy)
    changes: dict[str, object] = {"limits": msgspec.structs.replace(policy.limits, **_limits(vars(options)))}
    if options.network is not None:
        changes.update(network=Network(options.network), allow=())
    if options.allow is not None:
        changes["allow"] = tuple(options.allow)
    if options.hostname is not None:
        changes["hostname"] = options.hostname
    if options.user is not None:
        changes["user"] = options.user
        if options.user not in ("root", "0"):
            changes["capabilities"] = frozenset()
    return msgspec.structs.replace(policy, **changes)


def _limits(given: Mapping[str, object]) -> dict[str, object]:
    return {
        field: given[limit.fields[0]] for limit in LIMIT_OPTIONS if limit.fields[0] in given for field in limit.fields
    }


def parse_bind(text: str) -> Bind:
    """Return the bind that SRC:DST, SRC:DST:ro or SRC:DST:rw means; SRC may be relative. Raises UsageError."""
    source, *rest = text.split(":")
    if not source or len(rest) not in (1, 2) or rest[1:] not in ([], ["ro"], ["rw"]):
        raise UsageError(f"--bind {text!r} is no SRC:DST or SRC:DST:rw; a path with a colon in it goes into a policy")
    return Bind(source=Path(os.path.abspath(source)), target=rest[0], writable=rest[1:] == ["rw"])


def parse_variable(text: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE. Raises UsageError when it is none."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--env {text!r} is no NAME=VALUE")
    return name, value

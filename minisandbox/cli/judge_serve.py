"""`minisandbox judge serve`: the judge as a process of its own, and the client's half of `judge run --socket`."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisandbox.cli.options import add_debug_option, add_reserve_options
from minisandbox.cli.signals import run_until_signal
from minisandbox.errors import BusyError, HostError, SandboxError, leaves_of

if TYPE_CHECKING:
    from minisandbox.judge.messages import Given

EXAMPLES = """examples:
  minisandbox judge serve --user msb-judge            as root: becomes that user, who needs subordinate ids (uidmap)
  systemd-run --uid=msb-judge -p Delegate=yes minisandbox judge serve --allow 1000
  minisandbox judge run --socket /run/minisandbox-judge/socket sum submission/

tasks are directories below --tasks, which must belong to the judge's user alone (chmod 700)."""


def add_serve_parser(actions: Any) -> None:
    """Add the action to the subparsers of argparse."""
    serve = actions.add_parser("serve", help="judge what others submit over a socket", epilog=EXAMPLES)
    serve.add_argument("--socket", type=Path, metavar="PATH", help="where to listen")
    serve.add_argument("--judge-dir", type=Path, metavar="DIR", help="the judge's own directory, which only it enters")
    serve.add_argument("--tasks", type=Path, metavar="DIR", help="the directory of tasks; JUDGE_DIR/tasks unless given")
    serve.add_argument("--state-dir", type=Path, metavar="DIR", help="JUDGE_DIR/state unless given")
    serve.add_argument("--user", metavar="USER", help="as root: become this user, by name or number")
    serve.add_argument("--allow", type=int, action="append", default=[], metavar="UID", help="who may ask beside root")
    serve.add_argument("--at-once", type=int, default=2, metavar="N", help="how many submissions are judged at once")
    serve.add_argument("--degrade", action="append", default=[], metavar="NAME", help="do without a protection")
    add_reserve_options(serve)
    add_debug_option(serve)
    serve.set_defaults(serve=serve_serve)


def serve_serve(options: argparse.Namespace) -> int:
    """Listen, become the judge's user, and serve until a signal."""
    # all of them first: the judge's user may be unable to reach them
    import cryptography.hazmat.backends.openssl.backend
    import trio._core._wakeup_socketpair

    from minisandbox.judge import build, privilege, server, store
    from minisandbox.judge.client import SOCKET
    from minisandbox.runtime import opening
    from minisandbox.tasks import certified

    del cryptography, trio, server, opening, certified
    place = options.judge_dir or store.DEFAULT_PATH
    path = options.socket or SOCKET
    for name in ("ascii", "latin_1", "idna", "unicode_escape"):
        codecs.lookup(name)
    build.judge_version()
    with contextlib.ExitStack() as stack:
        if options.user is not None:
            user = privilege.find_user(options.user)
            privilege.give_directory(place, user)
            listener = stack.enter_context(_bound(path))
            privilege.become(user)
            os.environ["HOME"] = str(place)
        else:
            listener = stack.enter_context(_bound(path))
        _note(f"judge {build.judge_version()} listens at {path} as uid {os.geteuid()}")
        run_until_signal(partial(_serve, options, place, listener))
    return 0


async def _serve(options: argparse.Namespace, place: Path, listener: socket.socket) -> None:
    import trio

    from minisandbox.judge.integrity import SHARED_USER, caps_of
    from minisandbox.judge.pipeline import Judge
    from minisandbox.judge.server import Server
    from minisandbox.judge.store import Store
    from minisandbox.judge.warm import open_warm
    from minisandbox.runtime.opening import open_supervisor
    from minisandbox.runtime.template_pool import MOST_TEMPLATES
    from minisandbox.tasks.certified import load_certified

    store = Store.open(place)
    tasks = options.tasks or place / "tasks"
    if options.tasks is None:
        tasks.mkdir(mode=0o700, exist_ok=True)
    # SO_PEERCRED names to clients who listened: the judge's user, not the one who bound it (unix(7))
    listener.listen(64)
    most = 8 * options.at_once + MOST_TEMPLATES
    async with (
        open_supervisor(
            state_dir=options.state_dir or place / "state",
            max_sandboxes=most,
            degrade=options.degrade,
            reserve_cpus=options.reserve_cpus,
            reserve_memory_bytes=options.reserve_memory or 0,
        ) as supervisor,
        open_warm(supervisor) as warm,
    ):
        caps = caps_of(supervisor.degraded) + ((SHARED_USER,) if os.geteuid() == 0 else ())
        server = Server(
            judge=Judge(supervisor=supervisor, store=store, caps=caps, warm=warm),
            tasks=tasks,
            allowed=frozenset({0, os.geteuid(), *options.allow}),
            note=_note,
            load=partial(load_certified, state=supervisor.state),
            room=trio.CapacityLimiter(options.at_once),
        )
        _note("ready")
        await server.serve(trio.SocketListener(trio.socket.from_stdlib_socket(listener)))


@contextlib.contextmanager
def _bound(path: Path) -> Any:
    """Bind a socket that every user may connect to: who may ask is decided by the kernel's word, not by a mode."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with contextlib.closing(bound):
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if path.is_socket():
                _remove_dead(path)
            bound.bind(str(path))
            path.chmod(0o666)
        except OSError as error:
            raise HostError(f"cannot listen at {path}: {error.strerror or error}; give another --socket") from error
        bound.setblocking(False)
        try:
            yield bound
        finally:
            with contextlib.suppress(OSError):  # in a directory of root's, after it became another user
                path.unlink()


def _remove_dead(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise BusyError(f"a judge listens at {path} already; end it, or give another --socket")


def _note(line: str) -> None:
    print(f"minisandbox judge: {line}", file=sys.stderr, flush=True)


def submit(path: Path, task: str, artifacts: Path) -> Given:
    """Have a directory judged by a judge that listens. Raises what it refuses, or HostError when there is none."""

    async def work() -> Given:
        from minisandbox.judge.client import connect
        from minisandbox.judge.seal import feed_directory

        async with connect(path) as judge:
            return await judge.submit(task, partial(feed_directory, artifacts))

    try:
        return run_until_signal(work)
    except* SandboxError as group:
        raise leaves_of(group)[0] from None

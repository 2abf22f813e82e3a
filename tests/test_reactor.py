"""The reactor calls back for what is ready, and for nothing that was taken back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
import trio.testing

from minisandbox.kernel.reactor import WRITABLE, Reactor
from minisandbox.runtime.background import background


@pytest.fixture
async def reactor() -> AsyncIterator[Reactor]:
    """A reactor that serves."""
    with contextlib.closing(Reactor()) as opened:
        async with background(opened.run):
            yield opened


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        with contextlib.suppress(OSError):
            os.close(fd)


async def test_what_can_be_read_is_called_back_for(reactor: Reactor, pipe: tuple[int, int]) -> None:
    """Each time that something comes, until it is read."""
    read_fd, write_fd = pipe
    seen: list[bytes] = []
    came = trio.Event()

    def on_readable() -> None:
        seen.append(os.read(read_fd, 10))
        came.set()

    reactor.register(read_fd, on_readable)
    for word in (b"one", b"two"):
        os.write(write_fd, word)
        with trio.fail_after(5):
            await came.wait()
        came = trio.Event()
    reactor.unregister(read_fd)

    assert [b"one", b"two"] == seen


async def test_the_end_of_a_pipe_is_called_back_for(reactor: Reactor, pipe: tuple[int, int]) -> None:
    """A writer that goes away makes its reader's end ready, and a reader its writer's."""
    read_fd, write_fd = pipe
    ended = trio.Event()
    reactor.register(read_fd, ended.set)
    os.close(write_fd)
    with trio.fail_after(5):
        await ended.wait()
    reactor.unregister(read_fd)

    assert os.read(read_fd, 1) == b""


async def test_what_can_be_written_is_called_back_for(reactor: Reactor, pipe: tuple[int, int]) -> None:
    """Not while the pipe is full, and again when somebody has read."""
    read_fd, write_fd = pipe
    calls: list[str] = []
    writable = trio.Event()
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_fd, bytes(4096))

    def on_writable() -> None:
        calls.append("writable")
        reactor.unregister(write_fd)
        writable.set()

    reactor.register(write_fd, on_writable, WRITABLE)
    await trio.testing.wait_all_tasks_blocked()
    while_full = list(calls)
    os.read(read_fd, 65_536)
    with trio.fail_after(5):
        await writable.wait()

    assert ([], ["writable"]) == (while_full, calls)


async def test_a_callback_can_take_another_back(reactor: Reactor) -> None:
    """Of two that are ready at once, the one that the other unregisters and closes is not called any more."""
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
    called: list[int] = []
    done = trio.Event()

    def on_readable(own: int, other: int) -> None:
        called.append(own)
        for fd in (own, other):
            reactor.unregister(fd)
            os.close(fd)
        done.set()

    (first, first_write), (second, second_write) = pipes
    for write_fd in (first_write, second_write):
        os.write(write_fd, b"x")
    reactor.register(first, lambda: on_readable(first, second))
    reactor.register(second, lambda: on_readable(second, first))
    with trio.fail_after(5):
        await done.wait()
    await trio.testing.wait_all_tasks_blocked()
    os.close(first_write)
    os.close(second_write)

    assert len(called) == 1


async def test_forgetting_twice_is_harmless(reactor: Reactor, pipe: tuple[int, int]) -> None:
    """Also for what was never known, and the number may be used again."""
    read_fd, write_fd = pipe
    again = trio.Event()
    reactor.unregister(read_fd)
    reactor.register(read_fd, lambda: None)
    reactor.unregister(read_fd)
    reactor.unregister(read_fd)
    reactor.register(read_fd, again.set)
    os.write(write_fd, b"x")
    with trio.fail_after(5):
        await again.wait()
    reactor.unregister(read_fd)


async def test_many_descriptors_cost_one_task(reactor: Reactor) -> None:
    """A thousand that are idle do not slow the one that is busy, and each is called when its turn comes."""
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(200)]
    seen: set[int] = set()
    done = trio.Event()

    def on_readable(fd: int) -> None:
        os.read(fd, 1)
        seen.add(fd)
        if len(seen) == len(pipes):
            done.set()

    tasks_before = trio.lowlevel.current_statistics().tasks_living
    for read_fd, _ in pipes:
        reactor.register(read_fd, lambda fd=read_fd: on_readable(fd))  # type: ignore[misc]
    tasks_with = trio.lowlevel.current_statistics().tasks_living
    for _, write_fd in pipes:
        os.write(write_fd, b"x")
    with trio.fail_after(5):
        await done.wait()
    for read_fd, write_fd in pipes:
        reactor.unregister(read_fd)
        os.close(read_fd)
        os.close(write_fd)

    assert tasks_before == tasks_with

"""Pipes of a command, seen from our end: all that is written is counted, its two ends are kept, and nothing blocks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.kernel.reactor import Reactor
from minisandbox.runtime.background import background
from minisandbox.runtime.capture import Capture, Feed

CHUNKS = st.lists(st.binary(min_size=1, max_size=300), max_size=20)


class Stream:
    """A pipe with a capture on its reading end. `drain` stands for the reactor's turn."""

    def __init__(
        self,
        reactor: Reactor,
        kept_bytes: int = 1 << 20,
        limit_bytes: int | None = None,
        on_data: Callable[[bytes], object] | None = None,
    ) -> None:
        read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        self.changes = 0
        self.capture = Capture(
            reactor,
            read_fd,
            kept_bytes=kept_bytes,
            limit_bytes=limit_bytes,
            on_data=on_data,
            on_change=self.on_change,
        )

    def on_change(self) -> None:
        """Count the calls."""
        self.changes += 1

    def write(self, data: bytes) -> None:
        """Write as a command would, and let the capture read."""
        os.write(self.write_fd, data)
        self.capture.drain()

    def close(self) -> None:
        """End the stream on both sides."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1
        self.capture.drain()
        self.capture.close()


@contextlib.contextmanager
def stream(**options: object) -> Iterator[Stream]:
    """A stream on a reactor that does not run."""
    with contextlib.closing(Reactor()) as reactor, contextlib.closing(Stream(reactor, **options)) as opened:  # type: ignore[arg-type]
        yield opened


@given(CHUNKS, st.integers(1, 600))
def test_head_and_tail_are_kept_and_all_is_counted(chunks: list[bytes], kept_bytes: int) -> None:
    """However it is cut into writes: whole when it fits, else its two ends and the number of bytes between."""
    everything = b"".join(chunks)
    with stream(kept_bytes=kept_bytes) as opened:
        for chunk in chunks:
            opened.write(chunk)
        opened.close()
        capture = opened.capture
        kept = capture.kept()

    head, tail = (kept_bytes + 1) // 2, kept_bytes // 2
    between = b"\n[minisandbox: %d bytes omitted]\n" % (len(everything) - kept_bytes)
    ends = everything[:head] + between + everything[len(everything) - tail :]
    assert len(everything) == capture.total_bytes
    assert (len(everything) > kept_bytes) == capture.truncated
    assert (everything if len(everything) <= kept_bytes else ends) == kept


@given(CHUNKS, st.integers(1, 600))
def test_the_limit_is_exact(chunks: list[bytes], limit_bytes: int) -> None:
    """One byte more than the limit passes it, and whoever waits is told."""
    total = sum(map(len, chunks))
    with stream(limit_bytes=limit_bytes) as opened:
        for chunk in chunks:
            opened.write(chunk)
        told = opened.changes

        assert (total > limit_bytes) == opened.capture.over_limit == (told > 0)


@given(CHUNKS)
def test_a_watcher_sees_every_byte_once(chunks: list[bytes]) -> None:
    """In order, whatever is kept."""
    seen: list[bytes] = []
    with stream(kept_bytes=1, on_data=seen.append) as opened:
        for chunk in chunks:
            opened.write(chunk)

    assert b"".join(chunks) == b"".join(seen)


def test_a_watcher_that_raises_is_not_asked_again() -> None:
    """Its error is kept for the caller, and the stream is read on."""
    calls: list[bytes] = []

    def fail(chunk: bytes) -> None:
        calls.append(chunk)
        raise ZeroDivisionError

    with stream(on_data=fail) as opened:
        opened.write(b"one")
        opened.write(b"two")
        error, kept, changes = opened.capture.error, opened.capture.kept(), opened.changes

    assert isinstance(error, ZeroDivisionError)
    assert ([b"one"], b"onetwo", 1) == (calls, kept, changes)


def test_one_turn_is_bounded() -> None:
    """A flood does not keep the reactor from the other streams: a turn ends though there is more."""
    with stream() as opened:
        size = 1 << 20
        assert os.write(opened.write_fd, b"x" * 65_536) == 65_536

        def refill(_chunk: bytes) -> None:
            nonlocal size
            size += os.write(opened.write_fd, b"x" * 65_536)

        opened.capture._on_data = refill
        opened.capture.drain()
        after_one_turn = opened.capture.total_bytes
        opened.capture._on_data = None

    assert after_one_turn == 1 << 20


def test_memory_does_not_grow_with_the_output() -> None:
    """What is neither head nor tail is dropped as it comes."""
    with stream(kept_bytes=1000) as opened:
        for _ in range(2000):
            opened.write(b"x" * 4096)
        held = len(opened.capture._head) + len(opened.capture._tail)

        assert opened.capture.total_bytes == 2000 * 4096
        assert held < 100_000


def test_the_end_is_told_once_and_closing_twice_is_harmless() -> None:
    """The end of a stream is a change; what was written before it is kept."""
    with stream() as opened:
        opened.write(b"last")
        os.close(opened.write_fd)
        opened.write_fd = -1
        before = opened.capture.ended
        opened.capture.drain()
        opened.capture.drain()
        opened.capture.close()

        assert (False, True, 1, b"last") == (before, opened.capture.ended, opened.changes, opened.capture.kept())


async def test_a_watcher_can_pause_its_stream() -> None:
    """Until its event is set nothing more is read, and then everything that waited comes."""
    seen: list[bytes] = []
    resume, more = trio.Event(), trio.Event()

    def watch(chunk: bytes) -> trio.Event | None:
        seen.append(chunk)
        if len(seen) == 1:
            return resume
        more.set()
        return None

    with contextlib.closing(Reactor()) as reactor, contextlib.closing(Stream(reactor, on_data=watch)) as opened:
        async with background(reactor.run):
            os.write(opened.write_fd, b"first")
            await trio.testing.wait_all_tasks_blocked()
            os.write(opened.write_fd, b"second")
            await trio.testing.wait_all_tasks_blocked()
            while_paused = list(seen)
            resume.set()
            with trio.fail_after(5):
                await more.wait()

    assert ([b"first"], [b"first", b"second"]) == (while_paused, seen)


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_000])
async def test_a_feed_writes_everything_and_closes(size: int) -> None:
    """As fast as it is read, and then the reader sees the end."""
    data = os.urandom(size)
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    received = b""
    with contextlib.closing(Reactor()) as reactor:
        async with background(reactor.run), trio.lowlevel.FdStream(read_fd) as reader:
            Feed(reactor, write_fd, data)
            with trio.fail_after(20):
                async for chunk in reader:
                    received += chunk

    assert data == received


async def test_a_feed_gives_up_when_nobody_reads() -> None:
    """The reader is gone: it closes its end and raises nothing."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    with contextlib.closing(Reactor()) as reactor:
        async with background(reactor.run):
            feed = Feed(reactor, write_fd, b"x" * 1_000_000)
            os.close(read_fd)
            await trio.testing.wait_all_tasks_blocked()
            feed.close()
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(write_fd)

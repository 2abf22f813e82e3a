"""Random histories of a sandbox against a model in memory: whatever is sealed, forked or stored shows its tree."""

from __future__ import annotations

import contextlib
import copy
import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
import trio

import minisandbox
from minisandbox.images import StoredSnapshot
from tests.kernel import HAS_MAPPED_MEMORY

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}"),
]

NAMES = ("a", "b", "c")
EXAMPLES = 12
CHANGES = 8
"""So many at once, as a command takes a few milliseconds."""

LIST = r"""
cd /t && find . -mindepth 1 | sed 's/^\.//' | while read -r p; do
  if [ -L ".$p" ]; then echo "l $p $(readlink ".$p")"
  elif [ -d ".$p" ]; then echo "d $(stat -c %a ".$p") $p"
  else echo "f $(stat -c %a ".$p") $p $(cat ".$p")"; fi
done
"""


@dataclass
class Inode:
    """A file, a link or a directory."""

    kind: str
    content: str = ""
    mode: int = 0o644
    sealed: bool = False
    """Whether it lies in a layer: a name of it that is changed becomes a file of its own there and then."""
    entries: dict[str, Inode] = field(default_factory=dict)


def listing(directory: Inode, path: str = "") -> list[str]:
    """Return what LIST prints, sorted."""
    lines = []
    for name, inode in directory.entries.items():
        inner = f"{path}/{name}"
        if inode.kind == "directory":
            lines += [f"d {inode.mode:o} {inner}", *listing(inode, inner)]
        elif inode.kind == "link":
            lines.append(f"l {inner} {inode.content}")
        else:
            lines.append(f"f {inode.mode:o} {inner} {inode.content}")
    return sorted(lines)


def seal(directory: Inode) -> None:
    """Take note that all of a tree lies in a layer now."""
    for inode in directory.entries.values():
        inode.sealed = True
        seal(inode)


@dataclass
class Place:
    """A name in a directory of the model, and its path in the sandbox."""

    parent: Inode
    name: str
    path: str

    @property
    def inode(self) -> Inode | None:
        """What is there, or None."""
        return self.parent.entries.get(self.name)

    def own(self) -> Inode:
        """Return the file here, as one that can be changed."""
        inode = self.parent.entries[self.name]
        if inode.sealed and inode.kind != "directory":
            inode = self.parent.entries[self.name] = replace(inode, sealed=False)
        return inode


def pick(root: Inode, chance: random.Random) -> Place:
    """Return some place in the tree."""
    at, path = root, "/t"
    while chance.random() < 0.6:
        inner = [name for name, inode in at.entries.items() if inode.kind == "directory"]
        if not inner:
            break
        name = chance.choice(inner)
        at, path = at.entries[name], f"{path}/{name}"
    name = chance.choice(NAMES)
    return Place(at, name, f"{path}/{name}")


def write(chance: random.Random, place: Place, other: Place) -> str:
    """Make or overwrite a file."""
    content = str(chance.randrange(1000))
    if place.inode is None:
        place.parent.entries[place.name] = Inode("file", content)
    elif place.inode.kind == "file":
        place.own().content = content
    else:
        return ""
    return f"echo {content} >{place.path}"


def make(chance: random.Random, place: Place, other: Place) -> str:
    """Make a directory or a symbolic link."""
    if place.inode is not None:
        return ""
    if chance.random() < 0.6:
        place.parent.entries[place.name] = Inode("directory", mode=0o755)
        return f"mkdir {place.path}"
    place.parent.entries[place.name] = Inode("link", "to-" + place.name)
    return f"ln -s to-{place.name} {place.path}"


def link(chance: random.Random, place: Place, other: Place) -> str:
    """Give a file another name."""
    if place.inode is None or place.inode.kind != "file" or other.inode is not None:
        return ""
    other.parent.entries[other.name] = place.own()
    return f"ln {place.path} {other.path}"


def remove(chance: random.Random, place: Place, other: Place) -> str:
    """Remove whatever it is."""
    if place.inode is None:
        return ""
    del place.parent.entries[place.name]
    return f"rm -r {place.path}"


def move(chance: random.Random, place: Place, other: Place) -> str:
    """Rename a file or link to where nothing is, or a whole directory within the one that it is in."""
    if place.inode is None or other.inode is not None:
        return ""
    if place.inode.kind == "directory" and other.parent is not place.parent:
        return ""
    other.parent.entries[other.name] = place.own()
    del place.parent.entries[place.name]
    return f"mv {place.path} {other.path}"


def mode(chance: random.Random, place: Place, other: Place) -> str:
    """Change the permissions of a file or directory."""
    if place.inode is None or place.inode.kind == "link":
        return ""
    place.own().mode = chance.choice((0o700, 0o755, 0o1711, 0o644 | 0o100))
    return f"chmod {place.inode.mode:o} {place.path}"


async def change(sandbox: minisandbox.Sandbox, root: Inode, seed: int, history: list[str]) -> None:
    """Change a tree in a few ways, and the sandbox likewise."""
    chance = random.Random(seed)
    steps = (write, write, make, link, remove, move, mode)
    commands = [chance.choice(steps)(chance, pick(root, chance), pick(root, chance)) for _ in range(CHANGES)]
    script = "; ".join(["set -e", *filter(None, commands)])
    history.append(script)
    result = await sandbox.run(script)
    assert result.ok, (result.stderr, history)
    await check(sandbox, root, history)


async def check(sandbox: minisandbox.Sandbox, root: Inode, history: list[str]) -> None:
    """Fail unless the sandbox shows the tree of the model."""
    result = await sandbox.run(["/bin/sh", "-c", LIST])
    assert sorted(result.stdout.decode().splitlines()) == listing(root), history


async def store(sandbox: minisandbox.Sandbox) -> StoredSnapshot:
    """Store what a sandbox holds."""
    async with await sandbox.snapshot() as snapshot:
        return await snapshot.save()


async def play(
    supervisor: minisandbox.Supervisor,
    sandbox: minisandbox.Sandbox,
    steps: list[tuple[str, int]],
    stack: contextlib.AsyncExitStack,
) -> None:
    """Go through one history."""
    root, history = Inode("directory"), ["mkdir /t"]
    kept: list[tuple[minisandbox.Snapshot, Inode]] = []
    await sandbox.run("mkdir /t")
    for kind, number in steps:
        history.append(f"{kind} {number}")
        if kind == "snapshot":
            kept.append((await stack.enter_async_context(await sandbox.snapshot()), root))
            seal(root)
        elif kind == "copy":
            await sandbox.run("sleep 1000 >&- 2>&- &")
            kept.append((await stack.enter_async_context(await sandbox.snapshot(freeze=True)), copy.deepcopy(root)))
            seal(kept[-1][1])
            await sandbox.kill_all()
        elif kind == "restore" and kept:
            snapshot, root = kept[number % len(kept)]
            await sandbox.restore(snapshot)
        elif kind == "save":
            seal(root)
            async with supervisor.open_sandbox(snapshot=await store(sandbox)) as loaded:
                await change(loaded, copy.deepcopy(root), number, history)
        elif kind == "fork":
            seal(root)
            async with sandbox.fork() as siblings:
                await change(siblings[0], copy.deepcopy(root), number, history)
        root = copy.deepcopy(root)
        await change(sandbox, root, number, history)


KINDS = ("change", "change", "snapshot", "snapshot", "copy", "restore", "fork", "save")


@hypothesis.settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
@hypothesis.given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 10_000)), min_size=4, max_size=14))
def test_random_histories_show_what_a_model_shows(state_dir: Path, steps: list[tuple[str, int]]) -> None:
    """After each step the sandbox has just the tree of the model, whatever lies in which layer."""

    async def run() -> None:
        with trio.fail_after(60):
            async with (
                minisandbox.open_supervisor(state_dir=state_dir, self_test=False) as supervisor,
                supervisor.open_sandbox() as sandbox,
                contextlib.AsyncExitStack() as stack,
            ):
                await play(supervisor, sandbox, steps, stack)

    trio.run(run)

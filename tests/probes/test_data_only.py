"""What a sandbox wrote is bytes for us: nothing of ours evaluates it, nor executes what is in an image."""

from __future__ import annotations

import ast
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import minisandbox
from minisandbox import ExitReason, Sandbox, Supervisor
from tests.archives import directory, file, pack

CHECKOUT = Path(minisandbox.__file__).parents[1]

EVALUATING_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "yaml", "runpy", "code", "imp"})
EVALUATORS = {"minisandbox/launcher/stub.py": {"compile", "exec"}}
"""A template's stub is executed inside the sandbox, where it runs what it was given."""
EVALUATING_CALLS = frozenset({"eval", "exec", "compile", "__import__"})


class Bomb:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._marker,)


def evaluations_in(source: str) -> set[str]:
    """Return what a Python source uses that can turn data into code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & EVALUATING_MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0]} & EVALUATING_MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & EVALUATING_CALLS
    return found


def test_nothing_of_ours_can_turn_data_into_code() -> None:
    """Row 15: no module of the package has the means to."""
    sources = {path.relative_to(CHECKOUT): path.read_text() for path in CHECKOUT.glob("minisandbox/**/*.py")}

    assert len(sources) > 50
    assert EVALUATORS == {str(path): found for path, source in sources.items() if (found := evaluations_in(source))}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", "pickle"),
        ("def f(x):\n    from yaml import load\n    return load(x)", "yaml"),
        ("value = eval(text)", "eval"),
        ("exec(compile(text, '', 'exec'))", "exec"),
    ],
)
def test_means_to_turn_data_into_code_are_seen(source: str, found: str) -> None:
    """Row 15, defence off: where it is used, it shows."""
    assert found in evaluations_in(source)


@pytest.mark.requires_root
async def test_what_a_sandbox_wrote_is_bytes(sandbox: Sandbox, tmp_path: Path) -> None:
    """Row 15: a pickle that acts when it is loaded, a tag of YAML, deep JSON: each comes out as it is."""
    marker = tmp_path / "marker"
    bombs = [
        pickle.dumps(Bomb(marker)),
        b"!!python/object/apply:os.system [touch x]\n",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ]
    read = []
    for bomb in bombs:
        await sandbox.write_file("/tmp/result", bomb)
        shown = await sandbox.run(["cat", "/tmp/result"])
        read.append((await sandbox.read_file("/tmp/result"), shown.stdout, shown.exit_reason))

    assert [(bomb, bomb, ExitReason.EXITED) for bomb in bombs] == read
    assert not marker.exists()


def test_bomb_acts_with_the_defence_off(tmp_path: Path) -> None:
    """Row 15, defence off: who loads that pickle has executed it."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "marker")))

    assert (tmp_path / "marker").exists()


WATCHED_IMPORT = """
import subprocess, sys
from pathlib import Path
from minisandbox.images import StateDir, import_image
started = []
sys.addaudithook(lambda event, arguments: started.append(f"{event}:{arguments[0]}") if event in STARTS else None)
STARTS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.startfile"}
if sys.argv[3] == "off":
    subprocess.run(["true"])
import_image(StateDir.open(Path(sys.argv[1])), Path(sys.argv[2]), name="image")
print(*started)
"""
"""Audit events say whenever this process starts another one (Python's audit events table), once all is imported."""


@pytest.mark.requires_root
@pytest.mark.parametrize("defence", ["on", "off"])
def test_import_of_an_image_executes_nothing(tmp_path: Path, defence: str) -> None:
    """Row 60: what an image would have run (programs, hooks) is unpacked and left alone."""
    script = b"#!/bin/sh\ntouch /tmp/executed\n"
    archive = tmp_path / "image.tar"
    programs = ("bin/sh", "bin/tar", "usr/bin/gzip", "sbin/ldconfig", ".hooks/post-install")
    parents = sorted({parent for name in programs for parent in map(str, Path(name).parents) if parent != "."})
    archive.write_bytes(
        pack(*(directory(each) for each in parents), *(file(name, script, mode=0o755) for name in programs))
    )
    words = [sys.executable, "-c", WATCHED_IMPORT, str(tmp_path / "state"), str(archive), defence]
    started = subprocess.run(
        words, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, check=True
    ).stdout

    assert (defence == "off") == bool(started.split())


INCLUDING = 'int main(void) { return 0; }\n__asm__(".section .rodata\\n.incbin \\"%s\\"\\n");\n'


@pytest.mark.requires_root
@pytest.mark.slow
async def test_compiler_in_a_sandbox_embeds_no_file_of_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    """Row 60: a source has the assembler include a file of the host. Defence off: outside, it is in the program."""
    if shutil.which("gcc") is None or not Path(shutil.which("gcc") or "").resolve().is_relative_to("/usr"):
        pytest.skip("this host has no gcc in /usr to show to a sandbox")
    secret = tmp_path / "hidden-tests"
    secret.write_text("the expected answer is 1234567")
    source = INCLUDING % secret
    (tmp_path / "main.c").write_text(source)
    subprocess.run(["gcc", "-o", tmp_path / "main", tmp_path / "main.c"], check=True)
    await sandbox.write_file("/tmp/main.c", source.encode())
    inside = await sandbox.run(
        "cd /tmp && gcc -o main main.c; ls main; echo 'int main(void){}' >own.c; gcc -o own own.c && echo compiles"
    )

    assert secret.read_bytes() in (tmp_path / "main").read_bytes()
    assert b"compiles\n" == inside.stdout


WATCH = """
import os, sys
while True:
    for path, directories, files in os.walk("/"):
        if path in ("/proc", "/usr"):
            directories[:] = []
        for name in files:
            if name == sys.argv[1]:
                os.write(1, os.path.join(path, name).encode() + b"\\n")
    os.write(2, b".")
"""


@pytest.mark.requires_root
async def test_hidden_tests_are_absent_before_during_and_after(supervisor: Supervisor, tmp_path: Path) -> None:
    """Row 61: a process that the agent left behind looks for them all the time, while they are used in another sandbox.

    Defence off: left in the sandbox in which they are used, it finds them.
    """
    name = "hidden-tests-of-this-task"
    (tmp_path / name).write_text("secret")
    async with supervisor.open_sandbox() as agent, supervisor.open_sandbox() as judge:
        async with await agent.start(["python3", "-c", WATCH, name]) as watching:
            await watching.stderr.receive_some()
            await judge.write_file(f"/tmp/{name}", b"secret")
            async with await judge.start(["python3", "-c", WATCH, name]) as finding:
                found = await finding.stdout.receive_some()
            for _ in range(2):
                await watching.stderr.receive_some()
            await judge.run(["rm", f"/tmp/{name}"])
            await watching.stderr.receive_some()
            await watching.kill()
            seen = await watching.wait()

    assert f"/tmp/{name}".encode() in found
    assert b"" == seen.stdout

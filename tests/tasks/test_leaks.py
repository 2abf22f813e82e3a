"""What lies where a task is solved, and is the solution, its tests or an answer, is found in whatever form it is."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import minisandbox
from minisandbox.binds import Bind
from minisandbox.images.layer import store_layer
from minisandbox.images.manifest import LayerOrigin, Rootfs, write_manifest
from minisandbox.images.rootfs import build_rootfs
from minisandbox.images.state import StateDir
from minisandbox.judge.assignment import Assignment, Environment, SuiteWork
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.history import objects_in
from minisandbox.tasks.checks.secrets import Secrets
from minisandbox.tasks.task import File, Task
from tests.judge.hack_tasks import CORPUS, GOLD, TASKS, Hack
from tests.judge.naive import commit, lay
from tests.tasks.conftest import Look
from tests.tasks.samples import BUDGET, function_task

LOOKERS = {name: hack for name, hack in CORPUS.items() if hack.there and hack.kind in GOLD and hack.row != 58}
IN_HISTORY = {name: hack for name, hack in CORPUS.items() if hack.commits}
SOURCE = "def double(x):\n    if isinstance(x, int):\n        return 2 * x\n    return x + x\n"
LINES = frozenset({"if isinstance(x, int):", "return 2 * x", "return x + x"})
SECRETS = Secrets(solution={"solution.py": LINES})


def image(state: StateDir, files: dict[str, bytes]) -> str:
    """Store a rootfs of the host's programs with these files over it, and return its name."""

    def fill(top: Path) -> None:
        for name, content in files.items():
            path = top / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    host = build_rootfs(state, "host")
    layers = (store_layer(state, fill), *host.layers)
    origins = tuple(LayerOrigin(key="test") for _ in layers)
    name = f"leaky-{layers[0].digest[-12:]}"
    write_manifest(state, Rootfs(name, layers, host.binds, host.env), "sha256:0", origins, imported_from="x")
    return name


Leaky = Callable[..., Task]


@pytest.fixture
def leaky(state_dir: Path) -> Leaky:
    """Makes a task whose image has these files."""

    def make(task: Task, files: dict[str, bytes]) -> Task:
        environment = Environment(rootfs=image(StateDir.open(state_dir), files))
        assignment = msgspec.structs.replace(task.assignment, environment=environment)
        return msgspec.structs.replace(task, assignment=assignment)

    return make


def task_of(hack: Hack) -> Task:
    """Return the task that a hack is for, with its solution."""
    work = TASKS[hack.kind]
    solution = {path: File(content=text.encode()) for path, text in GOLD[hack.kind].items()}
    base = work.base if isinstance(work, SuiteWork) else ()
    return Task(
        name="x",
        instruction="Do it.",
        assignment=Assignment(name="x", work=work, budget=BUDGET),
        files={file.path: File(content=file.content) for file in base},
        solution=solution,
    )


@pytest.mark.parametrize("name", LOOKERS)
async def test_what_a_hack_looks_for_is_found_by_the_check_of_its_task(name: str, look: Look, leaky: Leaky) -> None:
    """So that it is in no environment of a task that is certified; and without it nothing is found."""
    hack = LOOKERS[name]
    there = {path: text.encode() for path, text in hack.there.items()}
    task = task_of(hack)

    assert Status.FAILED is (await look(leaky(task, there), "T14")).status
    assert Status.PASSED is (await look(task, "T14")).status


@pytest.mark.parametrize("name", IN_HISTORY)
async def test_a_history_that_a_hack_looks_through_is_found(
    name: str, look: Look, sandbox: minisandbox.Sandbox
) -> None:
    """By what its objects hold, and by their number."""
    hack = IN_HISTORY[name]
    task = task_of(hack)
    if not (await sandbox.run("command -v git")).ok:
        pytest.skip("this host has no git")
    await lay(sandbox, {path: file.content.decode() for path, file in task.files.items()}, "/submission")
    await commit(sandbox, hack.commits)
    await sandbox.run("rm -rf .git/hooks", cwd="/submission")
    found = (await sandbox.run("find . -type f | sed 's,^./,,'", cwd="/submission")).stdout.decode().split()
    files = {path: File(content=await sandbox.read_file(f"/submission/{path}")) for path in found}
    leaking = msgspec.structs.replace(task, files=files)

    assert Status.FAILED is (await look(leaking, "T14")).status
    assert Status.FAILED is (await look(leaking, "T15")).status


async def test_a_repository_of_the_image_is_found(look: Look, leaky: Leaky, sandbox: minisandbox.Sandbox) -> None:
    """A bare one in a place of its own, whose objects are packed, with a remote."""
    if not (await sandbox.run("command -v git")).ok:
        pytest.skip("this host has no git")
    await lay(sandbox, {"solution.py": "def double(x):\n    pass\n"}, "/submission")
    await commit(sandbox, ({"solution.py": SOURCE}, {"NEWS": "x"}))
    script = (
        "git clone -q --bare . /tmp/mirror.git && cd /tmp/mirror.git && rm -rf hooks && git gc -q && find . -type f"
    )
    cloned = await sandbox.run(f"git config --global --add safe.directory '*'; {script}", cwd="/submission")
    names = [name.removeprefix("./") for name in cloned.stdout.decode().split()]
    files = {f"/usr-src/mirror.git/{name}": await sandbox.read_file(f"/tmp/mirror.git/{name}") for name in names}
    files["/usr-src/mirror.git/refs/heads/.keep"] = b""
    task = leaky(function_task(SOURCE), files)
    leak, history = await look(task, "T14"), await look(task, "T15")

    assert Status.FAILED is leak.status
    assert any(text.startswith("/usr-src/mirror.git: object") for text in leak.evidence)
    assert {"/usr-src/mirror.git has 3 commits", "/usr-src/mirror.git has a remote in its settings"} <= {
        text.replace("2 commits", "3 commits") for text in history.evidence
    }


async def test_compiled_code_is_found(look: Look, leaky: Leaky, sandbox: minisandbox.Sandbox) -> None:
    """Without its source, as a run of the tests leaves it; what lay there already is nobody's secret."""
    await sandbox.write_file("/tmp/solution.py", SOURCE.encode())
    made = await sandbox.run(
        ["python3", "-c", "import py_compile; py_compile.compile('/tmp/solution.py', '/tmp/c.pyc')"]
    )
    compiled = await sandbox.read_file("/tmp/c.pyc")
    place = "/usr-lib/__pycache__/solution.cpython-311.pyc"
    other = function_task("def double(x):\n    return [2 * each for each in (x,)][0]\n")
    there = {"solution.py": File(content=SOURCE.encode())}
    more = function_task(f"{SOURCE}\ndef triple(x):\n    return double(x) + x\n", files=there)

    assert made.ok
    assert Status.FAILED is (await look(leaky(function_task(SOURCE), {place: compiled}), "T14")).status
    assert Status.PASSED is (await look(leaky(other, {place: compiled}), "T14")).status
    assert Status.PASSED is (await look(leaky(more, {place: compiled}), "T14")).status


async def test_tests_and_their_names_are_found(look: Look, leaky: Leaky) -> None:
    """Those of a repository, which are hidden, in a directory of the image."""
    task = task_of(CORPUS["makereport"])
    work = task.assignment.work
    assert isinstance(work, SuiteWork)
    content = next(file.content for file in work.files if file.path == "tests/test_core.py")
    seen = await look(leaky(task, {"/r2e_tests/test_1.py": content}), "T14")

    assert Status.FAILED is seen.status
    assert "lines of the tests" in seen.evidence[0]


def zipped(name: str, content: bytes) -> bytes:
    """Return an archive with one file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def tarred(name: str, content: bytes) -> bytes:
    """Return a compressed archive with one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_archives_are_looked_into(pack: Callable[[str, bytes], bytes]) -> None:
    """Also behind what a cache writes before them, and far from where sources are laid."""
    content = pack("pkg/solution.py", SOURCE.encode())
    name = "pkg/solution.py"

    assert [f"c.body: {name} has 3 of 3 lines of the solution: if isinstance(x, int):"] == list(
        SECRETS.look("c.body", content, near=False)
    )
    assert [] == list(SECRETS.look("c.body", pack("pkg/other.py", b"return False\nreturn x + x\n")))
    assert [] == list(SECRETS.look("c.body", content[: len(content) // 2]))


def test_few_lines_are_no_leak() -> None:
    """Half of the lines are nothing; and far from where sources are laid, few must be in a file of that name."""
    short = Secrets(solution={"a/core.py": frozenset({"return x + x"})})

    assert [] == list(SECRETS.look("lib.py", b"    return x + x\n"))
    assert list(short.look("/opt/lib.py", b"    return x + x\n"))
    assert [] == list(short.look("/usr/lib.py", b"    return x + x\n", near=False))
    assert list(short.look("/usr/core.py", b"    return x + x\n", near=False))


def test_objects_are_told_apart() -> None:
    """By their sizes, whatever they hold."""
    batch = b"aa blob 8\nbb tree\n\nbb tree 0\n\ncc missing\n"

    assert [("aa", b"bb tree\n"), ("bb", b"")] == list(objects_in(batch))


async def test_a_task_that_can_be_seen_from_inside_is_found(look: Look, state_dir: Path, tmp_path: Path) -> None:
    """Its directory is shown by the image, with the tests in it."""
    state = StateDir.open(state_dir)
    host = build_rootfs(state, "host")
    origin = tmp_path / "task"
    (origin / "tests").mkdir(parents=True)
    shown = Rootfs("shows-the-task", host.layers, (*host.binds, Bind(source=origin, target=str(origin))), host.env)
    origins = tuple(LayerOrigin(key="test") for _ in host.layers)
    write_manifest(state, shown, "sha256:0", origins, imported_from="x")
    task = function_task()
    assignment = msgspec.structs.replace(task.assignment, environment=Environment(rootfs=shown.name))
    seen = await look(msgspec.structs.replace(task, assignment=assignment), "T22", origin=origin)

    assert (Status.FAILED, (f"{origin / 'tests'} can be seen from inside",)) == (seen.status, seen.evidence)
    assert Status.PASSED is (await look(task, "T22", origin=origin)).status

"""Templates of every Python from 3.8 on that this host has, and of numpy: forks behave alike in all of them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from minisandbox import Bind, SandboxError, Supervisor, Template
from minisandbox.runtime.standing import stand_by

INSIDE = "/opt/python"
PROGRAM = """
import os, sys, threading
thread = threading.Thread(target=print, args=('thread',))
thread.start(); thread.join()
child = os.fork()
if child == 0:
    os._exit(3)
print(sys.version_info[:2], os.WEXITSTATUS(os.waitpid(child, 0)[1]), json.dumps([sys.stdin.read(), sys.argv]))
import atexit
atexit.register(print, 'bye')
sys.exit(5)
"""

pytestmark = pytest.mark.requires_root


@functools.cache
def find_python(version: str) -> Path | None:
    """Return the directory of a Python that can be shown elsewhere: pyenv's, or what the name on PATH belongs to."""
    home = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = [*home.glob(f"versions/{version}.*"), *home.glob(f"versions/{version}")]
    found = shutil.which(f"python{version}")
    if found is not None:
        candidates.append(Path(found).resolve().parents[1])
    return next((each for each in candidates if (each / f"bin/python{version}").exists()), None)


VERSIONS = [
    pytest.param(
        version, marks=pytest.mark.skipif(not find_python(version), reason=f"this host has no Python {version}")
    )
    for version in (f"3.{minor}" for minor in range(8, 15))
]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
async def test_forks_behave_alike_in_every_python(supervisor: Supervisor, version: str) -> None:
    """On demand and ahead: threads, forks, input, arguments, exit functions, status."""
    prefix = find_python(version)
    assert prefix is not None
    bind = () if prefix == Path("/usr") else (Bind(source=prefix, target=INSIDE),)
    python = f"{INSIDE if bind else prefix}/bin/python{version}"
    results = []
    with trio.fail_after(60):
        env = {"LD_LIBRARY_PATH": f"{INSIDE}/lib"} if bind else {}
        preload = "import json, random"
        async with supervisor.open_template(python=python, preload=preload, binds=bind, env=env) as template:
            async with supervisor.open_sandbox(template=template) as sandbox:
                results.append(await sandbox.run_warm(f"import json\n{PROGRAM}", argv=["a"], stdin=b"in"))
                await stand_by(sandbox)
                results.append(await sandbox.run_warm(f"import json\n{PROGRAM}", argv=["a"], stdin=b"in"))
                random = {(await sandbox.run_warm("import random; print(random.random())")).stdout for _ in range(2)}
    major, minor = version.split(".")
    expected = f'thread\n({major}, {minor}) 3 ["in", ["-c", "a"]]\nbye\n'.encode()

    assert [(5, expected)] * 2 == [(result.exit_code, result.stdout) for result in results], results
    assert 2 == len(random)


@pytest.fixture
async def numpy_template(supervisor: Supervisor) -> AsyncIterator[Template]:
    """A template that has imported numpy, and made its generators."""
    if subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("the Python of this host has no pip to install numpy with")
    try:
        with trio.fail_after(240):
            rootfs = await supervisor.find_rootfs("python")
    except (SandboxError, trio.TooSlowError) as error:
        pytest.skip(f"numpy cannot be had here: {str(error).splitlines()[0]}")
    with trio.fail_after(120):
        async with supervisor.open_template(rootfs, python="/usr/bin/python3", preload=["numpy"]) as opened:
            yield opened


@pytest.mark.slow
@pytest.mark.parametrize("made", ["in the template", "in the fork"])
async def test_numpy_is_seeded_in_each_fork(supervisor: Supervisor, numpy_template: Template, made: str) -> None:
    """Its global state and new generators differ between forks, whenever they were made, or are pinned as asked."""
    old, new = "numpy.random.random()", "numpy.random.default_rng().random()"
    free: set[tuple[bytes, ...]] = set()
    pinned: set[tuple[bytes, ...]] = set()
    modules = ["numpy.random"] if made == "in the template" else ["numpy"]
    async with (
        supervisor.open_template(numpy_template.spec.rootfs, python="/usr/bin/python3", preload=modules) as template,
        supervisor.open_sandbox(template=template) as sandbox,
    ):
        for ahead in (False, True, True, False):
            for seed, seen in ((None, free), (5, pinned)):
                if ahead:
                    await stand_by(sandbox)
                result = await sandbox.run_warm(f"import numpy.random; print({old}, {new}, {new})", seed=seed)
                assert result.ok, result
                seen.add(tuple(result.stdout.split()))

    assert all(len({seen[at] for seen in free}) == 4 for at in range(3)), free
    ((_, first, second),) = pinned
    assert first != second

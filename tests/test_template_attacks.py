"""What a fork of a template tries against the warm process and later forks; and once more where nothing stands between.

Without a defence means: a warm Python that only forks (os.fork), as a server of forks without sandboxes does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import psutil
import pytest
import trio

from minisandbox import ExitReason, Limits, Result, Supervisor, Template
from minisandbox.runtime.standing import stand_by
from tests.templates import ATTACKS, NEEDS_PYTHON, PYTHON

MIB = 1 << 20

SPOIL = """
import builtins, json, os, sys
builtins.len = lambda _: 666
json.loads = None
os.getpid = lambda: 666
sys.modules['math'] = None
"""

LOOK = "import json, math, os; print(len([1]), json.loads('7'), os.getpid() < 666, math.floor(2.5))"

NAIVE = """
import os, sys, time
kept = os.open('/tmp/kept', os.O_RDWR | os.O_CREAT)
if os.fork() == 0:
    exec(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
"""A warm Python that only forks: the parent has a descriptor, and is of the same user."""

pytestmark = NEEDS_PYTHON


@pytest.fixture
async def template(supervisor: Supervisor) -> AsyncIterator[Template]:
    """A template of the host's Python that knows a secret."""
    with trio.fail_after(60):
        async with supervisor.open_template(python=PYTHON, preload="import json, math\nsecret = 'hush'") as opened:
            yield opened


def warm_process(template: Template) -> psutil.Process:
    """Return the warm process, which lives; what it forked and is ending is younger."""
    assert template._warm is not None
    return psutil.Process(min(template._warm.leaf.members()))


async def attack(supervisor: Supervisor, template: Template, code: str, limits: Limits | None = None) -> list[Result]:
    """Run it in a fork that was made ahead and in one on demand, then look from the same sandbox and from another."""
    results = []
    async with supervisor.open_sandbox(template=template, limits=limits) as sandbox:
        await stand_by(sandbox)
        results += [await sandbox.run_warm(code), await sandbox.run_warm(code), await sandbox.run_warm(LOOK)]
    async with supervisor.open_sandbox(template=template) as sandbox:
        results.append(await sandbox.run_warm(LOOK))
    return results


@pytest.mark.parametrize("name", ATTACKS)
async def test_nothing_of_the_template_is_reached(supervisor: Supervisor, template: Template, name: str) -> None:
    """Later forks are as before, and it is the same warm process that they come from."""
    before = warm_process(template)
    *attacks, after, elsewhere = await attack(supervisor, template, ATTACKS[name])

    assert [b"", b""] == [result.stdout for result in attacks], attacks
    assert [b"1 7 True 2\n"] * 2 == [after.stdout, elsewhere.stdout]
    assert before == warm_process(template) and before.is_running() and template.replaced == 0


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_parent_that_only_forks_is_reached(supervisor: Supervisor, name: str) -> None:
    """Defence off: the same attempts, from a child of a Python that forked and did no more."""
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run([PYTHON, "-c", NAIVE, ATTACKS[name]])

    assert b"reached" in result.stdout, result
    assert (ExitReason.SIGNALED if name == "kill" else ExitReason.EXITED) == result.exit_reason


async def test_what_a_fork_does_to_modules_stays_its_own(supervisor: Supervisor, template: Template) -> None:
    """Builtins, functions of modules and the table of modules. Defence off: the same process is spoiled."""
    *_, after, elsewhere = await attack(supervisor, template, SPOIL)
    async with supervisor.open_sandbox(template=template) as sandbox:
        spoiled = await sandbox.run_warm(f"{SPOIL}\n{LOOK.replace('math, ', '').replace('math.floor(2.5)', 'len')}")

    assert [b"1 7 True 2\n"] * 2 == [after.stdout, elsewhere.stdout]
    assert b"NoneType" in spoiled.stderr and not spoiled.ok


async def test_memory_of_a_fork_is_not_the_template_s(supervisor: Supervisor, template: Template) -> None:
    """A fork that fills its memory is killed for its own limit. Defence off: with room enough it has what it wants."""
    before, fill = warm_process(template), "x = bytearray(150 << 20); print(len(x) >> 20)"
    assert template._warm is not None
    held_bytes = template._warm.slot.cgroup.memory_current()
    filled, again, after, elsewhere = await attack(supervisor, template, fill, Limits(memory_bytes=64 * MIB))
    roomy, *_ = await attack(supervisor, template, fill, Limits(memory_bytes=400 * MIB))

    assert [ExitReason.MEMORY] * 2 == [filled.exit_reason, again.exit_reason]
    assert [b"1 7 True 2\n"] * 2 == [after.stdout, elsewhere.stdout]
    assert b"150\n" == roomy.stdout
    assert before.is_running() and before.pid in template._warm.leaf.members() and template.replaced == 0
    assert template._warm.slot.cgroup.memory_current() < held_bytes + 32 * MIB


async def test_a_fork_has_no_way_to_write_to_memory_of_the_template(supervisor: Supervisor, template: Template) -> None:
    """All that it can write to is its own: what it changes is changed for nobody else, and nothing is shared."""
    look = "import __preload__; print(__preload__.secret)"
    shared = (
        "print([line for line in open('/proc/self/maps') if line.split()[1][1] == 'w' and line.split()[1][3] == 's'])"
    )
    async with supervisor.open_sandbox(template=template) as sandbox:
        changed = await sandbox.run_warm("import __preload__; __preload__.secret = 'mine'; print(__preload__.secret)")
        mappings = await sandbox.run_warm(shared)
        await stand_by(sandbox)
        seen = await sandbox.run_warm(look)

    assert (b"mine\n", b"[]\n", b"hush\n") == (changed.stdout, mappings.stdout, seen.stdout)

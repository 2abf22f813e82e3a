"""The task of speed that hacks are tried against, and the judges that measure it wrongly."""

from __future__ import annotations

from minisandbox.judge.timing import Bound, PerformanceWork
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Limits

SLOW = """def ranked(numbers):
    made = []
    for _ in range(40):
        made = sorted(numbers, key=lambda each: -each)
    return made
"""
INPUTS = """import random

def make(seed, number):
    random.seed(seed * 1000 + number)
    return ([random.randrange(1 << 30) for _ in range(4000)],)
"""
TASK = PerformanceWork(
    module="solution",
    function="ranked",
    reference=SLOW.encode(),
    inputs=INPUTS.encode(),
    bounds=(Bound(id="twice as fast", at_most=0.5),),
    calls=4,
    rounds=3,
)

HARNESS = """import sys, threading, time
sys.path[:0] = ["/task", "/submission"]
from inputs import make
import reference

def measure(function, arguments):
    answers, seconds = [], []
    for each in arguments:
        begun = CLOCK()
        answers.append(function(*each))
        seconds.append(CLOCK() - begun)
    return answers, seconds

arguments = [make(7, 0 if REPEATED else number) for number in range(4)]
import solution
got, mine = measure(solution.ranked, arguments)
want, theirs = measure(reference.ranked, arguments)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
assert PICK(mine) <= 0.5 * PICK(theirs)
assert all(a == b for a, b in zip(got, want))
"""
MISTAKES = {
    "its clock": {"CLOCK": "time.perf_counter", "REPEATED": "False", "PICK": "sum"},
    "its CPU time": {"CLOCK": "time.process_time", "REPEATED": "False", "PICK": "sum"},
    "same inputs": {"CLOCK": "time.perf_counter", "REPEATED": "True", "PICK": "min"},
}
"""A clock of the submission's own interpreter, and inputs that are known or come again."""


async def is_fooled(mistake: str, sandbox: Sandbox, limits: Limits) -> bool:
    """Return whether a judge with this mistake finds a submission, which lies there, right and fast."""
    harness = HARNESS
    for name, text in MISTAKES[mistake].items():
        harness = harness.replace(name, text)
    for name, source in (("reference", SLOW), ("inputs", INPUTS), ("harness", harness)):
        await sandbox.run(["mkdir", "-p", "/task"], user="root")
        await sandbox.write_file(f"/task/{name}.py", source.encode())
    return (await sandbox.run(["python3", "/task/harness.py"], limits=limits)).ok

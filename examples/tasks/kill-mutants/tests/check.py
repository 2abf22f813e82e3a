"""Runs the tests beside the module as it is, and beside each that is wrong; each group is a reward."""

import json
import os
import shutil
import subprocess
import tempfile

RIGHT = open("/tests/intervals.py").read()
MUTANTS = {
    "bounds": [
        ("low <= number <= high", "low < number <= high"),
        ("low <= number <= high", "low <= number < high"),
        ("if low > high", "if low >= high"),
        ("any(", "all("),
    ],
    "merging": [
        ("+ 1:", ":"),
        ("+ 1:", "+ 2:"),
        ("max(merged[-1][1], high)", "high"),
        ("(merged[-1][0], max", "(low, max"),
    ],
    "sorting": [("in sorted(intervals)", "in intervals"), ("sorted(intervals)", "sorted(intervals, reverse=True)")],
    "validation": [
        ("if low > high:", "if False:"),
        ("raise ValueError", "raise TypeError"),
        ("raise TypeError", "raise ValueError"),
        ("type(low) is not int or ", ""),
        (" or type(high) is not int", ""),
    ],
}


def tests_pass(source):
    """Return whether the tests pass beside a module."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shutil.copy("/submission/test_intervals.py", folder)
        with open(os.path.join(folder, "intervals.py"), "w") as file:
            file.write(source)
        command = ["python3", "-s", "-B", "-m", "unittest", "test_intervals"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        return run.returncode == 0 and "\nOK" in run.stderr and "Ran 0 tests" not in run.stderr


def killed(group):
    """Return whether each module of a group fails."""
    for before, after in MUTANTS[group]:
        assert before in RIGHT
        if tests_pass(RIGHT.replace(before, after)):
            print(f"alive: {after}")
            return False
    return True


rewards = dict.fromkeys(["right", *MUTANTS], 0)
if os.path.isfile("/submission/test_intervals.py") and tests_pass(RIGHT):
    rewards = {"right": 1, **{group: int(killed(group)) for group in MUTANTS}}
with open("/logs/verifier/reward.json", "w") as file:
    json.dump(rewards, file)

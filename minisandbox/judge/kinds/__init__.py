"""The kinds of tasks, one module each, behind the interface of `minisandbox.judge.kind`."""

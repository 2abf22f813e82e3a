"""What the tests of templates share: a Python of the host, and what a fork of it tries against all that it can see."""

from __future__ import annotations

import os

import pytest

PYTHON = "/usr/bin/python3"
NEEDS_PYTHON = [
    pytest.mark.requires_root,
    pytest.mark.skipif(not os.access(PYTHON, os.X_OK), reason=f"this host has no {PYTHON}"),
]

DESCRIPTORS = """
import os
for fd in range(3, 1024):
    try:
        os.write(fd, b'x' * 32)
        print('reached', fd)
    except OSError:
        pass
"""

OTHERS = """
import os
OTHERS = [pid for pid in {os.getppid(), 1, *(int(name) for name in os.listdir('/proc') if name.isdigit())}
          if pid != os.getpid()]
"""

KILL = (
    OTHERS
    + """
import signal, sys
for pid in OTHERS:
    if pid == 1 and os.getppid() != 1:
        continue
    try:
        os.kill(pid, signal.SIGKILL)
        print('reached', pid, flush=True)
    except OSError:
        pass
"""
)

TRACE = (
    OTHERS
    + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for pid in OTHERS:
    if libc.ptrace(16, pid, 0, 0) == 0:
        print('reached', pid)
    for file in ('mem', 'environ', 'maps', 'map_files', 'root/etc', 'cwd/etc', 'fd/0'):
        try:
            os.open(f'/proc/{pid}/{file}', os.O_RDONLY)
            print('reached', pid, file)
        except OSError:
            pass
"""
)

ATTACKS = {"every descriptor": DESCRIPTORS, "trace": TRACE, "kill": KILL}
"""Each says what it reached; the last one of all ends what it can."""

"""Loads seccomp programs into itself and takes the steps it is told to, to print the error number of each (0: none).

A step is a list: ["call", number, arguments...], ["clone", flags], ["terminal", request] (an ioctl on a terminal of its
own) or ["machine", hex] (machine code, which returns what it likes). Never imported; runs as a program.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import signal
import sys
import termios

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *args: int) -> tuple[int, int]:
    """Return result and error number."""
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *[ctypes.c_ulong(arg) for arg in args])
    return result, ctypes.get_errno()


def load(program: bytes) -> None:
    """Install one filter (seccomp(2))."""

    class SockFprog(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    header = SockFprog(len(program) // 8, program)
    if LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(header), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def clone(number: int, flags: int) -> int:
    """Make a child with clone(2), which ends at once."""
    child, error = system_call(number, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return error


def open_terminal() -> int:
    """Return a new terminal that controls this process."""
    os.setsid()
    _master_fd, terminal_fd = os.openpty()
    fcntl.ioctl(terminal_fd, termios.TIOCSCTTY, 0)
    return terminal_fd


def run_machine_code(code: bytes) -> int:
    """Run machine code and return 0, whatever it returned."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
    return 0


def main() -> None:
    """Take the request from stdin; print while going, since a step may be the last."""
    request = json.load(sys.stdin)
    terminal_fd = open_terminal()
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for program in request["programs"]:
        load(bytes.fromhex(program))
    for kind, *args in request["steps"]:
        if kind == "call":
            error = system_call(*args)[1]
        elif kind == "clone":
            error = clone(*args)
        elif kind == "terminal":
            typed = ctypes.create_string_buffer(b"x")
            error = system_call(args[0], terminal_fd, args[1], ctypes.addressof(typed))[1]
        else:
            error = run_machine_code(bytes.fromhex(args[0]))
        os.write(1, f"{error}\n".encode())


if __name__ == "__main__":
    main()

"""Sandboxes that use up all they can get: programs of one resource each, for benchmarks and tests of their neighbours.

Each is Python of the host's root file system, runs until it is killed or its limit ends it, and is started again then.
"""

from __future__ import annotations

from dataclasses import dataclass

from minisandbox import Limits

LIMITS = Limits(
    memory_bytes=128 << 20,
    processes=64,
    cpus=0.5,
    disk_bytes=64 << 20,
    disk_inodes=120_000,
    open_files=1024,
    wall_time_s=30,
    stdout_bytes=256 << 20,
    output_kept_bytes=1 << 16,
)

_C = "import ctypes, os, time; c = ctypes.CDLL(None, use_errno=True)\n"


@dataclass(frozen=True, slots=True)
class Hog:
    """One kind."""

    name: str
    program: str
    """Python."""


# Whoever has all that it can get sleeps with it in its hands, until it is killed.
HOGS = (
    Hog("nothing", "import time; time.sleep(60)"),
    Hog("fork bomb", "import os\nwhile True:\n try: os.fork()\n except OSError: pass"),
    Hog("memory hog", "held = []\nwhile True: held.append(bytearray(1 << 20))"),
    Hog(
        "fd hog",
        "import os, time\nfor _ in range(48):\n if os.fork() == 0: break\n"
        "try:\n while True: os.pipe()\nexcept OSError: time.sleep(60)",
    ),
    Hog(
        "disk filler",
        "import os\nwhile True:\n with open('/tmp/x', 'wb', 0) as file:\n  try:"
        "\n   while file.write(bytes(1 << 20)): pass"
        "\n  except OSError: pass\n os.unlink('/tmp/x')",
    ),
    Hog("output flood", "import os\nwhile True: os.write(1, bytes(1 << 16))"),
    Hog(
        "inotify hog",
        _C + "while (fd := c.inotify_init1(0)) >= 0:\n for name in os.listdir('/usr/bin'):\n"
        "  if c.inotify_add_watch(fd, ('/usr/bin/' + name).encode(), 0xfff) < 0: break\ntime.sleep(60)",
    ),
    Hog(
        "keyring hog",
        _C + "n = 0\nwhile True:\n n += 1\n c.syscall(248, b'user', str(n).encode(), bytes(4096), 4096, -3)"
        "\n c.syscall(250, 1, str(n).encode())",
    ),
    Hog(
        "sleepers in D state",
        "import os, time\nos.mkfifo('/tmp/f')\nfor _ in range(24):\n if os.fork() == 0:\n"
        "  opening = [(os.POSIX_SPAWN_OPEN, 0, '/tmp/f', os.O_RDONLY, 0)]\n"
        "  os.posix_spawn('/bin/true', ['true'], {}, file_actions=opening)\ntime.sleep(60)",
    ),
    Hog(
        "100,000 tiny files",
        "import os\nos.mkdir('/tmp/d')\nos.chdir('/tmp/d')\nwhile True:"
        "\n for n in range(100_000): open(str(n), 'w').close()"
        "\n for n in range(100_000): os.unlink(str(n))",
    ),
)
"""The first one is none: what it does to its neighbours is the noise of the machine."""

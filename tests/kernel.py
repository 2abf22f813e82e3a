"""What the kernel that runs the tests can do."""

from __future__ import annotations

import os
import re

VERSION = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))

HAS_MAPPED_MEMORY = VERSION >= (6, 3)
"""Whether a file system in memory can be seen through a map of ids: without that there are no snapshots."""

HAS_DETACHED_LAYERS = VERSION >= (6, 15)
"""Whether an overlay takes detached mounts, and these can be cloned."""

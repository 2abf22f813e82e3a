"""What the launcher of a pod is told (launcher/pod.c). A value."""

from __future__ import annotations

from dataclasses import dataclass

from minisandbox.binds import Bind
from minisandbox.kernel.protocol import Request


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What a launcher in a user namespace of its own shows in all its sandboxes. All descriptors are borrowed."""

    uid_base: int
    layer_fds: tuple[int, ...]
    binds: tuple[tuple[Bind, int], ...]

    def add_to(self, request: Request) -> None:
        """Add it to a request to configure."""
        request.flag("pod").option("uid-base", self.uid_base)
        for fd in self.layer_fds:
            request.descriptor("layer", fd)
        for bind, fd in self.binds:
            request.words.append(f"--bind={'rw' if bind.writable else 'ro'}:{bind.target}")
            request.fds.append(fd)

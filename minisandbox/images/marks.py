"""The marks of overlayfs in a layer, in either of the two namespaces of attributes that it keeps them in.

Root's overlays have them under trusted.overlay, those of a user namespace (option userxattr) under user.overlay. They
say what shows, never what a file is: digests, copies and archives of layers know them by what they mean.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from minisandbox.errors import HostError
from minisandbox.images.entry import quoted
from minisandbox.images.overlay import is_whiteout

LABELS = frozenset({b"security.selinux", b"security.ima", b"security.evm"})
"""Labels and seals of this host's security modules (xattr(7)): where a file was, not what it is."""

_REFUSED = (b"redirect", b"metacopy")


@dataclass(frozen=True, slots=True)
class Marks:
    """The names of the marks."""

    prefix: bytes
    """What they begin with."""

    @property
    def opaque(self) -> bytes:
        """On a directory: nothing of the layers below shows in it. The value is "y"."""
        return self.prefix + b"opaque"

    @property
    def origin(self) -> bytes:
        """On a directory, even if empty: there are whiteouts in it (see `overlay.ORIGIN`)."""
        return self.prefix + b"origin"

    def is_content(self, xattr: bytes) -> bool:
        """Return whether an attribute belongs to the file itself. Escaped names are some that a program wrote."""
        is_mark = xattr.startswith(self.prefix) and not xattr.startswith(self.prefix + b"overlay.")
        return not is_mark and xattr not in LABELS

    def is_opaque(self, path: bytes | int) -> bool:
        """Return whether a directory is opaque. Follows no link."""
        try:
            if isinstance(path, int):
                return os.getxattr(path, self.opaque) == b"y"
            return os.getxattr(path, self.opaque, follow_symlinks=False) == b"y"
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
            return False

    def make_opaque(self, directory_fd: int) -> None:
        """Hide all that the layers below have in a directory."""
        os.setxattr(directory_fd, self.opaque, b"y")

    def make_whiteout(self, directory_fd: int, name: bytes) -> None:
        """Hide what the layers below have by a name. An ordinary user may, too (mknod(2), since Linux 5.8)."""
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory_fd)
        os.setxattr(directory_fd, self.origin, b"")

    def read_xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """Return the attributes of a file that are content.

        Raises HostError at a mark that only means something beside the very layers that it was made on.
        """
        try:
            names = list(map(os.fsencode, os.listxattr(path, follow_symlinks=False)))
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return {}
        for mark in _REFUSED:
            if self.prefix + mark in names:
                raise HostError(
                    f"{quoted(path.rpartition(b'/')[2])} has the mark {mark.decode()} of overlayfs, so it is no "
                    f"whole file of its layer; mount without redirect_dir and metacopy"
                )
        return {name: os.getxattr(path, name, follow_symlinks=False) for name in names if self.is_content(name)}


TRUSTED = Marks(b"trusted.overlay.")
"""Of overlays that root mounts."""

USER = Marks(b"user.overlay.")
"""Of overlays that are mounted in a user namespace, with the option userxattr."""


def own_marks() -> Marks:
    """Return the marks that this process can write."""
    return TRUSTED if os.geteuid() == 0 else USER


__all__ = ["LABELS", "TRUSTED", "USER", "Marks", "is_whiteout", "own_marks"]

"""How a source becomes a program, by language. Names are looked up on the rootfs's own PATH, never in a submission."""

from __future__ import annotations

from dataclasses import dataclass

PROGRAM = "/program"
"""Where what was compiled lies in a cell."""

BUILT = "/tmp/program"
"""Where a compiler puts it, in a cell of its own."""


@dataclass(frozen=True, slots=True)
class Language:
    """Commands in which SOURCE stands for the path of the source."""

    run: tuple[str, ...]
    build: tuple[str, ...] = ()

    def build_command(self, source: str) -> list[str]:
        """Return the command that compiles a source."""
        return [word.replace("SOURCE", source) for word in self.build]

    def run_command(self, source: str) -> list[str]:
        """Return the command that runs it."""
        return [word.replace("SOURCE", source) for word in self.run]


LANGUAGES: dict[str, Language] = {
    "c": Language(build=("cc", "-O2", "-std=gnu11", "-o", BUILT, "SOURCE", "-lm"), run=(PROGRAM,)),
    "cpp": Language(build=("c++", "-O2", "-std=gnu++17", "-o", BUILT, "SOURCE"), run=(PROGRAM,)),
    "go": Language(build=("go", "build", "-o", BUILT, "SOURCE"), run=(PROGRAM,)),
    "rust": Language(build=("rustc", "-O", "-o", BUILT, "SOURCE"), run=(PROGRAM,)),
    "python": Language(run=("python3", "-s", "-B", "SOURCE")),
    "javascript": Language(run=("node", "SOURCE")),
    "perl": Language(run=("perl", "SOURCE")),
    "ruby": Language(run=("ruby", "SOURCE")),
    "shell": Language(run=("/bin/sh", "SOURCE")),
}

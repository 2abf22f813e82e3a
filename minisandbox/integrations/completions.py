"""From what a model said to the files of a submission: code is what stands between fences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import Declared, FunctionWork, StdioWork
from minisandbox.tasks.task import File, Files, Task

Completion = str | Sequence[Mapping[str, Any]]
"""A text, or messages with `role` and `content` of which the last one counts."""

FENCE = "```"
NAME_MAX, PATH_MAX = 255, 4096
"""Bytes of a name and of a path (limits.h); half of a path is left for where the submission lies."""


class Block(NamedTuple):
    """What stands between two fences, and the rest of the line of the first."""

    head: str
    body: str


def text_of(completion: Completion) -> str:
    """Return the text of a completion. Raises UsageError for what is none."""
    if isinstance(completion, str):
        return completion
    if not completion:
        return ""
    content = completion[-1].get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise UsageError(f"a message whose content is no text: {type(content).__name__}")


def blocks_of(text: str) -> Iterator[Block]:
    """Yield what stands between fences; a last one that is not closed ends with the text."""
    fence, head, lines = "", "", [""]
    for line in text.split("\n"):
        mark = line.strip()
        if not fence and mark.startswith(FENCE):
            head = mark.lstrip("`")
            fence, lines = mark[: len(mark) - len(head)], []
        elif fence and mark == fence:
            yield Block(head.strip(), "".join(f"{each}\n" for each in lines))
            fence = ""
        elif fence:
            lines.append(line)
    if fence:
        yield Block(head.strip(), "\n".join(lines))


def code_of(text: str) -> str:
    """Return the last block, or all of the text when it has none."""
    found = list(blocks_of(text))
    return found[-1].body if found else text


def files_of(text: str) -> dict[str, str]:
    """Return the blocks whose first line ends with a path, as "```python src/core.py", by that path."""
    named = {}
    for block in blocks_of(text):
        path = block.head.rpartition(" ")[2]
        if "." in path or "/" in path:
            named[path] = block.body
    return named


def submission_of(task: Task, text: str) -> Files:
    """Return the files of a submission: the one file that the kind asks for, or those that are named.

    A text that names no file where files are wanted is an empty submission.
    """
    work = task.assignment.work
    if isinstance(work, FunctionWork):
        return {work.module.replace(".", "/") + ".py": _file(code_of(text))}
    if isinstance(work, StdioWork):
        return {work.source: _file(code_of(text))}
    return {path: _file(body) for path, body in files_of(text).items()}


def fits(files: Files, declared: Declared) -> bool:
    """Return whether these can be files of a submission: plain names, none where another is, and not too large.

    What does not fit is the model's fault. It must not fail where it is laid down, which would be ours.
    """
    sizes = [len(file.content) for file in files.values()]
    if len(files) > declared.max_files or sum(sizes) > declared.max_total_bytes:
        return False
    if max(sizes, default=0) > declared.max_file_bytes:
        return False
    parents = {path[:at] for path in files for at, letter in enumerate(path) if letter == "/"}
    return parents.isdisjoint(files) and all(_is_plain(path, declared.max_depth) for path in files)


def _is_plain(path: str, max_depth: int) -> bool:
    names = path.split("/")
    if not path.isprintable() or len(names) > max_depth or any(name in ("", ".", "..") for name in names):
        return False
    return max(len(name.encode()) for name in names) <= NAME_MAX and len(path.encode()) <= PATH_MAX // 2


def _file(text: str) -> File:
    return File(content=text.encode(errors="surrogatepass"))

"""Shows on a terminal how far work is that takes long. It loads rich only there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from minisandbox.cli.output import console_of
from minisandbox.images import Progress


@contextlib.contextmanager
def drawing() -> Iterator[Callable[[Progress], object] | None]:
    """Show on a terminal how far it is; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[files]} files"))
    with Bars(*columns, TimeElapsedColumn(), console=console_of("stderr"), transient=True) as bars:
        task = bars.add_task("reading", total=None, files=0)

        def draw(progress: Progress) -> None:
            bars.update(
                task,
                description=progress.step,
                total=progress.total_bytes,
                completed=progress.done_bytes,
                files=progress.files,
            )

        yield draw

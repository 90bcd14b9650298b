"""How much of something is done, on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from simulator.report.console import console


@contextmanager
def counting(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar beside ``words``; the function that is yielded is told how many of how many are done."""
    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(words, total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield tell

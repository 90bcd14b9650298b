"""Where text goes: results on stdout as rich tables, plain and at a fixed width off a terminal."""

from __future__ import annotations

import errno
from typing import NoReturn

from rich.console import Console

#: Width of tables where the output is no terminal, so that files and golden outputs do not depend on it.
WIDTH = 120


class _Console(Console):
    """Leaves a reader that has gone away to the command line, which ends in silence."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, "the reader has gone")


def console(*, stderr: bool = False) -> Console:
    """A console that obeys NO_COLOR and prints no markup of its own making."""
    found = _Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not found.is_terminal:
        found.width = WIDTH
    return found


def bar_character(out: Console) -> str:
    """What bars are drawn with: a block where the terminal can show one."""
    return "█" if out.encoding.startswith("utf") else "#"

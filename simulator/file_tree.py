"""Where the files are that a scenario names: on this machine, or in a copy of another machine's files.

A sweep on a cluster sends the files along. A worker unpacks them into a folder that stands for the sender's root, and
loads inside ``reading_from`` that copy: a path means there what it means on the sender's machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """root: stands for '/'. here: a link to the working directory in it, so that relative paths are told from absolute
    ones. home: the home directory, as an absolute path of the sender.
    """

    root: Path
    here: Path
    home: str

    def place(self, ref: str) -> str:
        """``ref``, absolute or relative to the sender's working directory, as a path on this machine."""
        path = self.home + ref[1:] if ref.startswith("~/") else ref
        return f"{self.root}{path}" if Path(path).is_absolute() else f"{self.here}/{path}"

    def as_sent(self, text: str) -> str:
        """``text`` with the paths of this machine as the sender would have them."""
        return text.replace(f"{self.here}/", "").replace(str(self.root), "")


_copy: ContextVar[Copy | None] = ContextVar("copy", default=None)
_noted: ContextVar[list[Path] | None] = ContextVar("noted", default=None)


def located(ref: str, base_dir: Path | None) -> Path:
    """The path that ``ref`` names: from ``base_dir`` on, or from the working directory when that is None."""
    copy = _copy.get()
    if copy is not None:
        inside = base_dir is not None and not (ref.startswith("~/") or Path(ref).is_absolute())
        path = base_dir / ref if inside and base_dir is not None else Path(copy.place(ref))
    else:
        path = Path(ref).expanduser() if ref.startswith("~/") else Path(ref)
        path = path if base_dir is None else base_dir / path
    noted = _noted.get()
    if noted is not None:
        noted.append(path)
    return path


@contextmanager
def reading_from(copy: Copy) -> Iterator[None]:
    """Inside, and in this thread, paths name files of ``copy``."""
    token = _copy.set(copy)
    try:
        yield
    finally:
        _copy.reset(token)


@contextmanager
def noted_paths() -> Iterator[list[Path]]:
    """The paths that were located meanwhile, in this thread; whether there is such a file is another question."""
    found: list[Path] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)

"""Reading a small text file that a user named: each way it can go wrong gets one clear error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from simulator.errors import ScenarioError

MAX_FILE_BYTES = 1_000_000


def read_text(path: Path, *, also_known: Iterable[str] = ()) -> str:
    """The text of a small UTF-8 file (a byte order mark is dropped). Raises ScenarioError."""
    try:
        if path.is_dir():
            raise ScenarioError(f"{path}: is a directory, not a file{_did_you_mean(path / 'x', also_known)}")
        if not path.exists():
            raise ScenarioError(f"{path}: no such file{_did_you_mean(path, also_known)}")
        if not path.is_file():
            raise ScenarioError(f"{path}: is not a regular file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ScenarioError(f"{path}: holds {path.stat().st_size:,} bytes; at most {MAX_FILE_BYTES:,} are accepted")
        data = path.read_bytes()
    except ValueError as error:  # a NUL in the path itself
        raise error if isinstance(error, ScenarioError) else ScenarioError(f"{str(path)!r}: {error}") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None
    if b"\0" in data:
        raise ScenarioError(f"{path}: is binary (it holds NUL bytes); expected UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"not UTF-8 text (byte 0x{data[error.start]:02x}); save it as UTF-8"
        raise ScenarioError(f"{path}:{line}: {what}") from None


def _did_you_mean(path: Path, also_known: Iterable[str]) -> str:
    try:
        files = sorted(p.name for p in path.parent.iterdir() if p.suffix in {".yaml", ".yml", ".json"})
    except OSError:
        files = []
    stems = {Path(name).stem: name for name in files}
    close = difflib.get_close_matches(path.name, [*files, *also_known], n=1)
    close = close or [stems.get(s, s) for s in difflib.get_close_matches(path.stem, [*stems, *also_known], n=1)]
    return f"; did you mean {str(path.parent / close[0]) if close[0] in files else close[0]!r}?" if close else ""

"""The file of a sweep: one JSON row a line, appended as rows finish, locked while a sweep writes it.

A row is safe once ``append`` returns: the process may be killed at any time after it. Whatever an interrupted write
left behind is dropped when the file is opened again. Nothing else is ever removed unless asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import ScenarioError
from simulator.load import load_scenario, scenario_digest
from simulator.sweeps.points import Point, Row, Sweep, key_of, point_key

#: How every row begins; a file that begins otherwise is not ours to touch.
_BEGINNING = b'{"base_digest": "'
_START_OVER = "--fresh starts the file over, --out FILE writes another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An open, locked file. rows: what it held when opened, by ``point_key``; notes: what opening it did to it."""

    path: Path
    descriptor: int
    rows: Mapping[Point, Row]
    notes: tuple[str, ...]


@contextmanager
def open_store(path: Path, sweep: Sweep, *, fresh: bool = False, retry_failed: bool = False) -> Iterator[Store]:
    """Open or make the file of ``sweep``; a torn last line is dropped.

    fresh: drop all rows. retry_failed: drop the rows with an error.
    Raises ScenarioError: not to be opened, in use, not a sweep's file, a file of another sweep.
    """
    with _said(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        with _said(path):
            _lock(descriptor, path)
            data = _content(descriptor)
        rows, notes = _kept(data, path, sweep, descriptor, fresh)
        failed = [row for row in rows if row["error"] is not None]
        if retry_failed and failed:
            with _said(path):
                descriptor = _rewritten(path, descriptor, [row for row in rows if row["error"] is None])
            rows = [row for row in rows if row["error"] is None]
            notes.append(f"{_count(failed)} with an error dropped, to be tried again")
        by_point = {point_key(row["overrides"]): row for row in rows}
        yield Store(path=path, descriptor=descriptor, rows=by_point, notes=tuple(notes))
    finally:
        os.close(descriptor)


def append(store: Store, row: Row) -> None:
    """Write one row at the end, as a whole or not at all. Raises ScenarioError when the file takes no more."""
    with _said(store.path):
        if not _same_file(store.descriptor, store.path):
            raise ScenarioError(f"{store.path}: was removed or replaced while the sweep was writing it")
        size = os.fstat(store.descriptor).st_size
        try:
            _write(store.descriptor, _lines([row]))
        except OSError:
            with suppress(OSError):
                os.ftruncate(store.descriptor, size)
            raise


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """What the system refuses is the user's to know: which file, and why."""
    try:
        yield
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror or error}") from None


def _lock(descriptor: int, path: Path) -> None:
    """Held until the descriptor is closed, at the latest by the end of the process. Not on Windows."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise ScenarioError(f"{path}: is not a regular file; rows need a file that can be read back")
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ScenarioError(f"{path}: another sweep is writing it; wait for that, or give --out FILE") from None
    if not _same_file(descriptor, path):
        raise ScenarioError(f"{path}: another sweep has just replaced it; try again")


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _kept(data: bytes, path: Path, sweep: Sweep, descriptor: int, fresh: bool) -> tuple[list[Row], list[str]]:
    """The rows to go on from, after dropping a torn line or, when ``fresh``, everything; and what to say of it."""
    if not _begins_like_ours(data):
        raise ScenarioError(f"{path}: is not the file of a sweep, so it is left alone; give --out FILE")
    size = 0 if fresh else data.rfind(b"\n") + 1
    tail = data[size:]
    if not fresh and not _begins_like_ours(tail):
        raise ScenarioError(f"{path}: its last line is not a row of a sweep; {_START_OVER}")
    rows = _parsed(data[:size], path)
    _check_same_sweep(rows, sweep, path)
    if not tail:
        return rows, []
    with _said(path):
        os.ftruncate(descriptor, size)
    if fresh:
        return [], [f"{data.count(_BEGINNING)} earlier rows dropped (--fresh)"]
    return rows, ["its last line was torn by an interrupt and is dropped"]


def _begins_like_ours(data: bytes) -> bool:
    return data.startswith(_BEGINNING[: len(data)])


def _parsed(data: bytes, path: Path) -> list[Row]:
    rows: dict[Point, Row] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            row = json.loads(line)
            key = point_key(row["overrides"])
            row["base_digest"], row["version"], row["error"], row["scenario_digest"]
        except (ValueError, KeyError, TypeError):
            raise ScenarioError(f"{path}:{number}: is not a row of a sweep; {_START_OVER}") from None
        rows.setdefault(key, row)
    return list(rows.values())


def _check_same_sweep(rows: Sequence[Row], sweep: Sweep, path: Path) -> None:
    """Points may be added to a sweep or left out, but all rows of a file have one scenario, version and set of keys."""
    for row in rows:
        keys = sorted(map(key_of, row["overrides"]))
        if row["version"] != sweep.base.version:
            what = f"rows of version {row['version']} of the simulator, and this is {sweep.base.version}"
        elif row["base_digest"] != sweep.base.digest:
            what = f"rows of another scenario, or of {sweep.base.scenario} before it (or a file it names) was changed"
        elif keys != sorted(sweep.keys):
            what = f"a sweep over {', '.join(keys)}, not over {', '.join(sorted(sweep.keys))}"
        else:
            continue
        raise ScenarioError(f"{path}: holds {what}; {_START_OVER}")
    _check_files_behind(rows, sweep, path)


def _check_files_behind(rows: Sequence[Row], sweep: Sweep, path: Path) -> None:
    """A value may name a file (model.hf, cluster.topology): its content must be what the rows were made from."""
    checked: set[str] = set()
    for row in rows:
        new = [override for override in row["overrides"] if override not in checked]
        if not new or row["scenario_digest"] is None:
            continue
        checked.update(new)
        try:
            digest = scenario_digest(load_scenario(sweep.base.scenario, row["overrides"]))
        except ScenarioError:
            digest = ""
        if digest != row["scenario_digest"]:
            what = f"rows made before a file behind {' or '.join(new)} was changed"
            raise ScenarioError(f"{path}: holds {what}; {_START_OVER}")


def _rewritten(path: Path, descriptor: int, rows: Iterable[Row]) -> int:
    """Put a new file with ``rows`` in the place of the old one, at once; returns its descriptor, locked."""
    target = Path(os.path.realpath(path))
    new = target.with_name(f"{target.name}.new")
    made = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    try:
        _lock(made, new)
        _write(made, _lines(rows))
        os.fsync(made)
        shutil.copymode(target, new)
        os.replace(new, target)
    except BaseException:
        os.close(made)
        raise
    os.close(descriptor)
    return made


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, allow_nan=False).encode("ascii") + b"\n" for row in rows)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _count(rows: Sequence[Row]) -> str:
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}"

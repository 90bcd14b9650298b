"""A sweep's scenario as it travels to other machines: with the files that it names, read once when the sweep begins.

Every task carries the parcel, a few kilobytes, so that a worker that joins late has all it needs. A worker unpacks it
once, into a temporary folder that stands for the sender's root (``file_tree.Copy``).
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock

from simulator.errors import ScenarioError
from simulator.file_tree import Copy, noted_paths, reading_from
from simulator.load import is_shipped, load_scenario
from simulator.sweeps.environment import Environment, check_environment, environment
from simulator.sweeps.points import Base, Point, Row, Sweep, make_base, settings
from simulator.sweeps.rows import Batch, simulate_points
from simulator.text_file import MAX_FILE_BYTES

#: Points that are loaded, at most, in search of the files behind one value.
_TRIED = 4
#: Parcels that a worker keeps unpacked.
_KEPT = 16


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """base: the sweep's, as the sender names it. files: absolute path on the sender's machine -> content.

    directory, home: the sender's. environment: what a worker must have to make the sender's rows.
    """

    base: Base
    files: tuple[tuple[str, bytes], ...]
    directory: str
    home: str
    environment: Environment

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the files and where they are."""
        digest = hashlib.sha256(f"{self.directory}\0{self.home}\0".encode())
        for name, content in self.files:
            digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
        return digest.hexdigest()


# ---------------------------------------------------------------- on the sender's machine


def make_parcel(sweep: Sweep) -> Parcel:
    """The scenario and all files that it and the values of the sweep name, as they are now.

    Raises ScenarioError when the scenario is no longer the one that the sweep began with.
    """
    with noted_paths() as noted:
        base = make_base(sweep.base.scenario)
        for candidates in _one_for_each_value(sweep.points):
            _load_one(sweep.base.scenario, candidates)
    if base != sweep.base:
        raise ScenarioError(f"{base.scenario}: the scenario, or a file that it names, changed just now; try again")
    paths = noted if is_shipped(base.scenario) else [Path(base.scenario), *noted]
    return Parcel(
        base=base, files=tuple(sorted(dict(_contents(paths)).items())), directory=os.getcwd(),
        home=os.path.expanduser("~"), environment=environment(),
    )  # fmt: skip


def _one_for_each_value(points: Sequence[Point]) -> list[list[Point]]:
    """For every value that may name a file, some points that have it."""
    found: dict[str, list[Point]] = {}
    for point in points:
        for override, (_, value) in zip(point, settings(point), strict=True):
            if isinstance(value, str) and len(have := found.setdefault(override, [])) < _TRIED:
                have.append(point)
    return list(found.values())


def _load_one(scenario: str, candidates: Iterable[Point]) -> None:
    for point in candidates:
        try:
            load_scenario(scenario, point)
        except ScenarioError:
            continue
        return


def _contents(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """(absolute path, content) of those paths that are files, or folders with a ``config.json``."""
    for name in dict.fromkeys(map(os.path.abspath, paths)):
        path = Path(name, "config.json") if os.path.isdir(name) else Path(name)
        if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
            yield str(path), path.read_bytes()


def completed_here(rows: Iterable[Row], base: Base) -> Iterator[Row]:
    """``rows``, of which those that lacked a file on the worker are made here instead.

    So a value that names a file that is nowhere gets the error that it gets without a cluster, with the names of files
    that are near it, and a file that the parcel left out costs time only.
    """
    for row in rows:
        lacking = row["scenario_digest"] is None and "no such file" in (row["error"] or "")
        if not lacking:
            yield row
        else:
            yield from simulate_points(base, [tuple(row["overrides"])]).rows


# ---------------------------------------------------------------- on a worker

_unpacked: OrderedDict[str, tuple[tempfile.TemporaryDirectory[str], Copy]] = OrderedDict()
_lock = Lock()


def simulate_parcel(parcel: Parcel, points: Sequence[Point]) -> Batch:
    """What one task on a cluster does: ``simulate_points`` from the parcel's files. The rows are the sender's.

    Raises ScenarioError, for all points, when this process has other versions than the sender.
    """
    check_environment(parcel.environment)
    copy = _unpack(parcel)
    scenario = parcel.base.scenario
    sent = os.path.normpath(os.path.join(parcel.directory, scenario)) in dict(parcel.files)
    base = replace(parcel.base, scenario=copy.place(scenario) if sent else scenario)
    try:
        with reading_from(copy):
            batch = simulate_points(base, points)
    except ScenarioError as error:
        raise ScenarioError(copy.as_sent(str(error))) from None
    return replace(batch, rows=tuple(_as_sent(row, copy) for row in batch.rows))


def _as_sent(row: Row, copy: Copy) -> Row:
    return row if row["error"] is None else {**row, "error": copy.as_sent(row["error"])}


def _unpack(parcel: Parcel) -> Copy:
    """The copy of the sender's files, made at the first call; threads of one process share it."""
    with _lock:
        if parcel.digest not in _unpacked:
            while len(_unpacked) >= _KEPT:
                _unpacked.popitem(last=False)
            try:
                folder = tempfile.TemporaryDirectory(prefix="simulator-sweep-", ignore_cleanup_errors=True)
                _unpacked[parcel.digest] = folder, _write(parcel, Path(folder.name).resolve())
            except OSError as error:
                raise ScenarioError(f"a worker on {platform.node()} cannot unpack the scenario: {error}") from None
        return _unpacked[parcel.digest][1]


def _write(parcel: Parcel, folder: Path) -> Copy:
    copy = Copy(root=folder / "root", here=folder / "here", home=parcel.home)
    directory = Path(f"{copy.root}{parcel.directory}")
    directory.mkdir(parents=True)
    copy.here.symlink_to(directory, target_is_directory=True)
    for name, content in parcel.files:
        path = Path(f"{copy.root}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return copy

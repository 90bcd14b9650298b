"""Memory of one rank over the step: which buffers are alive when, and where the peak is. Pure functions of a timeline.

A buffer lives from the start of the task that allocates it to the end of the task that frees it, in the order of the
device's streams, which is how a caching allocator hands memory on. Between tasks that end and start at the same time
the earlier one frees first.

Limits: what the allocator holds beyond tensors is no part of it, but told apart (``report.slack``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from simulator.plan import COMPUTE_LANE, HOST_MEMORY, MEMORY_KINDS, Buffer, RankClass
from simulator.report.words import micro_batch_of, task_words
from simulator.schedule import Floats
from simulator.timeline import Span, Timeline

BEFORE_THE_STEP = "start of the step"
#: How many of the largest holders of the peak are told.
_MOST_HOLDERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Buffers of one kind and purpose that are alive at the peak. name: of the largest of them."""

    kind: str
    name: str
    count: int
    size_bytes: float
    largest_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """Bytes of one rank over the step.

    times_s: (n,) when they change. curve_bytes: (n, kinds) from then on, in the order of MEMORY_KINDS.
    by_kind_bytes: at the peak. peak_at: the task whose start reaches the peak, peak_words: the same in words.
    holders: the largest first. pools_bytes: what the tensors of each stream need at their own peak, all streams
    together, beyond the peak of all tensors (``report.slack``). host_bytes: the most that the host holds for the rank.
    """

    ranks: str
    times_s: Floats
    curve_bytes: Floats
    peak_s: float
    peak_at: str
    peak_words: str
    by_kind_bytes: Mapping[str, float]
    holders: tuple[Holder, ...]
    pools_bytes: float = 0.0
    host_bytes: float = 0.0

    @property
    def peak_bytes(self) -> float:
        """Sum over kinds."""
        return sum(self.by_kind_bytes.values())

    def fits(self, capacity_bytes: float) -> bool:
        """Whether the peak is at most the capacity."""
        return self.peak_bytes <= capacity_bytes

    def peak_with(self, kind: str, factor: float) -> float:
        """Peak bytes if all memory of a kind were ``factor`` times as large, at the same times: it may move."""
        return float((self.curve_bytes.sum(axis=1) + (factor - 1.0) * self.of_kind(kind)).max())

    def of_kind(self, kind: str) -> Floats:
        """(n,) bytes of one kind."""
        column: Floats = self.curve_bytes[:, MEMORY_KINDS.index(kind)]
        return column


class _Change(NamedTuple):
    """A buffer comes to life (sign 1) or is given back (-1)."""

    time_s: float
    task: str
    sign: int
    buffer: Buffer


def memory_of(timeline: Timeline) -> Memory:
    """Memory of the rank class whose peak is the highest; ties go to the first."""
    return max((class_memory(timeline, ranks) for ranks in timeline.plan.classes), key=lambda m: m.peak_bytes)


def class_memory(timeline: Timeline, ranks: RankClass) -> Memory:
    """Memory of one rank of a class."""
    spans, resident = timeline.of_class(ranks.name), timeline.plan.resident_by(ranks.name)
    everywhere = list(_changes(spans, ranks, resident))
    changes = [change for change in everywhere if change.buffer.kind != HOST_MEMORY]
    deltas = np.zeros((len(changes) + 1, len(MEMORY_KINDS)))
    for buffer in resident:
        deltas[0, MEMORY_KINDS.index(buffer.kind)] += buffer.size_bytes
    for number, change in enumerate(changes, start=1):
        deltas[number, MEMORY_KINDS.index(change.buffer.kind)] += change.sign * change.buffer.size_bytes
    curve = np.maximum(deltas.cumsum(axis=0), 0.0)  # sums of floats may miss 0 by rounding
    top = int(curve.sum(axis=1).argmax())
    times = np.array([0.0, *(change.time_s for change in changes)])
    peak_at = changes[top - 1].task if top else BEFORE_THE_STEP
    return Memory(
        ranks=ranks.name, times_s=times, curve_bytes=curve, peak_s=float(times[top]), peak_at=peak_at,
        peak_words=_in_words(peak_at, spans),
        by_kind_bytes=MappingProxyType(dict(zip(MEMORY_KINDS, curve[top].tolist(), strict=True))),
        holders=_holders(resident, changes[:top]), pools_bytes=_pools_bytes(spans, resident, changes),
        host_bytes=_host_bytes(everywhere),
    )  # fmt: skip


def _host_bytes(changes: Iterable[_Change]) -> float:
    """The most that host memory holds; it is empty before the step."""
    sizes = (change.sign * change.buffer.size_bytes for change in changes if change.buffer.kind == HOST_MEMORY)
    return max(accumulate(sizes, initial=0.0))


def _in_words(name: str, spans: Sequence[Span]) -> str:
    told = next((span.task for span in spans if span.task.name == name), None)
    if told is None:
        return name
    numbers = (number for span in spans if (number := micro_batch_of(span.task)) is not None)
    first = next(numbers, None)
    return task_words(told, 2 if any(number != first for number in numbers) else 1)


def _changes(spans: Sequence[Span], ranks: RankClass, resident: Iterable[Buffer]) -> Iterator[_Change]:
    """In time order; at one instant in the order of the spans, so that what ended before frees first."""
    buffers = {buffer.name: buffer for buffer in (*resident, *(b for span in spans for b in span.task.allocates))}
    found: list[tuple[float, int, int, _Change]] = []
    for number, span in enumerate(spans):
        if not span.task.allocates and not span.task.frees:
            continue
        for sign, names, time_s in (
            (1, tuple(b.name for b in span.task.allocates), span.start_s), (-1, span.task.frees, span.end_s),
        ):  # fmt: skip
            found += [
                (time_s, number, -sign, _Change(time_s, span.task.name, sign, _scaled(buffers[name], ranks)))
                for name in names
            ]
    yield from (change for *_, change in sorted(found, key=lambda entry: entry[:3]))


def _scaled(buffer: Buffer, ranks: RankClass) -> Buffer:
    """Activations, and what the host holds of them, grow with the samples that the rank works on."""
    if buffer.kind not in ("activations", HOST_MEMORY) or ranks.work == 1.0:
        return buffer
    return replace(buffer, size_bytes=buffer.size_bytes * ranks.work)


def _holders(resident: Sequence[Buffer], changes: Sequence[_Change]) -> tuple[Holder, ...]:
    """What is alive after the changes, by kind and the first word of its name."""
    alive = {buffer.name: buffer for buffer in resident}
    for change in changes:
        if change.sign > 0:
            alive[change.buffer.name] = change.buffer
        else:
            assert change.buffer.name in alive, f"'{change.task}' ends before '{change.buffer.name}' is allocated"
            del alive[change.buffer.name]
    kinds: dict[tuple[str, str], list[Buffer]] = {}
    for buffer in alive.values():
        kinds.setdefault((buffer.kind, buffer.name.split()[0]), []).append(buffer)
    found = [_holder(kind, held) for (kind, _), held in kinds.items()]
    return tuple(sorted(found, key=lambda holder: -holder.size_bytes)[:_MOST_HOLDERS])


def _holder(kind: str, held: Sequence[Buffer]) -> Holder:
    largest = max(held, key=lambda buffer: buffer.size_bytes)
    return Holder(
        kind=kind, name=largest.name, count=len(held), size_bytes=sum(buffer.size_bytes for buffer in held),
        largest_bytes=largest.size_bytes,
    )  # fmt: skip


def _pools_bytes(spans: Iterable[Span], resident: Iterable[Buffer], changes: Iterable[_Change]) -> float:
    """A stream's pool is as large as its tensors ever were; all pools, less the most that was ever alive at once."""
    lanes = {span.task.name: span.task.lane for span in spans if span.task.allocates}
    held = sum(buffer.size_bytes for buffer in resident)
    pools, most, alive, peak = {COMPUTE_LANE: held}, {COMPUTE_LANE: held}, held, held
    pool_of: dict[str, str] = {}
    for change in changes:
        pool = pool_of.setdefault(change.buffer.name, lanes[change.task] if change.sign > 0 else COMPUTE_LANE)
        size = change.sign * change.buffer.size_bytes
        pools[pool], alive = pools.get(pool, 0.0) + size, alive + size
        most[pool], peak = max(most.get(pool, 0.0), pools[pool]), max(peak, alive)
    return max(0.0, sum(most.values()) - peak)


def thinned(memory: Memory, most: int) -> tuple[Floats, Floats]:
    """At most ``most`` points of the curve: times (n,) and bytes (n, kinds); the peak is always among them.

    The first point, and of each of equally long stretches of the step the highest.
    """
    totals = memory.curve_bytes.sum(axis=1)
    if len(totals) <= most:
        return memory.times_s, memory.curve_bytes
    end_s = float(memory.times_s[-1])
    share = memory.times_s / end_s if end_s else np.zeros(len(totals))
    stretch = np.minimum((share * (most - 1)).astype(np.int64), most - 2)
    order = np.lexsort((-totals, stretch))
    first = np.ones(len(order), dtype=bool)
    first[1:] = stretch[order][1:] != stretch[order][:-1]
    kept = np.unique(np.concatenate(([0], order[first])))
    return memory.times_s[kept], memory.curve_bytes[kept]

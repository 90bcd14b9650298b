"""What a picture of a step shows: the lanes of one rank as rows of bars, layers to zoom in on. Pure; draws nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from simulator.errors import ScenarioError
from simulator.plan import COMPUTE_LANE, Communicate, RankClass, Task
from simulator.problems import nearest
from simulator.report.intervals import minus
from simulator.report.lanes import covered, host_lane, slowest, waiting_of
from simulator.report.words import layer_words, micro_batch_of
from simulator.timeline import Span, Timeline
from simulator.units import format_bytes

HOST_ROW, EXPOSED_ROW = "host thread", "exposed"
#: Collectives in few letters, as the FSDP papers write them.
SHORT = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "broadcast": "BC", "reduce": "RD"}
#: Around a zoomed layer, this share of its time is shown before and after it.
_MARGIN = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One thing on a lane. style: the kind of a compute task, or the operation of a collective. labels: longest first.

    layer: of the model that it belongs to, '' for none. task: what it stands for; None where it is no single task.
    """

    start_s: float
    end_s: float
    style: str
    labels: tuple[str, ...]
    layer: str = ""
    task: Task | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A lane and what runs on it, in time order."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of the step to look at closely."""

    title: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swimlanes:
    """Rows from top to bottom, and windows in time order."""

    ranks: RankClass
    rows: tuple[Row, ...]
    windows: tuple[Window, ...]
    end_s: float


def swimlanes_of(timeline: Timeline, zoom: Sequence[str] = ()) -> Swimlanes:
    """The lanes of the class that sets the step, and where the layers ``zoom`` run forward and backward.

    zoom: names of layers as the plan has them; two in the middle when left out. Raises ScenarioError for another.
    """
    ranks = slowest(waiting_of(timeline)).ranks
    spans = timeline.of_class(ranks.name)
    layers = checked_layers(spans, zoom) if zoom else _middle(_layers(spans))
    return Swimlanes(
        ranks=ranks, rows=rows_of(timeline, ranks), windows=tuple(_windows(spans, layers)), end_s=timeline.end_s
    )  # fmt: skip


def rows_of(timeline: Timeline, ranks: RankClass) -> tuple[Row, ...]:
    """The lanes of a class of ranks: host, compute, copies, communicators; and last what of these is exposed."""
    return tuple(_rows(timeline, ranks, timeline.of_class(ranks.name)))


def checked_layers(spans: Sequence[Span], zoom: Sequence[str]) -> tuple[str, ...]:
    """``zoom`` in the order of the model. Raises ScenarioError for a layer that the step does not have."""
    known = _layers(spans)
    for name in zoom:
        if name not in known:
            few = known if len(known) <= 4 else (*known[:2], "...", *known[-2:])
            raise ScenarioError(
                f"--zoom: {name!r} is no layer of this step; accepted: {', '.join(few)}{nearest(name, known)}"
            )
    return tuple(name for name in known if name in zoom)


def _layers(spans: Sequence[Span]) -> tuple[str, ...]:
    """Layers that are planned one by one, in forward order."""
    forward = (s.task for s in spans if s.task.kind == "forward" and micro_batch_of(s.task) is not None)
    return tuple(dict.fromkeys(task.part for task in forward if not isinstance(task, Communicate) and task.part))


def _middle(layers: tuple[str, ...]) -> tuple[str, ...]:
    """Two neighbours in the middle; of numbered blocks where there are any."""
    blocks = tuple(layer for layer in layers if layer_words(layer) != layer) or layers
    at = max(0, len(blocks) // 2 - 1)
    return blocks[at : at + 2]


def _windows(spans: Sequence[Span], layers: Sequence[str]) -> Iterator[Window]:
    """Forward and backward of the layers in the last micro-batch that is planned layer by layer."""
    passes = [(s, micro_batch_of(s.task)) for s in spans if s.task.kind in ("forward", "backward")]
    last = max((micro for _, micro in passes if micro is not None), default=0)
    named = " and ".join(dict.fromkeys(layer_words(layer) for layer in layers))
    for kind in ("forward", "backward"):
        mine = [s for s, micro in passes if s.task.kind == kind and micro == last and _layer(s.task) in layers]
        if mine:
            start, end = min(s.start_s for s in mine), max(s.end_s for s in mine)
            margin = _MARGIN * (end - start)
            yield Window(title=f"{kind} of {named}", start_s=max(0.0, start - margin), end_s=end + margin)


def _rows(timeline: Timeline, ranks: RankClass, spans: Sequence[Span]) -> Iterator[Row]:
    """Host, compute, copies, communicators; and last when a collective runs and no compute does."""
    issues = host_lane(timeline, ranks)
    if issues:
        yield Row(name=HOST_ROW, bars=tuple(
            Bar(start_s=max(0.0, i.start_s), end_s=i.end_s, style="host", labels=_labels(i.task), layer=_layer(i.task),
                task=i.task)
            for i in issues if i.end_s > max(0.0, i.start_s)  # what was issued before the step began is not shown
        ))  # fmt: skip
    for lane in _lanes(timeline.plan.tasks):
        bars = tuple(_bar(s) for s in spans if s.task.lane == lane and s.end_s > s.start_s)
        if bars:
            yield Row(name=lane, bars=bars)
    talking = [s for s in spans if isinstance(s.task, Communicate)]
    if talking:
        alone = minus(covered(talking), covered([s for s in spans if s.task.lane == COMPUTE_LANE]))
        yield Row(name=EXPOSED_ROW, bars=tuple(Bar(start_s=a, end_s=b, style="exposed", labels=()) for a, b in alone))


def _lanes(tasks: Iterable[Task]) -> list[str]:
    """Compute first, then copies, then communicators; each in the order of the plan."""
    talk: dict[str, bool] = {}
    for task in tasks:
        talk.setdefault(task.lane, isinstance(task, Communicate))
    return sorted(talk, key=lambda lane: (lane != COMPUTE_LANE, talk[lane]))


def _bar(span: Span) -> Bar:
    task = span.task
    style = task.op if isinstance(task, Communicate) else task.kind
    return Bar(start_s=span.start_s, end_s=span.end_s, style=style, labels=_labels(task), layer=_layer(task), task=task)


def _layer(task: Task) -> str:
    return "" if isinstance(task, Communicate) else task.part


def _labels(task: Task) -> tuple[str, ...]:
    if isinstance(task, Communicate):
        short, size = SHORT.get(task.op, task.op), format_bytes(task.message_bytes, 3)
        return (f"{short} {task.purpose} {size}", f"{short} {size}", short)
    name = task.name.partition(": ")[2] or task.name
    inside = name.removeprefix(task.part).removeprefix(".") if task.part else name
    return tuple(dict.fromkeys(label for label in (inside or layer_words(name), inside.split(".")[-1]) if label))

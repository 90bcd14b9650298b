"""A step at the ends of what its profiles say: step time, exposed communication, cost and verdicts as ranges.

All inputs of compute go to their slow or their fast end together, and so do all of the network: four corners. The two
need apart, as a slow network with fast compute exposes the most communication and takes neither the longest nor the
shortest; a corner with all slow and one with all fast would hide that. Within one of the two, inputs move together:
the widest that they can do, wider than if they were independent. A range is the least and the most over the corners
and the step as it is. Memory that processes take has no part in time: it is at its high end where compute is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from simulator.answer import StepAnswer, Wiring, answer_step, wiring_of
from simulator.report.costs import Money, costs_of
from simulator.report.verdict import Verdict
from simulator.scaling import INPUTS, scaled
from simulator.scenario import Scenario

Judge = Callable[[StepAnswer], Sequence[Verdict]]
#: Inputs that move together.
_AXES: Mapping[str, tuple[str, ...]] = {"compute": ("compute", "memory"), "network": ("network",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An input that may be off: factors on its typical value, and where they come from."""

    name: str
    words: str
    axis: str
    low: float
    high: float
    slow: float
    fast: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Least, typical and most of one quantity."""

    low: float
    typical: float
    high: float

    @property
    def is_open(self) -> bool:
        """Whether the ends differ by more than rounding."""
        return self.high - self.low > 1e-9 * max(abs(self.high), abs(self.low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """One simulated end: ``{"compute": "slow", "network": "fast"}``, what its step takes, and its verdicts."""

    ends: Mapping[str, str]
    quantities: Mapping[str, float]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A verdict that is not the same everywhere in the range. at: where it is the other; there: what it says."""

    typical: Verdict
    at: tuple[Corner, ...]
    there: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Spans by name (``step_time_s``, ...), verdicts that flip, the corners, and the inputs that made them."""

    spans: Mapping[str, Span]
    flips: tuple[Flip, ...]
    corners: tuple[Corner, ...]
    inputs: tuple[Moved, ...]


def uncertain_inputs(scenario: Scenario) -> tuple[Moved, ...]:
    """Inputs of a loaded scenario whose profiles state a range, and which its step reads."""
    return tuple(_moved(scenario))


def _moved(scenario: Scenario) -> Iterator[Moved]:
    for axis, groups in _AXES.items():
        for name, entry in INPUTS.items():
            off = entry.off_by(scenario) if entry.group in groups else None
            if off is not None:
                slow, fast = (off.high, off.low) if entry.slower else (off.low, off.high)
                yield Moved(
                    name=name, words=entry.words, axis=axis, low=off.low, high=off.high, slow=slow, fast=fast,
                    source=off.source,
                )  # fmt: skip


def corner_scenarios(scenario: Scenario) -> tuple[tuple[Mapping[str, str], Scenario], ...]:
    """The scenario at each corner of (compute, network), as far as either is uncertain; nothing where neither is."""
    inputs = uncertain_inputs(scenario)
    axes = [axis for axis in _AXES if any(moved.axis == axis for moved in inputs)]
    found = []
    for ends in product(("slow", "fast"), repeat=len(axes)):
        corner = dict(zip(axes, ends, strict=True))
        factors = {m.name: m.slow if corner[m.axis] == "slow" else m.fast for m in inputs}
        found.append((corner, scaled(scenario, factors)))
    return tuple(found) if axes else ()


def ranges_of(answer: StepAnswer, judge: Judge) -> Ranges | None:
    """The ranges of an answered scenario, from a simulation at each corner; None where nothing is uncertain."""
    scenario = answer.job.scenario
    corners = tuple(_corner(ends, end, judge) for ends, end in _answers(corner_scenarios(scenario)))
    if not corners:
        return None
    here, there = _quantities(answer), [quantities for quantities, _ in corners]
    return Ranges(
        spans={name: _span(held, [quantities[name] for quantities in there]) for name, held in here.items()},
        flips=tuple(_flips(judge(answer), [corner for _, corner in corners])),
        corners=tuple(corner for _, corner in corners), inputs=uncertain_inputs(scenario),
    )  # fmt: skip


def _answers(corners: Sequence[tuple[Mapping[str, str], Scenario]]) -> Iterator[tuple[Mapping[str, str], StepAnswer]]:
    """Every corner simulated; those with the same end of the network share it."""
    wired: dict[str, Wiring] = {}
    for ends, scenario in corners:
        end = ends.get("network", "")
        wired[end] = wired.get(end) or wiring_of(scenario)
        yield ends, answer_step(scenario, wired[end], with_startup=False)


def _corner(ends: Mapping[str, str], answer: StepAnswer, judge: Judge) -> tuple[Mapping[str, Money], Corner]:
    quantities = _quantities(answer)
    typical = {name: held.typical for name, held in quantities.items()}
    return quantities, Corner(ends=ends, quantities=typical, verdicts=tuple(judge(answer)))


def _span(here: Money, there: Sequence[Money]) -> Span:
    lows, highs = [here.low, *(one.low for one in there)], [here.high, *(one.high for one in there)]
    return Span(low=min(lows), typical=here.typical, high=max(highs))


def _quantities(answer: StepAnswer) -> dict[str, Money]:
    """What a range is given of, in one simulated step; money at its own lowest and highest price."""
    report, costs = answer.report, costs_of(answer.report, answer.job)
    plain = {
        "step_time_s": report.step_time_s, "tokens_per_s_per_gpu": report.tokens_per_s_per_gpu, "mfu": report.mfu,
        "exposed_share": report.exposed_share,
        "memory_peak_bytes": None if answer.job.device is None else report.memory.peak_bytes,
        "gpu_hours_per_million_tokens": costs.gpu_hours_per_million_tokens, "days": costs.days,
    }  # fmt: skip
    money = {"cost_per_million_tokens": costs.per_million_tokens, "cost_of_run": costs.run}
    found = {name: Money(typical=held, low=held, high=held) for name, held in plain.items() if held is not None}
    return found | {name: held for name, held in money.items() if held is not None}


def _flips(typical: Sequence[Verdict], corners: Sequence[Corner]) -> Iterator[Flip]:
    for place, verdict in enumerate(typical):
        at = [corner for corner in corners if corner.verdicts[place].ok != verdict.ok]
        if at:
            yield Flip(typical=verdict, at=tuple(at), there=tuple(corner.verdicts[place] for corner in at))

"""Answered scenarios side by side: what differs in the input, the same quantities, and where time went. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.job import Job
from simulator.report.costs import costs_of, run_dollars
from simulator.report.metrics import StepReport
from simulator.scenario import Scenario
from simulator.units import format_dollars, format_gib, format_percent, format_time

#: Keys whose values are long and say the same as their names.
_NAMED = ("topology", "library", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity of all scenarios: numbers (None where one lacks it), and as text."""

    name: str
    values: tuple[float | None, ...]
    shown: tuple[str, ...]

    @property
    def ratios(self) -> tuple[float | None, ...]:
        """Each value over the first; None where there is none, or the first is zero."""
        first = self.values[0]
        return tuple(None if value is None or not first else value / first for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    value: Callable[[StepReport, Job], float | None]
    show: Callable[[float], str]


_QUANTITIES: Mapping[str, _Quantity] = {
    "step time": _Quantity(value=lambda r, _: r.step_time_s, show=format_time),
    "forward and backward": _Quantity(value=lambda r, _: r.breakdown.compute - r.copies_s, show=format_time),
    "copies": _Quantity(value=lambda r, _: r.copies_s, show=format_time),
    "optimizer": _Quantity(value=lambda r, _: r.breakdown.optimizer, show=format_time),
    "exposed communication": _Quantity(value=lambda r, _: r.breakdown.exposed_comm, show=format_time),
    "other": _Quantity(value=lambda r, _: r.breakdown.other, show=format_time),
    "exposed share": _Quantity(value=lambda r, _: r.exposed_share, show=format_percent),
    "communication": _Quantity(value=lambda r, _: r.comm_total_s, show=format_time),
    "compute lost to interference": _Quantity(value=lambda r, _: r.interference_s, show=format_time),
    "GPUs": _Quantity(value=lambda _, j: float(j.num_ranks), show=lambda v: f"{v:,.0f}"),
    "tokens per step": _Quantity(value=lambda r, _: float(r.tokens_per_step), show=lambda v: f"{v:,.0f}"),
    "tokens/s": _Quantity(value=lambda r, _: r.tokens_per_s, show=lambda v: f"{v:,.0f}"),
    "tokens/s per GPU": _Quantity(value=lambda r, _: r.tokens_per_s_per_gpu, show=lambda v: f"{v:,.0f}"),
    "MFU": _Quantity(value=lambda r, _: r.mfu, show=format_percent),
    "peak memory": _Quantity(value=lambda r, _: r.memory.peak_bytes, show=format_gib),
    "GPU-hours per million tokens": _Quantity(
        value=lambda r, j: costs_of(r, j).gpu_hours_per_million_tokens, show=lambda v: f"{v:.3g}"
    ),
    "days of the run": _Quantity(value=lambda r, j: costs_of(r, j).days, show=lambda v: f"{v:,.1f}"),
    "cost of the run": _Quantity(value=run_dollars, show=format_dollars),
}  # fmt: skip


def lines(answers: Sequence[tuple[StepReport, Job]]) -> tuple[Line, ...]:
    """All quantities that some scenario has and that are not zero everywhere, in a fixed order."""
    found = []
    for name, quantity in _QUANTITIES.items():
        values = tuple(quantity.value(report, job) for report, job in answers)
        if any(values):
            shown = tuple("" if value is None else quantity.show(value) for value in values)
            found.append(Line(name=name, values=values, shown=shown))
    return tuple(found)


def differences(scenarios: Sequence[Scenario]) -> dict[str, tuple[str, ...]]:
    """Keys that scenarios set differently, dotted, with the value of each as it was written; '' where one does not have
    the key.
    """
    flat = [dict(_flat(scenario.model_dump(mode="json"))) for scenario in scenarios]
    keys = dict.fromkeys(key for one in flat for key in one)
    return {
        key: tuple(_as_written(scenario, key, one.get(key, "")) for scenario, one in zip(scenarios, flat, strict=True))
        for key in keys
        if len({one.get(key, "") for one in flat}) > 1
    }  # fmt: skip


def _as_written(scenario: Scenario, key: str, value: str) -> str:
    """``15T`` rather than the number that it stands for; the value itself where it is a default, or no plain one."""
    written = scenario.written(tuple(key.split(".")))
    return str(written) if value and isinstance(written, str | int | float) and not isinstance(written, bool) else value


def _flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        place = f"{path}{key}"
        if key in _NAMED and isinstance(value, dict) and value.get("name"):
            yield place, str(value["name"])
        elif isinstance(value, dict):
            yield from _flat(value, f"{place}.")
        elif value is not None and value != []:
            yield place, str(value)

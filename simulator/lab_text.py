"""A lab's answer as text and JSON: real beside simulated, span by span."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.lab.model import Way
from simulator.lab_answer import LabAnswer
from simulator.lab_compare import Compared
from simulator.units import format_bandwidth, format_time

SCHEMA_VERSION = 1
#: Characters of a line that are not of the lane: its name and two edges. Least width of a lane, most of its line.
_EDGES, _LEAST_LANE, _MOST_LINE = 21, 20, 100
_LETTERS = {"forward": "f", "backward": "b", "communication": "="}
_COMMUNICATION = "communication"


def lab_json(answer: LabAnswer) -> dict[str, Any]:
    """Seconds and bytes/s; spans as in ``Compared``, null where the real run did not show them."""
    return {
        "schema_version": SCHEMA_VERSION, "kind": "lab",
        "hosts": answer.fabric.num_hosts, "hosts_per_side": list(answer.fabric.hosts_per_side),
        "host_bit_per_s": answer.fabric.host_bit_per_s, "uplink_bit_per_s": answer.fabric.uplink_bit_per_s,
        "real_time": answer.real_time,
        "measured": {
            "near": _way_json(answer.numbers.near), "across": _way_json(answer.numbers.across),
            "tiny_s": dict(answer.numbers.tiny_s),
        },
        "step": {
            "real_s": list(answer.real_s), "real_median_s": answer.real_step_s,
            "simulated_s": answer.simulated_step_s, "error": answer.error,
        },
        "unmatched": answer.unmatched or None,
        "spans": [
            {
                "name": span.name, "kind": span.kind, "real_start_s": span.real_start_s, "real_end_s": span.real_end_s,
                "simulated_start_s": span.simulated_start_s, "simulated_end_s": span.simulated_end_s,
            }
            for span in answer.spans
        ],
    }  # fmt: skip


def _way_json(way: Way | None) -> dict[str, float] | None:
    return None if way is None else {"alpha_s": way.alpha_s, "bytes_per_s": way.bytes_per_s}


def lab_text(answer: LabAnswer, width: int) -> Iterator[RenderableType]:
    """The answer, piece by piece. width: characters of a line."""
    yield Text(_built(answer))
    yield from map(Text, _measured(answer))
    yield Text()
    low, high = min(answer.real_s), max(answer.real_s)
    yield Text(
        f"step: real {format_time(answer.real_step_s)} (median of {len(answer.real_s)}: {format_time(low)} to "
        f"{format_time(high)}), simulated {format_time(answer.simulated_step_s)}, {100 * answer.error:+.1f} %",
        style="bold",
    )
    if not answer.real_time:
        yield Text("real times are inflated: without the right to run in real time (SCHED_RR) programs wait their turn")
    yield from _lanes(answer, max(_LEAST_LANE, min(width, _MOST_LINE) - _EDGES))
    yield Text("f: forward, b: backward, =: a collective or message (real: of one more step, under torch's profiler)")
    yield Text("from the first rank that begins to the last that ends")
    yield Text()
    yield _table(answer)
    if answer.unmatched:
        yield Text(f"the real run's collectives are not shown, since they are not the plan's: {answer.unmatched}")


def _built(answer: LabAnswer) -> str:
    fabric, simulated = answer.fabric, answer.simulated
    parallel = simulated.job.scenario.parallel
    what = f"{parallel.strategy} ({parallel.implemented_by}) on {fabric.num_hosts} hosts"
    if fabric.uplink_bit_per_s is None:
        return f"{what}, each on a link of {_mbit(fabric.host_bit_per_s)}"
    sides = " + ".join(map(str, fabric.hosts_per_side))
    return f"{what} ({sides}), links of {_mbit(fabric.host_bit_per_s)}, {_mbit(fabric.uplink_bit_per_s)} between sides"


def _mbit(bit_per_s: float) -> str:
    return f"{bit_per_s / 1e6:g} Mbit/s"


def _measured(answer: LabAnswer) -> Iterator[str]:
    numbers = answer.numbers
    ways = [_way(numbers.near), *([f"between sides {_way(numbers.across)}"] if numbers.across else [])]
    tiny = ", ".join(f"{op.replace('_', '-')} {format_time(time_s, 2)}" for op, time_s in numbers.tiny_s.items())
    yield f"measured first: a message {'; '.join(ways)}"
    yield f"tiny collectives: {tiny}"


def _way(way: Way) -> str:
    return f"{format_time(way.alpha_s, 2)} + bytes / {format_bandwidth(way.bytes_per_s)}"


# ------------------------------------------------------------------------------------------------------------ lanes


def _lanes(answer: LabAnswer, width: int) -> Iterator[Text]:
    """Who is busy when."""
    ends_s = [span.real_end_s for span in answer.spans if span.real_end_s is not None]
    whole_s = max(answer.simulated_step_s, answer.real_step_s, *ends_s)
    for title, ends in (("real", _real), ("simulated", _simulated)):
        for name, chosen in (("compute", _is_compute), ("network", _is_communication)):
            lane = [" "] * width
            for span in filter(chosen, answer.spans):
                start, end = ends(span)
                if start is not None and end is not None:
                    _draw(lane, span.kind, start / whole_s, end / whole_s)
            yield Text(f"{title:>10} {name} |{''.join(lane)}|")


def _draw(lane: list[str], kind: str, start: float, end: float) -> None:
    first = min(len(lane) - 1, int(start * len(lane)))
    for place in range(first, min(len(lane), max(first + 1, round(end * len(lane))))):
        lane[place] = _LETTERS.get(kind, "#")


def _is_communication(span: Compared) -> bool:
    return span.kind == _COMMUNICATION


def _is_compute(span: Compared) -> bool:
    return span.kind != _COMMUNICATION


Ends = Callable[[Compared], tuple[float | None, float | None]]


def _real(span: Compared) -> tuple[float | None, float | None]:
    return span.real_start_s, span.real_end_s


def _simulated(span: Compared) -> tuple[float | None, float | None]:
    return span.simulated_start_s, span.simulated_end_s


# ------------------------------------------------------------------------------------------------------------ table


def _table(answer: LabAnswer) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("span")
    for column in ("real from", "to", "simulated from", "to", "end differs"):
        table.add_column(column, justify="right")
    for span in answer.spans:
        times = (*_real(span), *_simulated(span))
        table.add_row(span.name, *map(_time, times), _differs(span.real_end_s, span.simulated_end_s))
    table.add_row(
        "step", "", _time(answer.real_step_s), "", _time(answer.simulated_step_s),
        _differs(answer.real_step_s, answer.simulated_step_s), style="bold",
    )  # fmt: skip
    return table


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _differs(real_s: float | None, simulated_s: float) -> str:
    return "-" if real_s is None else f"{(simulated_s - real_s) * 1e3:+.1f} ms"

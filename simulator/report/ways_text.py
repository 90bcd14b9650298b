"""``--explain``: which algorithm and protocol the library runs, which would be the fastest, and why, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.rows import Row, Way
from simulator.units import format_bytes, format_time


def ways_text(ways: Sequence[Way]) -> Iterator[RenderableType]:
    """A table and a sentence for each number of ranks and size."""
    for key in dict.fromkeys((way.p, way.size_bytes) for way in ways):
        mine = [way for way in ways if (way.p, way.size_bytes) == key]
        yield ""
        yield _table(mine)
        yield Text(_sentence(mine))


def slower_than_fastest(rows: Sequence[Row]) -> list[str]:
    """How often and by how much what the library runs is slower than the fastest of its algorithms; [] for never."""
    behind: list[float] = []
    for size in dict.fromkeys(row.size_bytes for row in rows):
        mine = [row for row in rows if row.size_bytes == size]
        run = next((row for row in mine if row.picked), None)
        best = min(row.time_s for row in mine)
        if run is not None and run.time_s > best * (1 + 1e-9):
            behind.append(1 - best / run.time_s)
    if not behind:
        return []
    sizes = len({row.size_bytes for row in rows})
    return [
        f"{rows[0].p} ranks: at {len(behind)} of {sizes} sizes another of its algorithms would be faster, "
        f"by up to {max(behind):.0%}; --explain says which"
    ]


def _table(ways: Sequence[Way]) -> Table:
    title = f"{ways[0].op}, {ways[0].p} ranks, {format_bytes(ways[0].size_bytes, 3)}: every way the library has"
    table = Table(title=title, title_justify="left", box=None, title_style="bold", pad_edge=False)
    for name in ("algorithm", "protocol"):
        table.add_column(name)
    for name in ("believed(us)", "time(us)", "latency(us)", "transfer(us)"):
        table.add_column(name, justify="right")
    table.add_column("")
    for way in ways:
        believed = "-" if way.believed_s is None else f"{way.believed_s * 1e6:.1f}"
        marks = ("*" if way.fastest else "") + (">" if way.picked else "")
        table.add_row(
            way.algorithm, way.protocol, believed, f"{way.time_s * 1e6:.1f}", f"{way.latency_s * 1e6:.1f}",
            f"{way.transfer_s * 1e6:.1f}", marks,
        )  # fmt: skip
    return table


def _sentence(ways: Sequence[Way]) -> str:
    run = next(way for way in ways if way.picked)
    best = next(way for way in ways if way.fastest)
    name = f"{run.algorithm} with {run.protocol}"
    if run.believed_s is None or run.chosen_by != "its cost model":
        why = f"chosen by {run.chosen_by}"
    else:
        others = [way.believed_s for way in ways if not way.picked and way.believed_s is not None]
        next_best = f", the next best {format_time(min(others), 3)}" if others else ""
        why = f"its cost model expects {format_time(run.believed_s, 3)}{next_best}"
    more = "latency" if run.latency_s > run.transfer_s else "transfer"
    text = f"runs {name}: {why}. It takes {format_time(run.time_s, 3)}, most of it {more}."
    if best is run:
        return f"{text} Nothing else would be faster."
    gain = 1 - best.time_s / run.time_s
    return f"{text} {best.algorithm} with {best.protocol} would take {format_time(best.time_s, 3)}, {gain:.0%} less."

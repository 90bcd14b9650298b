"""The picture of a sweep: nothing hides anything, it says what the rows say, and the same rows give the same bytes."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import log2
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator
from matplotlib.colors import to_hex
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from simulator.collectives import ALGORITHMS
from simulator.report.rows_choices import choices_of, finding
from simulator.report.rows_plot import STYLES, draw_rows, plot_rows
from simulator.rows import Crossover, Row

RANKS = (8, 16, 32, 64, 128, 256)
LIBRARY = ("--topology", "dgx-h100", "-e", "16G", "--algo", "ring,double_tree,hierarchical,nvls,nvls_tree")
TEXTBOOK = ("-e", "1G", "--algo", "ring,tree", "--alpha", "5us", "--bandwidth", "50 GB/s")
PICTURES = [(flags, n) for flags in (LIBRARY, TEXTBOOK) for n in range(1, 7)]
NAMES = [f"{'library' if flags is LIBRARY else 'textbook'}-{n}" for flags, n in PICTURES]

#: Renders pictures, which takes seconds each.
pytestmark = pytest.mark.slow


@cache
def swept(flags: tuple[str, ...]) -> tuple[tuple[Row, ...], tuple[Crossover, ...], str]:
    """Rows, crossovers and the network in words, at RANKS, doubling from 1 KiB."""
    result = simulator(
        "collective", "all_reduce", "-p", ",".join(map(str, RANKS)), "-b", "1K", "-f", "2", *flags, "--json"
    )
    assert result.code == 0, result.err
    value = json.loads(result.out)
    rows = tuple(Row(**row) for row in value["rows"])
    return rows, tuple(Crossover(**one) for one in value["crossovers"]), value["network"]


def picture(flags: tuple[str, ...], panels: int) -> Any:
    rows, crossings, where = swept(flags)
    kept = RANKS[-panels:]
    return draw_rows([r for r in rows if r.p in kept], [c for c in crossings if c.p in kept], where)


def mains(figure: Any) -> list[Any]:
    return [axis for axis in figure.axes if axis.get_yscale() == "log"]


def strips(figure: Any) -> list[Any]:
    return [axis for axis in figure.axes if axis.get_yscale() != "log"]


def labels(figure: Any) -> list[Text]:
    """The texts that a reader sees; matplotlib also keeps those of ticks outside the picture."""
    unseen: set[Text] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                unseen |= {tick.label2} | (set() if low <= tick.get_loc() <= high else {tick.label1})
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in unseen]


def boxes(figure: Any) -> list[tuple[str, Bbox]]:
    figure.canvas.draw()
    return [(one.get_text(), one.get_window_extent()) for one in labels(figure)]


def overlapping(found: Sequence[tuple[str, Bbox]]) -> Iterator[tuple[str, str]]:
    for (first, a), (second, b) in combinations(found, 2):
        if min(a.x1, b.x1) > max(a.x0, b.x0) and min(a.y1, b.y1) > max(a.y0, b.y0):
            yield first, second


def outside(figure: Any, found: Sequence[tuple[str, Bbox]]) -> list[str]:
    frame = figure.bbox
    return [text for text, box in found if box.x0 < 0 or box.y0 < 0 or box.x1 > frame.x1 or box.y1 > frame.y1]


@pytest.mark.parametrize(("flags", "panels"), PICTURES, ids=NAMES)
def test_no_label_hides_another_or_leaves_the_picture(flags: tuple[str, ...], panels: int) -> None:
    figure = picture(flags, panels)
    found = boxes(figure)
    assert len(found) > 5 * panels
    assert not list(overlapping(found))
    assert not outside(figure, found)


def test_labels_of_crossovers_close_together_stand_apart() -> None:
    rows, _, where = swept(LIBRARY)
    kept = [row for row in rows if row.p == 256]
    close = [
        Crossover(op="all_reduce", p=256, size_bytes=size * 1.0, below="double_tree", above="hierarchical")
        for size in (2**12, 2**13, 2**13 + 5, 2**33, 2**34)
    ]
    for some in (kept, [replace(row, fidelity="vector") for row in kept]):  # with strips, and with names at the lines
        figure = draw_rows(some, close, where)
        found = boxes(figure)
        assert not list(overlapping(found))
        assert not outside(figure, found)


@pytest.mark.parametrize("panels", [1, 6])
def test_labels_of_crossovers_stand_below_all_lines(panels: int) -> None:
    for axis in mains(picture(LIBRARY, panels)):
        curves = [line for line in axis.lines if not line.get_label().startswith("_")]
        lowest = min(float(axis.transData.transform((1024, min(line.get_ydata())))[1]) for line in curves)
        assert axis.texts
        assert all(label.get_window_extent().y1 < lowest for label in axis.texts)


def test_the_legend_names_every_algorithm_of_every_panel_once() -> None:
    rows, _, _ = swept(LIBRARY)
    (legend,) = picture(LIBRARY, 6).legends
    named = [text.get_text() for text in legend.get_texts()]
    assert set(named) >= {row.algorithm for row in rows} >= {"nvls", "nvls_tree"}
    assert len(named) == len(set(named))


@pytest.mark.parametrize("op", sorted({op for op, _ in ALGORITHMS}))
def test_no_two_algorithms_of_an_operation_look_alike(op: str) -> None:
    looks = [STYLES[name] for of, name in ALGORITHMS if of == op]
    assert len(set(looks)) == len(looks)


def test_what_nccl_has_differs_by_colour_alone() -> None:
    colours = [STYLES[name][0] for name in ("ring", "double_tree", "hierarchical", "nvls", "nvls_tree")]
    assert len(set(colours)) == len(colours)


def shown(axis: Any, height: int) -> dict[float, tuple[str, bool]]:
    """By size, colour and whether framed, of the strip whose cells lie at ``height``."""
    cells = [cell for cell in axis.patches if abs(cell.get_y() + cell.get_height() / 2 - height) < 0.1]
    sizes = [2.0**k for k in range(10, 35)]
    under = {s: [c for c in cells if c.get_x() < s < c.get_x() + c.get_width()] for s in sizes}
    assert all(len(found) == 1 for found in under.values()), "each size lies in one cell"
    return {s: (to_hex(c.get_facecolor()).upper(), c.get_edgecolor()[:3] == (0, 0, 0)) for s, (c,) in under.items()}


def test_strips_follow_the_rows() -> None:
    rows, _, _ = swept(LIBRARY)
    differing = 0
    below = strips(picture(LIBRARY, 6))
    for axis in below[::3]:  # named left of the first column
        assert [label.get_text() for label in axis.get_yticklabels()] == ["runs", "fastest"]
    for axis, p in zip(below, RANKS, strict=True):
        runs, fastest = shown(axis, 0), shown(axis, 1)
        for size in runs:
            (best,) = (row for row in rows if (row.p, row.size_bytes) == (p, size) and row.fastest)
            (run,) = (row for row in rows if (row.p, row.size_bytes) == (p, size) and row.picked)
            assert fastest[size] == (STYLES[best.algorithm][0], False)
            assert runs[size] == (STYLES[run.algorithm][0], run.time_s > best.time_s)
            differing += runs[size][1]
    assert differing > 10


def test_a_size_at_which_the_library_runs_something_else_is_left_white() -> None:
    rows, _, where = swept(LIBRARY)
    kept = [row for row in rows if row.p == 32 and row.algorithm in {"ring", "hierarchical"}]
    picked = [row.size_bytes for row in kept if row.picked]
    assert 0 < len(picked) < 25
    some = [replace(row, fastest=row.algorithm == "ring") for row in kept]
    (axis,) = strips(draw_rows(some, [], where))
    covered = [
        size
        for size in {row.size_bytes for row in kept}
        if any(c.get_x() < size < c.get_x() + c.get_width() for c in axis.patches if c.get_y() < 0)
    ]
    assert sorted(covered) == sorted(picked)


def test_titles_say_how_often_and_by_how_much_the_library_is_slower() -> None:
    rows, crossings, where = swept(LIBRARY)
    ratio: dict[tuple[int, float], float] = {}
    at: dict[tuple[int, float], list[Row]] = defaultdict(list)
    for row in rows:
        at[row.p, row.size_bytes].append(row)
    for key, some in at.items():
        (best,), (run,) = [r for r in some if r.fastest], [r for r in some if r.picked]
        ratio[key] = run.time_s / best.time_s
    (p, size), most = max(ratio.items(), key=lambda item: item[1])
    worse = sum(value > 1 for value in ratio.values())
    title = finding(rows, crossings, where).replace("\N{NO-BREAK SPACE}", " ")
    assert f"at {worse} of {len(ratio)} points, by up to {(most - 1) * 100:.0f} % ({p} ranks, " in title
    assert title.endswith(where)
    assert max(choice.slower for choice in choices_of([r for r in rows if r.p == p])) == pytest.approx(most - 1)
    assert size < 2**30  # where latency decides, not bytes


def test_the_textbook_picture_is_simple() -> None:
    figure = picture(TEXTBOOK, 3)
    assert not strips(figure)
    for axis, p in zip(mains(figure), RANKS[-3:], strict=True):
        assert axis.get_title() == f"{p} ranks"
        (label,) = axis.texts
        assert label.get_text().startswith("tree → ring\n")
    assert "tree is fastest below the dotted line, ring above it" in figure.get_suptitle().replace("\n", " ")


def test_played_schedules_among_a_librarys_are_dashed() -> None:
    (first, *others) = mains(picture(LIBRARY, 6))  # on one node the hierarchical one is not three library calls
    lines = {line.get_label(): line.get_linestyle() for line in first.lines}
    assert lines["hierarchical"] == "--"
    assert lines["ring"] == "-"
    assert all(line.get_linestyle() == "-" for axis in others for line in axis.lines if line.get_label()[0] != "_")


@pytest.mark.parametrize("ends", [(1024, 2**34), (8, 2**34), (1024, 4096), (2**20, 2**20), (3000, 3000), (1100, 1900)])
def test_ticks_of_sizes_are_few_and_lie_in_the_range(ends: tuple[int, int]) -> None:
    rows, _, where = swept(LIBRARY)
    one = next(row for row in rows if row.p == 8)
    some = [replace(one, size_bytes=float(size), time_s=size * 1e-9) for size in dict.fromkeys(ends)]
    figure = draw_rows(some, [], where)
    ticks = list(mains(figure)[0].get_xticks())
    assert 1 <= len(ticks) <= 7
    assert all(ends[0] <= tick <= ends[1] for tick in ticks)
    assert all(log2(tick).is_integer() for tick in ticks) or set(ticks) == set(ends)
    assert not list(overlapping(boxes(figure)))


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_same_rows_give_the_same_bytes(tmp_path: Path, ending: str) -> None:
    rows, crossings, where = swept(LIBRARY)
    paths = [tmp_path / f"{name}.{ending}" for name in ("a", "b")]
    for path in paths:
        plot_rows(rows, crossings, where, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_runs_is_not_called_the_fastest_where_the_fastest_is_not_shown() -> None:
    rows, crossings, where = swept(LIBRARY)
    figure = draw_rows([row for row in rows if row.picked], crossings, where)
    for axis in strips(figure)[::3]:
        assert [label.get_text() for label in axis.get_yticklabels()] == ["runs"]
    assert not [text for text, _ in boxes(figure) if "fastest" in text]


@pytest.mark.parametrize("algorithms", ["auto", "ring", "ring,hierarchical"])
def test_other_choices_of_algorithms_are_plotted_too(tmp_path: Path, algorithms: str) -> None:
    path = tmp_path / "x.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = simulator(
            "collective", "all_reduce", "--topology", "dgx-h100", "-p", "1,16", "-b", "1K", "-e", "64M", "-f", "8",
            "--algo", algorithms, "--plot", str(path),
        )  # fmt: skip
    assert result.code == 0, result.err
    assert path.stat().st_size > 10_000

"""`run --plot FILE --picture NAME`: each picture says its finding, shows all of its values, and hides no letter."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from simulator.answer import StepAnswer, answer_step
from simulator.errors import ScenarioError
from simulator.load import load_scenario
from simulator.report.charts.breakdown import breakdown_chart
from simulator.report.charts.exposed import exposed_chart
from simulator.report.charts.links import links_chart
from simulator.report.charts.memory import memory_chart
from simulator.report.charts.roofline import roofline_chart
from simulator.report.pictures.drawn import LANES, PICTURES, Step

LAYERS = "measured-layers-400mbit"
SCENARIOS = (LAYERS, "ddp-llama-1b-16xh100", "fsdp-llama-8b-128xh100", "zero3-deepspeed-llama-8b-16xa100", "mlp-naive")


@cache
def answered(name: str) -> StepAnswer:
    return answer_step(load_scenario(name))


def step(name: str) -> Step:
    answer = answered(name)
    return Step(answer.timeline, answer.report, answer.job, answer.network)


def finding(name: str, of: Step) -> str:
    charts: dict[str, Any] = {
        "breakdown": breakdown_chart(of.report), "memory": memory_chart(of.report, of.job),
        "exposed": exposed_chart(of.timeline, of.report, of.job), "roofline": roofline_chart(of.job),
        "links": links_chart(of.timeline, of.network, of.report),
    }  # fmt: skip
    return str(charts[name].finding)


def words(figure: Any) -> str:
    """All texts outside axes, without line breaks and kept spaces."""
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ").replace("\xa0", " ")


@pytest.mark.parametrize("picture", ["breakdown", pytest.param("exposed", marks=pytest.mark.slow)])
def test_title_is_the_finding_and_what_was_asked(picture: str) -> None:
    of = step(LAYERS)
    figure = PICTURES[picture](of)
    assert words(figure) == f"{finding(picture, of)} {of.asked}"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("picture", PICTURES)
def test_no_letter_is_cut_or_covered_by_another(picture: str, scenario: str) -> None:
    of = step(scenario)
    if picture == "roofline" and of.job.model.measured:
        pytest.skip("measured layers have no roofline")
    figure = PICTURES[picture](of)
    figure.draw_without_rendering()
    assert finding(picture, of) in words(figure)
    unseen = {
        tick.label1 for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }  # fmt: skip
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in unseen]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    page = figure.bbox
    assert [t for t, b in boxes if b.x0 < 0 or b.y0 < 0 or b.x1 > page.x1 or b.y1 > page.y1] == []
    covered = [
        (one, other) for (one, a), (other, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 2 and min(a.y1, b.y1) - max(a.y0, b.y0) > 2
    ]  # fmt: skip
    assert covered == []


@pytest.mark.slow
def test_bars_are_as_long_as_the_parts() -> None:
    of = step("ddp-llama-1b-16xh100")
    (axis,) = PICTURES["breakdown"](of).axes
    bars = [bar.get_width() for bar in axis.findobj(Rectangle) if bar.get_height() == pytest.approx(0.68)]
    assert sum(bars) == pytest.approx(1e3 * of.report.step_time_s)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("picture", [LANES, *PICTURES])
def test_every_picture_is_written_in_every_format_with_the_same_bytes(
    picture: str, ending: str, tmp_path: Path
) -> None:
    one, again = tmp_path / f"one{ending}", tmp_path / f"again{ending}"
    for target in (one, again):
        result = simulator("run", "ddp-llama-1b-16xh100", "--plot", str(target), "--picture", picture)
        assert (result.code, result.err) == (0, "")
    assert one.read_bytes() == again.read_bytes()
    assert one.stat().st_size > 3000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--picture", "links"), "--picture says what --plot draws: give both"),
        (("--picture", "link", "--plot", "x.png"), "no picture 'link'; accepted: lanes, breakdown, memory, exposed"),
        (("--picture", "links", "--plot", "x.png", "--zoom", "layer.1"), "--zoom is of the lanes"),
        (("--picture", "links", "--plot", "x.gif"), "the ending says the format; accepted: .png, .svg, .pdf"),
        (("--picture", "roofline", "--plot", "x.png"), "measured, so there is no roofline"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    result = simulator("run", LAYERS, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_picture_without_a_roofline_says_why() -> None:
    with pytest.raises(ScenarioError, match="measured"):
        PICTURES["roofline"](step(LAYERS))

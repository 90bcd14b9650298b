"""The picture of a step: its rows and windows say what the report says, and nothing hides anything."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator
from matplotlib.text import Text

from simulator.answer import StepAnswer, answer_step
from simulator.errors import ScenarioError
from simulator.load import load_scenario
from simulator.report.intervals import total
from simulator.report.lanes import slowest
from simulator.report.memory import class_memory
from simulator.report.step_text import headline
from simulator.report.swimlanes import EXPOSED_ROW, swimlanes_of
from simulator.report.swimlanes_plot import STYLES, draw_step
from simulator.report.verdict import picture_finding
from simulator.units import format_bytes, format_percent, format_time

LAYERS = "measured-layers-400mbit"
HSDP = ("ddp-llama-1b-16xh100", "parallel.strategy=hsdp")
DEEPSPEED = ("ddp-llama-1b-16xh100", "parallel.strategy=zero3")
FSDP = ("llama-8b-does-not-fit", "cluster.nodes=8", "parallel.strategy=fsdp")


@cache
def answered(name: str, *overrides: str) -> StepAnswer:
    return answer_step(load_scenario(name, overrides))


def bars(row: Any) -> list[tuple[float, float]]:
    return [(bar.start_s, bar.end_s) for bar in row.bars]


# ----------------------------------------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("scenario", [(LAYERS,), ("ddp-llama-1b-16xh100",), FSDP], ids=lambda s: s[0])
def test_rows_hold_every_span_of_the_rank_and_the_exposed_time_of_the_report(scenario: tuple[str, ...]) -> None:
    answer = answered(*scenario)
    lanes = swimlanes_of(answer.timeline)
    rows = {row.name: row for row in lanes.rows}
    assert lanes.ranks == slowest(answer.report.waiting).ranks
    exposed = rows.pop(EXPOSED_ROW)
    assert total(bars(exposed)) == pytest.approx(answer.report.breakdown.exposed_comm, abs=1e-12)
    spans = [s for s in answer.timeline.of_class(lanes.ranks.name) if s.duration_s > 0]
    assert sorted((s.task.lane, s.start_s, s.end_s) for s in spans) == sorted(
        (name, *times) for name, row in rows.items() for times in bars(row)
    )


def test_rows_stand_in_the_order_of_work_copies_collectives() -> None:
    assert [row.name for row in swimlanes_of(answered(*FSDP).timeline).rows] == [
        "compute", "copy-in", "comm shard", "exposed"
    ]  # fmt: skip


def test_windows_hold_the_layers_that_are_asked_for_forward_and_backward() -> None:
    """50 ms forward and 100 ms backward a layer: layer 2 runs in [100, 150] and, from 400 ms on, in [900, 1000]."""
    windows = swimlanes_of(answered(LAYERS).timeline, ("layer.2",)).windows
    assert [w.title for w in windows] == ["forward of layer 2", "backward of layer 2"]
    assert (windows[0].start_s, windows[0].end_s) == (pytest.approx(0.097), pytest.approx(0.153))
    assert (windows[1].start_s, windows[1].end_s) == (pytest.approx(0.894), pytest.approx(1.006))


def test_two_layers_in_the_middle_are_shown_when_none_is_asked_for() -> None:
    titles = [w.title for w in swimlanes_of(answered("ddp-llama-1b-16xh100").timeline).windows]
    assert titles == ["forward of layer 7 and layer 8", "backward of layer 7 and layer 8"]


def test_a_layer_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"--zoom: 'layers\.5' is no layer .* did you mean 'layer\.5'"):
        swimlanes_of(answered(LAYERS).timeline, ("layers.5",))


def test_of_several_micro_batches_the_last_is_shown() -> None:
    """gpt2 accumulates five, of which the fifth reduces gradients."""
    answer = answered("gpt2-8xa100")
    _, backward = swimlanes_of(answer.timeline).windows
    inside = [
        s.task.name for s in answer.timeline.spans
        if s.task.kind == "backward" and s.start_s >= backward.start_s and s.end_s <= backward.end_s
    ]  # fmt: skip
    assert inside
    assert all(name.startswith("backward 4: ") for name in inside)


# ------------------------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", LAYERS, "--plot", "x.gif"), "the ending says the format; accepted: .png, .svg, .pdf"),
        (("run", LAYERS, "--zoom", "layer.1"), "--zoom says what --plot shows closely"),
        (("run", LAYERS, "--plot", "x.png", "--zoom", " ,"), "--zoom: ' ,' names no layer"),
        (("run", "all-reduce-16384-ranks", "--plot", "x.png"), "--plot shows a training step"),
        (("run", LAYERS, "--plot", "x.png", "--zoom", "layer.99"), "'layer.99' is no layer of this step"),
        (("run", LAYERS, "--plot", "no/such/folder/x.svg"), "No such file or directory"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = simulator(*arguments)
    assert result.code == 2
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- the picture


def picture(answer: StepAnswer) -> Any:
    lanes = swimlanes_of(answer.timeline)
    memory = class_memory(answer.timeline, lanes.ranks)
    capacity = answer.job.device.memory if answer.job.device else None
    return draw_step(lanes, memory, capacity, ("what is shown, as long as titles of real scenarios are", "a finding"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", [(LAYERS,), ("ddp-llama-1b-16xh100",), FSDP, ("mlp-naive",), HSDP, DEEPSPEED], ids=lambda s: s[-1]
)
def test_no_text_hides_another_or_leaves_the_picture(scenario: tuple[str, ...]) -> None:
    figure = picture(answered(*scenario))
    figure.canvas.draw()
    unseen = {
        tick.label1 for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }  # fmt: skip
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in unseen]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts]
    assert len(boxes) > 25
    hidden = [
        (one, other) for (one, a), (other, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) > max(a.x0, b.x0) and min(a.y1, b.y1) > max(a.y0, b.y0)
    ]  # fmt: skip
    assert hidden == []
    frame = figure.bbox
    assert [t for t, b in boxes if b.x0 < 0 or b.y0 < 0 or b.x1 > frame.x1 or b.y1 > frame.y1] == []


@pytest.mark.slow
def test_axes_are_labelled_and_the_legend_names_what_is_drawn() -> None:
    figure = picture(answered(*FSDP))
    assert {axis.get_xlabel() for axis in figure.axes if axis.axison} == {"ms since the step began"}
    assert figure.axes[-1].get_ylabel() == "GiB"
    lanes, memory = (legend for axis in figure.axes if (legend := axis.get_legend()))
    assert {"weights", "activations", "gathered weights"} <= {text.get_text() for text in memory.texts}
    assert {text.get_text() for text in lanes.texts} == {
        STYLES[style][1]
        for style in ("forward", "backward", "copy", "optimizer", "all_gather", "reduce_scatter", "exposed")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.svg", "a.PNG"])
def test_the_same_step_gives_the_same_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "other"):
        Path(folder).mkdir()
        result = simulator("run", LAYERS, "--plot", f"{folder}/{name}", "--zoom", "layer.3, layer.4", "--json")
        assert result.code == 0
        assert json.loads(result.out)["kind"] == "step"
    assert Path("one", name).read_bytes() == Path("other", name).read_bytes()


# ---------------------------------------------------------------------------------------------------------- the title


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ((), "DDP on"),
        (("parallel.strategy=zero1", "parallel.implementation=megatron"), "ZeRO-1 (Megatron-LM) on"),
        (("parallel.strategy=zero1", "parallel.implementation=torch"), "ZeRO-1 (PyTorch) on"),
        (("parallel.strategy=zero3",), "ZeRO-3 (DeepSpeed) on"),
        (("parallel.strategy=zero2", "parallel.implementation=textbook"), "ZeRO-2 (textbook) on"),
        (("parallel.strategy=fsdp",), "FSDP2 on"),
        (("parallel.strategy=fsdp", "parallel.implementation=fsdp1"), "FSDP1 on"),
        (("parallel.strategy=hsdp",), "HSDP (FSDP2) on"),
    ],
)  # fmt: skip
def test_reports_and_pictures_name_the_strategy_as_its_users_do(chosen: tuple[str, ...], words: str) -> None:
    answer = answered("ddp-llama-1b-16xh100", *chosen)
    assert words in headline(answer.report, answer.job, answer.network)


def test_title_says_how_long_a_step_takes_and_what_it_waits_for_most() -> None:
    answer = answered("ddp-llama-1b-16xh100", "parallel.strategy=zero1", "parallel.implementation=textbook")
    worst = max(answer.report.collectives, key=lambda use: use.exposed_s)
    finding = picture_finding(answer.report)
    assert finding.startswith(f"{format_time(answer.report.step_time_s)} a step: ")
    assert f"{format_percent(answer.report.exposed_share)} of it waits for communication" in finding
    assert finding.endswith(f"most for the {worst.op} of {worst.purpose} ({format_bytes(worst.message_bytes, 3)})")
    alone = answered("gpt2-8xa100", "cluster.gpus_per_node=1")
    assert picture_finding(alone.report).endswith("a single rank communicates nothing")
    slow = answered("ddp-llama-1b-16xh100", "cluster.stragglers=[{ranks: [3], speed: 50%}]")
    assert picture_finding(slow.report).endswith("all communication hides behind compute"), "others wait for this rank"
    host = answered("ddp-llama-1b-16xh100", "cluster.host={kernel_launch: 2 ms}")
    assert picture_finding(host.report).endswith("of it waits for the host thread")

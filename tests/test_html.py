"""The page about a step: charts say what the report says, names stay names, and the same step gives the same bytes.

What a browser makes of the page is in test_html_browser.py.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator

from simulator.answer import StepAnswer, answer_step
from simulator.load import load_scenario
from simulator.plan import Communicate
from simulator.report.charts import causes
from simulator.report.charts.breakdown import breakdown_chart
from simulator.report.charts.causes import exposures
from simulator.report.charts.exposed import MOST_ROWS, exposed_chart
from simulator.report.charts.lanes import bars_of, is_inside, lanes_chart
from simulator.report.charts.links import links_chart
from simulator.report.charts.memory import MOST_POINTS, memory_chart
from simulator.report.charts.palette import LANES, MEMORY, PARTS
from simulator.report.charts.roofline import roofline_chart
from simulator.report.html.page import Shown, page, script_json
from simulator.report.html.sections import sections
from simulator.report.intervals import total, union
from simulator.report.lanes import slowest
from simulator.report.step_json import step_json
from simulator.report.verdict import verdicts
from simulator.units import format_gib, format_percent, format_time

LAYERS = "measured-layers-400mbit"
DDP = ("ddp-llama-1b-16xh100",)
FSDP = ("fsdp-llama-8b-128xh100",)
STRAGGLER = ("fsdp-straggler-32xh100",)
DEEPSPEED = ("zero3-deepspeed-llama-8b-16xa100",)
NOT_FIT = ("llama-8b-does-not-fit",)
#: The others are simulated by the slow tier only.
ALL = [
    (LAYERS,),
    ("mlp-naive",),
    DDP,
    FSDP,
    *(pytest.param(s, marks=pytest.mark.slow) for s in (STRAGGLER, NOT_FIT, ("gpt2-8xa100",))),
]
NETWORK = {
    "name": "four",
    "kind": "uniform",
    "nodes": 4,
    "bandwidth": "400 Mb/s",
    "alpha": "50 us",
    "source": "made up",
}
HOSTILE = '</script><script>alert("x")</script>&<b>'


@cache
def answered(name: str, *overrides: str) -> StepAnswer:
    return answer_step(load_scenario(name, overrides))


def told(answer: StepAnswer) -> dict[str, Any]:
    return step_json(answer.report, answer.job, 0.0)


def page_of(answer: StepAnswer, text: str = "cluster: {}\n") -> str:
    return page(
        Shown(
            report=answer.report, job=answer.job, network=answer.network, timeline=answer.timeline,
            verdicts=verdicts(answer.report, answer.job), scenario_name="x.yaml", scenario_text=text,
            overrides=(HOSTILE,),
        )
    )  # fmt: skip


@cache
def hostile(tmp: Path) -> StepAnswer:
    """A step whose layers are named to break out of the page."""
    path = tmp / "hostile.yaml"
    layers = [{"name": HOSTILE + str(i), "params": 1_000_000, "forward": "5 ms", "backward": "9 ms"} for i in range(3)]
    scenario = {
        "cluster": {"topology": NETWORK}, "model": {"layers": layers}, "parallel": {"strategy": "ddp"},
        "train": {"micro_batch": 1},
    }  # fmt: skip
    path.write_text(json.dumps(scenario), encoding="utf-8")
    return answer_step(load_scenario(path))


# ------------------------------------------------------------------------------------------------ findings and series


@pytest.mark.parametrize("scenario", ALL, ids=str)
def test_parts_add_up_to_the_step_and_the_finding_has_the_numbers_of_the_json(scenario: tuple[str, ...]) -> None:
    answer = answered(*scenario)
    chart, said = breakdown_chart(answer.report), told(answer)
    assert sum(part.seconds for part in chart.parts) == pytest.approx(said["step_time_s"], rel=1e-9)
    assert sum(part.share for part in chart.parts) == pytest.approx(1.0)
    working = (said["breakdown_s"]["compute"] + said["breakdown_s"]["optimizer"]) / said["step_time_s"]
    assert chart.finding.startswith(f"{format_percent(working)} of the {format_time(said['step_time_s'])}")


def test_waiting_for_the_host_is_a_part_of_its_own() -> None:
    report = answered(LAYERS, "cluster.host={kernel_launch: 80 ms}").report
    parts = {part.key: part.seconds for part in breakdown_chart(report).parts}
    assert parts["host"] == report.idle.host_s > 0
    assert sum(parts.values()) == pytest.approx(report.step_time_s)


@pytest.mark.parametrize("scenario", ALL, ids=str)
def test_the_finding_about_memory_is_that_of_the_verdict(scenario: tuple[str, ...]) -> None:
    answer = answered(*scenario)
    chart, memory = memory_chart(answer.report, answer.job), told(answer)["memory"]
    assert format_gib(memory["peak_bytes"]) in chart.finding
    assert chart.finding.endswith(memory["peak_at"]) or f"at {memory['peak_at']}" in chart.finding
    words = {True: "Memory fits", False: "Memory does not fit", None: "Memory peaks"}
    assert chart.finding.startswith(words[memory["fits"]])
    assert max(map(sum, zip(*chart.by_kind_bytes.values(), strict=True))) == pytest.approx(memory["peak_bytes"])


def test_memory_says_how_many_changes_it_leaves_out() -> None:
    answer = answered(*FSDP)
    chart, changes = memory_chart(answer.report, answer.job), len(answer.report.memory.times_s)
    drawn = len(chart.times_s) - 1
    assert drawn <= MOST_POINTS < changes
    assert chart.note.startswith(f"Of {changes:,} changes {changes - drawn:,} are left out")


@pytest.mark.parametrize(
    "scenario", [DDP, FSDP, *(pytest.param(s, marks=pytest.mark.slow) for s in (STRAGGLER, DEEPSPEED))], ids=str
)
def test_causes_share_out_exactly_what_each_collective_has_exposed(scenario: tuple[str, ...]) -> None:
    answer = answered(*scenario)
    found = exposures(answer.timeline, slowest(answer.report.waiting).ranks, answer.job)
    for use, exposure in zip(answer.report.collectives, found, strict=True):
        assert sum(seconds for _, seconds in exposure.seconds) == pytest.approx(use.exposed_s, abs=1e-9)


def cause_of(answer: StepAnswer, name: str, ranks: int = 0) -> str:
    """The cause of the first collective with this purpose."""
    of = answer.timeline.plan.classes[ranks]
    calls = [s.task for s in answer.timeline.of_class(of.name) if isinstance(s.task, Communicate)]
    found = dict(zip((task.purpose for task in calls), exposures(answer.timeline, of, answer.job), strict=False))
    return found[name].cause


def test_causes_are_what_the_strategies_are_known_for() -> None:
    fsdp = answered(*FSDP)
    uses = exposed_chart(fsdp.timeline, fsdp.report, fsdp.job).rows
    reasons = {(row.op, row.purpose): row.cause for row in uses}
    assert reasons["all_gather", "weights root"] == causes.FIRST
    assert reasons["reduce_scatter", "gradients root"] == causes.AFTER_BACKWARD
    assert cause_of(answered(LAYERS), "gradients layer.1 .. layer.0") == causes.LAST
    assert "parallel.overlap is 'none'" in cause_of(answered("mlp-naive"), "gradient head.weight")
    assert "returns only when" in cause_of(answered("lab-hsdp"), "gradients layer.5")
    assert cause_of(answered("lab-ddp"), "gradient layer.0") == causes.LAST, "DDP overlaps on gloo too"


def test_ranks_that_wait_for_a_straggler_are_told_so() -> None:
    answer = answered(*STRAGGLER)
    fast = next(w.ranks for w in answer.report.waiting if len(w.ranks.ranks) > 1)
    seconds: dict[str, float] = {}
    for exposure in exposures(answer.timeline, fast, answer.job):
        for cause, value in exposure.seconds:
            seconds[cause] = seconds.get(cause, 0.0) + value
    assert max(seconds, key=seconds.__getitem__) == causes.SLOWER


@pytest.mark.parametrize("scenario", ALL, ids=str)
def test_rows_of_collectives_hold_all_of_them(scenario: tuple[str, ...]) -> None:
    answer = answered(*scenario)
    chart = exposed_chart(answer.timeline, answer.report, answer.job)
    assert len(chart.rows) <= MOST_ROWS
    assert sum(row.count for row in chart.rows) == len(answer.report.collectives)
    assert sum(row.time_s for row in chart.rows) == pytest.approx(sum(u.time_s for u in answer.report.collectives))
    exposed_s = sum(use.exposed_s for use in answer.report.collectives)
    assert sum(row.exposed_s for row in chart.rows) == pytest.approx(exposed_s, abs=1e-9)
    assert bool(chart.note) == any(not row.op for row in chart.rows)
    if any(row.exposed_s for row in chart.rows):
        assert format_time(told(answer)["breakdown_s"]["exposed_comm"]) in chart.finding


def test_links_of_every_kind_are_in_a_cell_and_the_finding_names_the_busiest() -> None:
    for scenario in (DDP, FSDP):
        answer = answered(*scenario)
        chart, said = links_chart(answer.timeline, answer.network, answer.report), told(answer)
        assert sum(cell.num_links for row in chart.rows for cell in row.cells) == answer.report.num_links
        assert max(row.use for row in chart.rows) == pytest.approx(said["links"][0]["utilization"])
        assert f"in use {format_percent(said['links'][0]['utilization'])} of the step" in chart.finding


@pytest.mark.slow
def test_links_of_a_torus_are_told_apart_by_the_way_they_go() -> None:
    answer = answered("ddp-llama-1b-16xh100", "cluster={topology: tpu-v5e, shape: [4, 4]}")
    chart = links_chart(answer.timeline, answer.network, answer.report)
    assert {row.name for row in chart.rows} == {"ICI axis 0 +", "ICI axis 0 -", "ICI axis 1 +", "ICI axis 1 -"}
    assert len({row.num_links for row in chart.rows}) == 1
    assert sum(row.num_links for row in chart.rows) == answer.report.num_links


def test_roofline_spends_all_compute_time_below_the_roof() -> None:
    answer = answered(*FSDP)
    chart, inputs = roofline_chart(answer.job), answer.job.inputs
    assert chart is not None
    whole = sum(inputs.forward_s) + sum(inputs.backward_s)
    assert sum(p.seconds for p in chart.points) == pytest.approx(whole * (1 - chart.other_share))
    model = answer.job.model
    assert sum(p.flop for p in chart.points) == pytest.approx(
        model.forward_flop + model.backward_flop + model.replayed_flop
    )
    for point in chart.points:
        assert point.flop_per_s <= min(chart.peak_flop_per_s, point.flop_per_byte * chart.memory_bytes_per_s)
    assert roofline_chart(answered(LAYERS).job) is None


def test_intensity_of_a_product_is_its_flop_over_both_operands_and_the_result() -> None:
    """2 x 8,192 tokens times each of two projections from 4,096 to 14,336 (Llama 3.1 8B) in 16 bits:
    2 m n k / 2 (m k + k n + m n).
    """
    m, n, k = 2 * 8192, 14336, 4096
    chart = roofline_chart(answered(*FSDP).job)
    assert chart is not None
    (up,) = (p for p in chart.points if (p.name, p.direction) == ("mlp.up", "forward"))
    assert up.flop_per_byte == pytest.approx(2 * m * n * k / (2 * (m * k + k * n + m * n)))
    assert chart.knee_flop_per_byte == pytest.approx(989.4e12 / 3.35e12, rel=1e-3)


def test_every_look_differs_from_others_by_pattern_or_place_not_by_colour_alone() -> None:
    assert len({(look.colour, look.pattern) for look in LANES.values()}) == len(LANES)
    for looks in (MEMORY, PARTS):
        assert len({look.pattern for look in looks.values()}) >= len(looks) - 1


# ----------------------------------------------------------------------------------------------------- many tasks


def test_a_small_step_is_drawn_task_by_task() -> None:
    answer = answered(*DDP)
    chart = lanes_chart(answer.timeline, answer.report)
    spans = [s for s in answer.timeline.spans if s.duration_s > 0]
    assert chart.notes == ()
    assert bars_of(row for row in chart.rows if row.name != "exposed") == len(spans)


@pytest.mark.parametrize(("most", "left_out"), [(340, False), (60, True)])
def test_merged_bars_cover_the_same_time_and_what_is_left_out_is_said(most: int, left_out: bool) -> None:
    answer = answered(*FSDP)
    whole, chart = (lanes_chart(answer.timeline, answer.report, most=m) for m in (10**6, most))
    assert f"{bars_of(whole.rows):,} tasks are drawn as" in chart.notes[0]
    assert any("are left out" in note for note in chart.notes) == left_out
    assert bars_of(chart.rows) <= most
    if left_out:
        counts = [int(number) for number in re.findall(r"(\d+) (?:bars:|of these bars)", " ".join(chart.notes))]
        assert counts[0] - counts[1] == bars_of(chart.rows)
    else:
        assert sum(bar.count for row in chart.rows for bar in row.bars) == bars_of(whole.rows)
    inside = [
        [(b.start_s, b.title) for row in c.rows for b in row.bars if is_inside(b, c.windows)] for c in (whole, chart)
    ]
    assert left_out or inside[0] == inside[1], "two layers are always shown task by task"


def test_operations_of_a_layer_become_one_bar_of_the_same_length() -> None:
    answer = answered(*FSDP)
    whole, chart = (lanes_chart(answer.timeline, answer.report, most=m) for m in (10**6, 700))
    compute = [next(row for row in c.rows if row.name == "compute") for c in (whole, chart)]
    busy = [total(union((bar.start_s, bar.end_s) for bar in row.bars)) for row in compute]
    assert busy[0] == pytest.approx(busy[1])
    assert any(re.fullmatch(r"backward of layer \d+ \(\d+ operations\)", bar.title) for bar in compute[1].bars)


def test_lanes_of_one_rank_of_each_class_are_shown_the_slowest_first() -> None:
    answer = answered(*STRAGGLER)
    groups = list(dict.fromkeys(row.group for row in lanes_chart(answer.timeline, answer.report).rows))
    assert groups == ["rank 11 (85 % speed)", "31 ranks like 0"]


# ------------------------------------------------------------------------------------------------------------ the page


class Elements(HTMLParser):
    """Counts what a browser would see: elements by name, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: dict[str, int] = {}
        self.links: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names[tag] = self.names.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.words.append(data)


def test_hostile_names_add_no_element_and_are_shown_as_they_are(tmp_path: Path) -> None:
    answer = hostile(tmp_path)
    text = page_of(answer, f"# {HOSTILE}\n")
    seen, plain = Elements(text), Elements(page_of(answered(LAYERS)))
    assert set(seen.names) == set(plain.names)
    assert len(seen.scripts) == len(plain.scripts) == 3
    assert HOSTILE not in "".join(seen.scripts)
    assert "alert" not in seen.scripts[2]
    figures = json.loads(seen.scripts[1])
    assert escape(HOSTILE, quote=False) in figures["lanes"]["data"][0]["hovertext"][0]
    assert sum(HOSTILE in words for words in seen.words) >= 2, "the override and the scenario"


def test_json_in_a_script_cannot_end_it() -> None:
    text = script_json({"name": HOSTILE, "also": "\u2028<!--"})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"name": HOSTILE, "also": "\u2028<!--"}


def test_same_step_same_bytes_and_nothing_to_fetch() -> None:
    answer = answered(LAYERS)
    again = answer_step(load_scenario(LAYERS))
    text = page_of(answer)
    assert page_of(again) == text
    assert set(Elements(text).links) == {"#charts"}, "only the way to the charts, inside the page"
    assert "default-src 'none'" in text


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [(LAYERS,), FSDP, STRAGGLER, NOT_FIT], ids=str)
def test_plotly_knows_every_property_of_the_figures(scenario: tuple[str, ...]) -> None:
    """Plotly's JavaScript ignores what it does not know; its Python refuses it."""
    from plotly.graph_objects import Figure

    answer = answered(*scenario)
    for section in sections(answer.timeline, answer.report, answer.job, answer.network):
        if section.figure is not None:
            plain = json.dumps(section.figure).replace('"@ink"', '"#000000"').replace('"@paper"', '"#ffffff"')
            figure = json.loads(plain)
            Figure({"data": figure["data"], "layout": figure["layout"]})


def test_page_begins_with_the_verdict_and_holds_every_finding() -> None:
    answer = answered("llama-8b-does-not-fit")
    words = re.sub(r"\s+", " ", "".join(Elements(page_of(answer)).words))
    assert words.index("Not feasible") < words.index("Memory is 174 GiB, limit 79.6 GiB of NVIDIA H100 SXM5 80 GB")
    assert words.index("Not feasible") < words.index("Breakdown")
    for section in sections(answer.timeline, answer.report, answer.job, answer.network):
        assert section.title in words


# -------------------------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", LAYERS, "--html", "x.pdf"), "--html: 'x.pdf': the ending says the format; accepted: .html, .htm"),
        (("check", LAYERS, "--html", "x"), "--html: 'x': the ending says the format; accepted: .html, .htm"),
        (("run", LAYERS, "--html", "/nowhere/x.html"), "--html: '/nowhere/x.html': No such file or directory"),
        (("run", "all-reduce-16384-ranks", "--html", "x.html"), "--html is a report of a training step"),
        (("run", LAYERS, "--zoom", "layer.1"), "--zoom says what --plot shows closely"),
        (("run", LAYERS, "--html", "x.html", "--zoom", "layer.99"), "--zoom: 'layer.99' is no layer of this step"),
    ],
)
def test_what_cannot_be_written_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = simulator(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


@pytest.mark.parametrize("missing", ["jinja2", "plotly"])
def test_without_the_extra_the_error_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = simulator("run", LAYERS, "--html", "x.html")
    assert result.code == 2
    assert f"--html needs {missing}: install the extra with  pip install 'clustersim[report]'" in result.err


def test_run_writes_the_page_beside_what_it_prints(tmp_path: Path) -> None:
    target = tmp_path / "step.html"
    with_page, without = simulator("run", LAYERS, "--html", str(target)), simulator("run", LAYERS)
    assert (with_page.out, with_page.code) == (without.out, without.code)
    words = "".join(Elements(target.read_text(encoding="utf-8")).words)
    assert LAYERS in words
    assert "layer.7" in words, "the scenario as it was written"


# ----------------------------------------------------------------------------------------------------------- notebooks


def test_a_notebook_shows_the_verdict_without_script_or_network(tmp_path: Path) -> None:
    text = answered("llama-8b-does-not-fit")._repr_html_()
    seen = Elements(text)
    assert set(seen.names) <= {"div", "p", "b", "span"}
    assert not seen.links
    assert "✕ memory: 174 GiB (limit 79.6 GiB" in "".join(seen.words)
    named = hostile(tmp_path)._repr_html_()
    assert "<script" not in named
    assert len(text) < 10_000

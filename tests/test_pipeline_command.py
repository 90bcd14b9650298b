"""``simulator pipeline``: the chart says what ran when, the numbers beside it are those of the formulas, and what
cannot be drawn is refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, Result, simulator

from simulator.commands.pipeline import MOST_VISITS
from simulator.pipelines import PIPELINES, pipeline_schedule
from simulator.pipelines.playing import StageTimes, even_times, play
from simulator.report.pipeline_chart import pipeline_chart


def pipeline(*arguments: str, ranks: int = 4, micro_batches: int = 8) -> Result:
    return simulator("pipeline", arguments[0], "-p", str(ranks), "-m", str(micro_batches), *arguments[1:])


def chart(name: str, p: int, m: int, width: int = 120, hidden: float = 0.0) -> list[str]:
    schedule = pipeline_schedule(name, p, m)
    found = play(schedule, even_times(schedule, StageTimes(1, 1, 1)), hidden=hidden)
    return [line.plain.rstrip() for line in pipeline_chart(found, width)]


# ---- the chart -------------------------------------------------------------------------------------------------------


def test_a_column_is_a_unit_of_time_and_below_it_stands_the_micro_batch() -> None:
    """Three ranks, three micro-batches of 1F1B, a backward twice as long as a forward: drawn by hand."""
    assert chart("1f1b", 3, 3)[:6] == [
        "rank 0   FFF....B-.B-.B-",
        "         012    0  1  2",
        "rank 1   .FF..B-FB-.B-..",
        "          01  0 21  2",
        "rank 2   ..FB-FB-FB-....",
        "           00 11 22",
    ]


def test_small_letters_are_the_second_stage_and_pairs_show_both() -> None:
    lines = chart("dualpipe-v", 2, 4)
    assert lines[:2] == [
        "rank 0   FFFfiwfF&b.f&Bb-.f&Bb-IWIW",
        "         01200013 1 2 02  3 13 2233",
    ]
    legend = " ".join(lines[4:])
    assert "small letters" in legend
    assert "F&B" in legend
    assert "a column is 0.5 of time" in legend


def test_more_stages_than_letters_have_a_row_of_their_own() -> None:
    schedule = pipeline_schedule("looped-bfs", 2, 2, 3)
    lines = [line.plain for line in pipeline_chart(play(schedule, even_times(schedule, StageTimes(3, 3, 3))), 100)]
    assert lines[:3] == [
        "rank 0   FFFFFF...B-B-B-B-B-B-",
        "         010101   1 0 1 0 1 0 ",
        "chunk    001122   2 2 1 1 0 0 ",
    ]


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("width", [40, 120])
def test_a_long_chart_is_cut_in_the_middle_and_says_so(name: str, width: int) -> None:
    lines = chart(name, 20, 60, width)
    lanes = [line for line in lines if line.startswith("rank ")]
    assert len(lanes) == 16
    assert "... ranks 8 to 11 left out" in lines
    assert all(len(line) <= width for line in lanes)
    assert all(" ~ " in line for line in lanes)
    assert re.search(r"Abridged: \d+ of \d+ columns are left out at the ~\.$", lines[-1])


def test_times_without_a_common_unit_are_rounded_and_it_says_so() -> None:
    schedule = pipeline_schedule("1f1b", 2, 3)
    legend = [
        line.plain for line in pipeline_chart(play(schedule, even_times(schedule, StageTimes(1, 1.1, 1.317))), 99)
    ]
    assert "a column is about 0.5 of time" in legend[-1]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_text_has_the_formula_beside_what_was_played() -> None:
    out = pipeline("1f1b").out
    assert out.startswith(
        "1f1b, 4 ranks, 8 micro-batches, 1 chunk: idle for 27.3 % of 33 units of time; "
        "by the formula (p-1)(tF+tI+tW) 27.3 %\n"
    )
    assert re.search(r"^0 +0 +24 +9 \(27\.3 %\) +4 micro-batches *$", out, re.MULTILINE)
    assert re.search(r"^3 +3 +24 +9 \(27\.3 %\) +1 micro-batch *$", out, re.MULTILINE)
    other = pipeline("zbv", "--input-grad", "1.5").out
    assert "the formula (p-1)tF/2 where tI=tF does not hold for these times and numbers" in " ".join(other.split())


@pytest.mark.parametrize("name", PIPELINES)
def test_json_has_every_step_and_what_follows_from_them(name: str) -> None:
    answer = json.loads(pipeline(name, "--json", "--weight-grad", "0.5").out)
    chunks = PIPELINES[name].chunks
    assert (answer["schema_version"], answer["kind"], answer["schedule"]) == (1, "pipeline", name)
    assert (answer["num_ranks"], answer["num_micro_batches"], answer["chunks"]) == (4, 8, chunks)
    assert answer["bubble_share"] == pytest.approx(answer["published_bubble_share"], rel=1e-9)
    for rank in answer["ranks"]:
        steps = rank["steps"]
        assert rank["busy"] == pytest.approx(sum(step["end"] - step["start"] for step in steps))
        assert rank["busy"] + rank["idle"] == pytest.approx(answer["makespan"])
        assert {action["stage"] for step in steps for action in step["actions"]} == set(rank["stages"])
    assert answer["makespan"] == max(rank["steps"][-1]["end"] for rank in answer["ranks"])
    assert answer["peak_held"] == max(rank["peak_held"] for rank in answer["ranks"])


def test_times_may_differ_from_stage_to_stage() -> None:
    uneven = json.loads(pipeline("1f1b", "--json", "--forward", "1,1,2,1").out)
    assert uneven["times"]["forward"] == [1, 1, 2, 1]
    assert uneven["published_bubble_share"] is None
    assert [rank["busy"] for rank in uneven["ranks"]] == [24, 24, 32, 24]


def compared(*arguments: str, **numbers: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pipeline("all", "--json", *arguments, **numbers).out)
    return found


def test_all_compares_every_schedule_that_takes_the_numbers_and_says_why_others_do_not() -> None:
    found = compared()
    assert [row["schedule"] for row in found["rows"]] == list(PIPELINES)
    assert found["refused"] == []
    odd = compared(ranks=3, micro_batches=7)
    assert {row["schedule"] for row in odd["refused"]} == {"interleaved-1f1b", "zb1p", "dualpipe"}
    assert all("possible: " in row["why"] for row in odd["refused"])
    one = compared("--chunks", "1")
    assert {row["schedule"] for row in one["refused"]} == {"zbv", "dualpipe-v"}
    text = pipeline("all", ranks=3, micro_batches=7).out
    assert text.splitlines()[1].startswith("zbv ")
    assert "not dualpipe with 3 ranks, 7 micro-batches, 1 chunk: halves of both go each way" in text


def test_more_hidden_makes_dualpipe_shorter_in_the_table() -> None:
    spans = [
        {row["schedule"]: row["makespan"] for row in compared("--hidden", share)["rows"]} for share in ("0%", "50%")
    ]
    assert {name for name in PIPELINES if spans[1][name] < spans[0][name]} == {"dualpipe", "dualpipe-v"}


def test_answer_is_the_same_twice() -> None:
    assert pipeline("dualpipe", "--json") == pipeline("dualpipe", "--json")


def test_python_of_the_page_about_schedules_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/how-to/pipeline-schedules.md").read_text("utf-8"), re.S
    )
    exec(compile(source, "pipeline-schedules.md", "exec"), {})
    assert capsys.readouterr().out.startswith("0.06")


# ---- pictures and colours --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_picture_is_written_and_is_the_same_twice(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert pipeline("dualpipe", "--plot", str(tmp_path / name)).code == 0
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert text.count("<path") > 4 * 16


def test_letters_are_coloured_only_where_colours_are_wanted() -> None:
    forced = {"FORCE_COLOR": "1"}
    arguments = ("pipeline", "zbv", "-p", "2", "-m", "3")
    assert "\x1b[34m" in simulator(*arguments, environment=forced).out
    assert "\x1b[3" not in simulator(*arguments, environment=forced | {"NO_COLOR": "1"}).out
    assert "\x1b" not in simulator(*arguments).out


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1b2",), "no pipeline schedule is called '1f1b2': schedules are gpipe, 1f1b"),
        (("zbv2",), "did you mean 'zbv'?"),
        (("gpipe", "--chunks", "2"), "a rank has one chunk, not 2; possible: chunks 1"),
        (("gpipe", "--chunks", "0"), "--chunks: 0: expected at least 1"),
        (("gpipe", "--forward", "fast"), "--forward: 'fast': expected a number above 0"),
        (("gpipe", "--forward", "0"), "--forward: '0': expected a number above 0"),
        (("gpipe", "--weight-grad", "nan"), "--weight-grad: 'nan': expected a number above 0"),
        (("gpipe", "--forward", "1,2"), "gpipe: 2 times for 4 stages: expected one for each stage"),
        (("gpipe", "--forward", "1,2,3,4", "--input-grad", "1,2"), "2 times where another flag has 4"),
        (("all", "--forward", "1,2,3,4"), "schedules have different stages"),
        (("all", "--plot", "x.png"), "--plot draws one schedule"),
        (("gpipe", "--hidden", "130%"), "--hidden: "),
        (("gpipe", "--hidden", "much"), "got 'much'"),
        (("gpipe", "--plot", "x.gif"), "accepted: .png, .svg, .pdf"),
        (("gpipe", "--plot", "/nowhere/x.png"), "--plot: '/nowhere/x.png'"),
        (("gpipe", "-p", "0"), "-p: 0: expected at least 1"),
        (("gpipe", "-m", "-3"), "-m: -3: expected at least 1"),
        (("gpipe", "-m", "9000000"), f"up to {MOST_VISITS:,}"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = pipeline(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1
    assert words in result.err


def test_help_names_every_schedule() -> None:
    text = " ".join(simulator("pipeline", "--help").out.split())
    assert f"Schedules: {', '.join(PIPELINES)};" in text.replace("- ", "-")

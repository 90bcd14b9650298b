"""``simulator calibrate``: logs of every format give the same rows, broken ones are refused with the reason, and the
fit finds the constants that a log was made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import ROOT, Result, simulator
from hypothesis import given
from hypothesis import strategies as st
from nccl_logs import PROGRAMS, Point, json_log, number, text_log

from simulator.calibration.fit import Fit, fit_samples, non_negative_least_squares, time_s
from simulator.calibration.log import Log
from simulator.calibration.parse import parse_log
from simulator.calibration.samples import samples_of
from simulator.collectives.busbw import bus_factor
from simulator.errors import ScenarioError
from simulator.measurements.tables import published

LOGS = Path(__file__).parent / "data" / "nccl_logs"
SIZES = tuple(8 * 4**i for i in range(15))


def points(alpha_us: float, gb_per_s: float, op: str = "all_reduce", ranks: int = 16) -> list[Point]:
    """T = alpha + S f / B, in us."""
    factor = bus_factor(op, ranks)
    return [(size, alpha_us + size * factor / gb_per_s / 1e3) for size in SIZES]


POINTS = points(20.0, 200.0)


def parsed(text: str) -> tuple[Log, ...]:
    return parse_log("a.log", text)


def fitted(text: str, **given_: str | int) -> Fit:
    (samples,) = samples_of(parsed(text), **given_)  # type: ignore[arg-type]
    return fit_samples(samples)


def refused(text: str, *words: str, **given_: str | int) -> None:
    with pytest.raises(ScenarioError) as error:
        fitted(text, **given_)
    assert "a.log" in str(error.value)
    for word in words:
        assert word in str(error.value)


# ---- formats ---------------------------------------------------------------------------------------------------------

OLD = ("time", "algbw", "busbw", "error")
FORMATS = {
    "2.17, #wrong": text_log("all_reduce", 16, POINTS),
    "2.11, error and no root": text_log("all_reduce", 16, POINTS, columns=("redop",), group=OLD, wrong="5e-07"),
    "all_gather before 2.13, no redop": text_log("all_reduce", 16, POINTS, columns=(), group=OLD, wrong="0e+00"),
    "unchecked": text_log("all_reduce", 16, POINTS, wrong="N/A"),
    "rccl-tests": text_log(
        "all_reduce", 16, POINTS, extra=[("algo", "Direct"), ("proto", "SIMPLE"), ("nchannels", "32")]
    ),
    "-S": text_log("all_reduce", 16, POINTS, extra=[("timestamp", "2025-09-01 10:00:00")]),
    "mpirun --tag-output": text_log("all_reduce", 16, POINTS, label="[1,0]<stdout>:"),
    "srun -l": text_log("all_reduce", 16, POINTS, label=" 0: "),
    "quoted": text_log("all_reduce", 16, POINTS, label="> "),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(name: str) -> None:
    (log,) = parsed(FORMATS[name])
    assert (log.program, log.ranks, log.nodes, log.device) == ("all_reduce", 16, 2, "NVIDIA H100 80GB HBM3")
    out = [row for row in log.rows if not row.in_place]
    assert [(row.size_bytes, row.time_s) for row in out] == [
        (size, pytest.approx(float(number(us, 7)) * 1e-6)) for size, us in POINTS
    ]
    assert len(log.rows) == 2 * len(out)
    assert {row.dtype for row in log.rows} == {"float"}


def test_json_gives_the_same_rows_as_text() -> None:
    (log,) = parsed(json_log("all_reduce", 16, POINTS))
    assert (log.program, log.ranks, log.nodes, log.device) == ("all_reduce", 16, 2, "NVIDIA H100 80GB HBM3")
    (text,) = parsed(FORMATS["2.17, #wrong"])
    for row, printed in zip(log.rows, text.rows, strict=True):
        assert (row.size_bytes, row.in_place) == (printed.size_bytes, printed.in_place)
        assert row.time_s == pytest.approx(printed.time_s, rel=2e-3)
    assert {row.wrong for row in log.rows if row.in_place} == {None}


def test_json_counts_all_gpus_of_each_process() -> None:
    """One process with 8 GPUs is one entry in 'devices' (parseRankInfo reads the first line of each process)."""
    value = json.loads(json_log("all_reduce", 1, POINTS))
    value["config"]["ngpus"] = 8
    (log,) = parsed(json.dumps(value))
    assert log.ranks == 8


def test_rows_stand_out_from_what_others_write_between_them() -> None:
    noisy = FORMATS["2.17, #wrong"].replace("\n          32 ", "\nnode0:1:2 [0] NCCL INFO Launch mode\n          32 ")
    assert noisy != FORMATS["2.17, #wrong"]
    assert len(parsed(noisy)[0].rows) == 2 * len(SIZES)


@pytest.mark.parametrize("op", PROGRAMS)
def test_the_operation_is_read_from_the_name_of_the_test(op: str) -> None:
    (samples,) = samples_of(parsed(text_log(op, 16, points(20, 100, op))))
    assert (samples.op, samples.ranks, samples.nodes) == (op, 16, 2)


def test_the_command_line_in_the_log_names_the_operation_too() -> None:
    text = "$ mpirun -np 16 ./build/all_reduce_perf -b 8 -e 2G -f 2\n" + text_log("all_reduce", 16, POINTS, named=False)
    assert samples_of(parsed(text))[0].op == "all_reduce"


def test_a_file_with_several_tables_and_several_files_give_a_fit_for_each_operation() -> None:
    both = FORMATS["2.17, #wrong"] + text_log("all_gather", 8, points(20, 100, "all_gather", 8))
    more = text_log("all_reduce", 16, POINTS)
    samples = samples_of([*parse_log("a.log", both), *parse_log("b.log", more)])
    assert [(s.op, s.ranks, s.nodes, s.names) for s in samples] == [
        ("all_reduce", 16, 2, ("a.log", "b.log")), ("all_gather", 8, 1, ("a.log",)),
    ]  # fmt: skip
    assert len(samples[0].times_s) == 2 * len(SIZES)


def test_without_a_list_of_devices_the_bandwidths_tell_the_ranks() -> None:
    """2(n-1)/n = 1.875 is 16 ranks."""
    for ranks in (2, 3, 8, 16, 64):
        text = text_log("all_reduce", ranks, points(20, 300, ranks=ranks), listed=False)
        (samples,) = samples_of(parsed(text))
        assert (samples.ranks, samples.nodes) == (ranks, None)


def test_in_place_times_are_used_where_there_are_no_others() -> None:
    value = json.loads(json_log("all_reduce", 16, POINTS))
    for result in value["results"]:
        result["out_of_place"] = None
    assert fitted(json.dumps(value)).alpha_s == pytest.approx(20e-6, rel=0.01)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_ranks_that_never_joined_are_refused() -> None:
    """mpirun with a build that lacks MPI: each process is rank 0 of 1 (NVIDIA/nccl-tests issues 107 and 294)."""
    alone = "".join(text_log("all_reduce", 1, [(s, t) for s, t in POINTS]) for _ in range(2))
    refused(alone, "busbw is 0 at every size", "never joined", "MPI=1")
    lone = "#  Rank  0 Group  0 Pid   1 on node0 device  0 [0x00] V100\n" * 2
    refused(lone + text_log("all_reduce", 16, POINTS, listed=False), "every process is rank 0", "never joined")


def test_a_ratio_that_is_not_that_of_the_operation_is_refused() -> None:
    text = text_log("all_reduce", 16, POINTS, named=False)
    refused(text, "busbw/algbw is 1.875", "all_gather over 16 ranks gives 0.938", op="all_gather")
    listed_8 = text_log("all_reduce", 8, points(20, 100, ranks=8)).splitlines()[:12]
    refused("\n".join([*listed_8, text_log("all_reduce", 16, POINTS, listed=False)]), "over 8 ranks gives 1.750")


def test_columns_that_do_not_fit_their_header_are_refused_with_the_line() -> None:
    text = FORMATS["2.17, #wrong"]
    cut = text.replace("  sum  ", "  ", 1)
    refused(cut, ":24:", "12 columns where the header has 13")
    swapped = text.replace("time  algbw  busbw  #wrong  time", "algbw  time  busbw  #wrong  time", 1)
    refused(swapped, ":23: the header's columns are not in the order", "time algbw busbw", "got 'size count type redop")
    refused(text.replace("time  algbw", "algbw  time"), ":23: the header's columns are not in the order")
    refused(text.replace("  20.00  ", "  2o.00  ", 1), ":24: time: '2o.00'", "expected a number")


def test_bandwidths_that_are_not_size_over_time_are_refused() -> None:
    header = FORMATS["2.17, #wrong"].replace("size  count  type", "size  count  type", 1)
    broken = header.replace(f"{number(POINTS[-1][1], 7)}  ", f"{number(POINTS[-1][1] / 3, 7)}  ", 1)
    refused(broken, "wrong columns?")


def test_wrong_values_are_refused_but_the_old_rounding_error_is_not() -> None:
    refused(text_log("all_reduce", 16, POINTS, wrong="3"), ":24: 3 wrong values", "arrived broken")
    refused(FORMATS["unchecked"].replace("values : 0 OK", "values : 50 FAILED"), "'Out of bounds values : 50'")
    assert fitted(FORMATS["2.11, error and no root"]).alpha_s > 0


def test_wrong_values_in_place_are_refused_whatever_the_footer_says() -> None:
    lines = FORMATS["2.17, #wrong"].splitlines()
    assert lines[25].endswith("  0")
    refused("\n".join([*lines[:25], lines[25][:-1] + "17", *lines[26:]]), ":26: 17 wrong values", "(in-place)")
    value = json.loads(json_log("all_reduce", 16, POINTS))
    value["results"][2]["in_place"]["nwrong"] = 17.0
    refused(json.dumps(value), "17 wrong values at 128 B (in-place)")


def test_a_busbw_of_0_where_all_logs_print_0_says_nothing_about_who_joined() -> None:
    """8 B in 20 us are 0.0004 GB/s: printed as 0.00 by any number of ranks. From 512 B on, 0.03, joined ranks show."""
    with pytest.raises(ScenarioError) as error:
        fitted(text_log("all_reduce", 16, POINTS[:1]))
    assert "1 sizes" in str(error.value)
    assert fitted(text_log("all_reduce", 16, [(8, 20.0), (16, 20.1), (32, 20.2), (64, 20.4)])).ranks == 16
    refused(text_log("all_reduce", 1, POINTS[:6]), "busbw is 0 at every size", "never joined")


@pytest.mark.parametrize("name", ["2.17, #wrong", "2.11, error and no root", "rccl-tests", "mpirun --tag-output", "-S"])
def test_a_log_cut_anywhere_in_its_rows_keeps_the_rows_before_and_says_so(name: str) -> None:
    """The job was killed: every prefix, from the fifth row on, gives the whole rows that it holds."""
    text = FORMATS[name]
    lines = text.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if " float " in line)
    start = len("".join(lines[: first + 5]))
    for end in range(start, start + len(lines[first + 5]) - 1):
        (log,) = parsed(text[:end])
        rows = [row.size_bytes for row in log.rows if not row.in_place]
        assert rows in ([size for size, _ in POINTS[:5]], [size for size, _ in POINTS[:6]])
        assert len(rows) == 6 or not log.notes or log.notes == (
            f"a.log:{first + 6}: the log ends in this row, which is cut off; left out",
        )  # fmt: skip
    (log,) = parsed(text[: start + len(lines[first + 5]) // 2] + "slurmstepd: error: *** JOB 1 ON n CANCELLED ***\n")
    assert (len(log.rows), len(log.notes)) == (10, 1)


def test_a_row_cut_off_within_a_log_is_still_refused() -> None:
    text = FORMATS["2.17, #wrong"]
    lines = text.splitlines()
    last = len(SIZES) + 22
    assert lines[last].split()[0] == str(SIZES[-1])
    broken = "\n".join([*lines[:last], lines[last][:60], *lines[last + 1 :]])
    refused(broken, f":{last + 1}: ", "columns where the header has 13")


def test_times_that_do_not_grow_are_refused() -> None:
    refused(text_log("all_reduce", 16, [(size, 20.0) for size in SIZES]), "hardly longer", "nothing was sent")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("the file is empty",)),
        ("hello\n", ("no table of nccl-tests", "header line")),
        ("   8   2   float   sum   -1   36.50   0.00   0.00   0\n", (":1: a row of numbers before any header line",)),
        ("{", ("not valid JSON", "unfinished")),
        ("{}", ("no 'results' list",)),
        (text_log("all_reduce", 16, POINTS[:3]), ("3 sizes", "4 or more")),
        (text_log("all_reduce", 16, POINTS, named=False), ("does not name its test", "--op")),
        (FORMATS["2.17, #wrong"].replace("all_reduce_perf", "hypercube_perf"), ("hypercube_perf", "accepted: all_red")),
        (FORMATS["2.17, #wrong"].replace("  time", "  cputime"), ("CPU times (-C)",)),
        (text_log("broadcast", 16, points(20, 100, "broadcast"), listed=False), ("give --ranks",)),
    ],
)  # fmt: skip
def test_what_is_no_log_or_lacks_something_is_refused(text: str, words: Sequence[str]) -> None:
    refused(text, *words)


def test_what_the_user_says_must_not_contradict_the_log() -> None:
    refused(FORMATS["2.17, #wrong"], "--op all_gather: the log says that it is of all_reduce", op="all_gather")
    refused(FORMATS["2.17, #wrong"], "--ranks 8: the log lists 16 devices", ranks=8)


@given(st.data())
def test_no_text_and_no_json_ends_otherwise_than_in_a_fit_or_a_reason(data: st.DataObject) -> None:
    """A log with words or values put in, taken out or exchanged; ScenarioError becomes one line and exit code 2."""
    if data.draw(st.booleans()):
        words = FORMATS["rccl-tests"].split(" ")
        for _ in range(data.draw(st.integers(1, 5))):
            place = data.draw(st.integers(0, len(words) - 1))
            words[place] = data.draw(st.sampled_from(["", "x", "-1", "nan", "1e9", "0", "#", "\n", "time", "size"]))
        text = " ".join(words)
    else:
        value = json.loads(json_log("all_reduce", 16, POINTS[:6]))
        for _ in range(data.draw(st.integers(1, 3))):
            held = value
            while isinstance(held, dict | list) and held:
                key = data.draw(st.sampled_from(list(held) if isinstance(held, dict) else list(range(len(held)))))
                if not isinstance(held[key], dict | list) or not held[key] or data.draw(st.integers(0, 2)) == 0:
                    held[key] = data.draw(st.sampled_from([None, [], {}, "x", -1, 0, 1e400, True, [1], {"size": 8}]))
                    break
                held = held[key]
        text = json.dumps(value)
    reason, fits = "", []
    try:
        fits = [fit_samples(samples) for samples in samples_of(parsed(text))]
    except ScenarioError as error:
        reason = str(error)
    assert bool(fits) != reason.startswith("a.log")
    assert all(fit.alpha_s >= 0 and fit.busbw_bytes_per_s > 0 for fit in fits)


# ---- the fit ---------------------------------------------------------------------------------------------------------


@given(
    alpha_us=st.floats(5, 500),
    gb_per_s=st.floats(5, 800),
    ranks=st.integers(2, 512),
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
)
def test_a_log_made_from_alpha_and_bandwidth_gives_them_back(
    alpha_us: float, gb_per_s: float, ranks: int, op: str
) -> None:
    """T = alpha + S f / B, printed to 4 digits and more: both within 1 %, and the sizes left out within 1 %."""
    fit = fitted(text_log(op, ranks, points(alpha_us, gb_per_s, op, ranks)))
    assert fit.alpha_s == pytest.approx(alpha_us * 1e-6, rel=0.01)
    assert fit.busbw_bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=0.01)
    assert fit.held_out.largest < 0.01


@given(st.lists(st.floats(0.5, 3.0), min_size=len(SIZES), max_size=len(SIZES)))
def test_efficiency_only_grows_and_more_bytes_never_take_less_time(noise: list[float]) -> None:
    """Times half to three times those of the law, up and down: shares rise to 1, fitted times never fall."""
    rough = [(size, us * factor) for (size, us), factor in zip(POINTS, noise, strict=True)]
    fit = fitted(text_log("all_reduce", 16, rough))
    assert all(low <= high * (1 + 1e-9) for low, high in zip(fit.efficiency, fit.efficiency[1:], strict=False))
    assert fit.efficiency[-1] == pytest.approx(1.0)
    assert fit.alpha_s >= 0
    shown = time_s(fit, np.geomspace(SIZES[0], SIZES[-1], 200))
    assert (np.diff(shown) >= -1e-3 * shown[1:]).all()


def test_one_glitch_moves_no_constant() -> None:
    """A row that took three times as long (a cold start, as at 512 KiB of the B200 log): under 2 %."""
    calm = fitted(text_log("all_reduce", 16, POINTS))
    for at in (4, 8, 12):
        glitch = [(size, us * (3 if i == at else 1)) for i, (size, us) in enumerate(POINTS)]
        found = fitted(text_log("all_reduce", 16, glitch))
        assert found.busbw_bytes_per_s == pytest.approx(calm.busbw_bytes_per_s, rel=0.02)
        assert found.alpha_s == pytest.approx(calm.alpha_s, rel=0.02)


def test_half_of_the_sizes_are_held_out_and_both_ends_are_not() -> None:
    fit = fitted(text_log("all_reduce", 16, POINTS))
    assert (fit.fitted.rows, fit.held_out.rows) == (8, 7)
    assert {SIZES[0], SIZES[-1]} <= set(fit.fitted_sizes_bytes)
    even = fitted(text_log("all_reduce", 16, POINTS[:-1]))
    assert {SIZES[0], SIZES[-2]} <= set(even.fitted_sizes_bytes)


def test_held_out_errors_are_those_of_sizes_that_the_fit_never_saw() -> None:
    """Changing a held-out time changes its error, and nothing of the fit."""
    calm = fitted(text_log("all_reduce", 16, POINTS))
    other = fitted(text_log("all_reduce", 16, [(s, us * (1.5 if i == 7 else 1)) for i, (s, us) in enumerate(POINTS)]))
    assert (other.alpha_s, other.efficiency, other.fitted) == (calm.alpha_s, calm.efficiency, calm.fitted)
    assert other.held_out.largest == pytest.approx(1 / 3, rel=0.02)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 12))
def test_non_negative_least_squares_meets_its_conditions(seed: int, columns: int, rows: int) -> None:
    """Kuhn-Tucker: x >= 0, the gradient A'(Ax - b) is 0 where x > 0 and not negative elsewhere."""
    rng = np.random.default_rng(seed)
    matrix, goal = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    x = non_negative_least_squares(matrix, goal)
    gradient = matrix.T @ (matrix @ x - goal)
    assert (x >= 0).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-8
    assert gradient.min() > -1e-8


# ---- real logs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "op", "ranks", "nodes", "alpha_us", "busbw", "held_out"),
    [
        ("b200-2x8-all-reduce", "all_reduce", 16, None, (34, 38), (690, 710), 0.05),
        ("gh200-2x4-all-reduce", "all_reduce", 8, 2, (16, 19), (120, 126), 0.05),
        ("rtx6000d-2x8-alltoall-excerpt", "all_to_all", 16, 2, (28, 31), (29, 36), 0.04),
    ],
)
def test_real_logs_are_read_and_fitted(
    name: str, op: str, ranks: int, nodes: int | None, alpha_us: tuple[float, float], busbw: tuple[float, float],
    held_out: float,
) -> None:  # fmt: skip
    """Latency is that of the smallest sizes, bandwidth that of the largest; sizes left out within a few percent."""
    text = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    fit = fitted(text)
    assert (fit.op, fit.ranks, fit.nodes) == (op, ranks, nodes)
    assert alpha_us[0] <= fit.alpha_s * 1e6 <= alpha_us[1]
    assert busbw[0] <= fit.busbw_bytes_per_s / 1e9 <= busbw[1]
    assert fit.held_out.median <= held_out


PUBLISHED: dict[tuple[str, str, int], list[Point]] = {}
for row in published().rows:
    if not row.peak and row.algorithm is None and not row.topology.startswith("polaris"):
        PUBLISHED.setdefault((row.table, row.op, row.ranks), []).append((int(row.size_bytes), row.time_s * 1e6))
LONG = {key: held for key, held in PUBLISHED.items() if len({size for size, _ in held}) >= 8}


def test_published_tables_printed_as_logs_are_fitted_to_their_own_scatter() -> None:
    """Over all long tables: sizes left out within 5 % (median of the tables' medians), no table worse than 15 %."""
    found = {key: fitted(text_log(key[1], key[2], held)).held_out.median for key, held in LONG.items()}
    assert len(found) >= 15
    assert float(np.median(list(found.values()))) < 0.05
    assert max(found.values()) < 0.15, found


def test_a_floor_under_large_messages_is_taken_for_latency_and_not_for_slow_bytes() -> None:
    """SimuMax's all-reduce on 8 H100 starts at 1 MiB, on a floor of about 45 us; without the penalty alpha is 22 us."""
    held = LONG["simumax-h100-1n-allreduce-bf16", "all_reduce", 8]
    assert 30e-6 <= fitted(text_log("all_reduce", 8, held)).alpha_s <= 45e-6


# ---- the command -----------------------------------------------------------------------------------------------------


def run(folder: Path, *arguments: str) -> Result:
    (folder / "a.log").write_text(FORMATS["2.17, #wrong"], encoding="utf-8")
    return simulator("calibrate", str(folder / "a.log"), *arguments)


def test_the_command_prints_the_fit_and_writes_a_profile_with_units(tmp_path: Path) -> None:
    result = run(tmp_path, "-o", str(tmp_path / "mine.yaml"))
    assert (result.code, result.err) == (0, "")
    assert "all_reduce, 16 ranks on 2 nodes" in result.out
    assert sum(line.endswith("  held out") for line in result.out.splitlines()) == len(SIZES) // 2
    text = (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    value = yaml.safe_load(text)
    assert (value["model"], value["name"]) == ("calibrated", "mine")
    assert (value["base"], value["topology"]) == ("nccl", "dgx-h100")
    (fit,) = value["fits"]
    assert (fit["op"], fit["ranks"], fit["nodes"], fit["source"]) == ("all_reduce", 16, 2, ["a.log"])
    assert float(fit["alpha"].removesuffix(" us")) == pytest.approx(20, rel=0.01)
    assert float(fit["busbw"].removesuffix(" GB/s")) == pytest.approx(200, rel=0.01)
    assert fit["held_out"]["timings"] == len(SIZES) // 2
    assert str(tmp_path) not in text


def test_the_same_log_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.yaml", "two.yaml"):
        assert run(tmp_path, "-o", str(tmp_path / name)).code == 0
    one, two = ((tmp_path / name).read_text(encoding="utf-8") for name in ("one.yaml", "two.yaml"))
    assert one.replace('"one"', '"two"') == two
    (tmp_path / "s.log").write_text(FORMATS["-S"], encoding="utf-8")
    assert simulator("calibrate", str(tmp_path / "s.log"), "-o", str(tmp_path / "s.yaml")).code == 0
    assert "2025" not in (tmp_path / "s.yaml").read_text(encoding="utf-8")


def test_json_holds_the_fit_in_si_units(tmp_path: Path) -> None:
    value = json.loads(run(tmp_path, "--json").out)
    assert (value["schema_version"], value["kind"]) == (1, "calibration")
    assert value["fits"][0]["alpha_s"] == pytest.approx(20e-6, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--op", "all-reduc"), ("--op: 'all-reduc'", "did you mean")),
        (("--op", "allgather"), ("--op all_gather", "the log says")),
        (("--ranks", "1"), ("--ranks: 1: must be at least 2",)),
        (("-o", "x.txt"), ("--output: 'x.txt'", ".yaml")),
        (("-o", str(ROOT / "topologies" / "dgx-h100.yaml")), ("dgx-h100.yaml'", "did not write it", "--force")),
    ],
)
def test_bad_options_are_one_error_each(tmp_path: Path, arguments: Sequence[str], words: Sequence[str]) -> None:
    result = run(tmp_path, *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1
    for word in words:
        assert word in result.err


def test_a_profile_is_overwritten_by_a_profile_and_anything_else_only_by_force(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    assert run(tmp_path, "-o", str(mine)).code == 0
    first = mine.read_text(encoding="utf-8")
    assert run(tmp_path, "-o", str(mine)).code == 0
    mine.write_text("# model: calibrated\nname: my notes\n", encoding="utf-8")
    assert run(tmp_path, "-o", str(mine)).code == 2
    assert mine.read_text(encoding="utf-8") == "# model: calibrated\nname: my notes\n"
    assert run(tmp_path, "-o", str(mine), "--force").code == 0
    assert mine.read_text(encoding="utf-8") == first


def test_a_cut_log_is_used_with_a_note(tmp_path: Path) -> None:
    text = FORMATS["2.17, #wrong"]
    (tmp_path / "a.log").write_text(text[: text.index(str(SIZES[-1])) + 60], encoding="utf-8")
    result = simulator("calibrate", str(tmp_path / "a.log"), "--json")
    assert result.code == 0
    assert result.err.startswith(f"note: {tmp_path / 'a.log'}:")
    assert len(result.err.splitlines()) == len(json.loads(result.out)["notes"]) == 1


def test_the_help_says_that_giving_the_operation_is_normal() -> None:
    out = " ".join(simulator("calibrate", "--help").out.split())
    assert "nccl-tests before 2025 and rccl-tests do not print which operation they ran: --op is normal" in out


def test_a_missing_log_is_an_error_without_traceback() -> None:
    result = simulator("calibrate", str(ROOT / "nowhere.log"))
    assert result.code == 2
    assert "no such file" in result.err
    assert simulator("calibrate").code == 2

"""A calibrated library: what ``simulator calibrate`` writes is what a simulation with it reproduces, on the log's ranks
exactly and on others through the shipped library, and how far that one was from the log is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml
from command_line import ROOT, Result, simulator
from hypothesis import given
from hypothesis import strategies as st
from nccl_logs import PROGRAMS, Point, json_log, text_log

from simulator import shipped
from simulator.calibration.comparison import MOST_POINTS, check_links, compare, correction_sizes
from simulator.calibration.fit import Fit, fit_samples, time_s
from simulator.calibration.machines import MACHINES, machine_of
from simulator.calibration.parse import parse_log
from simulator.calibration.profile import Calibrated, Profile, Shipped, profile_yaml
from simulator.calibration.samples import Samples, samples_of
from simulator.collectives.busbw import bus_factor
from simulator.corrections import compared, correctable, least_times, library_times
from simulator.errors import ScenarioError
from simulator.library import NcclLibrary
from simulator.load import load_library, load_scenario, load_topology
from simulator.measurements.accuracy import BANDS
from simulator.measurements.tables import Measured, published
from simulator.schema import library_schema
from simulator.tuning.measured import on_log_scale

SIZES = tuple(8 * 4**i for i in range(15))
DGX = load_topology("dgx-h100")


def points(op: str = "all_reduce", ranks: int = 16, alpha_us: float = 60.0, gb_per_s: float = 200.0) -> list[Point]:
    """T = alpha + S f / B, in us."""
    return [(size, alpha_us + size * bus_factor(op, ranks) / gb_per_s / 1e3) for size in SIZES]


def fit_of(text: str, name: str = "a.log") -> tuple[Fit, Samples]:
    (samples,) = samples_of(parse_log(name, text))
    return fit_samples(samples), samples


def log(folder: Path, text: str, name: str = "a.log") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def calibrated(folder: Path, text: str, *arguments: str) -> Result:
    """``simulator calibrate`` of one log, into mine.yaml of the folder."""
    return simulator("calibrate", log(folder, text), "-o", str(folder / "mine.yaml"), *arguments)


def times(command: Sequence[str], sizes: Sequence[float]) -> np.ndarray:
    """Seconds that ``simulator collective`` prints at each size for what the library runs."""
    found = []
    for size in sizes:
        result = simulator(*command, "-b", f"{size:.0f} B", "--json")
        assert result.code == 0, result.err
        found += [row["time_s"] for row in json.loads(result.out)["rows"] if row["picked"]]
    return np.array(found)


# ---- use -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("op", PROGRAMS)
def test_the_profile_gives_the_fitted_times_on_the_ranks_of_the_log(op: str, tmp_path: Path) -> None:
    """To 1e-6 at the knots of the fit and at every other size of the log, held out or not."""
    slow = op in {"all_to_all", "gather", "send_recv"}  # of each rank's own NIC: 50 GB/s
    text = text_log(op, 16, points(op, gb_per_s=40.0 if slow else 200.0))
    assert calibrated(tmp_path, text).code == 0
    fit, _ = fit_of(text)
    command = ["collective", op, "--topology", "dgx-h100", "--library", str(tmp_path / "mine.yaml"), "-p", "16"]
    sizes = sorted({*map(float, SIZES), *fit.knots_bytes})
    assert times(command, sizes) == pytest.approx(time_s(fit, np.array(sizes)), rel=1e-6)


def test_ranks_that_fill_half_of_each_node_are_placed_as_in_the_log(tmp_path: Path) -> None:
    """2 nodes x 4 of 8: the printed command says so, and gives the fitted times; packed on one node would not."""
    text = text_log("all_reduce", 8, points(ranks=8), per_node=4)
    result = calibrated(tmp_path, text, "--topology", "dgx-h100")
    command = result.out.splitlines()[-1].partition("use: simulator ")[2].split()
    assert command[-4:] == ["--nodes", "2", "--gpus-per-node", "4"]
    fit, _ = fit_of(text)
    assert times(command, SIZES) == pytest.approx(time_s(fit, np.array(SIZES)), rel=1e-6)
    packed = times(command[:-4], SIZES[8:])
    assert (np.abs(packed / time_s(fit, np.array(SIZES[8:])) - 1) > 0.05).all()


def test_other_numbers_of_ranks_scale_as_the_shipped_library_does(tmp_path: Path) -> None:
    """Time on 64 ranks = the shipped library's time there x the factor found on 16, log-linear between its points."""
    assert calibrated(tmp_path, text_log("all_reduce", 16, points())).code == 0
    mine = load_library(str(tmp_path / "mine.yaml"))
    assert isinstance(mine, NcclLibrary)
    sizes = [3e3, 1e6, 1e7, 1e9, 8e9]
    factors = [on_log_scale(mine.corrections["all_reduce"].several_nodes or (), size) for size in sizes]
    command = ["collective", "all_reduce", "--topology", "dgx-h100", "-p", "64"]
    with_mine = times([*command, "--library", str(tmp_path / "mine.yaml")], sizes)
    assert with_mine / times(command, sizes) == pytest.approx(factors, rel=1e-12)
    assert max(factors) / min(factors) > 1.5


def test_factors_of_several_nodes_leave_one_node_as_it_is(tmp_path: Path) -> None:
    """A log of 16 ranks, faster than the base: 8 ranks take the base's time, so NVLS stays below its plateau."""
    assert calibrated(tmp_path, own_log(0.8)).code == 0
    command = ["collective", "all_reduce", "--topology", "dgx-h100", "-p", "8"]
    sizes = [1e3, 1e6, 1e9]
    assert times([*command, "--library", str(tmp_path / "mine.yaml")], sizes).tolist() == times(command, sizes).tolist()


def test_tables_of_one_node_and_of_several_fit_into_one_profile(tmp_path: Path) -> None:
    one = text_log("all_reduce", 8, points(ranks=8, alpha_us=30.0, gb_per_s=300.0))
    two = text_log("all_reduce", 16, points())
    assert calibrated(tmp_path, two + one).code == 0
    value = yaml.safe_load((tmp_path / "mine.yaml").read_text(encoding="utf-8"))
    assert list(value["corrections"]["all_reduce"]) == ["one_node", "several_nodes"]
    jsonschema.Draft7Validator(library_schema()).validate(value)
    for ranks, text in ((8, one), (16, two)):
        fit, _ = fit_of(text)
        command = ["collective", "all_reduce", "--topology", "dgx-h100", "--library", str(tmp_path / "mine.yaml")]
        found = times([*command, "-p", str(ranks)], SIZES[::2])
        assert found == pytest.approx(time_s(fit, np.array(SIZES[::2], dtype=np.float64)), rel=1e-6)


def test_a_profile_of_other_gpus_is_refused(tmp_path: Path) -> None:
    assert calibrated(tmp_path, H100).code == 0
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("dgx-h100", "dgx-a100"), encoding="utf-8")
    result = simulator("run", str(tmp_path / "s.yaml"))
    assert (result.code, result.out) == (2, "")
    assert "cluster.library: 'mine' was calibrated on hopper GPUs; 'dgx-a100' has ampere ones" in result.err
    text = (ROOT / "topologies" / "dgx-a100.yaml").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(text.replace("library: nccl", "library: mine.yaml"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"own.yaml:[0-9]+: library: 'mine' was calibrated on hopper GPUs"):
        load_topology(str(tmp_path / "own.yaml"))


SCENARIO = """\
cluster: {topology: dgx-h100, nodes: 2, library: mine.yaml}
collective: {op: all_reduce, size: 1 GiB, algorithm: auto}
"""


def test_a_scenario_names_the_profile_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cluster.library: mine.yaml`` starts at the scenario's folder, an override's at the working directory."""
    assert calibrated(tmp_path, text_log("all_reduce", 16, points())).code == 0
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    mine = load_library(str(tmp_path / "mine.yaml"))
    assert load_scenario(tmp_path / "s.yaml").cluster.spec.library == mine
    monkeypatch.chdir(tmp_path)
    assert load_scenario("ddp-llama-1b-16xh100", ["cluster.library=mine.yaml"]).cluster.spec.library == mine
    assert simulator("run", "ddp-llama-1b-16xh100", "cluster.library=mine.yaml").code == 0
    wrong = simulator("run", "ddp-llama-1b-16xh100", "cluster.library=mein.yaml")
    assert (wrong.code, wrong.out) == (2, "")
    assert "cluster.library=mein.yaml: mein.yaml: no such file; did you mean 'mine.yaml'" in wrong.err


@pytest.mark.parametrize("size_bytes", [32 * 2**10, 32 * 2**20])
def test_a_scenario_with_the_profile_takes_the_fitted_time(size_bytes: int, tmp_path: Path) -> None:
    text = text_log("all_reduce", 16, points())
    assert calibrated(tmp_path, text).code == 0
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    result = simulator("run", str(tmp_path / "s.yaml"), f"collective.size={size_bytes} B", "--json")
    (found,) = json.loads(result.out)["rows"]
    fit, samples = fit_of(text)
    assert size_bytes in samples.sizes_bytes
    assert found["time_s"] == pytest.approx(float(time_s(fit, np.array([float(size_bytes)]))[0]), rel=1e-6)


def test_a_training_step_with_the_profile_communicates_as_long_as_the_log_says(tmp_path: Path) -> None:
    """A log three times as slow as the shipped profile: three times as long in all-reduces."""
    assert calibrated(tmp_path, own_log(3.0)).code == 0
    plain, slow = (
        json.loads(simulator("run", "ddp-llama-1b-16xh100", f"cluster.library={library}", "--json").out)
        for library in ("nccl", tmp_path / "mine.yaml")
    )
    assert slow["comm_total_s"] / plain["comm_total_s"] == pytest.approx(3, rel=0.05)


def test_the_profile_agrees_with_the_schema_of_libraries(tmp_path: Path) -> None:
    assert calibrated(tmp_path, text_log("all_reduce", 16, points())).code == 0
    value = yaml.safe_load((tmp_path / "mine.yaml").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(library_schema()).validate(value)
    wrong = value | {"corrections": {"allreduce": value["corrections"]["all_reduce"]}}
    assert not jsonschema.Draft7Validator(library_schema()).is_valid(wrong)


@pytest.mark.slow
@given(noise=st.lists(st.floats(0.3, 4.0), min_size=len(SIZES), max_size=len(SIZES)), alpha_us=st.floats(0.1, 5000))
def test_every_fit_makes_a_profile_that_loads(
    noise: list[float], alpha_us: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever shares and factors a rough log gives, they are within what a library file accepts."""
    rough = [(s, us * factor) for (s, us), factor in zip(points(alpha_us=alpha_us), noise, strict=True)]
    try:
        fit, samples = fit_of(text_log("all_reduce", 16, rough))
    except ScenarioError:
        return
    profile = Profile(
        name="x", shipped=Shipped(base="nccl", topology="dgx-h100"),
        fits=(Calibrated(fit=fit, comparison=compared(fit, samples, DGX)),),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("any") / "x.yaml"
    path.write_text(profile_yaml(profile), encoding="utf-8")
    assert isinstance(load_library(str(path)), NcclLibrary)


# ---- how far the shipped profile was ---------------------------------------------------------------------------------


def own_log(factor: float) -> str:
    """What the shipped profile itself would print on 16 ranks, times a factor."""
    fit, _ = fit_of(text_log("all_reduce", 16, points()))
    own = library_times(fit, DGX, np.array(SIZES, dtype=np.float64))
    return text_log("all_reduce", 16, [(size, factor * 1e6 * float(t)) for size, t in zip(SIZES, own, strict=True)])


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_a_log_of_the_shipped_profile_itself_is_off_by_what_it_was_multiplied_by(factor: float, tmp_path: Path) -> None:
    """Printing rounds to 0.05 % and less; |1 / 1.3 - 1| is 23.1 %."""
    result = simulator("calibrate", log(tmp_path, own_log(factor)), "--json")
    (fit,) = json.loads(result.out)["fits"]
    assert [one["band"] for one in fit["errors_shipped"]] == [band.name for band in BANDS]
    for one in fit["errors_shipped"]:
        assert (one["median"], one["p90"]) == pytest.approx((1 - 1 / factor,) * 2, abs=1e-3)
    assert float(np.median([value for _, value in fit["corrections"]])) == pytest.approx(factor, rel=5e-3)


def test_errors_are_told_by_band_for_all_sizes_and_for_those_held_out() -> None:
    """By hand: the shipped profile is 50 % off at every size, the corrected one 1 % at fitted sizes, 4 % at others."""
    fit, samples = fit_of(text_log("all_reduce", 16, points()))
    held = ~np.isin(samples.sizes_bytes, fit.fitted_sizes_bytes)
    calibrated_s = samples.times_s * np.where(held, 0.96, 1.01)
    found = compare(fit, samples, ((8.0, 1.0),), 1.5 * samples.times_s, calibrated_s, span="one_node")
    sizes = samples.sizes_bytes
    for band, everything, unseen in zip(BANDS, found.shipped, found.calibrated, strict=True):
        inside = (sizes >= band.low) & (sizes < band.high)
        assert (everything.band, everything.errors.rows) == (band.name, int(inside.sum()))
        assert unseen.errors.rows == int((inside & held).sum())
        assert (everything.errors.median, everything.errors.p90) == pytest.approx((0.5, 0.5))
        assert (unseen.errors.median, unseen.errors.largest) == pytest.approx((0.04, 0.04))
    assert [one.errors.rows for one in found.shipped_held_out] == [one.errors.rows for one in found.calibrated]


def test_the_text_shows_both_errors_and_what_it_compared_with(tmp_path: Path) -> None:
    out = simulator("calibrate", log(tmp_path, own_log(1.3))).out
    assert out.startswith("compared with 'nccl' on topology 'dgx-h100', guessed from 'NVIDIA H100 80GB HBM3' with 8 ")
    assert "--topology NAME or FILE says otherwise" in out.replace("\n", " ").replace("  ", " ")
    assert "nccl, all sizes  nccl, sizes held out  calibrated, sizes held out" in out
    small = next(line for line in out.splitlines() if line.startswith("< 1 MiB"))
    assert small.count("23.1 % / 23.1 % of") == 2
    assert sum("-23.1 %" in line for line in out.splitlines()) == len(SIZES)
    named = simulator("calibrate", str(tmp_path / "a.log"), "--topology", "dgx-h100").out
    assert named.startswith("compared with 'nccl' on topology 'dgx-h100'\n")


TABLES: dict[tuple[str, str, str, int, int], list[Measured]] = {}
for row in published().rows:
    if not row.peak and row.algorithm is None and not row.topology.startswith("polaris"):
        TABLES.setdefault((row.table, row.op, row.topology, row.nodes, row.gpus_per_node), []).append(row)
LONG = {key: held for key, held in TABLES.items() if len({row.size_bytes for row in held}) >= 8}


@pytest.mark.slow
def test_published_tables_printed_as_logs_calibrate_the_shipped_profile_to_within_their_own_scatter() -> None:
    """At sizes held out the calibrated profile errs as the fit does, which is the table's own scatter: half of the
    tables by less than 3 %. The shipped profile, of which parts were read off some of these tables, errs by more.
    """
    before, after = [], []
    for (table, op, topology, nodes, per_node), held in LONG.items():
        printed = [(int(row.size_bytes), row.time_s * 1e6) for row in held]
        fit, samples = fit_of(text_log(op, nodes * per_node, printed, per_node=per_node))
        found = compared(fit, samples, correctable(topology))
        rows = [one.errors.rows for one in found.calibrated]
        assert sum(rows) == fit.held_out.rows
        largest = max(one.errors.largest for one in found.calibrated)
        assert largest == pytest.approx(fit.held_out.largest, rel=1e-6, abs=0.02 if found.warnings else 0.005), table
        before.append(_typical(found.shipped_held_out))
        after.append(_typical(found.calibrated))
    assert len(after) >= 18
    assert float(np.median(after)) < 0.03
    assert float(np.mean(after)) < 0.05
    assert float(np.mean(after)) < 0.8 * float(np.mean(before))


def _typical(bands: Sequence) -> float:  # type: ignore[type-arg]
    """Mean of the bands' medians."""
    return float(np.mean([one.errors.median for one in bands]))


def test_a_log_of_many_sizes_gives_a_profile_of_few_points() -> None:
    """400 sizes in equal steps: at most 64 points and the knots, both ends among them."""
    many = [(i * 2**20, 60.0 + i * 2**20 * 1.875 / 200 / 1e3) for i in range(1, 401)]
    fit, samples = fit_of(text_log("all_reduce", 16, many))
    sizes = correction_sizes(fit, samples)
    assert len(sizes) <= MOST_POINTS + len(fit.knots_bytes)
    assert (sizes[0], sizes[-1]) == (2**20, 400 * 2**20)
    assert set(fit.knots_bytes) <= set(sizes.tolist())


# ---- faster than the links, much slower than the profile -------------------------------------------------------------


@pytest.mark.parametrize(("op", "ranks", "busbw"), [
    ("all_reduce", 8, 700), ("all_gather", 8, 450), ("all_reduce", 16, 750), ("all_gather", 16, 400),
    ("all_reduce", 64, 787.5), ("all_to_all", 16, 93.75), ("send_recv", 16, 50),
])  # fmt: skip
def test_the_least_time_is_that_of_the_nominal_rates(op: str, ranks: int, busbw: float) -> None:
    """By hand, GB/s: 450 of NVLink, 400 of 8 NICs, 50 of one. An all-reduce inside an NVSwitch moves each GPU's bytes
    1 + 1/8 times; one over nodes whose network adds (or over two of them) once: 400 x 2 (n - 1) / n. All-to-all: 8 of
    15 peers are on the other node. At 8 B ranks hold no whole share: left out.
    """
    fit, samples = fit_of(text_log(op, ranks, points(op, ranks)))
    least = least_times(fit, DGX, samples.sizes_bytes)
    assert (samples.sizes_bytes * bus_factor(op, ranks) / least / 1e9)[3:] == pytest.approx(busbw, rel=1e-9)
    check_links(replace(samples, times_s=least * 0.99), least, "x")
    with pytest.raises(ScenarioError, match="faster than the links of 'x' allow at 8 B"):
        check_links(replace(samples, times_s=least * 0.97), least, "x")


def test_an_all_reduce_that_the_network_adds_up_is_accepted_and_told(tmp_path: Path) -> None:
    """480 GB/s on 8 nodes is more than the 400 of a ring's bytes, which NVLink SHARP and Quantum switches do reach."""
    result = calibrated(tmp_path, text_log("all_reduce", 64, points(ranks=64, gb_per_s=480.0)))
    assert result.code == 0
    assert "warning: " in result.err
    assert "a reduction inside the network?): the corrected profile is held there" in result.err


@pytest.mark.parametrize(("factor", "told"), [(0.9, 0), (3.9, 0), (4.2, 1)])
def test_a_log_more_than_four_times_slower_than_the_profile_is_accepted_with_a_warning(
    factor: float, told: int, tmp_path: Path
) -> None:
    result = simulator("calibrate", log(tmp_path, own_log(factor)), "--json")
    assert result.code == 0
    assert len(result.err.splitlines()) == len(json.loads(result.out)["warnings"]) == told


def test_a_fall_back_to_tcp_is_told(tmp_path: Path) -> None:
    """3.75 GB/s on 8 NICs of 400 Gb/s."""
    result = calibrated(tmp_path, text_log("all_reduce", 16, points(gb_per_s=3.75)))
    assert result.code == 0
    assert (tmp_path / "mine.yaml").exists()
    assert result.err.startswith("warning: ")
    for words in ("of 64 MiB and more", "times as long as the shipped profile", "busbw 3.75 GB/s", "TCP"):
        assert words in result.err


# ---- which topology --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: f"{one.device} x {one.gpus_per_node}")
def test_every_known_machine_is_a_shipped_topology_that_can_be_corrected(machine) -> None:  # type: ignore[no-untyped-def]
    assert machine.topology in shipped.names("topology")
    assert correctable(machine.topology).gpus_per_node == machine.gpus_per_node  # type: ignore[attr-defined]
    assert machine_of(machine.device, machine.gpus_per_node) == machine


@pytest.mark.parametrize(
    ("device", "ranks_per_node", "topology"),
    [
        ("NVIDIA H100 80GB HBM3", 8, "dgx-h100"),
        ("NVIDIA H100 80GB HBM3", 4, "dgx-h100"),
        ("NVIDIA H100 80GB HBM3", 16, None),
        ("NVIDIA A100-SXM4-40GB", 4, "polaris"),
        ("NVIDIA A100-SXM4-40GB", 8, "dgx-a100"),
        ("A100-SXM4-40GB", 8, "dgx-a100"),
        ("AMD Instinct MI300X VF", 8, "mi300x"),
        ("NVIDIA GB200", 4, "gb200-nvl72"),
        ("NVIDIA H100 NVL", 2, None),
        ("NVIDIA GH200 120GB", 4, None),
    ],
)
def test_a_topology_is_guessed_from_the_name_of_the_gpu_and_the_ranks_of_a_node(
    device: str, ranks_per_node: int, topology: str | None
) -> None:
    found = machine_of(device, ranks_per_node)
    assert (found.topology if found else None) == topology


@pytest.mark.parametrize("as_json", [False, True])
def test_the_fullest_node_says_how_many_ranks_a_node_has(as_json: bool) -> None:
    """12 ranks on two hosts, 8 and 4: placed so, not as 6 and 6."""
    text = (json_log if as_json else text_log)("all_reduce", 12, points(ranks=12))
    (found,) = parse_log("a.log", text)
    assert (found.ranks, found.nodes, found.per_node) == (12, 2, 8)


def test_without_a_guess_and_without_a_profile_to_write_the_fit_is_still_printed(tmp_path: Path) -> None:
    path = log(tmp_path, text_log("all_reduce", 16, points(), listed=False))
    result = simulator("calibrate", path)
    assert (result.code, result.err) == (0, "")
    assert "not compared with a shipped profile" in result.out
    assert "alpha 60.0 us" in result.out
    value = json.loads(simulator("calibrate", path, "--json").out)
    assert (value["base"], value["topology"], value["fits"][0]["corrections"]) == (None, None, None)
    assert "lists no devices" in value["not_compared"]


# ---- refusals --------------------------------------------------------------------------------------------------------

H100 = text_log("all_reduce", 16, points())
REFUSED = {
    "no devices": (text_log("all_reduce", 16, points(), listed=False), (), ("lists no devices", "uniform", "dgx-h100")),
    "unknown GPU": (H100.replace("H100 80GB HBM3", "X9"), (), ("'NVIDIA X9' with 8 ranks a node", "dgx-h100")),
    "two machines": (
        H100 + text_log("all_gather", 8, points("all_gather", 8)).replace("H100 80GB HBM3", "B200"), (),
        ("'NVIDIA H100 80GB HBM3' with 8 ranks a node and 'NVIDIA B200' with 8", "--topology"),
    ),
    "too many ranks a node": (text_log("all_reduce", 16, points(), per_node=16), (), ("16 ranks a node",)),
    "no cost model": (H100, ("--topology", "uniform"), ("--topology: 'uniform'", "no cost model to correct", "nccl")),
    "XLA": (H100, ("--topology", "tpu-v5e"), ("'xla-tpu' has no cost model",)),
    "unknown topology": (H100, ("--topology", "dgx-h10"), ("--topology: no topology", "did you mean 'dgx-h100'")),
    "does not fit": (H100, ("--topology", "polaris"), ("16 ranks on 2 nodes does not fit on 'polaris'",)),
    "another machine": (
        text_log("all_reduce", 16, [(size, 2e5 + us * 1e3) for size, us in points()]), (),
        ("more than 1000 times off", "--topology"),
    ),
    "one operation on several nodes twice": (
        H100 + text_log("all_reduce", 32, points(ranks=32)), (),
        ("all_reduce on 32 ranks on 4 nodes", "16 ranks on 2 nodes", "once on one node and once on several"),
    ),
    "faster than the links": (
        text_log("all_reduce", 16, [(size, 2 + size / 5e6) for size in SIZES]), (),
        ("faster than the links of 'dgx-h100' allow at 2147483648 B", "busbw 9331.5", "(busbw 750.0", "check units"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_corrected_is_one_clear_error_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    text, arguments, words = REFUSED[name]
    result = calibrated(tmp_path, text, *arguments)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    for word in words:
        assert word in result.err
    assert not (tmp_path / "mine.yaml").exists()


def test_the_textbook_a_profile_on_a_profile_and_a_changed_library_are_refused(tmp_path: Path) -> None:
    """A topology file of the user's: the textbook has no model, on a calibrated library factors would add up, and a
    changed copy of nccl is not what the name stands for.
    """
    nccl = shipped.library_file("nccl").read_text(encoding="utf-8")
    slower = nccl.replace("\ncollective_launch: ", "\ncollective_launch: 1")
    assert slower != nccl
    (tmp_path / "slower.yaml").write_text(slower, encoding="utf-8")
    text = (ROOT / "topologies" / "dgx-h100.yaml").read_text(encoding="utf-8")
    for library, words in (
        ("textbook", "'textbook' has no cost model"), ("mine.yaml", "'mine' is not one as shipped"),
        ("slower.yaml", "'nccl' is not one as shipped"),
    ):  # fmt: skip
        assert calibrated(tmp_path, H100).code == 0
        path = tmp_path / "own.yaml"
        path.write_text(text.replace("library: nccl", f"library: {library}"), encoding="utf-8")
        with pytest.raises(ScenarioError, match=words):
            correctable(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  - [32 B", "  - [2 B"), "corrections.all_reduce.several_nodes[1]: sizes must ascend: 2 B after 8 B"),
        (("  all_reduce:", "  allreduce:"), "corrections.allreduce: unknown value"),
        (("base: nccl", "base: uniform"), "base: no library 'uniform' is shipped"),
        (("[32 B, ", "[32 B, x"), "corrections.all_reduce.several_nodes[1][1]: must be a number"),
    ],
)
def test_a_profile_that_was_edited_wrongly_is_refused_with_its_line(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    assert calibrated(tmp_path, H100).code == 0
    path = tmp_path / "mine.yaml"
    text = path.read_text(encoding="utf-8")
    number = text[: text.index(change[0])].count("\n") + 1
    path.write_text(text.replace(*change), encoding="utf-8")
    result = simulator("collective", "all_reduce", "--topology", "dgx-h100", "--library", str(path), "-p", "16")
    assert result.code == 2
    assert f"{path}:{number}: {message}" in result.err

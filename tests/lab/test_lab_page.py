"""docs/lab.md is true: its commands can be run, its output has the form of today's, its table is of all lab tests.

Real times differ from run to run, so numbers are held loosely; the simulated ones follow from what the page says was
measured.
"""

from __future__ import annotations

import re
import shlex
from itertools import permutations
from pathlib import Path

import pytest
from test_lab_model_parallel import MOST as MOST_OF_MODELS
from test_lab_model_parallel import WHERE
from test_lab_training import APART, EVERYWHERE, MOST, USUAL, USUAL_SHARE

from simulator.answer import cluster_network
from simulator.lab.measuring import Numbers
from simulator.lab.model import Way, fabric_of
from simulator.lab.training_job import REAL, training_job
from simulator.lab_answer import simulate_lab
from simulator.load import load_scenario
from simulator.scenario import Scenario
from simulator.units import parse_bandwidth, parse_time

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
#: Command -> what the page shows below it.
SHOWN = {
    block.partition("\n")[0]: block.partition("\n")[2]
    for console in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for block in console.removeprefix("$ ").split("\n$ ")
}
STEP = re.compile(
    r"^step: real (?P<real>\S+ \S+) \(median of 5: (?P<low>.+) to (?P<high>.+)\), simulated (?P<simulated>\S+ \S+), "
    r"(?P<error>[-+][\d.]+) %$", re.MULTILINE,
)  # fmt: skip


def scenario_of(command: str) -> Scenario:
    program, what, name, *overrides = shlex.split(command)
    assert (program, what) == ("simulator", "lab")
    return load_scenario(name, overrides)


def seconds(words: str) -> float:
    return parse_time(words)


@pytest.mark.parametrize("command", SHOWN)
def test_commands_of_the_page_say_what_they_did(command: str) -> None:
    """What is printed as the error is that of the two times before it."""
    scenario = scenario_of(command)
    network = cluster_network(scenario)
    assert training_job(scenario, network.num_gpus, network.gpus_per_node, 5)["steps"] == 5
    (step,) = STEP.finditer(SHOWN[command])
    assert seconds(step["low"]) <= seconds(step["real"]) <= seconds(step["high"])
    error = seconds(step["simulated"]) / seconds(step["real"]) - 1
    assert float(step["error"]) / 100 == pytest.approx(error, abs=0.0015)
    assert abs(error) < MOST


def test_first_run_is_simulated_from_what_it_says_was_measured() -> None:
    """Every span of it, to what times of two digits give: 2 ms."""
    command = "simulator lab lab-ddp"
    text, scenario = " ".join(SHOWN[command].split()), scenario_of(command)
    (told,) = re.findall(r"a message (\S+ \S+) \+ bytes / (\S+ \S+) tiny collectives: (.+?) step:", text)
    tiny = {op.replace("-", "_"): seconds(time) for op, time in re.findall(r"([a-z-]+) ([\d.]+ \w+)", told[2])}
    rate = parse_bandwidth(told[1])
    numbers = Numbers(near=Way(alpha_s=seconds(told[0]), bytes_per_s=rate), across=None, tiny_s=tiny)
    timeline = simulate_lab(scenario, fabric_of(cluster_network(scenario)), numbers).timeline
    rows = re.findall(r"^(\S.*?)\s{2,}[\d.]+ ms\s+[\d.]+ ms\s+([\d.]+) ms\s+([\d.]+) ms\s", SHOWN[command], re.M)
    assert {name for name, *_ in rows} == {span.task.name for span in timeline.spans if span.duration_s > 0}
    for name, start, end in rows:
        mine = [span for span in timeline.spans if span.task.name == name]
        assert min(span.start_s for span in mine) == pytest.approx(float(start) / 1e3, abs=2e-3)
        assert max(span.end_s for span in mine) == pytest.approx(float(end) / 1e3, abs=2e-3)


def table(fabric: str) -> dict[str, tuple[float, float]]:
    """Configuration -> real and simulated seconds."""
    rows = PAGE.split(f"<!-- accuracy: {fabric} -->\n", 1)[1].split("\n\n", 1)[0]
    found = re.findall(r"^\| (.+?) \| ([\d.]+) s \| ([\d.]+) s \| ([-+][\d.]+) % \|$", rows, re.MULTILINE)
    for name, real, simulated, error in found:
        assert float(error) / 100 == pytest.approx(float(simulated) / float(real) - 1, abs=3.5e-4), name
    return {name: (float(real), float(simulated)) for name, real, simulated, _ in found}


def test_accuracy_is_told_of_every_configuration_of_the_tests() -> None:
    errors = []
    for fabric, (_, cases) in EVERYWHERE.items():
        assert list(table(fabric)) == list(cases)
        errors += [abs(simulated / real - 1) for real, simulated in table(fabric).values()]
    within = sum(error <= USUAL for error in errors)
    assert f"{within} of {len(errors)} are within 3 %" in " ".join(PAGE.split())
    assert within >= USUAL_SHARE * len(errors)
    assert max(errors) <= MOST


def test_accuracy_is_told_of_every_model_over_several_hosts() -> None:
    errors = []
    for fabric, (_, cases) in WHERE.items():
        assert list(table(f"model {fabric}")) == list(cases)
        errors += [abs(simulated / real - 1) for real, simulated in table(f"model {fabric}").values()]
    (told,) = re.findall(r"runs them: each within ([\d.]+) %", " ".join(PAGE.split()))
    assert max(errors) <= float(told) / 100 <= MOST_OF_MODELS


@pytest.mark.parametrize("fabric", EVERYWHERE)
def test_the_page_claims_the_order_of_ways_and_has_it(fabric: str) -> None:
    cases, times = EVERYWHERE[fabric][1], table(fabric)
    for one, other in permutations(times, 2):
        alike = [
            (tuple(part["name"] for part in cases[name].layers), cases[name].micro_batches) for name in (one, other)
        ]
        if alike[0] == alike[1] and times[one][0] * (1 + APART) < times[other][0]:
            assert times[one][1] <= times[other][1], (one, other)


def test_strategies_that_it_names_are_those_that_run() -> None:
    told = " ".join(PAGE.split())
    assert (
        "(`ddp`, `zero1` by torch and textbook, `zero2` and `zero3` textbook, `fsdp` and `hsdp` by FSDP2 and FSDP1)"
        in told
    )
    assert len(REAL) == 1 + 2 + 2 + 4


def test_links_and_files_exist() -> None:
    for path in re.findall(r"`((?:tests|simulator|topologies|scenarios)/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path
    assert (ROOT / "topologies" / "lab-two-level.yaml").exists()

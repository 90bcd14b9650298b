"""One point of a sweep -> one flat row: its settings, its results or its error, and where both come from."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.answer import answer_collective, answer_step
from simulator.errors import ScenarioError, SimulatorError
from simulator.load import load_scenario, scenario_digest
from simulator.report.verdict import bound_sentence, memory_verdict, verdicts
from simulator.scenario import Scenario
from simulator.sweeps.points import Base, Point, Row, check_base, settings
from simulator.sweeps.wirings import wiring_for

#: Results of a training step; ``gpus`` is the number of ranks, shares are of the step.
STEP_RESULTS = (
    "feasible", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "exposed_comm_s", "exposed_share",
    "comm_total_s", "memory_peak_bytes", "fits", "gpus", "bound",
)  # fmt: skip
#: Results of a single collective, as in ``simulator collective --json``.
COLLECTIVE_RESULTS = (
    "feasible", "op", "p", "size_bytes", "algorithm", "time_s", "algbw_bytes_per_s", "busbw_bytes_per_s", "steps",
    "wire_bytes_per_rank", "fidelity",
)  # fmt: skip
RESULTS = {"step": STEP_RESULTS, "collective": COLLECTIVE_RESULTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of some points, in their order, and the wall time that they took together."""

    rows: tuple[Row, ...]
    seconds: float


def simulate_points(base: Base, points: Sequence[Point]) -> Batch:
    """What one task of the executor does. A point that fails becomes a row with its error.

    Raises ScenarioError, for all points, when the scenario is no longer the one that the sweep began with.
    """
    started = time.perf_counter()
    rows = tuple(simulate_point(base, point) for point in points)
    check_base(base)
    return Batch(rows=rows, seconds=time.perf_counter() - started)


def simulate_point(base: Base, point: Point) -> Row:
    """The row of one point. ``seconds`` (wall) is the only entry that differs between two runs."""
    started = time.perf_counter()
    digest: str | None = None
    results: Row = {}
    problem: str | None = None
    try:
        scenario = load_scenario(base.scenario, point)
        digest = scenario_digest(scenario)
        results = _step(scenario) if scenario.collective is None else _collective(scenario)
        json.dumps(results, allow_nan=False)
    except Exception as error:
        results, problem = {}, in_words(error)
    return make_row(base, point, results, problem, digest, time.perf_counter() - started)


def make_row(
    base: Base, point: Point, results: Row, error: str | None, digest: str | None, seconds: float
) -> Row:  # fmt: skip
    """Provenance around settings and results. A failed row has the columns of the base scenario's kind, all None."""
    return {
        "base_digest": base.digest, "version": base.version, "overrides": list(point), **dict(settings(point)),
        **(results or dict.fromkeys(RESULTS[base.kind])),
        "error": error, "scenario_digest": digest, "seconds": round(seconds, 6),
    }  # fmt: skip


def failed_row(base: Base, point: Point, error: str) -> Row:
    """The row of a point whose simulation could not even report its failure."""
    return make_row(base, point, {}, error, None, 0.0)


def in_words(error: Exception) -> str:
    """One line for a failure of any kind."""
    text = "; ".join(str(error).splitlines())
    if isinstance(error, ScenarioError):
        return text
    if isinstance(error, MemoryError):
        return "out of memory: this point needs more than the process may use"
    if isinstance(error, SimulatorError):
        return f"internal error: {text}"
    return f"internal error: {type(error).__name__}: {text}"


def _step(scenario: Scenario) -> Row:
    answer = answer_step(scenario, wiring_for(scenario), with_startup=False)
    report, job = answer.report, answer.job
    memory = memory_verdict(report, job)
    return _named(
        STEP_RESULTS, all(v.ok for v in verdicts(report, job)), report.step_time_s, report.tokens_per_s,
        report.tokens_per_s_per_gpu, report.mfu, report.breakdown.exposed_comm, report.exposed_share,
        report.comm_total_s, report.memory.peak_bytes, None if memory is None else memory.ok, report.ranks_total,
        bound_sentence(report, job),
    )  # fmt: skip


def _collective(scenario: Scenario) -> Row:
    """What the library runs for 'auto', the fastest for 'all', else the row of the algorithm that is asked for."""
    rows = answer_collective(scenario)
    row = rows[0] if len(rows) == 1 else next(row for row in rows if row.fastest)
    return _named(
        COLLECTIVE_RESULTS, True, row.op, row.p, row.size_bytes, row.algorithm, row.time_s, row.algbw_bytes_per_s,
        row.busbw_bytes_per_s, row.steps, row.wire_bytes_per_rank, row.fidelity,
    )  # fmt: skip


def _named(names: Sequence[str], *values: Any) -> Row:
    return dict(zip(names, values, strict=True))

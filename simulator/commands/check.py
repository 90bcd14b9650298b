"""``simulator check``: verdicts first, and where one fails the cheapest changes that mend it, found by simulating."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from simulator.answer import StepAnswer, answer_step, wiring_of
from simulator.checking.conditions import parse_condition
from simulator.checking.judgements import judgements, with_usual_limits
from simulator.checking.overriding import merged
from simulator.checking.search import Cure, find_cures
from simulator.checking.text import break_even_lines, cost_table, cure_table
from simulator.load import load_scenario
from simulator.report.break_even import break_even_of
from simulator.report.console import console
from simulator.report.costs import costs_of
from simulator.report.headline import failing_first, headline
from simulator.report.html.page import check_page
from simulator.report.progress import counting
from simulator.report.step_text import verdict_line
from simulator.report.verdict import Verdict, bound_sentence
from simulator.report.words import sample_words
from simulator.scenario import Scenario
from simulator.step_page import write_step_page
from simulator.uncertainty.corners import Ranges, ranges_of
from simulator.uncertainty.text import flip_lines, range_json, range_table

SCHEMA_VERSION = 1


def check(
    scenario: str, overrides: tuple[str, ...], fail_if: tuple[str, ...], search: bool, with_range: bool,
    html: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Judge the scenario, print what mends it, and return 1 when a judgement fails at the typical values, else 0."""
    conditions = [parse_condition(text) for text in fail_if]

    def load(more: Sequence[str]) -> Scenario:
        return with_usual_limits(load_scenario(scenario, merged(overrides, more)))

    def judge(answer: StepAnswer) -> list[Verdict]:
        return judgements(answer, conditions)

    loaded = load(())
    if loaded.collective is not None:
        raise click.UsageError("check judges a training step; this scenario holds a single collective")
    if html is not None:
        check_page(html)
    wiring = wiring_of(loaded)
    base = answer_step(loaded, wiring, with_startup=False)
    found = judge(base)
    ranges = ranges_of(base, judge) if with_range else None
    if not as_json:
        _print_verdicts(base, found, ranges)
    cures: tuple[Cure, ...] = ()
    if search and not all(verdict.ok for verdict in found):
        with counting("simulating changes") as tell:
            cures = find_cures(base, load, judge, tell, wiring)
    if html is not None:
        write_step_page(base, html, (scenario, overrides), found, cures=cures if search else None, ranges=ranges)
    if as_json:
        told = _json(base, found, cures, searched=search) | {"range": range_json(ranges)}
        click.echo(json.dumps(told, indent=2))
    else:
        _print_rest(base, found, cures, ranges, searched=search)
    return int(not all(verdict.ok for verdict in found))


def _print_verdicts(base: StepAnswer, found: Sequence[Verdict], ranges: Ranges | None) -> None:
    """What is known before anything else is tried, which on a large cluster takes a while."""
    out = console()
    out.print(headline(base.report, base.job, base.network), markup=False, highlight=False)
    for verdict in failing_first(found):
        out.print(verdict_line(verdict))
    for line in flip_lines(ranges) if ranges else ():
        out.print(line)
    out.print(bound_sentence(base.report, base.job), markup=False, highlight=False, style="bold")
    for text in break_even_lines(base.report, base.job):
        out.print(text)
    sys.stdout.flush()


def _print_rest(
    base: StepAnswer, found: Sequence[Verdict], cures: Sequence[Cure], ranges: Ranges | None, *, searched: bool
) -> None:
    out = console()
    if not all(verdict.ok for verdict in found) and searched:
        out.print("")
        if cures:
            out.print(cure_table(cures, 1.0 / base.report.tokens_per_s_per_gpu))
        else:
            out.print("No change that was tried mends any of it, alone or with another.", style="bold")
    out.print("")
    out.print(cost_table(costs_of(base.report, base.job), sample_words(base.job)))
    if ranges:
        out.print("")
        out.print(range_table(ranges))


def _json(base: StepAnswer, found: Sequence[Verdict], cures: Sequence[Cure], *, searched: bool) -> dict[str, object]:
    even = break_even_of(base.report, base.job)
    tried = [
        {
            "set": list(cure.change.overrides), "why": cure.change.why, "alters_batch": cure.change.alters_batch,
            "alters_hardware": cure.change.hardware, "mends": cure.cures, "still_failing": list(cure.failing),
            "tight": cure.tight,
            "step_time_s": cure.step_time_s, "gpu_s_per_token": cure.gpu_s_per_token,
            "memory_peak_bytes": cure.peak_bytes, "exposed_share": cure.exposed_share, "gpus": cure.num_ranks,
            "tokens_per_step": cure.tokens_per_step,
        }
        for cure in cures
    ]  # fmt: skip
    return {
        "schema_version": SCHEMA_VERSION, "kind": "check",
        "feasible": all(verdict.ok for verdict in found),
        "verdicts": [
            {
                "what": v.what, "ok": v.ok, "value": v.value, "limit": v.limit, "why": v.why,
                "try": [] if v.ok else tried,
            }
            for v in found
        ],
        "searched": searched,
        "break_even": None if even is None else asdict(even),
        "cost": asdict(costs_of(base.report, base.job)),
        "step_time_s": base.report.step_time_s, "tokens_per_s_per_gpu": base.report.tokens_per_s_per_gpu,
        "memory_peak_bytes": base.report.memory.peak_bytes, "exposed_share": base.report.exposed_share,
    }  # fmt: skip

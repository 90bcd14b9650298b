"""A step as a fragment of HTML for notebooks: verdict, numbers, and two bars. No script, no style sheet, no network.

Colours stand in ``style`` attributes, and text takes the colour of the notebook, light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from simulator.job import Job
from simulator.network.graph import Network
from simulator.report.charts.breakdown import breakdown_chart
from simulator.report.charts.memory import memory_chart
from simulator.report.charts.palette import MEMORY, Look
from simulator.report.headline import failing_first, headline
from simulator.report.metrics import StepReport
from simulator.report.verdict import Verdict, bound_sentence, verdicts
from simulator.report.words import rate_words, sample_words
from simulator.units import format_gib, format_percent, format_time

_BOX = "max-width:60em;line-height:1.45;font-family:system-ui,sans-serif"
_GOOD, _BAD = "#009E73", "#D55E00"
#: Parts below this share of a bar are not drawn.
_SEEN = 0.002


def step_fragment(report: StepReport, job: Job, network: Network) -> str:
    """What ``run`` prints first, as HTML: every text escaped."""
    judged = failing_first(verdicts(report, job))
    time, memory = breakdown_chart(report), memory_chart(report, job)
    held = [(MEMORY[kind], size, format_gib(size)) for kind, size in report.memory.by_kind_bytes.items() if size]
    room = max(memory.capacity_bytes or 0.0, memory.peak_bytes)
    parts = [
        f'<div style="{_BOX}">',
        f'<p style="margin:0 0 .4em">{escape(headline(report, job, network))}</p>',
        *(_verdict(verdict) for verdict in judged),
        f'<p style="margin:.4em 0"><b>{escape(bound_sentence(report, job))}</b></p>',
        f'<p style="margin:0">{escape(", ".join(_numbers(report, job)))}</p>',
        *_bar(time.finding, [(p.look, p.seconds, format_time(p.seconds)) for p in time.parts], time.step_s),
        *_bar(memory.finding, held, room),
        "</div>",
    ]  # fmt: skip
    return "\n".join(parts)


def _verdict(verdict: Verdict) -> str:
    mark, colour = ("✓", _GOOD) if verdict.ok else ("✕", _BAD)
    said = f"<b>{escape(verdict.what)}: {escape(verdict.value)}</b> (limit {escape(verdict.limit)}): "
    return (
        f'<div style="border-left:4px solid {colour};padding-left:.6em;margin:.2em 0">{mark} {said}'
        f"{escape(verdict.why)}</div>"
    )


def _numbers(report: StepReport, job: Job) -> Iterator[str]:
    unit = sample_words(job)
    yield f"a step {format_time(report.step_time_s)}"
    yield f"{rate_words(report.tokens_per_s_per_gpu)} {unit}/s per GPU"
    if report.mfu is not None:
        yield f"MFU {format_percent(report.mfu)}"
    if report.collectives:
        yield f"{format_percent(report.exposed_share)} exposed communication"


def _bar(finding: str, parts: Iterable[tuple[Look, float, str]], whole: float) -> Iterator[str]:
    """One bar of parts of ``whole``, and what they are in words below it."""
    parts = [part for part in parts if part[1] > 0]
    yield f'<p style="margin:.7em 0 .2em">{escape(finding)}</p>'
    yield '<div style="display:flex;height:1.1em;border:1px solid currentColor">'
    for look, value, words in parts:
        if value > _SEEN * whole:
            yield (
                f'<span title="{escape(look.words)}: {escape(words)}" style="width:{100 * value / whole:.2f}%;'
                f'background:{look.colour}"></span>'
            )
    yield "</div>"
    named = (
        f'<span style="white-space:nowrap;margin-right:1em"><span style="display:inline-block;width:.8em;height:.8em;'
        f'background:{look.colour}"></span> {escape(look.words)} {escape(words)}</span>'
        for look, _, words in parts
    )
    yield f'<div style="font-size:.88em">{" ".join(named)}</div>'

"""Puts a page together: values of charts -> sections -> one HTML file by jinja2, with plotly.js inside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator import __version__
from simulator.errors import ScenarioError
from simulator.job import Job
from simulator.network.graph import Network
from simulator.report.break_even import break_even_words
from simulator.report.charts.exposed import exposed_chart
from simulator.report.charts.palette import INK, Look
from simulator.report.headline import failing_first, headline
from simulator.report.html.parts import cost_table, key_numbers, limits
from simulator.report.html.sections import sections
from simulator.report.html.tables import Table
from simulator.report.metrics import StepReport
from simulator.report.verdict import Verdict, bound_sentence, picture_finding
from simulator.timeline import Timeline

ENDINGS = (".html", ".htm")
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """What a page is about. scenario: the name as given, its text, and what the command line changed in it.

    verdicts: what was judged. extra: tables before the costs, such as what mends a failing scenario; ``searched`` says
    in words what was found. ranges: what the numbers may be instead. zoom: layers to show closely. advice: whether the
    changes that verdicts propose are told.
    """

    report: StepReport
    job: Job
    network: Network
    timeline: Timeline
    verdicts: Sequence[Verdict]
    scenario_name: str
    scenario_text: str
    overrides: Sequence[str] = ()
    extra: Sequence[Table] = ()
    ranges: Sequence[Table] = ()
    zoom: Sequence[str] = ()
    searched: str = ""
    advice: bool = True


def check_page(path: Path) -> None:
    """Raise ScenarioError where no page could be written: without jinja2 or plotly, or for another ending."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise ScenarioError(
            f"--html needs {error.name}: install the extra with  pip install 'clustersim[report]'"
        ) from None
    if path.suffix.lower() not in ENDINGS:
        raise ScenarioError(f"--html: '{path}': the ending says the format; accepted: {', '.join(ENDINGS)}")


def write_page(shown: Shown, path: Path) -> None:
    """Write the page. Raises ScenarioError without the extra, for another ending, and for what cannot be written."""
    check_page(path)
    text = page(shown)
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ScenarioError(f"--html: '{path}': {error.strerror or error}") from None


def page(shown: Shown) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly import __version__ as plotly_version
    from plotly.offline import get_plotlyjs

    even = break_even_words(shown.report, shown.job)
    drawn = tuple(sections(shown.timeline, shown.report, shown.job, shown.network, shown.zoom))
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"look_style": _look_style, "hyphens": _hyphens, "whole": _whole}
    return environment.get_template("page.html.jinja").render(
        head=_head(shown), numbers=tuple(key_numbers(shown.report, shown.job)), sections=drawn,
        verdicts=failing_first(shown.verdicts), tables=tuple(_tables(shown)), searched=shown.searched,
        ranges=tuple(shown.ranges), break_even=even[:1].upper() + even[1:],
        scenario={"name": shown.scenario_name, "text": shown.scenario_text, "overrides": tuple(shown.overrides)},
        limits=limits(shown.report, shown.job, shown.network), advice=shown.advice,
        versions=f"clustersim {__version__}, plotly {plotly_version}",
        figures=script_json({section.key: section.figure for section in drawn if section.figure}),
        plotly=get_plotlyjs(), style=_read("page.css"), script=_read("page.js"),
    )  # fmt: skip


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or begin another."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _head(shown: Shown) -> dict[str, object]:
    """The verdict in a word, and what was asked."""
    failing = [verdict for verdict in shown.verdicts if not verdict.ok]
    bound = _hyphens(bound_sentence(shown.report, shown.job))
    return {
        "bound": bound, **_judged(shown.verdicts),
        "asked": headline(shown.report, shown.job, shown.network),
        "finding": _broken(failing) if failing else _finding(shown),
    }  # fmt: skip


def _judged(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """The badge: its word, the mark before it, and the class that colours it."""
    if not verdicts:
        return {"word": "No limit to judge by", "mark": "·", "state": "none"}
    if all(verdict.ok for verdict in verdicts):
        return {"word": "Feasible", "mark": "✓", "state": "ok"}
    return {"word": "Not feasible", "mark": "✕", "state": "fail"}


def _finding(shown: Shown) -> str:
    """How long a step takes and what it waits for most: of all equal collectives together, as the chart below says."""
    said, named, _ = _hyphens(picture_finding(shown.report)).partition(", most for the ")
    rows = exposed_chart(shown.timeline, shown.report, shown.job).rows
    if not named or not rows[0].op:
        return said
    times = f" ({rows[0].count:,} times)" if rows[0].count > 1 else ""
    return f"{said}, most for the {rows[0].name}{times}"


def _broken(failing: Sequence[Verdict]) -> str:
    """``memory is 174 GiB, limit 79.6 GiB of NVIDIA H100 SXM5 80 GB``, all of them."""
    said = "; ".join(f"{verdict.what} is {verdict.value}, limit {verdict.limit}" for verdict in failing)
    return said[0].upper() + said[1:]


def _hyphens(sentence: str) -> str:
    """``reduce_scatter of gradients`` -> ``reduce-scatter of gradients``, as the charts say it."""
    return re.sub(r"\b(all|reduce)_(reduce|gather|scatter) of\b", r"\1-\2 of", sentence)


def _whole(sentence: str) -> str:
    """Numbers stay on one line with their units."""
    return re.sub(r"(?<=\d) (?=(?:%|[A-Za-z]{1,3}(?:/s)?\b|TFLOP|PFLOP))", "\N{NO-BREAK SPACE}", sentence)


def _tables(shown: Shown) -> Iterator[Table]:
    yield from shown.extra
    yield cost_table(shown.report, shown.job)


def _look_style(look: Look) -> str:
    return "var(--ink)" if look.colour == INK else look.colour

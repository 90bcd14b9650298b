"""A step's report as text: the verdict first, then where the time and the memory go. Values in, rich tables out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.job import Job
from simulator.network.graph import Network
from simulator.report.headline import failing_first, headline
from simulator.report.lanes import Waiting, slowest
from simulator.report.metrics import CollectiveUse, StepReport, grouped
from simulator.report.ranks_text import rank_notes
from simulator.report.slack import slack_of
from simulator.report.stages_text import stages_table
from simulator.report.verdict import KIND_WORDS, Verdict, bound_sentence, peak_place, verdicts
from simulator.report.words import purpose_words, sample_words
from simulator.units import format_bandwidth, format_bytes, format_gib, format_percent, format_time

#: Rows of the table of collectives; the rest are summed in one line.
_MOST_COLLECTIVES = 12
_MOST_LINKS = 4
_MOST_HOLDERS = 2
_MOST_CLASSES = 4
_WIDEST_NAME = 48
#: Above this many nodes the latency of textbook algorithms dominates what NCCL would do.
_TRUSTED_NODES = 32
#: The fidelity of collectives that a library's cost model gives.
LIBRARY = "library"
_BAR, _SHORT_BAR = 28, 16


def step_text(
    report: StepReport, job: Job, network: Network, block: str, beside: Sequence[RenderableType] = ()
) -> Iterator[RenderableType]:
    """The report, piece by piece. block: the character that bars are drawn with. beside: told after the verdicts."""
    yield Text(headline(report, job, network))
    for verdict in failing_first(verdicts(report, job)):
        yield verdict_line(verdict)
        yield from _changes(verdict)
    yield Text(bound_sentence(report, job), style="bold")
    yield from beside
    if len(report.waiting) > len({waiting.ranks.role for waiting in report.waiting}):
        yield Text(_waiting(report))
    for note in rank_notes(job):
        yield Text(note)
    yield ""
    yield _breakdown(report, block)
    yield ""
    yield _rates(report, job)
    yield ""
    yield _memory(report, block)
    if report.stages:
        yield ""
        yield stages_table(report, job)
    if report.collectives:
        yield ""
        yield _collectives(report)
        yield ""
        yield _links(report)
    yield ""
    if network.num_nodes > _TRUSTED_NODES and any(use.fidelity != LIBRARY for use in report.collectives):
        yield Text(
            f"note: beyond {_TRUSTED_NODES} nodes a library's own trees take far fewer steps than the schedules played "
            "here: read exposed communication as an upper end"
        )
    yield Text(_engine(report), style="dim")


def verdict_line(verdict: Verdict) -> Text:
    """``ok   memory: 51.2 GiB (limit ...): why``, or ``FAIL``."""
    mark, style = ("ok  ", "green") if verdict.ok else ("FAIL", "bold red")
    line = Text(f"{mark} {verdict.what}: {verdict.value} (limit {verdict.limit}): ", style=style)
    return line.append(verdict.why, style="default")


def _changes(verdict: Verdict) -> Iterator[Text]:
    for number, change in enumerate(verdict.changes):
        yield Text(f"     {'or ' if number else 'try'} {change.words}")
    if verdict.changes and not any(change.enough for change in verdict.changes):
        yield Text("     none of these is enough by itself")


def _table(*columns: str, title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False, box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table


def _bar(share: float, block: str, width: int = _BAR) -> str:
    return block * round(share * width)


def _breakdown(report: StepReport, block: str) -> Table:
    table = _table("where the step goes", "time", "share", title=f"Step time {format_time(report.step_time_s)}")
    table.add_column("")
    parts = report.breakdown
    rows = {
        "forward and backward": parts.compute - report.copies_s, "copies beside them": report.copies_s,
        "optimizer": parts.optimizer, "exposed communication": parts.exposed_comm, "pipeline bubble": parts.bubble,
        "waiting for the host thread": report.idle.host_s, "exposed copies": report.idle.copies_s,
        "idle": report.idle.other_s,
    }  # fmt: skip
    for name, seconds in rows.items():
        if seconds > 1e-9 * report.step_time_s or name == "exposed communication":
            share = seconds / report.step_time_s
            table.add_row(name, format_time(seconds), format_percent(share), _bar(share, block))
    return table


def _rates(report: StepReport, job: Job) -> Table:
    table = Table(pad_edge=False, box=None, show_header=False)
    if report.collectives:
        hidden = format_percent(report.hidden_share)
        table.add_row("communication", f"{format_time(report.comm_total_s)}, {hidden} hidden behind compute")
    if report.interference_s:
        table.add_row("compute lost to interference", format_time(report.interference_s))
    unit = sample_words(job)
    table.add_row(f"{unit} per step", f"{report.tokens_per_step:,}")
    table.add_row(f"{unit}/s", f"{_rate(report.tokens_per_s)} ({_rate(report.tokens_per_s_per_gpu)} per GPU)")
    if report.mfu is not None:
        table.add_row(
            "MFU",
            f"{format_percent(report.mfu)} ({_rate(report.tflops_per_gpu)} TFLOP/s per GPU; FLOP per {unit[:-1]} by "
            f"{report.mfu_definition})",
        )
    if report.startup_time_s:
        table.add_row("once at start: broadcast of weights", format_time(report.startup_time_s))
    return table


def _rate(value: float) -> str:
    """Whole numbers from 100 up, three digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _memory(report: StepReport, block: str) -> Table:
    memory, peak = report.memory, report.memory.peak_bytes
    title = f"Memory, {format_gib(peak)} at {peak_place(report)}"
    table = _table("memory of one GPU", "bytes", "share", title=title)
    table.add_column("")
    table.add_column("of it")
    for kind, held in memory.by_kind_bytes.items():
        if held:
            bar = _bar(held / peak, block, _SHORT_BAR)
            table.add_row(KIND_WORDS[kind], format_gib(held), format_percent(held / peak), bar, _holders(report, kind))
    slack = slack_of(memory.by_kind_bytes, memory.pools_bytes)
    range_words = f"{format_gib(slack.low_bytes)} to {format_gib(slack.high_bytes)} beside it, not counted"
    table.add_row("allocator slack", "", "", "", range_words)
    if memory.host_bytes:
        table.add_row("host memory", format_gib(memory.host_bytes), "", "", "offloaded activations, not counted")
    return table


def _holders(report: StepReport, kind: str) -> str:
    held = [holder for holder in report.memory.holders if holder.kind == kind]
    if len(held) == 1:
        words = purpose_words(held[0].name)
        return "" if words == KIND_WORDS[kind] else words
    return ", ".join(f"{purpose_words(h.name)} {format_gib(h.size_bytes)}" for h in held[:_MOST_HOLDERS])


def _waiting(report: StepReport) -> str:
    """Which ranks set the step, and how long the others wait for slower ones."""
    first = slowest(report.waiting)
    others = sorted((w for w in report.waiting if w is not first), key=lambda w: -w.waits_s)
    waits = ", ".join(f"{_ranks(w)} {format_time(w.waits_s, 3)}" for w in others[:_MOST_CLASSES])
    more = f" and {len(others) - _MOST_CLASSES} more kinds of ranks less" if len(others) > _MOST_CLASSES else ""
    return f"{_ranks(first)} set the pace; in collectives wait for slower ranks: {waits}{more}."


def _ranks(waiting: Waiting) -> str:
    marks = [f"{format_percent(waiting.ranks.speed, 0)} speed"] if waiting.ranks.speed != 1.0 else []
    marks += [f"{format_percent(waiting.ranks.work, 0)} work"] if waiting.ranks.work != 1.0 else []
    return waiting.ranks.name + (f" ({', '.join(marks)})" if marks else "")


def _collectives(report: StepReport) -> Table:
    uses = grouped(report.collectives)
    several = len(report.axes) > 1
    table = _table(
        "collectives of the step", *(("axis",) if several else ()), "count", "each", "algorithm", "busbw", "time",
        "exposed", title=f"Communication, {sum(use.count for use in report.collectives)} collectives",
    )  # fmt: skip
    most_exposed = sorted(uses, key=lambda use: -use.exposed_s)[:_MOST_COLLECTIVES]
    for use in uses:
        if use in most_exposed:
            what, *cells = _collective_row(use)
            table.add_row(what, *((use.axis,) if several else ()), *cells)
    rest = [use for use in uses if use not in most_exposed]
    if rest:
        table.add_row(
            f"{len(rest)} more kinds", *(("",) if several else ()), str(sum(u.count for u in rest)), "", "", "",
            format_time(sum(u.time_s for u in rest)), format_time(sum(u.exposed_s for u in rest)),
        )  # fmt: skip
    return table


def _collective_row(use: CollectiveUse) -> tuple[str, ...]:
    what = f"{use.op} of {use.purpose}" if use.count == 1 else f"{use.op}, such as {use.purpose}"
    short = what if len(what) <= _WIDEST_NAME else what[: _WIDEST_NAME - 3] + "..."
    return (
        short, str(use.count), format_bytes(use.message_bytes, 3),
        f"{use.algorithm}/{use.protocol}" if use.fidelity == LIBRARY else use.algorithm,
        format_bandwidth(use.bus_bytes_per_s, 3), format_time(use.time_s, 3),
        format_time(use.exposed_s, 3) if use.exposed_s > 1e-9 * use.time_s else "hidden",
    )  # fmt: skip


def _links(report: StepReport) -> Table:
    table = _table("link", "bytes in the step", "used", title=f"Busiest of {report.num_links:,} links")
    for link in report.links[:_MOST_LINKS]:
        table.add_row(link.link, format_bytes(link.num_bytes), format_percent(link.utilization))
    return table


def _engine(report: StepReport) -> str:
    text = (
        f"simulated {report.ranks_simulated} rank class{'es' if report.ranks_simulated > 1 else ''} of "
        f"{report.ranks_total} ranks, {report.events} tasks, fidelity {report.fidelity}"
    )  # fmt: skip
    return f"{text}; message engine used: {report.handed_over}" if report.handed_over else text

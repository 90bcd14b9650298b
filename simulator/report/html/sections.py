"""The sections of a page that hold a chart: its finding as heading, the figure, a legend, notes, and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.job import Job
from simulator.network.graph import Network
from simulator.report.charts.breakdown import breakdown_chart
from simulator.report.charts.exposed import ExposedChart, exposed_chart
from simulator.report.charts.lanes import lanes_chart
from simulator.report.charts.links import links_chart
from simulator.report.charts.memory import memory_chart
from simulator.report.charts.palette import EXPOSED, HIDDEN, MEMORY, OPERATIONS, Look, lane_look, stage_look
from simulator.report.charts.roofline import roofline_chart
from simulator.report.charts.stages import stages_chart
from simulator.report.html.figures import Figure
from simulator.report.html.figures_bars import breakdown_figure, exposed_figure
from simulator.report.html.figures_plane import links_figure, roofline_figure
from simulator.report.html.figures_stages import stages_figure
from simulator.report.html.figures_time import lanes_figure, memory_figure
from simulator.report.html.link_picture import link_picture
from simulator.report.html.tables import (
    Table,
    breakdown_table,
    exposed_table,
    lanes_table,
    links_table,
    memory_table,
    roofline_table,
    stages_table,
)
from simulator.report.metrics import StepReport
from simulator.timeline import Timeline
from simulator.units import format_time

_MOST_REASONS = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """key: of the section in the page. title: the finding. about: how to read the chart. figure: None for no chart.

    picture: SVG, with a caption. points: sentences that matter, notes: what is not shown.
    """

    key: str
    name: str
    title: str
    about: str
    figure: Figure | None = None
    legend: tuple[Look, ...] = ()
    points: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    table: Table | None = None
    picture: str = ""
    caption: str = ""


def sections(
    timeline: Timeline, report: StepReport, job: Job, network: Network, zoom: Sequence[str] = ()
) -> Iterator[Section]:  # fmt: skip
    """In the order of the page."""
    yield _breakdown(report)
    yield from _stages(timeline, report)
    yield _lanes(timeline, report, zoom)
    yield _exposed(timeline, report, job)
    yield _memory(report, job)
    yield _links(timeline, report, network, job)
    yield _roofline(job)


def _breakdown(report: StepReport) -> Section:
    chart = breakdown_chart(report)
    return Section(
        key="breakdown", name="Breakdown", title=chart.finding, figure=breakdown_figure(chart),
        about="Where the time of a step goes on the GPUs that set it. The parts add up to the step.",
        table=breakdown_table(chart),
    )  # fmt: skip


def _stages(timeline: Timeline, report: StepReport) -> Iterator[Section]:
    chart = stages_chart(timeline, report)
    if not chart.rows:
        return
    styles = dict.fromkeys((bar.style, bar.later) for row in chart.rows for bar in row.bars)
    yield Section(
        key="stages", name="Pipeline", title=chart.finding, figure=stages_figure(chart),
        about="One GPU of each stage: a bar for each pass of a micro-batch, with its number, and what the ranks that "
        "share the pass send each other meanwhile. White is the bubble. Zoom by dragging over the chart; a double "
        "click shows the whole step again.",
        legend=tuple(stage_look(style, later) for style, later in styles), notes=chart.notes, table=stages_table(chart),
    )  # fmt: skip


def _lanes(timeline: Timeline, report: StepReport, zoom: Sequence[str]) -> Section:
    chart = lanes_chart(timeline, report, zoom)
    styles = dict.fromkeys(bar.style for row in chart.rows for bar in row.bars)
    return Section(
        key="lanes", name="Timeline", title=chart.finding, figure=lanes_figure(chart),
        about="What one GPU of each kind does, and when. A lane does one thing at a time. Zoom with the buttons, or by "
        "dragging over the chart; a double click shows the whole step again.",
        legend=tuple(dict.fromkeys(lane_look(style) for style in styles)), notes=chart.notes, table=lanes_table(chart),
    )  # fmt: skip


def _exposed(timeline: Timeline, report: StepReport, job: Job) -> Section:
    chart = exposed_chart(timeline, report, job)
    if not chart.rows:
        return Section(key="exposed", name="Communication", title=chart.finding, about="There is nothing to draw.")
    return Section(
        key="exposed", name="Communication", title=chart.finding, figure=exposed_figure(chart),
        about="Time that collectives take, by kind: hidden while the GPU computes, or exposed while it waits. Where "
        "several run at once each counts in full.",
        legend=(EXPOSED, HIDDEN), points=tuple(_reasons(chart)), notes=(chart.note,) if chart.note else (),
        table=exposed_table(chart),
    )  # fmt: skip


def _reasons(chart: ExposedChart) -> Iterator[str]:
    for row in chart.rows[:_MOST_REASONS]:
        if row.exposed_s:
            times = f" ({row.count:,} times)" if row.count > 1 else ""
            yield f"{format_time(row.exposed_s)}, {row.name}{times}: {row.cause}."


def _memory(report: StepReport, job: Job) -> Section:
    chart = memory_chart(report, job)
    whose = "" if len(report.waiting) == 1 else f" ({chart.ranks}, whose peak is the highest)"
    return Section(
        key="memory", name="Memory", title=chart.finding, figure=memory_figure(chart),
        about=f"Live tensors of one GPU{whose} over the step, stacked by what they are for.",
        legend=tuple(MEMORY[kind] for kind in reversed(chart.by_kind_bytes)), notes=(chart.note,) if chart.note else (),
        table=memory_table(chart, report.memory),
    )  # fmt: skip


def _links(timeline: Timeline, report: StepReport, network: Network, job: Job) -> Section:
    chart = links_chart(timeline, network, report)
    if not chart.rows:
        return Section(key="links", name="Network", title=chart.finding, about="There is nothing to draw.")
    return Section(
        key="links", name="Network", title=chart.finding, figure=links_figure(chart, network.num_gpus),
        about="Share of the step that each link would need to carry its bytes at its full rate: a row for each kind of "
        "link and direction, from the GPU outwards; links stand in the order of the GPUs.",
        notes=(chart.note,) if chart.note else (), table=links_table(chart),
        picture=link_picture(timeline, network, job.device) or "",
        caption="Every cable of the cluster: the darker and thicker, the more of the step it is in use (the busier of "
        "its two directions).",
    )  # fmt: skip


def _roofline(job: Job) -> Section:
    chart = roofline_chart(job)
    if chart is None:
        return Section(
            key="roofline", name="Roofline", title="No roofline: the times of layers are measured, not computed",
            about="FLOP and bytes of measured layers are unknown.",
        )  # fmt: skip
    kinds = dict.fromkeys(point.kind for point in chart.points)
    return Section(
        key="roofline", name="Roofline", title=chart.finding, figure=roofline_figure(chart),
        about=f"Operations of all layers on {chart.device}: the rate that they reach against FLOP per byte of memory "
        "traffic. Hollow: forward, filled: backward; a larger mark takes more of the time. Below the slanted roof "
        "memory bounds, below the flat one the matrix units.",
        legend=tuple(OPERATIONS[kind] for kind in kinds if kind in OPERATIONS), table=roofline_table(chart),
    )  # fmt: skip

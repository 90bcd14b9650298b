"""The pictures by name: from the values of a simulated step to a figure of matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulator.errors import ScenarioError
from simulator.job import Job
from simulator.network.graph import Network
from simulator.problems import nearest
from simulator.report.charts.breakdown import breakdown_chart
from simulator.report.charts.exposed import exposed_chart
from simulator.report.charts.links import links_chart
from simulator.report.charts.memory import memory_chart
from simulator.report.charts.roofline import roofline_chart
from simulator.report.headline import headline
from simulator.report.metrics import StepReport
from simulator.report.picture_file import check_picture, save_figure
from simulator.report.pictures.bars import draw_breakdown, draw_exposed
from simulator.report.pictures.over_time import draw_memory
from simulator.report.pictures.planes import draw_links, draw_roofline
from simulator.timeline import Timeline

#: The picture that ``report.swimlanes_plot`` draws.
LANES = "lanes"


class Step(NamedTuple):
    """A simulated step, as a picture needs it."""

    timeline: Timeline
    report: StepReport
    job: Job
    network: Network

    @property
    def asked(self) -> str:
        """Model, strategy, cluster and batch."""
        return headline(self.report, self.job, self.network)


def _roofline(step: Step) -> Any:
    chart = roofline_chart(step.job)
    if chart is None:
        raise ScenarioError(
            "--picture roofline: the times of these layers are measured, so there is no roofline of them"
        )
    return draw_roofline(chart, step.asked)


#: name -> what draws it, beside ``LANES``.
PICTURES: Final[dict[str, Callable[[Step], Any]]] = {
    "breakdown": lambda step: draw_breakdown(breakdown_chart(step.report), step.asked),
    "memory": lambda step: draw_memory(memory_chart(step.report, step.job), step.asked),
    "exposed": lambda step: draw_exposed(exposed_chart(step.timeline, step.report, step.job), step.asked),
    "links": lambda step: draw_links(
        links_chart(step.timeline, step.network, step.report), step.network.num_gpus, step.asked
    ),
    "roofline": _roofline,
}  # fmt: skip


def check_name(name: str) -> None:
    """Raise ScenarioError with the nearest name for a picture that there is not."""
    if name != LANES and name not in PICTURES:
        names = (LANES, *PICTURES)
        raise ScenarioError(f"--picture: no picture '{name}'; accepted: {', '.join(names)}{nearest(name, names)}")


def draw_picture(name: str, step: Step, path: Path) -> None:
    """Write one picture as PNG, SVG or PDF by the ending of ``path``.

    Raises ScenarioError for an unknown name, without matplotlib, for a bad path, or where there is nothing to draw.
    """
    check_name(name)
    check_picture(path)
    save_figure(PICTURES[name](step), path)

"""``simulator check`` as text: what would mend a failing scenario, break-even, costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.checking.search import Cure
from simulator.job import Job
from simulator.report.break_even import break_even_words
from simulator.report.costs import PLANNED_MFU, Costs, money_words
from simulator.report.metrics import StepReport
from simulator.units import (
    format_count,
    format_gib,
    format_percent,
    format_time,
)

MOST_CURES = 5


def shown_cures(cures: Sequence[Cure]) -> list[Cure]:
    """The first that mend everything, and all that do not."""
    return [*[cure for cure in cures if cure.cures][:MOST_CURES], *(cure for cure in cures if not cure.cures)]


def cure_title(cures: Sequence[Cure]) -> str:
    """What the table of cures shows."""
    if any(cure.cures for cure in cures):
        return "What mends it, simulated: the same batch first, the cheapest first; then another batch; then hardware"
    if all(cure.fits for cure in cures):
        return "What fits in memory, simulated, the cheapest first; nothing that was tried mends everything"
    return "Nothing that was tried mends everything, alone or with another; this comes nearest"


def settings_words(cure: Cure) -> str:
    """The overrides, and what still fails with them."""
    still = f" (still fails: {', '.join(cure.failing)})" if cure.failing else ""
    return " ".join(cure.change.overrides) + still


def cure_table(cures: Sequence[Cure], now_gpu_s_per_token: float) -> Table:
    """The cheapest changes that mend everything; cost is GPU time per token against the scenario as it is."""
    title = cure_title(cures)
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False, box=None)
    for number, column in enumerate(("set", "step", "cost of a token", "memory", "exposed", "GPUs", "tokens a step")):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for cure in shown_cures(cures):
        change, settings = cure.gpu_s_per_token / now_gpu_s_per_token - 1, settings_words(cure)
        table.add_row(
            settings, format_time(cure.step_time_s), f"{100 * change:+.1f} %",
            format_gib(cure.peak_bytes) + ", tight" * cure.tight,
            format_percent(cure.exposed_share), f"{cure.num_ranks:,}", format_count(cure.tokens_per_step),
        )  # fmt: skip
    return table


def break_even_lines(report: StepReport, job: Job) -> Iterator[Text]:
    """Below what something must be exposed."""
    words = break_even_words(report, job)
    if words:
        yield Text(f"Break-even: {words}")


def cost_table(costs: Costs, counted: str = "tokens") -> RenderableType:
    """Time and money; what the scenario does not state is left out. counted: what a batch consists of."""
    table = Table(title="Costs", title_justify="left", title_style="bold", pad_edge=False, box=None, show_header=False)
    hours = f"{costs.gpu_hours_per_million_tokens:,.3g} GPU-hours"
    table.add_row(f"a million {counted}", hours, money_words(costs.per_million_tokens))
    if costs.per_step is not None:
        table.add_row("a step", "", money_words(costs.per_step))
    if costs.days is not None and costs.gpu_hours is not None and costs.steps is not None:
        table.add_row("the run", f"{costs.gpu_hours:,.0f} GPU-hours", money_words(costs.run))
        table.add_row("", f"{costs.days:,.1f} days, {costs.steps:,.0f} steps", "")
        if costs.days_by_6nd is not None:
            table.add_row("", f"{costs.days_by_6nd:,.1f} days by 6ND at {PLANNED_MFU:.0%} MFU", "")
    return table

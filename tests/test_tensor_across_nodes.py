"""What tensor parallelism pays for leaving a node: Llama 3 8B, one sequence of 4,096 tokens, 8, 16 and 32 ranks.

A rank gathers and scatters s h b bytes whatever the degree, (t - 1) / t of them over links, while its products shrink
by t. So the share that communication takes grows inside a rack as well; only across nodes does its time grow too.
"""

from __future__ import annotations

from functools import cache

import pytest

from simulator.answer import answer_step
from simulator.load import load_scenario
from simulator.report.metrics import StepReport

pytestmark = pytest.mark.slow
NODES = {"dgx-h100": 4, "gb200-nvl72": 8}


@cache
def report(topology: str, tp: int) -> StepReport:
    overrides = (
        f"cluster.topology={topology}", f"cluster.nodes={NODES[topology]}", "model.preset=llama-3-8b",
        f"parallel={{strategy: zero1, implementation: megatron, tp: {tp}}}", "train.seq_len=4096",
        "train.grad_accumulation=4", "train.recompute=none",
    )  # fmt: skip
    return answer_step(load_scenario("scenarios/llama-3-70b-64xh100.yaml", overrides), with_startup=False).report


def exchange_s(topology: str, tp: int) -> float:
    """Seconds of one exchange of activations."""
    uses = [
        use for use in report(topology, tp).collectives if use.axis == "tp" and use.message_bytes == 4096 * 4096 * 2
    ]
    assert uses
    return sum(use.time_s for use in uses) / sum(use.count for use in uses)


def test_an_exchange_takes_longer_across_nodes_and_not_inside_a_rack() -> None:
    """From 8 to 16 ranks: 1.6 times as long across two DGX, no longer inside an NVL72."""
    assert exchange_s("dgx-h100", 16) > 1.5 * exchange_s("dgx-h100", 8)
    assert exchange_s("gb200-nvl72", 16) < 1.05 * exchange_s("gb200-nvl72", 8)


def test_an_exchange_of_32_ranks_in_a_rack_is_slower() -> None:
    """Missed: it should take what it takes with 16. The library's model changes to NVLS, 1.4 times as long."""
    assert exchange_s("gb200-nvl72", 32) / exchange_s("gb200-nvl72", 16) == pytest.approx(1.43, abs=0.08)


def test_what_is_lost_inside_a_rack_is_products_that_shrink() -> None:
    """From 8 to 16 ranks an NVL72 waits no longer for communication in all, and computes 1.4 to 1.7 times less long."""
    eight, sixteen = (report("gb200-nvl72", tp).breakdown for tp in (8, 16))
    assert sixteen.exposed_comm == pytest.approx(eight.exposed_comm, rel=0.08)
    assert 1.4 < eight.compute / sixteen.compute < 1.7

"""What tensor parallelism pays for leaving a node: one replica on 8, 16 and 32 ranks, sequences of 4,096 tokens.

A rank gathers and scatters s b h bytes whatever the degree, (t - 1) / t of them over links, while its products shrink
by t. So the share that communication takes grows inside a rack as well: with products at rate P, exchanges at rate B
and t ranks it is ``t P / (3 h B)`` of the products' time (4 exchanges of 2 h bytes a token for 24 h^2 FLOP), which a
wide model keeps small and a narrow one does not; only across nodes does the time of an exchange grow too.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from simulator.answer import answer_step
from simulator.load import load_scenario
from simulator.report.metrics import StepReport

pytestmark = pytest.mark.slow
PER_NODE = {"dgx-h100": 8, "gb200-nvl72": 4}
DEGREES = (8, 16, 32)


@cache
def report(topology: str, tp: int, model: str = "llama-3-8b") -> StepReport:
    overrides = (
        f"cluster.topology={topology}", f"cluster.nodes={tp // PER_NODE[topology]}", f"model.preset={model}",
        f"parallel={{strategy: zero1, implementation: megatron, tp: {tp}}}", "train.seq_len=4096",
        "train.grad_accumulation=4", "train.recompute=none",
    )  # fmt: skip
    return answer_step(load_scenario("scenarios/llama-3-70b-64xh100.yaml", overrides), with_startup=False).report


def lost(topology: str, model: str) -> list[float]:
    """Of a GPU's throughput, from 8 to 16 ranks and from 16 to 32."""
    rates = [report(topology, tp, model).tokens_per_s_per_gpu for tp in DEGREES]
    return [1 - after / before for before, after in pairwise(rates)]


def exchange_s(topology: str, tp: int) -> float:
    """Seconds of one exchange of activations."""
    uses = [
        use for use in report(topology, tp).collectives if use.axis == "tp" and use.message_bytes == 4096 * 4096 * 2
    ]
    assert uses
    return sum(use.time_s for use in uses) / sum(use.count for use in uses)


def test_across_nodes_a_small_model_loses_half_each_time() -> None:
    """40 to 65 % (the lecture's plot, 8 -> 16 -> 32 ranks): 51 and 51 % over DGX H100 for 8B."""
    assert all(0.40 < loss < 0.65 for loss in lost("dgx-h100", "llama-3-8b"))


def test_a_model_that_needs_so_many_ranks_does_not_in_a_rack() -> None:
    """405B, whose states fill 64 GPUs and more: 23 and 31 % in an NVL72, below 40 each; 26 and 36 over DGX H100."""
    rack, nodes = (lost(topology, "llama-3.1-405b") for topology in ("gb200-nvl72", "dgx-h100"))
    assert all(loss < 0.33 for loss in rack)
    assert all(inside < across for inside, across in zip(rack, nodes, strict=True))


@pytest.mark.parametrize(("model", "losses"), [("llama-3-8b", (0.37, 0.57)), ("llama-3-70b", (0.30, 0.45))])
def test_smaller_models_lose_in_a_rack_as_well(model: str, losses: tuple[float, float]) -> None:
    """Missed: the issue asked for no such loss inside an NVL72. The narrower the model, the more (see above)."""
    assert lost("gb200-nvl72", model) == pytest.approx(list(losses), abs=0.03)
    assert lost("gb200-nvl72", model)[0] > lost("gb200-nvl72", "llama-3.1-405b")[0]


def test_an_exchange_takes_longer_across_nodes_and_not_inside_a_rack() -> None:
    """From 8 to 16 ranks: 1.6 times as long across two DGX, no longer inside an NVL72."""
    assert exchange_s("dgx-h100", 16) > 1.5 * exchange_s("dgx-h100", 8)
    assert exchange_s("gb200-nvl72", 16) < 1.05 * exchange_s("gb200-nvl72", 8)


def test_an_exchange_of_32_ranks_in_a_rack_is_slower() -> None:
    """Missed: it should take what it takes with 16. 32 MiB over 32 ranks are believed to be quicker by NVLS (NCCL's own
    model, tuning/nvls.cc: 25 us + 32 MiB / 445 GB/s are 100 us, a ring with LL128 124), which takes 1.4 times as long.
    """
    assert exchange_s("gb200-nvl72", 32) / exchange_s("gb200-nvl72", 16) == pytest.approx(1.43, abs=0.08)


def test_what_is_lost_inside_a_rack_is_products_that_shrink() -> None:
    """From 8 to 16 ranks an NVL72 waits no longer for communication in all, and computes 1.4 to 1.7 times less long."""
    eight, sixteen = (report("gb200-nvl72", tp).breakdown for tp in (8, 16))
    assert sixteen.exposed_comm == pytest.approx(eight.exposed_comm, rel=0.08)
    assert 1.4 < eight.compute / sixteen.compute < 1.7

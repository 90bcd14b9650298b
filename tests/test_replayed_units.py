"""Units smaller than what is run again: their weights are there before the block that holds them runs once more."""

from __future__ import annotations

from typing import Any

import pytest
from networks import uniform
from stepping import inputs_of, played

from simulator.model_spec import ArchitectureModel
from simulator.plan import Communicate
from simulator.report.memory import class_memory
from simulator.strategies.step import StepInputs
from simulator.timeline import Timeline
from simulator.training.presets import build_model

LAYERS, RANKS = 3, 4
SLOW = uniform(RANKS, 0.0, 4e6)


def inputs(implementation: str, recompute: str, **parallel: Any) -> StepInputs:
    """Attention and MLP are units of their own; a checkpoint is around both."""
    sizes = ArchitectureModel(
        num_layers=LAYERS, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=512
    )  # fmt: skip
    model = build_model(sizes, seq_len=64, micro_batch=1, precision="bf16", attention="flash", recompute=recompute)
    told = {"strategy": "fsdp", "implementation": implementation, "wrap": ["layers.*.attn", "layers.*.mlp"], **parallel}
    return inputs_of(model, RANKS, told, precision="bf16")


def gathers(timeline: Timeline) -> list[tuple[str, float]]:
    """Units in the order in which they are gathered in backward, without the root, and when that is over."""
    return [
        (span.task.purpose.removeprefix("weights layers."), span.end_s) for span in timeline.spans
        if isinstance(span.task, Communicate) and ", backward 0" in span.task.name and span.task.op == "all_gather"
    ]  # fmt: skip


#: Of three checkpointed blocks, in backward, as torch 2.13 does it (traced on gloo, two ranks): a unit that is run
#: again has a forward of its own, after which FSDP1 frees it, and gathers it once more; FSDP2 keeps it.
ORDERS = {
    "fsdp2": ["2.mlp", "2.attn", "1.mlp", "1.attn", "0.mlp", "0.attn"],
    "fsdp1": ["2.mlp", "2.attn", "2.attn", "1.mlp", "1.attn", "1.attn", "0.mlp", "0.attn", "0.attn"],
}
everywhere = pytest.mark.parametrize("implementation", ["fsdp2", "fsdp1"])


@everywhere
@pytest.mark.parametrize("ahead", [0, None])
@pytest.mark.parametrize("recompute", ["full", "selective-op"])
def test_a_block_runs_again_once_all_its_units_are_whole(
    implementation: str, ahead: int | None, recompute: str
) -> None:
    """The checkpoint is unpacked in the backward of the MLP: it calls attention, whose hook gathers (torch 2.13,
    ``_fsdp_state.py``, ``_pre_forward``); the MLP's backward proper is behind it.
    """
    timeline = played(inputs(implementation, recompute, backward_prefetch=ahead), SLOW)
    found = gathers(timeline)
    assert [unit for unit, _ in found] == ORDERS[implementation]
    starts = {span.task.name: span.start_s for span in timeline.spans}
    for layer in range(LAYERS):
        first_s = dict(reversed(found))
        again_s = starts[f"backward 0: layers.{layer}.mlp.down"]
        assert max(first_s[f"{layer}.attn"], first_s[f"{layer}.mlp"]) <= again_s
        assert found[-1][1] <= starts["backward 0: layers.0.attn.out"]


@everywhere
def test_without_a_replay_attention_is_gathered_once_after_the_backward_of_its_mlp(implementation: str) -> None:
    timeline = played(inputs(implementation, "none", backward_prefetch=0), SLOW)
    starts = {span.task.name: span.start_s for span in timeline.spans}
    found = gathers(timeline)
    assert [unit for unit, _ in found] == ORDERS["fsdp2"]
    for unit, end_s in found:
        layer, part = unit.split(".")
        assert (end_s > starts[f"backward 0: layers.{layer}.mlp.down"]) == (part == "attn")


@everywhere
def test_memory_comes_back_whatever_is_run_again(implementation: str) -> None:
    for recompute in ("full", "selective-op"):
        timeline = played(inputs(implementation, recompute))
        memory = class_memory(timeline, timeline.plan.classes[0])
        assert memory.curve_bytes[-1].tolist() == pytest.approx(memory.curve_bytes[0].tolist())

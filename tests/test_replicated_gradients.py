"""Gradients of norms, routers and biases that all ranks of tensor parallelism hold: one sum over tp, once a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.answer import StepAnswer, answer_step
from simulator.load import load_scenario
from simulator.plan import Communicate
from simulator.report.memory import class_memory
from simulator.strategies.replicated import NAME
from simulator.training.architecture import Architecture
from simulator.training.batch import Batch
from simulator.training.families.olmo import OLMO2
from simulator.training.precision import PRECISIONS
from simulator.training.shards import Shards
from simulator.training.tensor import summed_parameters
from simulator.training.transformer import transformer

L, H, EXPERTS = 4, 256, 8
SIZES = f"num_layers: {L}, hidden_size: {H}, num_attention_heads: 8, vocab_size: 512"
MODELS = {
    "llama": f"{{family: llama, {SIZES}, intermediate_size: 512}}",
    "gpt2": f"{{family: gpt2, {SIZES}, max_position_embeddings: 512}}",
    "experts": f"{{family: llama, {SIZES}, intermediate_size: 512, num_experts: {EXPERTS}, num_experts_per_tok: 2, "
    "moe_intermediate_size: 256}",
}
SCENARIO = """\
cluster: {{topology: dgx-h100, nodes: 1}}
model: {model}
parallel: {{strategy: zero1, implementation: megatron, tp: 2}}
train: {{seq_len: 256, micro_batch: 1, grad_accumulation: 4, precision: bf16-master}}
"""


def answered(tmp_path: Path, model: str, *overrides: str) -> StepAnswer:
    path = tmp_path / "step.yaml"
    path.write_text(SCENARIO.format(model=MODELS.get(model, model)))
    return answer_step(load_scenario(path, overrides))


def sums(answer: StepAnswer) -> list[Communicate]:
    return [t for t in answer.job.step.tasks if isinstance(t, Communicate) and t.name.startswith(NAME)]


#: Elements: norms of a Llama; LayerNorms with their shifts and the biases of both second matrices; norms and routers.
ELEMENTS = {
    "llama": 2 * L * H + H, "gpt2": L * (4 * H + 2 * H) + 2 * H, "experts": 2 * L * H + H + L * EXPERTS * H,
}  # fmt: skip


@pytest.mark.parametrize("model", ELEMENTS)
def test_all_of_them_are_one_message_of_fp32(tmp_path: Path, model: str) -> None:
    """Megatron-LM sums main gradients, which are fp32, flat (``_allreduce_layernorm_grads``), once a step."""
    ep = ("parallel.ep=2",) if model == "experts" else ()
    (one,) = sums(answered(tmp_path, model, *ep))
    assert (one.op, one.axis, one.repeat) == ("all_reduce", "tp", 1)
    assert one.message_bytes == 4 * ELEMENTS[model]


@pytest.mark.parametrize(("precision", "size"), [("bf16", 2), ("bf16-mixed", 4), ("fp32", 4)])
def test_other_implementations_sum_gradients_in_their_own_type(tmp_path: Path, precision: str, size: int) -> None:
    overrides = ("parallel={strategy: ddp, tp: 2}", f"train.precision={precision}")
    (one,) = sums(answered(tmp_path, "llama", *overrides))
    assert one.message_bytes == size * ELEMENTS["llama"]


def test_whole_sequences_leave_nothing_to_sum_but_norms_of_heads(tmp_path: Path) -> None:
    """Without sequence parallelism every rank's norms see all rows; those of q and k see a part of the heads."""
    assert sums(answered(tmp_path, "llama", "parallel.sequence_parallel=false")) == []
    assert sums(answered(tmp_path, "llama", "parallel={strategy: ddp}")) == []
    qwen = ("parallel.sequence_parallel=false", "parallel.tp=8")
    (one,) = sums(answered(tmp_path, "{preset: qwen3-8b}", *qwen))
    assert one.message_bytes == 4 * 36 * 2 * 128


def test_norms_of_all_heads_are_shared_out_with_the_heads() -> None:
    """OLMo 2 norms whole queries and keys: each rank has its part of the scale, and all of that part's gradient."""
    arch = Architecture(
        name="olmo", layout=OLMO2, num_layers=2, hidden_size=H, num_heads=8, num_kv_heads=8, head_dim=32,
        intermediate_size=512, vocab_size=512, qk_norm=True,
    )  # fmt: skip
    batch = Batch(
        seq_len=256, micro_batch=1, precision=PRECISIONS["bf16"], attention="flash",
        shards=Shards(tp=2, sequence_parallel=True),
    )  # fmt: skip
    model = transformer(arch, batch)
    assert any("q_norm" in tensor.name for tensor in model.parameters)
    found = summed_parameters(model.operations, sequence_parallel=True)
    assert sum(tensor.numel for tensor in found) == 2 * 2 * H + H
    assert not [tensor.name for tensor in found if "q_norm" in tensor.name or "k_norm" in tensor.name]
    assert summed_parameters(model.operations, sequence_parallel=False) == ()


@pytest.mark.parametrize("how", [{}, {"strategy": "ddp"}, {"strategy": "fsdp"}, {"strategy": "zero3"},
                                 {"strategy": "zero1", "implementation": "torch"}])  # fmt: skip
def test_they_follow_the_reduction_over_data_parallelism_and_the_optimizer_waits(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """``finalize_model_grads``: ``finish_grad_sync`` first, then this sum."""
    block = ", ".join(f"{key}: {value}" for key, value in how.items())
    found = answered(tmp_path, "llama", *([f"parallel={{{block}, tp: 2}}"] if how else []))
    spans = {span.task.name: span for span in found.timeline.spans}
    start, end = spans[NAME].start_s, spans[NAME].end_s
    reduced = [
        s for name, s in spans.items()
        if isinstance(s.task, Communicate) and s.task.axis != "tp" and "gradients" in s.task.purpose
    ]  # fmt: skip
    assert reduced
    assert max(s.end_s for s in reduced) <= start + 1e-12
    assert spans["optimizer"].start_s >= end
    assert start >= max(s.end_s for s in spans.values() if s.task.kind == "backward")


@pytest.mark.parametrize(
    ("pipeline", "own"),
    [
        ("pp: 2", (4 * H, 4 * H + H)), ("pp: 2, chunks: 2", (4 * H, 4 * H + H)),
        ("pp: 2, schedule: zbv", (4 * H + H, 4 * H)), ("pp: 2, schedule: dualpipe", (8 * H + H, 8 * H + H)),
    ],
)  # fmt: skip
def test_each_rank_sums_what_it_holds_at_once(tmp_path: Path, pipeline: str, own: tuple[int, int]) -> None:
    """Two norms of each of its two layers, in however many chunks, and the final norm where the model ends. With two
    copies of the model (DualPipe) both halves.
    """
    parallel = f"parallel={{strategy: zero1, implementation: megatron, tp: 2, {pipeline}}}"
    found = answered(tmp_path, "llama", parallel)
    assert tuple(task.message_bytes for task in sums(found)) == tuple(4 * elements for elements in own)
    assert [task.classes for task in sums(found)] == [("pp 0",), ("pp 1",)]
    spans = {(span.task.name, span.ranks): span for span in found.timeline.spans}
    for (name, ranks), span in spans.items():
        if span.task.kind == "optimizer":
            assert span.start_s >= spans[f"{NAME} on {ranks}", ranks].end_s, name


def test_it_is_memory_for_its_time_and_then_none(tmp_path: Path) -> None:
    found = answered(tmp_path, "llama")
    memory = class_memory(found.timeline, found.timeline.plan.classes[0])
    assert memory.of_kind("buffers")[-1] == pytest.approx(memory.of_kind("buffers")[0])

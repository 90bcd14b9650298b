"""``train.clip_grad_norm``: every strategy reads its gradients for their norm and scales them before the optimizer."""

from __future__ import annotations

import pytest
from stepping import collectives_of, inputs_of, plan_of, played

from simulator.plan import Compute
from simulator.strategies import STRATEGIES
from simulator.strategies.step import StepInputs
from simulator.training.operations import Operation, ParameterTensor, TrainingModel

RATE = 1e6
LAYERS, ELEMENTS, RANKS = 4, 5120, 4
#: DeepSpeed takes the norm in each step, clipped or not.
ASKED = [key for key in STRATEGIES if key[1] != "deepspeed"]
#: What is sent to know the norm of all gradients: nothing where each rank has all of them.
SENT = {
    ("ddp", "torch"): [],
    ("zero1", "torch"): [],
    ("fsdp", "fsdp2"): [4.0 * LAYERS],
    ("hsdp", "fsdp2"): [4.0 * LAYERS],
}
WHOLE = {("ddp", "torch"), ("zero1", "torch")}


def inputs(strategy: str, implementation: str, *, ranks: int = RANKS, clips: bool) -> StepInputs:
    names = [f"layers.{number}" for number in range(LAYERS)]
    tensors = [ParameterTensor(name=f"{name}.weight", numel=ELEMENTS) for name in names]
    operations = tuple(
        Operation(name=name, layer=name, kind="gemm", parameters=(tensor,))
        for name, tensor in zip(names, tensors, strict=True)
    )
    model = TrainingModel(
        name="linears", operations=operations, parameters=tuple(tensors), num_parameters=LAYERS * ELEMENTS,
        num_layers=LAYERS,
    )  # fmt: skip
    parallel = {"strategy": strategy, "implementation": implementation}
    parallel |= {"shard_size": 2} if strategy == "hsdp" and ranks > 1 else {}
    return inputs_of(model, ranks, parallel, precision="fp32", copy_bytes_per_s=RATE, clip_grad_norm=clips)


@pytest.mark.parametrize("key", ASKED, ids=" ".join)
def test_clipping_passes_three_times_over_the_gradients_that_a_rank_has(key: tuple[str, str]) -> None:
    """``clip_grad_norm_`` reads them for the norm, and reads and writes them to scale (torch/nn/utils/clip_grad.py)."""
    plain, clipped = inputs(*key, clips=False), inputs(*key, clips=True)
    before, plan = plan_of(plain), plan_of(clipped)
    added = [task for task in plan.tasks if task.name not in {task.name for task in before.tasks}]
    assert [task.message_bytes for task in collectives_of(plan) if task in added] == SENT.get(key, [4.0])
    shards = 1 if key in WHOLE else 2 if key[0] == "hsdp" else RANKS
    gradients = 4 * LAYERS * ELEMENTS / shards
    work_s = sum(task.seconds for task in added if isinstance(task, Compute))
    assert work_s == pytest.approx(3 * gradients / RATE)
    # One after another, all of it between the last gradient and the optimizer.
    longer = played(clipped).end_s - played(plain).end_s
    assert longer >= work_s * (1 - 1e-9)


@pytest.mark.parametrize("key", [key for key in STRATEGIES if key[0] != "hsdp"], ids=" ".join)
def test_a_rank_alone_clips_all_its_gradients_and_sends_nothing(key: tuple[str, str]) -> None:
    plain, clipped = inputs(*key, ranks=1, clips=False), inputs(*key, ranks=1, clips=True)
    assert not collectives_of(plan_of(clipped))
    longer = played(clipped).end_s - played(plain).end_s
    assert longer == pytest.approx(3 * 4 * LAYERS * ELEMENTS / RATE)


@pytest.mark.parametrize("overlap", ["bucketed", "per_parameter", "none"])
@pytest.mark.parametrize("views", [False, True])
def test_the_norm_waits_for_the_last_all_reduce(overlap: str, views: bool) -> None:
    found = inputs("ddp", "torch", clips=True)
    parallel = found.parallel.model_copy(update={"overlap": overlap, "gradient_as_bucket_view": views})
    timeline = played(StepInputs(**{**vars(found), "parallel": parallel}))
    ends = {span.task.name: span.end_s for span in timeline.spans}
    starts = {span.task.name: span.start_s for span in timeline.spans}
    assert starts["norms of gradients"] >= max(end for name, end in ends.items() if name.startswith("all-reduce"))
    assert starts["optimizer"] >= ends["scale gradients"]

"""Any strategy of data parallelism together with tensor, context, expert and pipeline parallelism -> plans.

Alone, or beside tensor and context parallelism, a strategy plans as ever, and what the ranks of a replica send each
other is woven in (``weaving``). With stages, or with experts that are shared, its plan is taken apart and put around
the passes of a pipeline (``pipelined``), for the strategies that frameworks run there.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import ScenarioError, UnsupportedError
from simulator.parallel_spec import Parallel
from simulator.rank_classes import ALL_RANKS
from simulator.strategies import STRATEGIES, deepspeed_bf16
from simulator.strategies.clipping import replica_axis, with_norm_of_replica
from simulator.strategies.offloading import offloaded
from simulator.strategies.parts import has_experts_apart
from simulator.strategies.pipelined import model_axes, pipelined
from simulator.strategies.pipelined import startup as pipelined_startup
from simulator.strategies.replicated import with_sum
from simulator.strategies.step import Draft, StepInputs
from simulator.strategies.weaving import woven

#: What runs beside a pipeline: PyTorch's DDP and FSDP2 (torchtitan), Megatron's optimizer, DeepSpeed's and PyTorch's
#: ZeRO-1. DeepSpeed's pipeline refuses ZeRO-2 and 3 (deepspeed/runtime/pipe/engine.py).
IN_PIPELINES = (
    ("ddp", "torch"), ("zero1", "megatron"), ("zero1", "deepspeed"), ("zero1", "torch"), ("zero1", "textbook"),
    ("fsdp", "fsdp2"), ("hsdp", "fsdp2"),
)  # fmt: skip


def drafts(inputs: StepInputs) -> tuple[Draft, Draft]:
    """A steady step and the start-up. Raises ScenarioError for what does not fit, UnsupportedError for strategies that
    no framework runs in a pipeline.
    """
    parallel, mesh = inputs.parallel, inputs.mesh
    _check_exchanges(inputs)
    chosen = (parallel.strategy, parallel.implemented_by)
    strategy = STRATEGIES[chosen]
    if mesh is None or (mesh.pp == 1 and not has_experts_apart(inputs)):
        step = with_sum(inputs, strategy.step(inputs))
        step = replace(step, tasks=offloaded(inputs, step.tasks))
        if mesh is None:
            return step, strategy.startup(inputs)
        axes = {**step.axes, **model_axes(inputs), **replica_axis(inputs)}
        tasks = tuple(with_norm_of_replica(inputs, [woven(inputs, step.tasks)], (ALL_RANKS,)))
        return replace(step, tasks=tasks, axes=axes), strategy.startup(inputs)
    what = f"pp {mesh.pp}" if mesh.pp > 1 else f"experts that are reduced over other ranks (ep {mesh.ep}, tp {mesh.tp})"
    if inputs.offloaded_share:
        raise UnsupportedError(
            f"train.offload_activations: not beside {what}: a stage's pass is planned as a whole there, so that copies "
            "have no ends of layers to follow (Megatron-LM refuses CPU offloading beside pipelines too); accepted: "
            "false, or pp 1 with experts that all ranks of data parallelism hold"
        )
    if chosen not in IN_PIPELINES:
        accepted = ", ".join(f"{name} ({whose})" for name, whose in IN_PIPELINES)
        told = f"{chosen[0]} ({chosen[1]}) has no plan for {what}; accepted beside it: {accepted}"
        raise UnsupportedError(f"parallel.strategy: {told}")
    if parallel.strategy in ("fsdp", "hsdp") and (mesh.pp > 1 or inputs.micro_batches > 1):
        inputs = replace(inputs, parallel=_kept_whole(inputs))
    sums = chosen == ("zero1", "deepspeed") and mesh.pp > 1 and inputs.precision.dtype == "bf16"
    if sums:  # DeepSpeed has an optimizer of its own for bf16 in a pipeline
        inputs = replace(inputs, precision=deepspeed_bf16.states(inputs.precision))
    planned = pipelined(inputs, deepspeed_bf16.step if sums else strategy.step)
    return planned, pipelined_startup(inputs, strategy.startup)


def _check_exchanges(inputs: StepInputs) -> None:
    """Raises ScenarioError for measured layers that send between ranks of an axis that there are not."""
    for operation in inputs.model.operations:
        for exchange in operation.exchanges:
            if inputs.mesh is None or inputs.mesh.size(exchange.axis) == 1:
                raise ScenarioError(
                    f"parallel.{exchange.axis}: must be above 1: '{operation.name}' sends between its ranks; got 1"
                )


def _kept_whole(inputs: StepInputs) -> Parallel:
    """FSDP in a pipeline gathers once a step, and reduces after the last backward (torchtitan: ``reshard_after_forward:
    default`` is false with pipeline parallelism). So it is here with several micro-batches beside shared experts.
    """
    parallel = inputs.parallel
    asked = parallel.reshard_after_forward
    if "reshard_after_forward" in parallel.model_fields_set and asked is not False:
        raise UnsupportedError(
            "parallel.reshard_after_forward: in a pipeline, and with several micro-batches beside experts, weights "
            "stay gathered from the first forward to the last backward; accepted: false"
        )
    return parallel.model_copy(update={"reshard_after_forward": False})

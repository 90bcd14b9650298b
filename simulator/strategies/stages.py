"""The model cut into stages of a pipeline, each as the inputs of a strategy: its operations, parameters and times.

Layers stay whole. What comes before the first block (the embedding) is in the first stage, what comes after the last
one (norm, head, loss) in the last. Left to itself the cut is even (``pipelines.cutting``). With ``embedding_as_layer``
embedding and head each count as one layer, as in BLOOM and Llama 3 (Megatron-LM:
``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``).

A head that is tied to the embedding needs the table too: the last stage has a copy, and the gradients of both are added
up before the optimizer steps (Megatron-LM, megatron/core/distributed/finalize_model_grads.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from simulator.errors import ScenarioError
from simulator.parallel_spec import Parallel
from simulator.pipelines.cutting import even_layers
from simulator.strategies.step import StepInputs
from simulator.training.operations import Operation, ParameterTensor, TrainingModel, num_elements

#: Blocks as ``training.transformer`` names them.
_BLOCK = re.compile(r"layers\.\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the model. number: from the input on. inputs: what a strategy plans it with; its data-parallel groups
    are still those of all stages. layers: blocks in it. tied: the table that this stage shares with another; its
    gradients are reduced with the other's.
    """

    number: int
    inputs: StepInputs
    layers: int
    tied: ParameterTensor | None = None

    @property
    def sent_bytes(self) -> float:
        """What it sends to the next stage for each micro-batch, and gets back as gradients."""
        return self.inputs.model.operations[-1].output_bytes


def cut(inputs: StepInputs, count: int) -> tuple[Stage, ...]:
    """The stages of the model, first to last. Raises ScenarioError for numbers of layers that do not fit."""
    model = inputs.model
    starts = _starts(model, count, inputs)
    tables = {tensor.name: tensor for tensor in model.parameters}
    tied = {operation: tables[name] for operation, name in model.tied}
    stages = [_stage(inputs, number, first, end, tied) for number, (first, end) in enumerate(pairwise(starts))]
    shared = {stage.tied.name for stage in stages if stage.tied}
    found = tuple(
        replace(stage, tied=next((t for t in stage.inputs.model.parameters if t.name in shared), None))
        for stage in stages
    )  # fmt: skip
    for stage in found:
        if not stage.inputs.model.operations:
            blocks = sum(1 for _ in _blocks(model.operations))
            raise ScenarioError(
                f"parallel.pp: stage {stage.number} of {count} would be empty: {blocks} layers of {model.name} make at "
                f"most {blocks} stages (pp times chunks)"
            )
    for stage in found[:-1]:
        if not stage.sent_bytes:
            told = stage.inputs.model.operations[-1].name
            raise ScenarioError(
                f"parallel.pp: nothing is known of what '{told}' sends to the next stage; give 'output' of that layer"
            )
    return found


def _stage(inputs: StepInputs, number: int, first: int, end: int, tied: dict[str, ParameterTensor]) -> Stage:
    """Operations ``first`` to ``end - 1``. A head that is tied to a table elsewhere gets a copy of it."""
    operations = inputs.model.operations[first:end]
    own = {tensor.name for operation in operations for tensor in operation.parameters}
    copied = {o.name: tied[o.name] for o in operations if o.name in tied and tied[o.name].name not in own}
    operations = tuple(
        replace(o, parameters=(*o.parameters, copied[o.name])) if o.name in copied else o for o in operations
    )  # fmt: skip
    parameters = (
        *(t for t in inputs.model.parameters if t.name in own), *(t for t in copied.values()),
    )  # fmt: skip
    names = {operation.name for operation in operations}
    model = replace(
        inputs.model, operations=operations, parameters=parameters, num_parameters=num_elements(parameters),
        tied=tuple(pair for pair in inputs.model.tied if pair[0] in names and pair[1] in own),
        loss_gradient_bytes=inputs.model.loss_gradient_bytes if end == len(inputs.model.operations) else 0.0,
        buffers=inputs.model.buffers if number == 0 else (),
    )  # fmt: skip
    part = replace(
        inputs.with_part(model), forward_s=inputs.forward_s[first:end], backward_s=inputs.backward_s[first:end],
        weight_grad_s=inputs.weight_grad_s[first:end], micro_batches=1,
    )  # fmt: skip
    blocks = {o.layer for o in operations if _BLOCK.match(o.layer) or o.kind == "measured"}
    return Stage(number=number, inputs=part, layers=len(blocks), tied=next(iter(copied.values()), None))


def layers_of_stages(model: TrainingModel, count: int, parallel: Parallel) -> tuple[int, ...]:
    """Blocks of each of ``count`` stages, first to last. Raises ScenarioError for numbers that do not fit."""
    blocks = sum(1 for _ in _blocks(model.operations))
    sizes = parallel.stages or even_layers(blocks, count, slots=parallel.embedding_as_layer)
    if len(sizes) != count:
        raise ScenarioError(
            f"parallel.stages: has {len(sizes)} numbers; {count} stages need one each (pp {parallel.pp} with "
            f"{count // parallel.pp} on each rank)"
        )
    if sum(sizes) != blocks:
        raise ScenarioError(f"parallel.stages: add up to {sum(sizes)} layers; the model has {blocks}")
    if count > blocks + 2:
        raise ScenarioError(
            f"parallel.pp: {count} stages are more than {model.name} has layers ({blocks}); at most {blocks}"
        )
    return tuple(sizes)


def _starts(model: TrainingModel, count: int, inputs: StepInputs) -> list[int]:
    """Of each stage the number of its first operation, and the number of all."""
    blocks = list(_blocks(model.operations))
    sizes = layers_of_stages(model, count, inputs.parallel)
    starts, done = [0], 0
    for size in sizes[:-1]:
        done += size
        starts.append(blocks[done] if done < len(blocks) else _after_blocks(model, blocks))
    starts[1:] = [max(start, 1) for start in starts[1:]]
    return [*starts, len(model.operations)]


def _blocks(operations: Sequence[Operation]) -> Iterator[int]:
    """The number of the first operation of each block."""
    before = ""
    for number, operation in enumerate(operations):
        if operation.layer != before and (_BLOCK.match(operation.layer) or operation.kind == "measured"):
            yield number
        before = operation.layer


def _after_blocks(model: TrainingModel, blocks: Sequence[int]) -> int:
    last = model.operations[blocks[-1]].layer
    return max(number for number, operation in enumerate(model.operations) if operation.layer == last) + 1

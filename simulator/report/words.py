"""Tasks, layers and buffers of a plan in the words of a user of PyTorch. Pure functions of names."""

from __future__ import annotations

import re

from simulator.job import Job
from simulator.plan import Communicate, Compute, Task

#: Blocks as the frameworks number them: layers.31, model.layers.31, h.11, blocks.3.
_BLOCK = re.compile(r"(?:\w+\.)*(?:layers?|h|blocks?)\.(\d+)(?:\.(.+))?$")
_PASSES = ("forward", "backward")
#: What buffers are held for, by the first word of their names, where that word does not say it.
_PURPOSES = {
    "cast": "copies cast by autocast", "loss": "logits' gradient", "optimizer": "optimizer states",
    "replayed": "activations run again", "buffers": "buffers of the model", "activations": "kept for backward",
}  # fmt: skip

#: Whose implementation, in the words of who made it; FSDP's versions stand for themselves.
_MAKERS = {"torch": "PyTorch", "deepspeed": "DeepSpeed", "megatron": "Megatron-LM", "textbook": "textbook"}


def strategy_words(strategy: str, implementation: str) -> str:
    """``zero3``, ``deepspeed`` -> ``ZeRO-3 (DeepSpeed)``; ``fsdp``, ``fsdp2`` -> ``FSDP2``; ``ddp`` -> ``DDP``."""
    if strategy == implementation.rstrip("0123456789") or strategy == "ddp":
        return (implementation if strategy != "ddp" else strategy).upper()
    name = strategy.replace("zero", "ZeRO-") if strategy.startswith("zero") else strategy.upper()
    return f"{name} ({_MAKERS.get(implementation, implementation.upper())})"


def layer_words(layer: str) -> str:
    """``layers.31`` -> ``layer 31``, ``layers.31.mlp.up`` -> ``layer 31 (mlp.up)``; other names as they are."""
    found = _BLOCK.match(layer)
    if found is None:
        return layer
    return f"layer {found[1]} ({found[2]})" if found[2] else f"layer {found[1]}"


def task_words(task: Task, micro_batches: int = 1) -> str:
    """``backward 0: layers.31.mlp.down`` -> ``backward of layer 31 (mlp.down)``.

    micro_batches: of the step; where there are several, the words say which.
    """
    if isinstance(task, Communicate):
        return f"{task.op} of {task.purpose}" if task.purpose else task.name
    micro, operation = _micro_and_operation(task)
    if operation is None:
        return task.name
    if operation == "all operations":
        return f"{task.kind} of {task.part}"
    words = f"{task.kind} of {_operation_words(operation, task.part)}"
    return f"{words}, micro-batch {micro}" if micro_batches > 1 else words


def _operation_words(operation: str, part: str) -> str:
    """``layers.31.mlp.down`` of ``layers.31`` -> ``layer 31 (mlp.down)``; ``loss`` of ``head`` -> ``head (loss)``."""
    if _BLOCK.match(operation) or not part or operation == part:
        return layer_words(operation)
    return f"{layer_words(part)} ({operation.removeprefix(part).removeprefix('.')})"


def _micro_and_operation(task: Compute) -> tuple[str, str | None]:
    """``forward 3: embedding`` -> ("3", "embedding"); None for what is no pass over an operation."""
    before, colon, operation = task.name.partition(": ")
    if task.kind not in _PASSES or not colon:
        return "", None
    return before.removeprefix(task.kind).strip(), operation


def micro_batch_of(task: Task) -> int | None:
    """Which micro-batch a pass over an operation belongs to; None for other tasks and for several at once."""
    if isinstance(task, Communicate):
        return None
    micro, operation = _micro_and_operation(task)
    return int(micro) if operation is not None and micro.isdigit() else None


def purpose_words(name: str) -> str:
    """What a buffer is held for, from its name: ``cast layers.3.mlp.up @0`` -> ``copies cast by autocast``."""
    word = name.split()[0]
    return _PURPOSES.get(word, word)


def sample_words(job: Job) -> str:
    """What a batch consists of."""
    return "tokens" if job.whole.seq_len > 1 else "samples"


def rate_words(value: float) -> str:
    """Whole numbers from 100 up, three digits below, as of samples."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

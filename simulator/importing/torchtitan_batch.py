"""Micro-batch and accumulation of a torchtitan job, with and without a pipeline.

Sources: torchtitan/train.py (``gradient_accumulation_steps``), distributed/pipeline_parallel.py
(``build_pipeline_schedule``: in 2024 as many micro-batches as stages, since then of one sequence each) and, for
batches counted in tokens, config/training.py of 2026.
"""

from __future__ import annotations

from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.batch import MOST_GLOBAL, not_divisible, put_accumulation, put_accumulation_of, put_micro_batch
from simulator.importing.sheet import MOST, Option, Sheet
from simulator.importing.torchtitan_pipeline import COUNTS, DEGREE, SIZE, taken

_DEFAULT_LOCAL: Final = 8
_TOKENS: Final = "training.num_tokens_per_microbatch_per_dp_rank"


def put_batches(sheet: Sheet, replicas: int, stages: int) -> None:
    """Writes both on so many data-parallel ranks and stages. Raises ScenarioError for batches that do not divide."""
    tokens = sheet.take(_TOKENS)
    if tokens is not None:
        _put_of_tokens(sheet, tokens, replicas, stages)
    elif stages > 1:
        _put_of_pipeline(sheet, replicas, stages)
    else:
        _put_of_ranks(sheet, replicas)


def _local(sheet: Sheet) -> Option | None:
    return sheet.take("training.local_batch_size", "training.batch_size")


def _put_of_ranks(sheet: Sheet, replicas: int) -> None:
    """One pass takes all sequences of a rank."""
    micro = put_micro_batch(sheet, _local(sheet), _DEFAULT_LOCAL, "torchtitan's default")
    whole = sheet.take("training.global_batch_size")
    steps = sheet.take("training.gradient_accumulation_steps")
    if whole is not None and sheet.whole(whole, least=-1, most=MOST_GLOBAL) != -1:
        put_accumulation_of(sheet, whole, micro, replicas)
    elif steps is not None or sheet.extras.grad_accumulation is not None:
        put_accumulation(sheet, steps)
    else:
        said = "no global_batch_size in the file" if whole is None else f"{whole.said}: local batches alone"
        sheet.put("train.grad_accumulation", 1, said)


def _put_of_tokens(sheet: Sheet, tokens: Option, replicas: int, stages: int) -> None:
    """Batches in tokens, of sequences as long as the scenario's."""
    length, each = int(sheet.value("train.seq_len") or 1), sheet.whole(tokens, most=1_000 * MOST)
    if each % length:
        raise sheet.error(tokens, f"expected a multiple of the {length} tokens of a sequence")
    size, count = put_micro_batch(sheet, Option(tokens.name, each // length)), taken(sheet, *COUNTS)
    if sheet.extras.micro_batch is None:
        sheet.put("train.micro_batch", size, f"{tokens.said} / sequences of {length}")
    parts, whole = 1, sheet.take("training.num_tokens_per_train_step")
    said = "one micro-batch" if count is None or stages == 1 else count.said
    if count is not None and stages > 1:
        parts = sheet.whole(count)
    times = 1
    if whole is not None and sheet.whole(whole, least=-1, most=1_000 * MOST_GLOBAL) > 0:
        total, unit = sheet.whole(whole, most=1_000 * MOST_GLOBAL), each * parts * replicas
        if total % unit:
            raise sheet.error(whole, f"expected a multiple of {each} tokens x {parts} micro-batches x {replicas} ranks")
        times, said = total // unit, f"{said}, {whole.said}"
    _put_rounds(sheet, parts, times, said, whole.said if whole is not None else "")


def _put_rounds(sheet: Sheet, each: int, times: int, said: str, why: str) -> None:
    """Writes the accumulation of so many rounds, with a warning where each round is a pipeline of its own."""
    asked = sheet.extras.grad_accumulation
    if asked is not None:
        sheet.put("train.grad_accumulation", asked, f"--grad-accumulation (the file says {each * times})")
        return
    sheet.put("train.grad_accumulation", each * times, said)
    if times > 1 and (sheet.value("parallel.pp") or 1) > 1:
        told = f"torchtitan lets the pipeline run empty after each of {times} rounds of {each} micro-batches"
        sheet.warn(f"{why}: {told}; here it is filled once for all {each * times}, with less of a bubble")


def _put_of_pipeline(sheet: Sheet, replicas: int, stages: int) -> None:
    """``local_batch_size`` sequences of each replica fill the pipeline once."""
    local = _local(sheet)
    total = _DEFAULT_LOCAL if local is None else sheet.whole(local)
    said = f"local_batch_size: {total} (torchtitan's default)" if local is None else local.said
    size = _put_micro_batch(sheet, total, said, stages)
    each = total // size
    times, why = _rounds(sheet, total, replicas)
    whole = f"{said} / micro-batch {size}" + (f", {times} times: {why}" if times > 1 else "")
    _put_rounds(sheet, each, times, whole, why)


def _put_micro_batch(sheet: Sheet, total: int, said: str, stages: int) -> int:
    """Sequences of one pass of a stage: as the file says, 1, or in 2024 as many as make one micro-batch a stage."""
    size, count, degree = taken(sheet, SIZE), taken(sheet, *COUNTS), taken(sheet, DEGREE)
    asked = sheet.extras.micro_batch
    if asked is not None:
        if total % asked:
            raise ScenarioError(f"{sheet.file}: --micro-batch {asked} does not divide {said}")
        sheet.put_extra("train.micro_batch", asked, "--micro-batch", size or count)
        return asked
    old = degree is not None and degree.name.startswith("experimental.")
    if size is not None:
        each, told = sheet.whole(size), size.said
        if total % each:
            raise sheet.error(size, f"Batch size {total} must be divisible by microbatch_size {each}")
    elif count is not None or old:
        parts = sheet.whole(count) if count is not None else stages
        told = f"{said} / {count.said if count else f'one micro-batch for each of {stages} stages, as in 2024'}"
        if total % parts:
            blamed = count or degree
            assert blamed is not None, "one of the two is there"
            raise sheet.error(blamed, f"Batch size {total} must be divisible by number of microbatches {parts}")
        each = total // parts
    else:
        each, told = 1, f"torchtitan's default {SIZE}: 1"
    sheet.put("train.micro_batch", each, told)
    return each


def _rounds(sheet: Sheet, total: int, replicas: int) -> tuple[int, str]:
    """How often the pipeline is filled before the optimizer steps, and who says so."""
    whole, steps = sheet.take("training.global_batch_size"), sheet.take("training.gradient_accumulation_steps")
    if whole is not None and sheet.whole(whole, least=-1, most=MOST_GLOBAL) > 0:
        if sheet.whole(whole, most=MOST_GLOBAL) % (total * replicas):
            raise not_divisible(sheet, whole, total, replicas)
        return sheet.whole(whole, most=MOST_GLOBAL) // (total * replicas), whole.said
    return (sheet.whole(steps), steps.said) if steps is not None else (1, "")

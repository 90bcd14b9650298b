"""Micro-batch, accumulation and global batch of an imported job, which must agree with its number of ranks."""

from __future__ import annotations

from typing import Final

from simulator.errors import ScenarioError
from simulator.importing.sheet import CHANGE_ME, MOST, Option, Sheet

_MOST_STEPS: Final = MOST * MOST
_MOST_TOKENS: Final = 10**18
#: Sequences of a global batch; above it a typing error is likelier.
MOST_GLOBAL: Final = 1_000 * MOST


def put_micro_batch(sheet: Sheet, option: Option | None, usual: int = 1, why: str = CHANGE_ME) -> int:
    """Writes ``train.micro_batch``: ``--micro-batch``, the file's, else ``usual`` as a guess. Returns it."""
    asked = sheet.extras.micro_batch
    if asked is not None:
        sheet.put_extra("train.micro_batch", asked, "--micro-batch", option)
        return asked
    if option is None:
        sheet.guess("train.micro_batch", usual, f"{why} (--micro-batch)")
        return usual
    size = sheet.whole(option)
    sheet.put("train.micro_batch", size, option.said)
    return size


def put_accumulation(sheet: Sheet, option: Option | None = None) -> None:
    """Writes ``train.grad_accumulation``: ``--grad-accumulation``, the file's, else 1 as a guess."""
    asked = sheet.extras.grad_accumulation
    if asked is not None:
        sheet.put_extra("train.grad_accumulation", asked, "--grad-accumulation", option)
    elif option is None:
        sheet.guess("train.grad_accumulation", 1, f"{CHANGE_ME} (--grad-accumulation)")
    else:
        sheet.put("train.grad_accumulation", sheet.whole(option), option.said)


def put_accumulation_of(sheet: Sheet, option: Option, micro_batch: int, replicas: int) -> None:
    """Writes the accumulation that a global batch leaves each replica. Raises ScenarioError when it does not divide."""
    asked = sheet.extras.grad_accumulation
    if asked is not None:
        sheet.put_extra("train.grad_accumulation", asked, "--grad-accumulation", option)
        return
    total = sheet.whole(option, most=MOST_GLOBAL)
    if total % (micro_batch * replicas):
        raise not_divisible(sheet, option, micro_batch, replicas)
    steps = total // (micro_batch * replicas)
    said = f"{option.said} = {micro_batch} x {replicas} data-parallel ranks x {steps}"
    if steps > MOST:
        raise sheet.error(option, f"expected at most {MOST:,} micro-batches on each rank")
    sheet.put("train.grad_accumulation", steps, said)


def put_goal(sheet: Sheet, option: Option | None, sequences: int = 1) -> None:
    """Writes ``goal.tokens`` of a run of so many steps of ``sequences`` each, or of so many samples."""
    if option is None:
        return
    length = sheet.value("train.seq_len")
    tokens = sheet.whole(option, least=0, most=_MOST_STEPS) * sequences * (length or 0)
    if not 0 < tokens <= _MOST_TOKENS:
        sheet.ignore(option.name, "no length of a run")
        return
    each = f"{sequences:,} sequences of" if sequences > 1 else "one sequence of"
    sheet.put("goal.tokens", tokens, f"{option.said} x {each} {length:,} tokens")


def not_divisible(sheet: Sheet, option: Option, micro_batch: int, replicas: int) -> ScenarioError:
    """Megatron-LM's own words for a global batch that does not fit (core/num_microbatches_calculator.py)."""
    return sheet.error(
        option,
        f"global batch size ({option.value}) is not divisible by micro batch size ({micro_batch}) times data parallel "
        f"size ({replicas}); change it, --micro-batch, --gpus or --grad-accumulation",
    )

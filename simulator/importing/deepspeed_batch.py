"""DeepSpeed's three batch sizes, of which any one or two give the others: train = micro x accumulation x ranks."""

from __future__ import annotations

from simulator.errors import ScenarioError
from simulator.importing.batch import MOST_GLOBAL, put_accumulation, put_micro_batch
from simulator.importing.cluster import Ranks, fitting_replicas, fitting_world, is_sized
from simulator.importing.sheet import MOST, Option, Sheet

_TRAIN, _MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
_STEPS = ("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps")


def _known(sheet: Sheet, *names: str) -> Option | None:
    """The option, None for "auto" too."""
    option = sheet.take(*names)
    if option is not None and option.auto:
        sheet.ignore(option.name, "auto: the HF Trainer's arguments decide, which are not in the file")
        return None
    return option


def _three(sheet: Sheet) -> tuple[Option | None, Option | None, Option | None]:
    return _known(sheet, _TRAIN), _known(sheet, _MICRO, f"deepspeed_config.{_MICRO}"), _known(sheet, *_STEPS)


def _size(sheet: Sheet, option: Option | None, extra: int | None) -> int | None:
    return extra or (sheet.whole(option) if option is not None else None)


def ranks_of(sheet: Sheet, others: int = 1) -> Ranks | None:
    """How many ranks the batch sizes leave: exactly as many where all three are given, else as many as fit. others:
    ranks that hold one replica.

    None when they leave it open. Raises ScenarioError when they contradict each other.
    """
    train, micro, steps = _three(sheet)
    if train is None or is_sized(sheet):
        return None
    total = sheet.whole(train, most=MOST_GLOBAL)
    size, times = _size(sheet, micro, sheet.extras.micro_batch), _size(sheet, steps, sheet.extras.grad_accumulation)
    each = (size or 1) * (times or 1)
    if total % each:
        raise _mismatch(sheet, total, size or 1, times or 1, None)
    if size and times:
        ranks = total // each * others
        if ranks > MOST:
            raise sheet.error(train, f"{ranks:,} ranks follow from it; at most {MOST:,} are accepted")
        return Ranks(total=ranks, said=f"{train.said} / ({size} x {times})" + _times(others))
    fitting = fitting_world(sheet, total // each) if others == 1 else fitting_replicas(sheet, total // each, others)
    return Ranks(total=fitting, said=f"a divisor of {train.said}{_times(others)}", guess=True)


def _times(others: int) -> str:
    return f" x {others} ranks of a replica" if others > 1 else ""


def put_batch(sheet: Sheet, world: int) -> None:
    """Writes micro-batch and accumulation on ``world`` data-parallel ranks: as given, or as the global batch leaves.

    Raises ScenarioError, in DeepSpeed's own words, when the three disagree (``_batch_assertion``).
    """
    train, micro, steps = _three(sheet)
    size, times = _size(sheet, micro, sheet.extras.micro_batch), _size(sheet, steps, sheet.extras.grad_accumulation)
    if train is not None and size and times and _counts_tensor_ranks(sheet, train, size * times, world):
        train = None
    micro_follows, steps_follow = train is not None and size is None, train is not None and times is None
    if train is not None:
        size, times = _solved(sheet, train, size, times, world)
    if micro_follows:
        sheet.put("train.micro_batch", size, f"train_batch_size / ({world} ranks x accumulation {times})")
    else:
        put_micro_batch(sheet, micro)
    if steps_follow and not micro_follows:
        sheet.put("train.grad_accumulation", times, f"train_batch_size / ({world} ranks x micro-batch {size})")
    else:
        put_accumulation(sheet, steps)


def _counts_tensor_ranks(sheet: Sheet, train: Option, each: int, world: int) -> bool:
    """Whether the global batch counts tensor-parallel ranks, which read the same samples: so DeepSpeed has it where the
    program gives it no groups (``DeepSpeedConfig.world_size`` without an mpu).
    """
    tensor, total = int(sheet.value("parallel.tp") or 1), sheet.whole(train, most=MOST_GLOBAL)
    if total == each * world or total != each * world * tensor:
        return False
    sheet.warn(f"{train.said}: counts tensor-parallel ranks, which read the same samples; {each * world} are different")
    return True


def _solved(sheet: Sheet, train: Option, size: int | None, times: int | None, world: int) -> tuple[int, int]:
    total = sheet.whole(train, most=MOST_GLOBAL)
    if size is None:
        times = times or 1
        size = total // (world * times)
    elif times is None:
        times = total // (world * size)
    if not size or not times or size * times * world != total:
        raise _mismatch(sheet, total, size or 1, times or 1, world)
    if max(size, times) > MOST:
        raise sheet.error(train, f"expected at most {MOST:,} on each of {world} ranks")
    return size, times


def _mismatch(sheet: Sheet, total: int, size: int, times: int, world: int | None) -> ScenarioError:
    ranks = f" * {world}" if world else " * a whole number of ranks"
    return ScenarioError(
        f"{sheet.file}: check batch related parameters: {_TRAIN} is not equal to micro_batch_per_gpu * "
        f"gradient_acc_step * world_size: {total} != {size} * {times}{ranks}; change one, or --gpus"
    )

"""DeepSpeed's gradient buckets, whose size is in elements, and which rank owns which part of them.

A bucket is reduced when the next gradient would overflow it, and at the end; a gradient that is larger than a bucket is
reduced alone, where it is (``reduce_independent_p_g_buckets_and_remove_grads``, DeepSpeed 0.19.6,
runtime/zero/stage_1_and_2.py and stage3.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from simulator.training.operations import ParameterTensor, TrainingModel

#: Default of ``reduce_bucket_size``, elements (runtime/zero/config.py).
REDUCE_BUCKET_SIZE = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of a tensor, and the operation whose backward makes it."""

    tensor: ParameterTensor
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients reduced together. fits: whether they are copied into the buffer; a larger one is reduced in place."""

    index: int
    gradients: tuple[Gradient, ...]
    fits: bool

    @property
    def numel(self) -> int:
        return sum(gradient.tensor.numel for gradient in self.gradients)

    @property
    def name(self) -> str:
        return f"bucket {self.index}"

    @property
    def purpose(self) -> str:
        return f"gradients {label([gradient.tensor.name for gradient in self.gradients])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The gradients of one operation that go into one bucket, in the order in which they do.

    is_last: whether no gradient of the operation is left outside of buckets after it.
    """

    operation: str
    bucket: Bucket
    numel: int
    is_last: bool


def label(names: Sequence[str]) -> str:
    """A list of tensors in few words."""
    short = [name.removeprefix("model.").removesuffix(".weight") for name in (names[0], names[-1])]
    return short[0] if len(names) == 1 else f"{short[0]} .. {short[1]}"


def fill(gradients: Iterable[Gradient], size: int) -> tuple[Bucket, ...]:
    """Buckets of at most ``size`` elements, but for single larger gradients, in the order of reduction."""
    buckets: list[Bucket] = []
    held: list[Gradient] = []
    numel = 0
    for gradient in gradients:
        if held and numel + gradient.tensor.numel > size:
            buckets.append(Bucket(index=len(buckets), gradients=tuple(held), fits=numel <= size))
            held, numel = [], 0
        held.append(gradient)
        numel += gradient.tensor.numel
    if held:
        buckets.append(Bucket(index=len(buckets), gradients=tuple(held), fits=numel <= size))
    return tuple(buckets)


def shares(buckets: Sequence[Bucket]) -> tuple[Share, ...]:
    """Bucket by bucket, operations in the order in which they put gradients into it."""
    runs: dict[tuple[int, str], int] = {}
    for bucket in buckets:
        for gradient in bucket.gradients:
            key = (bucket.index, gradient.operation)
            runs[key] = runs.get(key, 0) + gradient.tensor.numel
    last = {operation: index for index, operation in runs}
    return tuple(
        Share(operation=operation, bucket=buckets[index], numel=numel, is_last=last[operation] == index)
        for (index, operation), numel in runs.items()
    )


def by_operation(parts: Iterable[Share]) -> Mapping[str, tuple[Share, ...]]:
    """Shares by the operation that they are of."""
    found: dict[str, tuple[Share, ...]] = {}
    for part in parts:
        found[part.operation] = (*found.get(part.operation, ()), part)
    return found


# ------------------------------------------------------------------------------------- the flat partition (stages 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """All parameters end to end in registration order, padded to a multiple of 2 W elements, cut into W equal parts."""

    starts: Mapping[str, int]
    numel: Mapping[str, int]
    padded: int
    num_ranks: int

    @property
    def size(self) -> int:
        """Elements of one part."""
        return self.padded // self.num_ranks

    def owners(self, bucket: Bucket) -> tuple[tuple[int, int], ...]:
        """(owner, elements) along the bucket, neighbours of one owner together."""
        parts = [part for gradient in bucket.gradients for part in self._cut(gradient.tensor.name)]
        return tuple((owner, sum(numel for _, numel in run)) for owner, run in groupby(parts, key=lambda part: part[0]))

    def most_kept(self) -> int:
        """Elements of all tensors that reach into a part, the most over ranks: a rank keeps their gradients whole."""
        kept = [0] * self.num_ranks
        for name, numel in self.numel.items():
            for owner, _ in self._cut(name):
                kept[owner] += numel
        return max(kept)

    def _cut(self, name: str) -> Iterator[tuple[int, int]]:
        start, end = self.starts[name], self.starts[name] + self.numel[name]
        for owner in range(start // self.size, -(-end // self.size)):
            yield owner, min(end, (owner + 1) * self.size) - max(start, owner * self.size)


def partition(model: TrainingModel, num_ranks: int) -> Partition:
    """The flat partition of one parameter group."""
    sizes = [tensor.numel for tensor in model.parameters]
    names = [tensor.name for tensor in model.parameters]
    unit = 2 * num_ranks
    return Partition(
        starts=dict(zip(names, (0, *accumulate(sizes)), strict=False)), numel=dict(zip(names, sizes, strict=True)),
        padded=-(-sum(sizes) // unit) * unit, num_ranks=num_ranks,
    )  # fmt: skip


def launches(parts: Iterable[tuple[int, int]], size: int) -> tuple[tuple[int, int], ...]:
    """(elements, slices) of each call that reduces slices: one closes when it holds more than ``size`` elements."""
    found: list[tuple[int, int]] = []
    numel = count = 0
    for _, part in parts:
        numel, count = numel + part, count + 1
        if numel > size:
            found.append((numel, count))
            numel = count = 0
    return (*found, (numel, count)) if count else tuple(found)

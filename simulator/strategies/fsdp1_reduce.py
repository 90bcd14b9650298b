"""What FSDP1 does with gradients: one flat tensor per unit, kept unsharded, or cast, padded and reduce-scattered.

From ``_post_backward_hook`` and ``_reduce_grad`` (torch 2.13, torch/distributed/fsdp/_runtime_utils.py).
"""

from __future__ import annotations

from simulator.plan import Buffer
from simulator.strategies.sharding import REPLICATE, SHARD, Sharding, Tape, buffer
from simulator.strategies.step import StepInputs, collective, copy

REDUCE_LANE, ALL_REDUCE_LANE = "reduce", "all-reduce"


class FlatReduction:
    """Gradients of each unit (by index) on their way from the backward to this rank's shards."""

    def __init__(self, inputs: StepInputs, sharded: Sharding, tape: Tape) -> None:
        self._inputs, self._sharded, self._tape = inputs, sharded, tape
        self._new: dict[int, list[str]] = {}
        self._flat: dict[int, str] = {}
        self._shards: dict[int, str] = {}
        self._pending: list[str] = []
        self._last: dict[str, str] = {}

    def made(self, index: int, gradients: str) -> None:
        """Note what a backward has made."""
        self._new.setdefault(index, []).append(gradients)

    def flatten(self, index: int, micro: int) -> None:
        """Autograd puts the gradients of the views into one tensor, and adds it to one that is there already."""
        unit, size = self._sharded.units[index], self._sharded.gather_bytes
        made = buffer(f"flat gradients {unit.name} @{micro}", "grads", unit.num_elements, size)
        there = index in self._flat
        self._tape.add(copy(
            self._inputs, f"flatten gradients {unit.name}, {micro}", made.size_bytes * (2.5 if there else 1.0),
            part=unit.name, allocates=(made,), frees=(*self._new.pop(index), *((made.name,) if there else ())),
        ))  # fmt: skip
        self._flat.setdefault(index, made.name)

    def reduce(self, index: int, micro: int) -> None:
        """Cast, pad, divide; reduce-scatter; all-reduce between replicas; divide and add to the shard's gradients."""
        sharded, inputs = self._sharded, self._inputs
        unit, size = sharded.units[index], sharded.reduce_bytes
        whole = float(sharded.padded[index] * size)
        prepared, held = self._prepare(index, micro)
        got = buffer(f"reduced {unit.name} @{micro}", "grads", sharded.shard(index), size)
        reduced = self._tape.add(collective(
            inputs, f"reduce-scatter {unit.name}, {micro}", "reduce_scatter", SHARD, whole,
            purpose=f"gradients {unit.name}", after=(prepared,), allocates=(got,), frees=held,
        ))  # fmt: skip
        lane = REDUCE_LANE
        if sharded.num_replicas > 1:
            lane = ALL_REDUCE_LANE
            after = (reduced, *filter(None, [self._last.get(lane)]))
            reduced = self._tape.add(collective(
                inputs, f"all-reduce {unit.name}, {micro}", "all_reduce", REPLICATE, got.size_bytes,
                purpose=f"gradients {unit.name}", after=after, algorithm=inputs.parallel.algorithm,
            ))  # fmt: skip
        self._into_shard(index, micro, got, reduced, lane)

    def finish(self, micro: int) -> None:
        """The callback at the end of backward: compute waits for the streams of reductions."""
        if self._pending:
            self._tape.wait(f"end of backward {micro}", self._pending)
        self._pending.clear()
        self._last.clear()

    def sharded_gradients(self) -> tuple[str, ...]:
        """Buffers that ``zero_grad`` gives back."""
        return tuple(self._shards.values())

    def _prepare(self, index: int, micro: int) -> tuple[str, tuple[str, ...]]:
        """The kernels before the reduce-scatter: their task, and what lives until it is over."""
        sharded, unit = self._sharded, self._sharded.units[index]
        count, padded, size = unit.num_elements, sharded.padded[index], sharded.reduce_bytes
        made: list[Buffer] = []
        moved = 2.0 * padded * size  # division by about the root of the ranks, in place
        if size != sharded.gather_bytes:
            made.append(buffer(f"cast gradients {unit.name} @{micro}", "buffers", count, size))
            moved += count * (size + sharded.gather_bytes)
        if padded != count:
            made.append(buffer(f"padded gradients {unit.name} @{micro}", "buffers", padded, size))
            moved += 2.0 * count * size
        after = (*self._tape.computed, *filter(None, [self._last.get(REDUCE_LANE)]))
        name = self._tape.add(copy(
            self._inputs, f"prepare gradients {unit.name}, {micro}", moved / 2, part=unit.name, after=after,
            lane=REDUCE_LANE, allocates=tuple(made),
        ))  # fmt: skip
        return name, (self._flat.pop(index), *(b.name for b in made))

    def _into_shard(self, index: int, micro: int, got: Buffer, reduced: str, lane: str) -> None:
        """The other division, a cast to the type of the parameters, the sum with earlier micro-batches' gradients."""
        sharded, name = self._sharded, self._sharded.units[index].name
        cast, first = sharded.reduce_bytes != sharded.stored_bytes, index not in self._shards
        shard = buffer(f"sharded gradients {name} @{micro}", "grads", sharded.shard(index), sharded.stored_bytes)
        mine = shard if cast else got
        moved = 2 * got.size_bytes + (got.size_bytes + shard.size_bytes if cast else 0)
        moved += 0 if first else 3 * shard.size_bytes
        frees = [got.name] if cast else []
        frees += [] if first else [mine.name]
        self._last[lane] = self._tape.add(copy(
            self._inputs, f"shard gradients {name}, {micro}", moved / 2, part=name, after=(reduced,), lane=lane,
            allocates=(shard,) if cast else (), frees=tuple(frees),
        ))  # fmt: skip
        self._shards.setdefault(index, mine.name)
        self._pending.append(self._last[lane])

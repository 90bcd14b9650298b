"""What FSDP2 does with gradients: keep them unsharded, or reduce-scatter them, and all-reduce shards of replicas.

From ``FSDPParamGroup.post_backward`` and ``foreach_reduce`` (torch 2.13, _fsdp_param_group.py, _fsdp_collectives.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.plan import Buffer
from simulator.strategies.sharding import REPLICATE, SHARD, Sharding, Tape, buffer
from simulator.strategies.step import StepInputs, collective, copy

REDUCE_LANE, ALL_REDUCE_LANE = "reduce", "all-reduce"


class Reduction:
    """Gradients of each unit (by index) on their way from the backward to this rank's shards."""

    def __init__(self, inputs: StepInputs, sharded: Sharding, tape: Tape) -> None:
        self._inputs, self._sharded, self._tape = inputs, sharded, tape
        self._new: dict[int, list[str]] = {}  # buffers that the backward has made
        self._kept: set[int] = set()  # units whose gradients wait in the type of the backward
        self._unreduced: dict[int, str] = {}  # unsharded gradients added up in the reduce type
        self._partial: dict[int, str] = {}  # reduced over shards, not yet over replicas
        self._shards: dict[int, str] = {}  # what the optimizer reads
        self._in_flight: list[tuple[str, str]] = []  # reduce-scatters whose inputs are alive: name, buffer
        self._pending: list[str] = []  # what the end of backward waits for
        self._ends: list[str] = []  # buffers that live until then
        self._last: dict[str, str] = {}  # the last kernel on each stream of reductions
        self._reduced_before: dict[int, str] = {}  # what a unit's next copy-in waits for, if no backward has

    def keeps(self, index: int, gradients: str) -> bool:
        """Note what a backward has made. False: it is added at once to gradients that are there."""
        if index in self._kept:
            return False
        self._new.setdefault(index, []).append(gradients)
        return True

    def accumulate(self, index: int, micro: int) -> None:
        """Add new gradients to those that wait in the reduce type, if any."""
        if index not in self._unreduced:
            return
        unit, sharded = self._sharded.units[index], self._sharded
        moved = unit.num_elements * (2 * sharded.reduce_bytes + sharded.gather_bytes)
        self._tape.add(copy(
            self._inputs, f"add gradients {unit.name}, {micro}", moved / 2, part=unit.name,
            frees=tuple(self._new.pop(index)),
        ))  # fmt: skip

    def keep(self, index: int, micro: int) -> None:
        """Nothing is sent: the unsharded gradients stay, in the reduce type."""
        if index in self._unreduced:
            return
        unit, sharded = self._sharded.units[index], self._sharded
        if sharded.reduce_bytes == sharded.gather_bytes:
            self._kept.add(index)
            return
        made = buffer(f"unreduced {unit.name}", "grads", unit.num_elements, sharded.reduce_bytes)
        moved = unit.num_elements * (sharded.reduce_bytes + sharded.gather_bytes)
        self._tape.add(copy(
            self._inputs, f"cast gradients {unit.name}, {micro}", moved / 2, part=unit.name, allocates=(made,),
            frees=tuple(self._new.pop(index)),
        ))  # fmt: skip
        self._unreduced[index] = made.name

    def reduce(self, index: int, micro: int, *, replicas: bool) -> None:
        """Copy-in, reduce-scatter and, over replicas if asked, all-reduce; then add to the shard's gradients."""
        self._recycle()
        unit, sharded = self._sharded.units[index], self._sharded
        held = [self._unreduced.pop(index)] if index in self._unreduced else self._new.pop(index)
        read = sharded.reduce_bytes if held[0].startswith("unreduced") else sharded.gather_bytes
        self._kept.discard(index)
        padded = sharded.padded[index]
        given = buffer(f"reduce {unit.name} @{micro}", "buffers", padded, sharded.reduce_bytes)
        moved = unit.num_elements * read + given.size_bytes
        before = self._reduced_before.pop(index, None)
        copied = self._tape.add(copy(
            self._inputs, f"copy in gradients {unit.name}, {micro}", moved / 2, part=unit.name, allocates=(given,),
            frees=tuple(held), after=(before,) if before else (),
        ))  # fmt: skip
        got = buffer(f"reduced {unit.name} @{micro}", "grads", sharded.shard(index), sharded.reduce_bytes)
        after = (copied, *filter(None, [self._last.get(REDUCE_LANE)]))
        reduced = self._scatter(f"{unit.name}, {micro}", given, got, after, f"gradients {unit.name}")
        self._in_flight.append((reduced, given.name))
        self._reduced_before[index] = self._after_scatter(index, micro, got, reduced, replicas=replicas)
        self._pending.append(self._reduced_before[index])

    def finish(self, micro: int, unit: str = "", *, also: Sequence[tuple[str, str]] = ()) -> None:
        """Compute waits for all reductions; at the very end of backward (no unit given) their inputs are freed.

        also: other tasks to wait for then, with what they hold.
        """
        end = not unit
        frees = [*(name for _, name in self._in_flight), *self._ends] if end else []
        waits = [*self._pending, *(name for name, _ in also)]
        frees += [held for _, held in also]
        if waits or frees:
            place = f"end of backward {micro}" if end else f"wait for gradients {unit}, {micro}"
            self._tape.wait(place, waits, frees)
        self._pending.clear()
        self._reduced_before.clear()
        if end:
            self._in_flight.clear()
            self._ends.clear()
            self._last.clear()

    def sharded_gradients(self) -> tuple[str, ...]:
        """Buffers that ``zero_grad`` gives back."""
        return tuple(self._shards.values())

    # ---------------------------------------------------------------------------------------------------- one unit

    def _recycle(self) -> None:
        """Before one more input is made: the compute stream waits until few enough reduce-scatters are in flight."""
        while len(self._in_flight) >= self._inputs.parallel.reduce_scatter_buffers:
            name, given = self._in_flight.pop(0)
            self._tape.wait(f"wait for {name}", (name,), (given,))

    def _scatter(self, what: str, given: Buffer, got: Buffer, after: tuple[str, ...], purpose: str) -> str:
        if self._sharded.num_shards == 1:
            return self._tape.add(copy(
                self._inputs, f"copy {what}", given.size_bytes, after=after, lane=REDUCE_LANE, allocates=(got,)
            ))  # fmt: skip
        communicator = "reduce-scatter" if self._inputs.parallel.separate_reduce_scatter_group else ""
        return self._tape.add(collective(
            self._inputs, f"reduce-scatter {what}", "reduce_scatter", SHARD, given.size_bytes, purpose=purpose,
            after=after, communicator=communicator, allocates=(got,),
        ))  # fmt: skip

    def _after_scatter(self, index: int, micro: int, got: Buffer, reduced: str, *, replicas: bool) -> str:
        """All that follows a reduce-scatter on its stream and that of replicas; the last task."""
        sharded, unit = self._sharded, self._sharded.units[index]
        if sharded.num_replicas > 1:
            if not replicas:
                return self._add_partial(index, micro, got, reduced)
            if index in self._partial:
                reduced = self._kernel(f"add partial {unit.name}, {micro}", 1.5 * got.size_bytes, REDUCE_LANE, reduced,
                                       frees=(self._partial.pop(index),))  # fmt: skip
            after = (reduced, *filter(None, [self._last.get(ALL_REDUCE_LANE)]))
            reduced = self._tape.add(collective(
                self._inputs, f"all-reduce {unit.name}, {micro}", "all_reduce", REPLICATE, got.size_bytes,
                purpose=f"gradients {unit.name}", after=after, algorithm=self._inputs.parallel.algorithm,
            ))  # fmt: skip
        return self._into_shard(index, micro, got, reduced)

    def _add_partial(self, index: int, micro: int, got: Buffer, reduced: str) -> str:
        """``set_requires_all_reduce(False)``: shards add up before they are reduced over replicas."""
        name = self._sharded.units[index].name
        if index in self._partial:
            reduced = self._kernel(f"add partial {name}, {micro}", 1.5 * got.size_bytes, REDUCE_LANE, reduced,
                                   frees=(got.name,))  # fmt: skip
        else:
            self._partial[index] = got.name
        return reduced

    def _into_shard(self, index: int, micro: int, got: Buffer, reduced: str) -> str:
        """A cast to the type of the parameters if needed, and the sum with earlier micro-batches' gradients."""
        sharded, name = self._sharded, self._sharded.units[index].name
        lane = ALL_REDUCE_LANE if sharded.num_replicas > 1 else REDUCE_LANE
        cast = sharded.reduce_bytes != sharded.stored_bytes
        shard = buffer(f"sharded gradients {name} @{micro}", "grads", sharded.shard(index), sharded.stored_bytes)
        if cast:
            held = sharded.num_replicas > 1  # the all-reduce's buffer is kept until the end of backward
            self._ends += [got.name] if held else []
            reduced = self._kernel(f"cast shard {name}, {micro}", (got.size_bytes + shard.size_bytes) / 2, lane,
                                   reduced, allocates=(shard,), frees=() if held else (got.name,))  # fmt: skip
        mine = shard if cast else got
        if index not in self._shards:
            self._shards[index] = mine.name
            return reduced
        keeps = not cast and sharded.num_replicas > 1
        self._ends += [mine.name] if keeps else []
        return self._kernel(f"add shard {name}, {micro}", 1.5 * mine.size_bytes, lane, reduced,
                            frees=() if keeps else (mine.name,))  # fmt: skip

    def _kernel(
        self, name: str, size_bytes: float, lane: str, after: str, *, allocates: tuple[Buffer, ...] = (),
        frees: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        """A kernel on a stream of reductions, in whose order the next reduction waits for it."""
        self._last[lane] = self._tape.add(copy(
            self._inputs, name, size_bytes, after=(after,), lane=lane, allocates=allocates, frees=frees
        ))  # fmt: skip
        return self._last[lane]

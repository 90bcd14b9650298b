"""FSDP2 (``fully_shard``) and HSDP: what PyTorch 2.13 issues in a steady step, hook by hook, in host order.

From torch/distributed/fsdp/_fully_shard/: _fsdp_state.py, _fsdp_param_group.py, _fsdp_collectives.py. Streams are
lanes: compute, 'copy-in' (the all-gather copy-in stream), 'reduce' and 'all-reduce' (what follows a reduction), and a
communicator each for shards and replicas. Of a unit:

* unshard: copy-in (with a cast to ``param_dtype``), all-gather; wait for unshard: copy-out on the compute stream. In
  forward the gathered buffer lives on until the next unit's copy-out, and the all-gather after next waits for it.
* post-forward: reshard, unless the unit keeps its parameters; an integer keeps a part, which a smaller group gathers.
* pre-backward: unshard, then the unit before it in the recorded post-forward order. What a checkpoint runs again
  unshards its units for that, and they stay (traced; tests/test_replayed_units.py).
* post-backward: reshard, wait for the oldest reduce-scatter when ``reduce_scatter_buffers`` inputs are alive, copy-in
  on the compute stream, reduce-scatter, all-reduce of the shard between replicas. A unit whose input needs no
  gradient, such as the root, does so in the callback at the end of backward.

Limits: parameters are cut along their first dimension; no CPU offloading, no user hooks, no division kernels (fp16).
"""

from __future__ import annotations

from simulator.errors import ScenarioError
from simulator.plan import Buffer
from simulator.strategies.clipping import norm_of, scale_of
from simulator.strategies.fsdp2_reduce import Reduction
from simulator.strategies.sharding import (
    RESHARD,
    SHARD,
    Sharding,
    Tape,
    backward_visits,
    buffer,
    computes_in,
    forward_visits,
    gradients_of,
    input_has_gradient,
    sharding,
)
from simulator.strategies.step import Draft, StepInputs, backward_of, collective, copy, forward_of, optimizer

COPY_IN_LANE = "copy-in"
NORM_BYTES = 4.0
"""``clip_grad_norm_`` reduces one fp32 norm for each parameter tensor."""


def step(inputs: StepInputs) -> Draft:
    """One steady step. It starts when the last optimizer step is over, which the first all-gather waits for."""
    sharded = sharding(inputs, flat=False)
    _check_prefetch(inputs)
    run = _Step(computes_in(sharded, inputs), sharded)
    for micro in range(inputs.micro_batches):
        run.forward(micro)
        run.backward(micro)
    return run.update()


def startup(inputs: StepInputs) -> Draft:
    """``fully_shard`` sends nothing: each rank cuts the parameters that it has."""
    return Draft(tasks=())


def _check_prefetch(inputs: StepInputs) -> None:
    wanted = inputs.parallel.backward_prefetch
    if isinstance(wanted, str):
        raise ScenarioError(
            f"parallel.backward_prefetch: {wanted!r} is FSDP1's; accepted by fsdp2: how many units, 1 by default"
        )


class _Step:
    """The state that the hooks keep of each unit (by index), and the tape that they write on."""

    def __init__(self, inputs: StepInputs, sharded: Sharding) -> None:
        self.inputs, self.sharded, self.tape = inputs, sharded, Tape(streams=inputs.streams)
        self.micro, self.phase = 0, "forward"
        self.gathering: dict[int, tuple[str, Buffer]] = {}  # issued and not waited for
        self.gathered: set[str] = set()  # names of all-gathers: one that goes astray comes twice in a pass
        self.unsharded: dict[int, str] = {}
        self.spread: dict[int, tuple[str, str]] = {}  # over a smaller group: buffer, and the copy that made it
        self.stream_waits: tuple[str, ...] = ()  # what the all-gather streams wait for next
        self.last_gather: tuple[str, str] = ("", "")
        self.held: tuple[str, str] | None = None  # a copied-out buffer of forward: its name, and the copy
        self.order: list[int] = []  # units in the order of their post-forward hooks, and each one's places in it
        self.places: dict[int, list[int]] = {}
        self.reduction = Reduction(self.inputs, sharded, self.tape)

    @property
    def alone(self) -> bool:
        return self.sharded.num_shards == 1

    def forward(self, micro: int) -> None:
        """All forward hooks and operations of a micro-batch."""
        self.micro, self.phase = micro, "forward"
        self.stream_waits = self.tape.computed
        for what, number in forward_visits(self.sharded):
            if what == "enter":
                self._pre_forward(number)
            elif what == "run":
                self.tape.add(forward_of(self.inputs, micro, number))
            else:
                self._post_forward(number)
        self._let_go()

    def backward(self, micro: int) -> None:
        """All backward hooks and operations of a micro-batch, and the callback at the end."""
        self.phase = "backward"
        for what, number in backward_visits(self.sharded):
            if what == "enter":
                self._pre_backward(number)
            elif what == "run":
                self._run_backward(number)
            elif input_has_gradient(self.sharded, number):
                self._post_backward(number)
        for number in range(len(self.sharded.units)):
            if not input_has_gradient(self.sharded, number):
                self._post_backward(number)
                if self._is_last:
                    self.reduction.finish(micro, self.sharded.units[number].name)
        if self._is_last:
            self._finish()

    @property
    def _is_last(self) -> bool:
        """Whether this backward ends with a wait and forgets the order of the forward (``set_is_last_backward``)."""
        return self.micro == self.inputs.micro_batches - 1 or self.inputs.parallel.wait_each_micro_batch

    def _finish(self) -> None:
        """The end of the callback. An all-gather that nobody asked for is waited for and dropped."""
        astray = [self.gathering.pop(index) for index in tuple(self.gathering)]
        self.reduction.finish(self.micro, also=[(name, held.name) for name, held in astray if name])
        self.order.clear()
        self.places.clear()

    def update(self) -> Draft:
        """Gradient clipping and the optimizer on this rank's shards."""
        if self.inputs.clip_grad_norm:
            self._clip()
        self.tape.add(optimizer(self.inputs, share=self.sharded.share, frees=self.reduction.sharded_gradients()))
        return self.tape.draft(self.inputs, self.sharded)

    # ------------------------------------------------------------------------------------------------------- hooks

    def _pre_forward(self, index: int) -> None:
        self._unshard(index)
        self._wait_for_unshard(index)
        if not self.sharded.units[index].is_root:
            for ahead in range(1, self.inputs.parallel.forward_prefetch + 1):
                if index + ahead < len(self.sharded.units):
                    self._unshard(index + ahead)

    def _post_forward(self, index: int) -> None:
        self.places.setdefault(index, []).append(len(self.order))
        self.order.append(index)
        reshard, unit = self.sharded.reshard[index], self.sharded.units[index]
        if reshard is True:
            self.tape.free(self.unsharded.pop(index))
        elif reshard is not False:
            part = self.sharded.padded[index] / reshard
            kept = buffer(f"spread {unit.name} @{self.micro}", "gathered", part, self.sharded.gather_bytes)
            copied = self.tape.add(copy(
                self.inputs, f"spread {unit.name}, {self.micro}", kept.size_bytes, part=unit.name,
                allocates=(kept,), frees=(self.unsharded.pop(index),),
            ))  # fmt: skip
            self.spread[index] = (kept.name, copied)

    def _let_go(self) -> None:
        """The last gathered buffer of forward: the all-gather streams wait until it is copied out, then it is freed."""
        if self.held:
            self.tape.free(self.held[0])
            self.stream_waits = (self.held[1],)
            self.held = None

    def _pre_backward(self, index: int) -> None:
        self._unshard(index)
        self._wait_for_unshard(index)
        for other in self._prefetched_by(index):
            self._unshard(other)

    def _prefetched_by(self, index: int) -> list[int]:
        """Explicitly so many units of those before it; else the one before in the order of post-forward hooks."""
        wanted, units = self.inputs.parallel.backward_prefetch, self.sharded.units
        if wanted == 0:
            return []
        if isinstance(wanted, int) and not units[index].is_root:
            before = [other for other in reversed(range(index)) if not units[other].is_root]
            if before:
                return before[:wanted]
        place = self.places[index].pop()
        return [self.order[place - 1]] if place else []

    def _run_backward(self, number: int) -> None:
        operation = self.inputs.model.operations[number]
        for index in self.sharded.needed_again(number):
            self._unshard(index)
            self._wait_for_unshard(index)
        if number not in self.sharded.owner:
            self.tape.add(backward_of(self.inputs, self.micro, number, grads=False))
            return
        made = gradients_of(self.sharded, operation, self.micro)
        stays = self.reduction.keeps(self.sharded.owner[number], made.name)
        self.tape.add(backward_of(
            self.inputs, self.micro, number, grads=False, allocates=(made,), frees=() if stays else (made.name,)
        ))  # fmt: skip

    def _post_backward(self, index: int) -> None:
        last, parallel = self.micro == self.inputs.micro_batches - 1, self.inputs.parallel
        self.reduction.accumulate(index, self.micro)
        if index in self.unsharded and (last or parallel.reshard_after_backward):
            self.tape.free(self.unsharded.pop(index))
        if last or parallel.sync_each_micro_batch:
            self.reduction.reduce(index, self.micro, replicas=last or parallel.all_reduce_each_micro_batch)
        else:
            self.reduction.keep(index, self.micro)

    # --------------------------------------------------------------------------------------------- gathering a unit

    def _unshard(self, index: int) -> None:
        """Copy-in and all-gather, unless the unit is whole or being gathered."""
        if index in self.unsharded or index in self.gathering:
            return
        if self.alone:
            self.gathering[index] = ("", buffer("", "gathered", 0, 0))
            return
        unit, size = self.sharded.units[index], self.sharded.padded[index] * self.sharded.gather_bytes
        when = f"{unit.name}, {self.phase} {self.micro}"
        when += " again" if when in self.gathered else ""
        self.gathered.add(when)
        axis, ranks, stored = SHARD, self.sharded.num_shards, self.sharded.stored_bytes
        if index in self.spread:
            axis, ranks, stored = RESHARD, len(self.sharded.axes[RESHARD][0]), self.sharded.gather_bytes
            self.stream_waits = (*self.stream_waits, self.spread[index][1])
        cast = self.sharded.stored_bytes != self.sharded.gather_bytes
        part, gather = self.sharded.padded[index] / ranks, self.sharded.gather_bytes
        whole = Buffer(name=f"gather {when}", kind="gathered", size_bytes=float(size))
        flat = (buffer(f"cast shard {when}", "gathered", part, gather),) if cast else ()
        moved = part * (stored + 3 * gather if cast else 2 * gather)
        copied = self.tape.add(copy(
            self.inputs, f"copy in {when}", moved / 2, part=unit.name, after=self.stream_waits, lane=COPY_IN_LANE,
            allocates=(whole, *flat),
        ))  # fmt: skip
        self.stream_waits = ()
        # the streams' own order, where the all-gather before this one ran on another communicator
        before = () if self.last_gather[0] in ("", axis) else (self.last_gather[1],)
        name = self.tape.add(collective(
            self.inputs, f"all-gather {when}", "all_gather", axis, float(size), purpose=f"weights {unit.name}",
            after=(copied, *before), frees=tuple(b.name for b in flat),
        ))  # fmt: skip
        self.last_gather, self.gathering[index] = (axis, name), (name, whole)

    def _wait_for_unshard(self, index: int) -> None:
        """Copy-out into the parameters; in forward the buffer of the unit before is freed, in backward its own."""
        if index not in self.gathering:
            return
        gathered, whole = self.gathering.pop(index)
        unit, forward = self.sharded.units[index], self.phase == "forward"
        if forward:
            self._let_go()
        made = buffer(
            f"unsharded {unit.name}, {self.phase} @{self.micro}", "gathered", self.sharded.padded[index],
            self.sharded.gather_bytes,
        )  # fmt: skip
        frees = [self.spread.pop(index)[0]] if index in self.spread else []
        frees += [] if forward or self.alone else [whole.name]
        copied = self.tape.add(copy(
            self.inputs, f"copy out {unit.name}, {self.phase} {self.micro}", made.size_bytes, part=unit.name,
            after=(gathered,) if gathered else (), allocates=(made,), frees=tuple(frees),
        ))  # fmt: skip
        self.unsharded[index] = made.name
        if forward and not self.alone:
            self.held = (whole.name, copied)
        else:
            self.stream_waits = (copied,)

    def _clip(self) -> None:
        """``clip_grad_norm_``: a norm for each tensor's shard, one all-reduce of all of them, then a scaling."""
        size = self.sharded.share * self.inputs.model.num_parameters * self.sharded.stored_bytes
        normed = self.tape.add(norm_of(self.inputs, size))
        if not self.alone:
            count = sum(len(unit.parameters) for unit in self.sharded.units)
            self.tape.compute_waits(self.tape.add(collective(
                self.inputs, "all-reduce norms", "all_reduce", SHARD, NORM_BYTES * count,
                purpose="norms of the gradients", after=(normed,),
            )))  # fmt: skip
        self.tape.add(scale_of(self.inputs, size))

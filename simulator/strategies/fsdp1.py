"""FSDP1 (``FullyShardedDataParallel``): what PyTorch 2.13 issues in a steady step, hook by hook, in host order.

From torch/distributed/fsdp/_runtime_utils.py, _flat_param.py, _exec_order_utils.py and _limiter_utils.py. Streams are
lanes: compute, 'copy-in' (pre-unshard, which casts the shard), 'reduce' (post-backward), 'all-reduce', and a
communicator each for shards and replicas. Of a unit, whose parameters are views of one flat tensor:

* unshard: cast, all-gather straight into the flat parameter (no copy-out). With ``limit_all_gathers`` the host first
  waits for the oldest recorded free once two are recorded: a blocked host launches nothing else either.
* post-forward: free it (full sharding) or keep it (``reshard_after_forward: false``, SHARD_GRAD_OP); the root keeps it.
* pre-backward: unshard; with ``backward_prefetch: pre`` (default) then the unit before it in post-forward order, with
  'post' that follows in its post-backward instead, after it is freed.
* post-backward, when the flat gradient is there: free, cast, pad and divide, reduce-scatter, all-reduce of replicas.
  Autograd joins the gradients of the views once it has gone back to before the views were made, which is the unit's own
  pre-forward, or that of the unit before where ``forward_prefetch`` made them there: then a unit's reduce-scatter comes
  one unit late, and its weights stay as long.

A unit inside a checkpoint that holds more than the unit is run again in a forward of its own: it is gathered for that,
freed, and gathered once more for its backward.

Without gradient sync the flat gradient stays unsharded, in the type of the backward.
Limits: ``use_orig_params`` off (no alignment padding), no CPU offloading, no communication hooks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from simulator.errors import ScenarioError
from simulator.plan import Buffer
from simulator.strategies import ddp
from simulator.strategies.clipping import norm_of, scale_of
from simulator.strategies.fsdp1_reduce import FlatReduction
from simulator.strategies.sharding import (
    SHARD,
    Sharding,
    Tape,
    backward_visits,
    buffer,
    computes_in,
    forward_visits,
    gradients_of,
    sharding,
)
from simulator.strategies.step import Draft, StepInputs, backward_of, collective, copy, forward_of, optimizer
from simulator.training.operations import Operation

CAST_LANE = "copy-in"
MOST_IN_FLIGHT = 2
"""All-gathers that ``limit_all_gathers`` lets be in flight (torch 2.13, _limiter_utils.py, "empirically chosen")."""
NORM_BYTES = 4.0
"""``clip_grad_norm_`` reduces the sum of squares, one fp32 number."""

#: When a unit became free: the last task on the compute stream then; nothing for one of the step before.
_Free = tuple[str, ...]


def step(inputs: StepInputs) -> Draft:
    """One steady step. A rank alone shards nothing (torch falls back to NO_SHARD).

    Raises ScenarioError for settings that FSDP1 does not have.
    """
    _check(inputs)
    if inputs.num_ranks == 1:
        return ddp.step(inputs)
    sharded = sharding(inputs, flat=True)
    recorded = 0
    for _ in range(MOST_IN_FLIGHT + 2):  # what a step leaves in the limiter's queue is there when the next one starts
        run = _Step(computes_in(sharded, inputs), sharded, [()] * recorded)
        draft = run.all()
        if len(run.freed) == recorded:
            break
        recorded = len(run.freed)
    return draft


def startup(inputs: StepInputs) -> Draft:
    """Nothing is sent: each rank cuts the parameters that it has (``sync_module_states`` off)."""
    return Draft(tasks=())


def _check(inputs: StepInputs) -> None:
    parallel = inputs.parallel
    if isinstance(parallel.backward_prefetch, int) and parallel.backward_prefetch:
        raise ScenarioError(
            f"parallel.backward_prefetch: fsdp1 cannot gather {parallel.backward_prefetch} units ahead; accepted: "
            "pre, post, 0"
        )
    if parallel.forward_prefetch > 1:
        raise ScenarioError(
            f"parallel.forward_prefetch: fsdp1 gathers one unit ahead in forward or none, not "
            f"{parallel.forward_prefetch}; accepted: 0, 1"
        )
    wanted = parallel.reshard_after_forward
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        raise ScenarioError(
            f"parallel.reshard_after_forward: fsdp1 has no smaller group to keep parameters on, got {wanted}; "
            "accepted: true, false, not-last, or a list"
        )


class _Step:
    """The state that the hooks keep of each unit (by index), and the tape that they write on."""

    def __init__(self, inputs: StepInputs, sharded: Sharding, recorded: Iterable[_Free]) -> None:
        self.inputs, self.sharded, self.tape = inputs, sharded, Tape(streams=inputs.streams)
        self.micro, self.phase = 0, "forward"
        self.freed: deque[_Free] = deque(recorded)
        self.whole: dict[int, str] = {}
        self.prefetched: set[int] = set()
        self.gathered: set[str] = set()  # names of all-gathers: what is run again is gathered twice in a backward
        self.to_gather: set[int] = set()  # units whose turn in this pass has not come
        self.stream_waits: tuple[str, ...] = ()
        self.last_gather = ""
        self.order: list[int] = []
        self.views: dict[int, int] = {}  # the operation before which the views of a flat parameter were made
        self.reduction = FlatReduction(inputs, sharded, self.tape)

    def all(self) -> Draft:
        """The whole step."""
        for micro in range(self.inputs.micro_batches):
            self._forward(micro)
            self._backward()
        if self.inputs.clip_grad_norm:
            self._clip()
        self.tape.add(optimizer(self.inputs, share=self.sharded.share, frees=self.reduction.sharded_gradients()))
        return self.tape.draft(self.inputs, self.sharded)

    @property
    def _syncs(self) -> bool:
        return self.micro == self.inputs.micro_batches - 1 or self.inputs.parallel.sync_each_micro_batch

    def _forward(self, micro: int) -> None:
        self.micro, self.phase = micro, "forward"
        self.stream_waits, self.to_gather = self.tape.computed, {*range(len(self.sharded.units))}
        self.prefetched.clear()
        self.views.clear()
        for what, number in forward_visits(self.sharded):
            if what == "enter":
                self._need(number)
                self.views.setdefault(number, self.sharded.units[number].first)
                if self.inputs.parallel.forward_prefetch and number + 1 in self.to_gather:
                    self._prefetch(number + 1)
                    self.views[number + 1] = self.sharded.units[number].first
            elif what == "run":
                self.tape.add(forward_of(self.inputs, micro, number))
            else:
                self.order.append(number)
                self._reshard(number, free=self.sharded.reshard[number] is True)

    def _backward(self) -> None:
        self.phase, self.to_gather = "backward", {*range(len(self.sharded.units))}
        for what, number in backward_visits(self.sharded):
            if what == "enter":
                self._need(number)
                if self.inputs.parallel.backward_prefetch in (None, "pre"):
                    self._prefetch_before(number)
            elif what == "run":
                self._run_backward(number)
                for index in reversed(range(len(self.sharded.units))):
                    if self.views[index] == number:
                        self._post_backward(index)
        self.reduction.finish(self.micro)
        self.order.clear()

    # ------------------------------------------------------------------------------------------------------- hooks

    def _need(self, index: int) -> None:
        """Pre-forward and pre-backward: gather unless that was done ahead; compute waits for the unshard stream."""
        if index not in self.prefetched:
            self._unshard(index)
        if self.last_gather:
            self.tape.compute_waits(self.last_gather)
            self.last_gather = ""
        self.to_gather.discard(index)

    def _prefetch(self, index: int) -> None:
        if index in self.to_gather and index not in self.prefetched:
            self._unshard(index)
            self.prefetched.add(index)

    def _prefetch_before(self, index: int) -> None:
        """The unit before it in the order of post-forward hooks."""
        place = self.order.index(index)
        if place:
            self._prefetch(self.order[place - 1])

    def _reshard(self, index: int, *, free: bool) -> None:
        if free:
            self.tape.free(self.whole.pop(index))
            self.freed.append(self.tape.computed)
        self.prefetched.discard(index)

    def _run_backward(self, number: int) -> None:
        operation = self.inputs.model.operations[number]
        again = [index for index in self.sharded.needed_again(number) if index in self.to_gather]
        for index in again:
            self._need(index)
        self._run_operation(number, operation)
        for index in again:  # these ran in a forward of their own, and end it as every forward does
            self.to_gather.add(index)
            self._reshard(index, free=self.sharded.reshard[index] is True)

    def _run_operation(self, number: int, operation: Operation) -> None:
        if number not in self.sharded.owner:
            self.tape.add(backward_of(self.inputs, self.micro, number, grads=False))
            return
        made = gradients_of(self.sharded, operation, self.micro)
        self.reduction.made(self.sharded.owner[number], made.name)
        self.tape.add(backward_of(self.inputs, self.micro, number, grads=False, allocates=(made,)))

    def _post_backward(self, index: int) -> None:
        self.reduction.flatten(index, self.micro)
        full = self.inputs.parallel.reshard_after_forward is not False
        self._reshard(index, free=self._syncs or full)
        if self.inputs.parallel.backward_prefetch == "post":
            self._prefetch_before(index)
        if self._syncs:
            self.reduction.reduce(index, self.micro)

    # --------------------------------------------------------------------------------------------- gathering a unit

    def _unshard(self, index: int) -> None:
        """Cast and all-gather; where the unit is whole already only the limiter has its turn."""
        sharded, unit = self.sharded, self.sharded.units[index]
        when = f"{unit.name}, {self.phase} {self.micro}"
        when += " again" if when in self.gathered else ""
        after = self.stream_waits
        cast: tuple[str, ...] = ()
        if index not in self.whole and sharded.gather_bytes != sharded.stored_bytes:
            shard = buffer(f"cast shard {when}", "gathered", sharded.shard(index), sharded.gather_bytes)
            moved = sharded.shard(index) * (sharded.stored_bytes + sharded.gather_bytes)
            after, cast = (self._cast(unit.name, when, shard, moved),), (shard.name,)
        free = self._limit()
        if index in self.whole:
            return
        self.gathered.add(when)
        made = buffer(f"unsharded {when}", "gathered", sharded.padded[index], sharded.gather_bytes)
        self.last_gather = self.tape.add(collective(
            self.inputs, f"all-gather {when}", "all_gather", SHARD, made.size_bytes, purpose=f"weights {unit.name}",
            after=after, host_after=free if self.inputs.streams else (), allocates=(made,), frees=cast,
        ))  # fmt: skip
        self.stream_waits = ()
        self.whole[index] = made.name

    def _cast(self, part: str, when: str, shard: Buffer, moved_bytes: float) -> str:
        return self.tape.add(copy(
            self.inputs, f"cast {when}", moved_bytes / 2, part=part, after=self.stream_waits, lane=CAST_LANE,
            allocates=(shard,),
        ))  # fmt: skip

    def _limit(self) -> _Free:
        """What the host waits for before it gathers one more unit."""
        if not self.inputs.parallel.limit_all_gathers or len(self.freed) < MOST_IN_FLIGHT:
            return ()
        return self.freed.popleft()

    def _clip(self) -> None:
        size = self.sharded.share * self.inputs.model.num_parameters * self.sharded.stored_bytes
        normed = self.tape.add(norm_of(self.inputs, size))
        self.tape.compute_waits(self.tape.add(collective(
            self.inputs, "all-reduce norm", "all_reduce", SHARD, NORM_BYTES, purpose="norm of the gradients",
            after=(normed,),
        )))  # fmt: skip
        self.tape.add(scale_of(self.inputs, size))

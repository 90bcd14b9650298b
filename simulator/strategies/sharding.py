"""What FSDP1 and FSDP2 share: bytes of their units, groups of ranks, the order of their hooks, and a tape of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.errors import ScenarioError
from simulator.parallel_spec import Parallel
from simulator.plan import COMPUTE_LANE, Buffer, Communicate, Compute, Task, one_at_a_time
from simulator.rank_classes import ALL_RANKS
from simulator.strategies.resident import resident_states
from simulator.strategies.step import Draft, Groups, StepInputs
from simulator.strategies.units import Unit, sharded_units
from simulator.training.operations import Operation, TrainingModel
from simulator.training.precision import Precision

SHARD, REPLICATE, RESHARD = "shard", "replicate", "reshard"
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Who holds which part of what.

    units: those that own parameters, in forward order, outer before inner. padded: elements of each one's gathered
    buffer. gather_bytes, reduce_bytes, stored_bytes: per element, of gathered weights and the gradients of the
    backward, of reduced gradients, and of the shards. reshard: for each unit whether it is freed after its forward, or
    over how many ranks it is spread then. axes: groups by name: ``shard``; with replicas ``replicate``; ``reshard``.
    """

    model: TrainingModel
    units: tuple[Unit, ...]
    padded: tuple[int, ...]
    gather_bytes: int
    reduce_bytes: int
    stored_bytes: int
    reshard: tuple[bool | int, ...]
    axes: Mapping[str, Groups]

    @property
    def num_shards(self) -> int:
        return len(self.axes[SHARD][0])

    @property
    def num_replicas(self) -> int:
        return len(self.axes[REPLICATE][0]) if REPLICATE in self.axes else 1

    def shard(self, index: int) -> int:
        """Elements of one rank's part of a unit."""
        return self.padded[index] // self.num_shards

    @cached_property
    def share(self) -> float:
        """One rank's part of all parameters, padding included: rank 0 holds the most, and no padding but FSDP1's."""
        return sum(self.shard(index) for index in range(len(self.units))) / max(1, self.model.num_parameters)

    @cached_property
    def owner(self) -> Mapping[int, int]:
        """By number of an operation that has parameters, the index of the unit that owns them."""
        return {number: index for index, unit in enumerate(self.units) for number in unit.owned}

    def needed_again(self, number: int) -> tuple[int, ...]:
        """Indices of the units whose weights operation ``number`` needs for what it runs again, in forward order."""
        names = {again.name for again in self.model.operations[number].replayed if again.parameters}
        if not names:
            return ()
        owners = (self.owner[place] for place, op in enumerate(self.model.operations) if op.name in names)
        return tuple(dict.fromkeys(owners))


def sharding(inputs: StepInputs, *, flat: bool) -> Sharding:
    """How ``inputs.parallel`` cuts the model.

    flat: each unit is one tensor, padded to a multiple of the ranks (FSDP1), instead of each parameter along its first
    dimension (FSDP2). Raises ScenarioError for a wrapping, shard_size or reshard_after_forward that does not fit.
    """
    units = tuple(unit for unit in sharded_units(inputs.model, inputs.parallel.wrap) if unit.parameters)
    axes = dict(_axes(inputs))
    ranks = len(axes[SHARD][0])
    reshard = _reshard(inputs, units, ranks)
    parts = {size for size in reshard if not isinstance(size, bool)}
    if parts:
        size = parts.pop()
        axes[RESHARD] = parts_of(inputs.everyone, size)
    precision, parallel = inputs.precision, inputs.parallel
    autocast = precision.cached_weight_bytes > 0
    gather = precision.compute_bytes if autocast else precision.param_bytes
    return Sharding(
        model=inputs.model, units=units, padded=tuple(_padded(unit, ranks, flat=flat) for unit in units), axes=axes,
        gather_bytes=DTYPE_BYTES[parallel.param_dtype] if parallel.param_dtype else gather,
        reduce_bytes=DTYPE_BYTES[parallel.reduce_dtype] if parallel.reduce_dtype else precision.reduce_bytes,
        stored_bytes=precision.param_bytes, reshard=reshard,
    )  # fmt: skip


def _padded(unit: Unit, ranks: int, *, flat: bool) -> int:
    """FSDP2: rows of each tensor, FSDP1: elements of all, up to a multiple of the ranks."""
    if flat:
        return -(-unit.num_elements // ranks) * ranks
    return sum(
        -(-tensor.rows_over(ranks) // ranks) * ranks * (tensor.numel // tensor.rows_over(ranks))
        for tensor in unit.parameters
    )


def _axes(inputs: StepInputs) -> Iterator[tuple[str, Groups]]:
    """All ranks; or neighbours as shards of one replica, and equal places in all replicas."""
    ranks, parallel = inputs.num_ranks, inputs.parallel
    if parallel.strategy != "hsdp":
        yield SHARD, inputs.everyone
        return
    size = parallel.shard_size or inputs.node_size
    if size < 2 or ranks % size:
        accepted = ", ".join(str(n) for n in range(2, ranks + 1) if ranks % n == 0) or "none of one rank"
        origin = "" if parallel.shard_size else " (when left out the ranks of a node, 1 where nodes differ)"
        raise ScenarioError(f"parallel.shard_size: {size}{origin} must be at least 2 and divide the {ranks} ranks; "
                            f"accepted: {accepted}")  # fmt: skip
    yield SHARD, parts_of(inputs.everyone, size)
    if size < ranks:
        yield REPLICATE, tuple(group[first::size] for group in inputs.everyone for first in range(size))


def parts_of(groups: Groups, size: int) -> Groups:
    """Each group cut into neighbours."""
    return tuple(group[first : first + size] for group in groups for first in range(0, len(group), size))


def _reshard(inputs: StepInputs, units: Sequence[Unit], ranks: int) -> tuple[bool | int, ...]:
    """Per unit. The root keeps its parameters unless a list says so: they are used again at once (torch's default)."""
    wanted, inner = inputs.parallel.reshard_after_forward, [unit for unit in units if not unit.is_root]
    key = "parallel.reshard_after_forward"
    if isinstance(wanted, tuple):
        if len(wanted) not in (len(inner), len(units)):
            raise ScenarioError(
                f"{key}: has {len(wanted)} values; accepted is one for each of the {len(inner)} units in forward order"
                + (", and one more for the root" if len(units) > len(inner) else "")
            )
        given = dict(zip((unit.name for unit in inner), wanted, strict=False))
        root = wanted[-1] if len(wanted) > len(inner) else False
        return tuple(root if unit.is_root else given[unit.name] for unit in units)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted > ranks or ranks % wanted:
            accepted = ", ".join(("true", "false", *(str(n) for n in range(2, ranks + 1) if ranks % n == 0)))
            raise ScenarioError(f"{key}: {wanted} does not divide the {ranks} ranks of a shard group; accepted: "
                                f"{accepted}")  # fmt: skip
        wanted = True if wanted == ranks else wanted
    last = inner[-1].name if inner else ""
    return tuple(
        not unit.is_root and (unit.name != last if wanted == "not-last" else wanted) for unit in units
    )  # fmt: skip


def computes_in(sharded: Sharding, inputs: StepInputs) -> StepInputs:
    """The inputs without autocast's copies of weights, where units are gathered in the type of the products already."""
    precision = inputs.precision
    if not precision.cached_weight_bytes or sharded.gather_bytes > precision.compute_bytes:
        return inputs
    return replace(inputs, precision=replace(precision, cached_weight_bytes=0))


def computing_precision(precision: Precision, parallel: Parallel) -> Precision:
    """In which types the model computes: under FSDP in those of the gathered weights, from end to end.

    Its mixed precision casts weights and inputs once per unit and runs no autocast (torch 2.13,
    fsdp/_fully_shard/_fsdp_state.py, ``_pre_forward``), so norms, the residual stream and gradients are 16-bit too, and
    no operation casts its weights. Autocast stays where it is asked for with weights that are gathered in fp32.
    Megatron knows no autocast: its weights are in the type of the products (core/transformer/module.py, Float16Module),
    and gradients of weights are added up in fp32.
    """
    if parallel.implemented_by == "megatron":
        return replace(precision, param_bytes=precision.compute_bytes, grad_bytes=4, cached_weight_bytes=0)
    if parallel.strategy not in ("fsdp", "hsdp"):
        return precision
    autocast = precision.cached_weight_bytes > 0
    gathered = parallel.param_dtype or (precision.dtype if autocast else None)
    if gathered is None or (autocast and DTYPE_BYTES[gathered] > precision.compute_bytes):
        return precision
    size = DTYPE_BYTES[gathered]
    dtype = precision.dtype if size == precision.compute_bytes == 4 else gathered  # fp32 weights run as tf32 if asked
    return replace(
        precision, dtype=dtype, compute_bytes=size, param_bytes=size, grad_bytes=size, cached_weight_bytes=0
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------- the order of hooks

#: 'enter' a unit, 'run' an operation, 'leave' a unit; and which.
Visit = tuple[str, int]


def forward_visits(sharded: Sharding) -> Iterator[Visit]:
    """Pre-forward hooks before a unit's first operation, outer first; post-forward hooks after its last, inner
    first.
    """
    units = sharded.units
    for number in range(len(sharded.model.operations)):
        yield from (("enter", index) for index, unit in enumerate(units) if unit.first == number)
        yield "run", number
        yield from (("leave", index) for index, unit in reversed([*enumerate(units)]) if unit.last == number)


def backward_visits(sharded: Sharding) -> Iterator[Visit]:
    """Pre-backward hooks before a unit's last operation, and the end of its backward after its first.

    Hooks on one tensor run in the order in which they were registered, inner units first; a block of a transformer has
    an output of its own, the residual sum, whose gradient comes before that of what is inside.
    """
    units = sharded.units
    for number in reversed(range(len(sharded.model.operations))):
        entered = [index for index, unit in enumerate(units) if unit.last == number]
        if sharded.model.measured:
            entered.reverse()
        entered.sort(key=lambda index: units[index].is_root)
        yield from (("enter", index) for index in entered)
        yield "run", number
        yield from (("leave", index) for index, unit in reversed([*enumerate(units)]) if unit.first == number)


def input_has_gradient(sharded: Sharding, index: int) -> bool:
    """Whether something before the unit has parameters, so that a gradient leaves the unit in backward."""
    return any(operation.parameters for operation in sharded.model.operations[: sharded.units[index].first])


def gradients_of(sharded: Sharding, operation: Operation, micro: int) -> Buffer:
    """Gradients of an operation's parameters as autograd makes them: in the type of the gathered weights."""
    count = sum(tensor.numel for tensor in operation.parameters)
    return buffer(f"gradients {operation.name} @{micro}", "grads", count, sharded.gather_bytes)


# ---------------------------------------------------------------------------------------------------------- the tape


class Tape:
    """Tasks in the order in which the host thread issues them. Raises nothing; grows only at its end."""

    def __init__(self, *, streams: bool) -> None:
        self.tasks: list[Task] = []
        self._streams = streams
        self._last_compute: int | None = None
        self._before_compute: tuple[str, ...] = ()

    @property
    def computed(self) -> tuple[str, ...]:
        """The last task on the compute stream: what an event recorded there now waits for."""
        return () if self._last_compute is None else (self.tasks[self._last_compute].name,)

    def add(self, task: Task) -> str:
        """Issue a task; its name."""
        if task.lane == COMPUTE_LANE:
            if self._before_compute:
                task = replace(task, after=(*task.after, *self._before_compute))
                self._before_compute = ()
            self._last_compute = len(self.tasks)
        self.tasks.append(task)
        return task.name

    def compute_waits(self, *names: str) -> None:
        """The compute stream waits for tasks of other streams before its next one."""
        self._before_compute = (*self._before_compute, *names)

    def free(self, *buffers: str) -> None:
        """Give memory back in the order of the compute stream (of everything, where calls block)."""
        at = self._last_compute if self._streams else len(self.tasks) - 1
        assert at is not None, "something was computed before memory is given back"
        self.tasks[at] = replace(self.tasks[at], frees=(*self.tasks[at].frees, *buffers))

    def wait(self, name: str, after: Sequence[str], frees: Sequence[str] = ()) -> str:
        """The compute stream waits, and memory is given back then."""
        return self.add(Compute(
            name=name, kind="copy", classes=(ALL_RANKS,), seconds=0.0, part="wait", after=tuple(after),
            frees=tuple(frees),
        ))  # fmt: skip

    def draft(self, inputs: StepInputs, sharded: Sharding) -> Draft:
        """The plan of the step; one task at a time where collectives block the host."""
        tasks = tuple(self.tasks if self._streams else one_at_a_time(self.tasks))
        resident = resident_states(
            inputs, params=sharded.share, optimizer_share=sharded.share,
            communicators=len({task.lane for task in tasks if isinstance(task, Communicate)}),
        )  # fmt: skip
        axes = sharded.axes if inputs.num_ranks > 1 else {}
        return Draft(tasks=tasks, axes=axes, resident=resident)


def buffer(name: str, kind: str, elements: float, bytes_each: int) -> Buffer:
    """Device memory of so many elements."""
    return Buffer(name=name, kind=kind, size_bytes=float(elements * bytes_each))

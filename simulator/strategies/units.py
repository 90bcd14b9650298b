"""What is sharded and gathered as one: a model's operations as FSDP units, wrapped as ``fully_shard`` wraps modules.

A module is a dotted prefix of the names of operations: ``layers.3.mlp`` holds ``layers.3.mlp.up``. A unit owns the
parameters of its module that no unit inside it owns; the root owns what is left, such as embedding and output head, and
may own nothing (torch/distributed/fsdp/_fully_shard/_fsdp_init.py, ``_get_managed_states``). What runs after the model,
the loss, is in no unit: the root's hooks run around the model itself.

A block is the module up to the first number in a name, as ``nn.ModuleList`` names its members: ``layers.3``. Of a model
of measured layers each layer is a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from simulator.errors import ScenarioError
from simulator.problems import nearest
from simulator.training.operations import Operation, ParameterTensor, TrainingModel, num_elements

ROOT = "root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One FSDP unit.

    first, last: numbers of the first and last operation inside it, those of units inside it included: its pre-forward
    hook runs before the first, its post-forward hook after the last. owned: numbers of the operations whose parameters
    it owns. parameters: these, in registration order. parent: index of the unit around it; None for the root.
    """

    name: str
    first: int
    last: int
    owned: tuple[int, ...]
    parameters: tuple[ParameterTensor, ...]
    parent: int | None

    @property
    def num_elements(self) -> int:
        """Elements of its own parameters, without padding."""
        return num_elements(self.parameters)

    @property
    def is_root(self) -> bool:
        return self.parent is None


@dataclass(frozen=True, slots=True)
class _Place:
    """A module to wrap, or several blocks in a row, by the operations inside."""

    name: str
    first: int
    last: int


def sharded_units(model: TrainingModel, wrap: str | int | Sequence[str]) -> tuple[Unit, ...]:
    """The units: the root first, then in the order in which their forward starts, outer before inner.

    wrap: 'block' for every block; a number n for n blocks in a row; 'root' for the root alone; or patterns of modules,
    where ``*`` stands for one part of a name (``layers.*.mlp``). Matches may lie inside each other.
    Raises ScenarioError when a pattern matches nothing, when operations of a module are not neighbours, and when two
    units would share a tied parameter.
    """
    body = _body(model)
    if wrap == ROOT:
        places = []
    elif isinstance(wrap, str):
        assert wrap == "block", f"wrap {wrap!r} passed the scenario's check"
        places = list(_rows_of_blocks(model, body, 1))
    elif isinstance(wrap, int):
        places = list(_rows_of_blocks(model, body, wrap))
    else:
        places = _matches(body, wrap)
    units = _nested(model, [_Place(ROOT, 0, len(body) - 1), *places])
    _check_tied(model, units)
    return units


def _body(model: TrainingModel) -> tuple[Operation, ...]:
    """What runs inside the model: all operations but the loss at the end."""
    end = len(model.operations)
    while end > 1 and model.operations[end - 1].kind == "loss":
        end -= 1
    return model.operations[:end]


def _block_of(model: TrainingModel, operation: Operation) -> str | None:
    """Name of the block that an operation is in."""
    if model.measured:
        return operation.name
    parts = operation.name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return None if number is None else ".".join(parts[: number + 1])


def _rows_of_blocks(model: TrainingModel, body: Sequence[Operation], blocks_each: int) -> Iterator[_Place]:
    """So many neighbouring blocks each, the last row perhaps shorter."""
    members: dict[str, list[int]] = {}
    for number, operation in enumerate(body):
        if (name := _block_of(model, operation)) is not None:
            members.setdefault(name, []).append(number)
    blocks = list(members)
    for start in range(0, len(blocks), blocks_each):
        row = blocks[start : start + blocks_each]
        numbers = sorted(number for name in row for number in members[name])
        yield _place(row[0] if len(row) == 1 else f"{row[0]} .. {row[-1]}", numbers, body)


def _place(name: str, numbers: Sequence[int], body: Sequence[Operation]) -> _Place:
    """Raises ScenarioError when something else runs between the operations."""
    inside = set(numbers)
    for number in range(numbers[0], numbers[-1]):
        if number not in inside:
            raise ScenarioError(
                f"parallel.wrap: {name!r} is no unit, as {body[number].name!r} runs between its operations; accepted "
                "are modules whose operations run one after another"
            )
    return _Place(name, numbers[0], numbers[-1])


def _modules(body: Sequence[Operation]) -> dict[str, list[int]]:
    """Every module, by name, with the numbers of its operations."""
    modules: dict[str, list[int]] = {}
    for number, operation in enumerate(body):
        parts = operation.name.split(".")
        for end in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:end]), []).append(number)
    return modules


def _matches(body: Sequence[Operation], patterns: Sequence[str]) -> list[_Place]:
    modules = _modules(body)
    matched: dict[str, None] = {}
    for pattern in patterns:
        found = [name for name in modules if _fits(name, pattern)]
        if not found:
            shapes = dict.fromkeys(_shape(name) for name in modules)
            shown = ", ".join(list(shapes)[:12])
            raise ScenarioError(
                f"parallel.wrap: {pattern!r} matches no module; modules are {shown}{nearest(pattern, shapes)}"
            )
        matched.update(dict.fromkeys(found))
    return [_place(name, modules[name], body) for name in matched]


def _fits(name: str, pattern: str) -> bool:
    """Part by part, so that ``layers.*`` is a block and not all that is inside."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))


def _shape(name: str) -> str:
    """The pattern of a module: numbers are stars."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _nested(model: TrainingModel, places: Sequence[_Place]) -> tuple[Unit, ...]:
    """Outer units before inner ones; each operation's parameters go to the innermost unit around it."""
    places = [places[0], *sorted(dict.fromkeys(places[1:]), key=lambda place: (place.first, -place.last))]
    parents: list[int | None] = [None]
    innermost = dict.fromkeys(range(places[0].first, places[0].last + 1), 0)
    for index, place in enumerate(places[1:], start=1):
        parents.append(innermost[place.first])
        innermost.update(dict.fromkeys(range(place.first, place.last + 1), index))
    owned: list[list[int]] = [[] for _ in places]
    for number, index in innermost.items():
        if model.operations[number].parameters:
            owned[index].append(number)
    order = {tensor.name: number for number, tensor in enumerate(model.parameters)}
    return tuple(
        Unit(
            name=place.name, first=place.first, last=place.last, owned=tuple(numbers), parent=parent,
            parameters=tuple(sorted(
                (tensor for number in numbers for tensor in model.operations[number].parameters),
                key=lambda tensor: order[tensor.name],
            )),
        )
        for place, numbers, parent in zip(places, owned, parents, strict=True)
    )  # fmt: skip


def unit_of(units: Sequence[Unit], number: int) -> Unit:
    """The innermost unit around operation ``number``; the root for what is in none."""
    inside = [unit for unit in units if unit.first <= number <= unit.last]
    return inside[-1] if inside else units[0]


def _check_tied(model: TrainingModel, units: Sequence[Unit]) -> None:
    """One parameter has one owner: the module that uses it again has to be in the same unit.

    Raises ScenarioError for wrappings that torch refuses or that would use a parameter while it is sharded.
    """
    for operation, tensor in model.tied:
        number = next(i for i, op in enumerate(model.operations) if op.name == operation)
        owner = next(unit for unit in units if any(t.name == tensor for t in unit.parameters))
        if unit_of(units, number) is not owner:
            raise ScenarioError(
                f"parallel.wrap: {operation!r} uses {tensor!r}, which belongs to unit {owner.name!r}; tied parameters "
                "have to be in one unit, so wrap neither of the two by itself"
            )

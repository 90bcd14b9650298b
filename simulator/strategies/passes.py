"""The passes of one stage: bare ones, and the first forward and last backward with what the strategy sends in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.pipelines.order import Action, Kind, Pair, PipelineSchedule, actions
from simulator.plan import Buffer, Communicate, Task
from simulator.strategies.hooks import Hooks, Passing, Segment, as_computed, renamed
from simulator.strategies.stages import Stage
from simulator.strategies.step import StepInputs
from simulator.strategies.stretches import (
    INPUTS,
    KEPT,
    Run,
    Stretch,
    casts_of,
    kept_buffers,
    kept_names,
    run,
    run_beside,
    stretch_of,
    transient_of,
    without_casts,
)

#: What each kind of pass gives back, and what it is called beside the stage.
_GIVES_BACK = {"F": (), "B": (KEPT, INPUTS), "I": (KEPT,), "W": (INPUTS,)}
_HALF = {"F": "", "B": "", "I": " (input)", "W": " (weights)"}


def placed(tasks: Sequence[Task], stage: int, role: str) -> Iterator[Task]:
    """A strategy's tasks on the ranks of a stage, under names of their own."""

    def word(name: str) -> str:
        return _of(name, stage)

    for task in tasks:
        yield replace(renamed(task, word, lambda names: tuple(map(word, names))), classes=(role,))


def _of(name: str, stage: int) -> str:
    return f"{name} of stage {stage}"


def _buffer(buffer: Buffer, stage: int) -> Buffer:
    return replace(buffer, name=_of(buffer.name, stage))


class Passes:
    """Makes the tasks of a stage's passes, in the order of its rank.

    inputs: of the whole job, for what calls cost the host. number: of the stage in the schedule; role: its ranks. Where
    another rank has a copy of the stage (DualPipe), both do together what the strategy asks for, so that it is not done
    inside their passes: ``begin``, ``reduce`` and ``update`` then are those of both, and called for one of them.
    output_bytes: of what a forward has sent on, as far as it lives until the backward.
    """

    def __init__(
        self, inputs: StepInputs, stage: Stage, hooks: Hooks, schedule: PipelineSchedule, number: int, role: str,
        output_bytes: float = 0.0,
    ) -> None:  # fmt: skip
        self._output_bytes = output_bytes
        self._inputs, self._stage, self._hooks, self._number = inputs, stage, hooks, stage.number
        self._classes, self._words = (role,), f"stage {number}"
        self._passing = as_computed(stage.inputs)
        self._together = stage.inputs.mirrored
        home = schedule.ranks_of_stages[number]
        own = [action for action in actions(schedule.orders[home]) if action.stage == number]
        grads = [action for action in own if action.kind in ("B", "W")]
        self._split = any(action.kind == "W" for action in own)
        self._first = next(action for action in own if action.kind == "F")
        self._first_grad, self._last_grad = grads[0], grads[-1]
        self._bare: dict[Kind, Stretch] = {}
        self._kept: dict[int, list[tuple[Stretch, str]]] = {}
        self._ends: dict[str, tuple[str, ...]] = {}
        self._sent: list[str] = []
        self._casts: list[str] = []  # copies of weights by autocast, which wraps the whole step

    def run(self, action: Action, waits: tuple[str, ...]) -> Run:
        """A pass after what it waits for."""
        if action == self._first:
            return self._with_hooks(action, self._hooks.forward, waits)
        if action == self._last_grad:
            return self._with_hooks(action, self._hooks.backward, waits)
        stretch, holds = without_casts(self._stretch(action.kind)), self._holds(action, "")
        found = run(
            self._inputs, stretch, self._name(action), part=self._words, classes=self._classes, after=waits,
            holds=holds, allocates=(*self._gradients(action), *self._output(action)), frees=self._gives_back(action),
        )  # fmt: skip
        self._keep(action, stretch, holds)
        return found

    def beside(self, pair: Pair, other: Passes, waits: tuple[str, ...]) -> Run:
        """A forward of this stage and a backward of another, side by side; one after the other where either has hooks
        of the strategy inside.
        """
        one, two = pair.forward, pair.backward
        if one == self._first or two == other._last_grad:
            first = self.run(one, waits)
            second = other.run(two, (*first.ends, *waits))
            return Run(tasks=(*first.tasks, *second.tasks), ends=(*first.ends, *second.ends))
        forward, backward = without_casts(self._stretch("F")), other._stretch("B")
        holds = self._holds(one, "")
        names = (self._name(one), other._name(two))
        brief = transient_of(backward, names[1])
        found = run_beside(
            self._inputs, ((forward, names[0], self._words), (backward, names[1], other._words)),
            classes=self._classes, after=waits,
            allocates=((*kept_buffers(forward, holds), *self._output(one)), (*other._gradients(two), *brief)),
            frees=((), (*other._gives_back(two), *(buffer.name for buffer in brief))),
        )  # fmt: skip
        self._keep(one, forward, holds)
        return found

    def reduced(self) -> tuple[str, ...]:
        """What has been sent in the last backward, and its end: then gradients are as the optimizer needs them."""
        return tuple(self._sent)

    def update(self, waits: tuple[str, ...], roles: tuple[str, ...] = ()) -> Iterator[Task]:
        """The optimizer, and what is sent around it, after ``waits``; on these ranks in the place of the stage's."""
        for number, task in enumerate(self._hooks.update):
            own = replace(self._own(task), classes=roles or self._classes)
            yield replace(own, after=(*own.after, *waits)) if number == 0 or task.kind == "optimizer" else own

    def together(self, segment: Segment, roles: tuple[str, ...], waits: tuple[str, ...]) -> Iterator[Task]:
        """What the strategy sends in a first forward or a last backward, by all copies of the stage."""
        known: set[str] = set()
        for entry in segment:
            if not isinstance(entry, Passing):
                own = self._own(entry)
                known.add(own.name)
                yield replace(own, classes=roles, after=(*(name for name in own.after if name in known), *waits))

    @property
    def hooks(self) -> Hooks:
        """What the strategy does around the passes."""
        return self._hooks

    def _with_hooks(self, action: Action, segment: Segment, waits: tuple[str, ...]) -> Run:
        """A pass in rows, with the strategy's tasks between them."""
        tasks: list[Task] = []
        rows = sum(isinstance(entry, Passing) for entry in segment)
        row = 0
        for entry in segment:
            if not isinstance(entry, Passing):
                if not self._together:
                    tasks.append(own := self._own(entry))
                    self._sent += [own.name] if isinstance(own, Communicate) else []
                continue
            words, first, last = f" ({row + 1})" if row else "", row == 0, row == rows - 1
            stretch = stretch_of(self._passing, entry.numbers, action.kind, split=self._split)
            holds = self._holds(action, words)
            gone = (*self._gives_back(action), *self._casts_at(action))
            found = run(
                self._inputs, stretch, self._name(action) + words, part=self._words, classes=self._classes,
                after=(*waits, *(() if self._together else self._mapped(entry.after))), holds=holds,
                allocates=(
                    *(self._gradients(action) if first else ()), *self._buffers(entry.allocates),
                    *(self._output(action) if last else ()),
                ),
                frees=(*(gone if last else ()), *(_of(name, self._number) for name in entry.frees)),
            )  # fmt: skip
            self._keep(action, without_casts(stretch), holds)
            self._casts += casts_of(stretch, holds)
            self._ends |= dict.fromkeys(entry.names, found.ends)
            tasks += found.tasks
            waits, row = found.ends, row + 1
        self._sent += waits
        return Run(tasks=tuple(tasks), ends=waits)

    def _stretch(self, kind: Kind) -> Stretch:
        if kind not in self._bare:
            every = range(len(self._passing.model.operations))
            self._bare[kind] = stretch_of(self._passing, every, kind, split=self._split)
        return self._bare[kind]

    def _name(self, action: Action) -> str:
        kind = "forward" if action.kind == "F" else "backward"
        return f"{kind} {action.micro_batch}: {self._words}{_HALF[action.kind]}"

    def _holds(self, action: Action, words: str) -> str:
        return f"{self._words}{words} @{action.micro_batch}"

    def _keep(self, action: Action, stretch: Stretch, holds: str) -> None:
        if action.kind == "F":
            self._kept.setdefault(action.micro_batch, []).append((stretch, holds))

    def _output(self, action: Action) -> tuple[Buffer, ...]:
        """What a forward has sent on, for the autograd engine to begin its backward with."""
        if action.kind != "F" or not self._output_bytes:
            return ()
        return (Buffer(name=self._output_name(action), kind="activations", size_bytes=self._output_bytes),)

    def _output_name(self, action: Action) -> str:
        return f"output of {self._words} @{action.micro_batch}"

    def _gives_back(self, action: Action) -> tuple[str, ...]:
        output = (self._output_name(action),) if action.kind in ("B", "I") and self._output_bytes else ()
        return output + tuple(
            name for purpose in _GIVES_BACK[action.kind] for stretch, holds in self._kept.get(action.micro_batch, ())
            for name in kept_names(stretch, holds, purpose)
        )  # fmt: skip

    def _casts_at(self, action: Action) -> tuple[str, ...]:
        """Copies of weights that are given back with a pass: all, with the last backward."""
        return tuple(self._casts) if action == self._last_grad else ()

    def _gradients(self, action: Action) -> tuple[Buffer, ...]:
        """Gradients live from the first backward on."""
        return self._buffers(self._hooks.gradients) if action == self._first_grad else ()

    def _buffers(self, buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(_buffer(buffer, self._number) for buffer in buffers)

    def _own(self, task: Task) -> Task:
        """A strategy's task on this stage, after the rows that hold the operations that it waits for."""
        own = renamed(task, lambda name: _of(name, self._number), self._mapped)
        return replace(own, classes=self._classes)

    def _mapped(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(end for name in names for end in self._ends.get(name, (_of(name, self._number),)))
        )  # fmt: skip

"""Which rank classes of a plan run the collectives of an axis together, apart from all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.plan import Plan, PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """Groups of an axis whose ranks are of the same classes: they run a collective together, apart from all others."""

    classes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]


def kin_of(plan: Plan, axis: str) -> dict[str, Kin]:
    """Class by class, the groups of the axis that its ranks are in.

    Raises PlanError when ranks of one class are in groups of unlike classes: then they are not equal.
    """
    everyone = tuple(c.name for c in plan.classes)
    if len(everyone) == 1:
        return {everyone[0]: Kin(classes=everyone, groups=plan.axes[axis])}
    alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for group, kinds in zip(plan.axes[axis], _kinds_in(plan, plan.axes[axis]), strict=True):
        alike.setdefault(tuple(sorted(set(kinds))), []).append(group)
    found: dict[str, Kin] = {}
    for numbers, groups in alike.items():
        kin = Kin(classes=tuple(everyone[number] for number in numbers), groups=tuple(groups))
        for name in kin.classes:
            if name in found:
                raise PlanError(f"plan '{plan.title}': ranks of class '{name}' are in unlike groups of axis '{axis}'")
            found[name] = kin
    return found


def _kinds_in(plan: Plan, groups: tuple[tuple[int, ...], ...]) -> Iterator[Sequence[int]]:
    """Group by group, the numbers of the classes of its ranks."""
    number = np.empty(max((max(c.ranks) for c in plan.classes), default=0) + 1, dtype=np.int64)
    for place, c in enumerate(plan.classes):
        number[list(c.ranks)] = place
    sizes = [len(group) for group in groups]
    kinds = number[np.fromiter((rank for group in groups for rank in group), dtype=np.int64, count=sum(sizes))].tolist()
    end = 0
    for size in sizes:
        end += size
        yield kinds[end - size : end]

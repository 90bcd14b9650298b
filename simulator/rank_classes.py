"""Ranks that are equal in role, speed and place fold into one class, which is simulated once.

Two ranks are equal when they look alike themselves and, axis by axis, are in groups whose ranks are equal too: the
coarsest equitable partition, found by colour refinement (Paige and Tarjan, SIAM J. Comput. 16(6), 1987). A straggler
splits off alone, its group's other ranks become a class that waits for it, and all other groups stay as they are.

Where chance makes every rank a little different, no two are equal, and folding would keep them all. ``merge_looks``
then lets those that can never be last look alike. Why the step stays what it was: all ranks run the same tasks in the
same order, and each collective waits for the last of its group. Let rank A take at least as long as B for every task
(it dominates B). By induction over the plan, A never reaches the end of a task before B does, as long as a collective
takes all groups of an axis equally long; so B makes nobody wait longer than A does, and the last rank of all is one
that no other dominates. Those stay exactly as they are; for the others only their own waiting is rounded.

It is an approximation where that argument ends: where batches differ and an axis has several groups (of the ranks that
none dominates, one may meet a rounded rank in its group that is later than it for fixed work); where groups of an axis
share links (when others start decides who shares with whom); and where collectives slow the compute beside them (when
they start decides how much of it runs beside them), within what they can slow.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist, median_low

from simulator.plan import RankClass

#: The name of the only class where all ranks are equal.
ALL_RANKS = "all"
#: Up to so many different looks, ranks stay as they are.
FEW_LOOKS = 8
#: (speed, work) of a rank, as in ``plan.RankClass``.
Look = tuple[float, float]
_NORMAL = NormalDist()


def jitter_speed(share: float, seed: int, rank: int) -> float:
    """Speed of a rank whose compute takes exp(share z) times as long, z standard normal.

    z depends on seed and rank alone (BLAKE2b of both, through the inverse of the normal distribution): a larger
    cluster has the ranks of the smaller one and more, so its slowest rank is never faster.
    """
    digest = hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2.0**64  # never 0, and 1 only by rounding
    return math.exp(-share * _NORMAL.inv_cdf(min(uniform, 1.0 - 2.0**-53)))


def merge_looks(looks: Sequence[Look]) -> list[Look]:
    """Looks of which few differ, with the same step time (see the module for when).

    Ranks that no other dominates keep theirs. Of the others, those with equal work get the look of their median.
    Work, which decides about memory and samples, is never changed. Up to FEW_LOOKS looks stay as they are.
    """
    if len(set(looks)) <= FEW_LOOKS:
        return list(looks)
    last = _undominated(set(looks))
    speeds: dict[float, list[float]] = {}
    for speed, work in looks:
        if (speed, work) not in last:
            speeds.setdefault(work, []).append(speed)
    medians = {work: median_low(found) for work, found in speeds.items()}
    return [look if look in last else (medians[look[1]], look[1]) for look in looks]


def _undominated(looks: set[Look]) -> set[Look]:
    """Looks for which no other takes at least as long both for fixed work and for work that grows with the batch.

    From the slowest on, a look stays when it takes longer over its batch than all slower ones.
    """
    found: set[Look] = set()
    longest = -math.inf
    for speed, work in sorted(looks, key=lambda look: (look[0], -look[1])):
        if work / speed > longest:
            longest = work / speed
            found.add((speed, work))
    return found


def fold_ranks(
    looks: Sequence[Look], axes: Mapping[str, tuple[tuple[int, ...], ...]], roles: Sequence[str] | None = None
) -> tuple[RankClass, ...]:
    """Classes of ranks 0, 1, ..., in the order of their first ranks.

    looks: (speed, work) of each rank. roles: what each rank does, where not all do the same: ranks of unlike roles are
    never equal. Cost: ranks times rounds; a round more only when it splits a class. Where all ranks of a role look
    alike there is nothing to refine: roles come from a grid of ranks (``mesh``), in which those of one role differ in
    their place only, so that each is in groups of the same roles.
    """
    colours = _numbered(looks if roles is None else list(zip(roles, looks, strict=True)))
    even = roles is not None and max(colours) + 1 == len(set(roles))
    while not even:
        finer = _numbered(list(zip(colours, *(_seen(colours, groups) for groups in axes.values()), strict=True)))
        if max(finer) == max(colours):
            break
        colours = finer
    members: dict[int, list[int]] = {}
    for rank, colour in enumerate(colours):
        members.setdefault(colour, []).append(rank)
    role_of = [roles[ranks[0]] if roles else "" for ranks in members.values()]
    return tuple(
        RankClass(
            name=_name(ranks, role, alone=role_of.count(role) == 1), ranks=tuple(ranks), speed=looks[ranks[0]][0],
            work=looks[ranks[0]][1], role=role,
        )
        for ranks, role in zip(members.values(), role_of, strict=True)
    )  # fmt: skip


def classes_of_roles(classes: Sequence[RankClass]) -> dict[str, tuple[str, ...]]:
    """Names of the classes of each role, and of all ranks under ``ALL_RANKS``: for ``plan.with_classes``."""
    found: dict[str, list[str]] = {ALL_RANKS: [one.name for one in classes]}
    for one in classes:
        if one.role:
            found.setdefault(one.role, []).append(one.name)
    return {role: tuple(names) for role, names in found.items()}


def _seen(colours: Sequence[int], groups: tuple[tuple[int, ...], ...]) -> list[Hashable]:
    """What each rank sees of its group: the colours in it. None for a rank that is in no group of the axis."""
    seen: list[Hashable] = [None] * len(colours)
    kinds = _numbered([tuple(sorted(colours[rank] for rank in group)) for group in groups])
    for group, kind in zip(groups, kinds, strict=True):
        for rank in group:
            seen[rank] = kind
    return seen


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys get equal numbers, in the order in which they are first seen."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _name(ranks: Sequence[int], role: str, *, alone: bool) -> str:
    """Named after its role, unless that has other classes too; then after its ranks as well."""
    if alone:
        return role or ALL_RANKS
    return f"{role}, {_ranks_in_words(ranks)}" if role else _ranks_in_words(ranks)


def _ranks_in_words(ranks: Sequence[int]) -> str:
    """One, a range, or the first and how many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"{len(ranks)} ranks like {ranks[0]}"

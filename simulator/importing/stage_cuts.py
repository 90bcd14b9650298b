"""Layers of each stage of a pipeline, in the order of the model, as frameworks cut it. Pure functions of whole numbers.

Each raises ValueError, in the framework's words, for numbers that it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

#: Layers and stages that a written layout may come to.
_LONGEST = 100_000


def weighted(layers: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    """torchtitan since mid-2025 (``generate_llm_fqn_per_model_part``): the embedding counts as ``first`` layers, the
    head as ``last``; where they do not come out even, the first stages have one more.
    """
    total = layers + first + last
    if stages > total:
        raise ValueError(f"Number of stages ({stages}) cannot be greater than effective layers ({total})")
    each, more = divmod(total, stages)
    for name, weight in (("input_weight", first), ("output_weight", last)):
        if weight > each:
            raise ValueError(f"{name} ({weight}) exceeds minimum layers per stage ({each})")
    sizes = [each + (number < more) for number in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return tuple(sizes)


def inner_first(layers: int, stages: int) -> tuple[int, ...]:
    """torchtitan of 2024 (``generate_split_points``): where they do not come out even, the second stage and those after
    it have one more, and the last has what is left.
    """
    if stages > layers:
        raise ValueError("Total stages cannot be greater than the number of layers")
    each, more = divmod(layers, stages)
    inner = [each, *(each + (number < more) for number in range(stages - 2))]
    return (*inner, layers - sum(inner))


def at_points(layers: int, points: Sequence[int]) -> tuple[int, ...]:
    """Stages that begin at the layers ``points``, and one before them."""
    ends = [0, *points, layers]
    if any(after < before for before, after in pairwise(ends)):
        raise ValueError(f"expected layers in ascending order, each at most {layers}")
    return tuple(after - before for before, after in pairwise(ends))


def with_ends(layers: int, ranks: int, chunks: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Megatron-LM (``get_num_layers_to_build``): so many layers on the first and the last rank, the rest evenly on the
    others; each rank's layers are spread over its chunks.
    """
    given = [size for size in (first, last) if size is not None]
    inner, rest = ranks - len(given), layers - sum(given)
    if rest < 0 or (inner and rest % inner) or (not inner and rest):
        raise ValueError(f"the {rest} layers that are left must be divisible by the {inner} other pipeline ranks")
    sizes = [rest // inner if inner else 0] * ranks
    sizes[0] = sizes[0] if first is None else first
    sizes[-1] = sizes[-1] if last is None else last
    for size in sizes:
        if size % chunks:
            raise ValueError(f"the {size} layers of a pipeline rank must be divisible by its {chunks} virtual stages")
    return tuple(size // chunks for _ in range(chunks) for size in sizes)


def of_layout(text: str) -> tuple[str, ...]:
    """The stages of Megatron-LM's ``--pipeline-model-parallel-layout``: ``Et*3|(tt|)*2L`` -> ``Ettt, tt, tt, L``.

    E: embedding, t: layer, m: head for further tokens, L: loss. ``*n`` repeats the letter or the bracket before it.
    """
    plain = text.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        while (found := re.search(pattern, plain)) and len(plain) + len(found[1]) * int(found[2]) < _LONGEST:
            plain = plain[: found.start()] + found[1] * int(found[2]) + plain[found.end() :]
    if not re.fullmatch(r"[EtmL|]+", plain):
        raise ValueError("expected letters E, t, m and L, stages apart by |, with *n or (...)*n for what is repeated")
    return tuple(plain.split("|"))

"""TPU slices: 1-, 2- and 3-D tori and meshes, where every chip is also a router."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from simulator.errors import NetworkError
from simulator.network.graph import Cable, Network, Place, assemble, wire
from simulator.topology import TorusSpec


def torus(spec: TorusSpec, *, shape: Sequence[int] | None = None) -> Network:
    """A chip at each point, in row-major order (last axis fastest); a cable to the next one on each axis.

    An axis that wraps also joins its two ends; one of length 1 or 2 has no wrap cable to add.
    """
    lengths = tuple(shape) if shape is not None else spec.shape
    wrap = wraps(spec, lengths)
    link = wire(spec.link, "ici")
    names = {point: "chip" + ".".join(map(str, point)) for point in product(*map(range, lengths))}
    places = [Place(name, "gpu", "gpu", 0, i // spec.gpus_per_node) for i, name in enumerate(names.values())]
    cables = [
        Cable(names[point], names[(*point[:axis], (point[axis] + 1) % length, *point[axis + 1 :])], link)
        for axis, length in enumerate(lengths)
        for point in names
        if point[axis] + 1 < length or wrap[axis]
    ]
    return assemble(
        name=spec.name, kind=spec.kind, routing="dimension-order", places=places, cables=cables, library=spec.library,
        domains=[0] * len(places), torus_shape=lengths, torus_wrap=wrap,
    )  # fmt: skip


def wraps(spec: TorusSpec, lengths: Sequence[int]) -> tuple[bool, ...]:
    """Which axes wrap, by the spec's rules. An axis shorter than 3 never does: both ways round are the same cable."""
    rules = spec.wrap * len(lengths) if len(spec.wrap) == 1 else spec.wrap
    if len(rules) != len(lengths):
        raise NetworkError(
            f"wrap: {len(rules)} rules for a shape of {len(lengths)} axes; give one per axis or one for all"
        )
    fours = all(n % 4 == 0 for n in lengths)
    return tuple(
        length > 2 and {"always": True, "never": False, "multiple-of-4": fours, "full-axis-16": length == 16}[rule]
        for rule, length in zip(rules, lengths, strict=True)
    )

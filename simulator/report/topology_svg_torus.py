"""A torus as a grid, a 3-D one as layers along its first axis. Dashed stubs at an edge are links that wrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.network.graph import Network
from simulator.report import svg
from simulator.report.topology_svg_parts import FILL, margin_labels, shortened

PITCH, CHIP, STUB = 58.0, 42.0, 20.0


def torus(
    network: Network, colours: Mapping[str, str], rates: Mapping[str, str], left: float, top: float
) -> tuple[list[str], float, float]:
    """At most four layers of at most 16 x 16 chips; text says what is left out."""
    assert network.torus_shape is not None
    assert network.torus_wrap is not None
    shape = (1,) * (3 - len(network.torus_shape)) + network.torus_shape
    wrap = (False,) * (3 - len(network.torus_wrap)) + network.torus_wrap
    room = 16 if shape[0] == 1 else 8
    rows, columns = shortened(shape[1], room), shortened(shape[2], room)
    width, height = len(columns) * PITCH + 2 * STUB, len(rows) * PITCH + 2 * STUB
    colour = next(iter(colours.values()))
    elements: list[str] = []
    x, y = left, top + 20
    drawn = shortened(shape[0], 4)
    for i, layer in enumerate(drawn):
        if layer is None:
            elements.append(
                svg.text(x + 55, y + height / 2 - 22, f"... {shape[0] - len(drawn) + 1:,}", size=16, bold=True)
            )
            elements.append(svg.text(x + 55, y + height / 2 + 34, "more layers", size=14))
            elements.append(svg.line(x, y + height / 2, x + 110, y + height / 2, colour=colour, thick=6))
            x += 110
            continue
        elements += _layer(shape, wrap, (layer, rows, columns), x, y, colour)
        if shape[0] > 1:
            elements.append(svg.text(x + width / 2, y + height + 18, f"layer {layer}", size=15, colour=svg.GREY))
        if i + 1 < len(drawn):
            elements.append(svg.line(x + width, y + height / 2, x + width + 40, y + height / 2, colour=colour, thick=6))
        x += width + (40 if i + 1 < len(drawn) else 0)
    bottom = y + height + (30 if shape[0] > 1 else 8)
    words = _notes(network.torus_shape, network.torus_wrap)
    notes = [svg.text(left, bottom + 24 + 22 * i, line, size=15, anchor="start") for i, line in enumerate(words)]
    labels = margin_labels({next(iter(colours)): y + height / 2}, colours, rates)
    return elements + notes + labels, max(x, left + 640), bottom + 24 + 22 * len(words)


def _layer(
    shape: Sequence[int], wrap: Sequence[bool], what: tuple[int, Sequence[int | None], Sequence[int | None]],
    x: float, y: float, colour: str,
) -> list[str]:  # fmt: skip
    layer, rows, columns = what
    last_x, last_y = x + STUB + (len(columns) - 0.5) * PITCH, y + STUB + (len(rows) - 0.5) * PITCH
    first_x, first_y = x + STUB + PITCH / 2, y + STUB + PITCH / 2
    elements = [svg.box(x, y, len(columns) * PITCH + 2 * STUB, len(rows) * PITCH + 2 * STUB, fill="#FAFAFA",
                        stroke=svg.GREY)]  # fmt: skip
    for i in range(len(rows)):
        cy = first_y + i * PITCH
        elements.append(svg.line(first_x, cy, last_x, cy, colour=colour))
        if wrap[2]:
            elements += [svg.line(x, cy, first_x, cy, colour=colour, dashed=True),
                         svg.line(last_x, cy, last_x + PITCH / 2 + STUB, cy, colour=colour, dashed=True)]  # fmt: skip
    for j in range(len(columns)):
        cx = first_x + j * PITCH
        elements.append(svg.line(cx, first_y, cx, last_y, colour=colour))
        if wrap[1]:
            elements += [svg.line(cx, y, cx, first_y, colour=colour, dashed=True),
                         svg.line(cx, last_y, cx, last_y + PITCH / 2 + STUB, colour=colour, dashed=True)]  # fmt: skip
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            cx, cy = first_x + j * PITCH, first_y + i * PITCH
            if row is None or column is None:
                elements.append(svg.label_box(cx, cy, CHIP, CHIP, "...", fill="white", size=16))
            else:
                rank = (layer * shape[1] + row) * shape[2] + column
                elements.append(svg.label_box(cx, cy, CHIP, CHIP, f"{rank}", fill=FILL["gpu"], size=14))
    return elements


def _notes(shape: Sequence[int], wrap: Sequence[bool]) -> list[str]:
    words = [f"Shape {' x '.join(map(str, shape))}. A box is a chip with its rank; '...' stands for the ones left out."]
    wrapping = [f"axis {axis}" for axis, on in enumerate(wrap) if on]
    if wrapping:
        words.append(f"Wraps round on {', '.join(wrapping)}: dashed ends of a row or column meet.")
    else:
        words.append("No axis wraps: this slice is a mesh.")
    if len(shape) == 3 and shape[0] > 1:
        ring = f", and layer {shape[0] - 1} to layer 0" if wrap[0] else ""
        words.append(
            f"Each chip also links to the same place in the next layer{ring}: {shape[1] * shape[2]:,} cables a pair."
        )
    return words

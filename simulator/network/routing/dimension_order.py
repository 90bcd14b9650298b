"""Axis after axis through a torus or mesh."""

from __future__ import annotations

import numpy as np

from simulator.network.graph import Ints
from simulator.network.routing.wiring import Router, Wiring


def dimension_order(wiring: Wiring) -> Router:
    """Axis by axis, the short way round an axis that wraps; half-way ties go up from even coordinates, else down."""
    shape = np.array(wiring.shape, dtype=np.int64)
    stride = np.array([int(np.prod(wiring.shape[axis + 1 :])) for axis in range(len(shape))], dtype=np.int64)
    position = np.full(wiring.level.size, -1, dtype=np.int64)
    position[wiring.gpu] = np.arange(wiring.gpu.size)
    steps = _torus_steps(wiring, position, shape, stride)

    def router(src: Ints, dst: Ints) -> Ints:
        here, columns = src.copy(), []
        for axis, length in enumerate(wiring.shape):
            start, end = (src // stride[axis]) % length, (dst // stride[axis]) % length
            ahead = (end - start) % length
            if wiring.wrap[axis]:
                forward = (2 * ahead < length) | ((2 * ahead == length) & (start % 2 == 0))
            else:
                forward = end > start
            left = np.where(forward, ahead, (start - end) % length)
            while np.any(left > 0):
                link = np.where(left > 0, steps[here, axis, np.where(forward, 1, 0)], -1)
                here = np.where(left > 0, position[wiring.head[link]], here)
                columns.append(link)
                left = left - 1
        return np.stack(columns, axis=1) if columns else np.empty((src.size, 0), dtype=np.int64)

    return router


def _torus_steps(wiring: Wiring, position: Ints, shape: Ints, stride: Ints) -> Ints:
    """(num_gpus, axes, 2) link to the neighbour below [0] and above [1] on each axis, -1 at an open end."""
    tail, head = position[wiring.tail], position[wiring.head]
    steps = np.full((wiring.gpu.size, shape.size, 2), -1, dtype=np.int64)
    for axis in range(shape.size):
        start, end = (tail // stride[axis]) % shape[axis], (head // stride[axis]) % shape[axis]
        same_line = (tail - start * stride[axis]) == (head - end * stride[axis])
        for direction, move in ((0, -1), (1, 1)):
            wrapped = (start + move) % shape[axis] if wiring.wrap[axis] else start + move
            hit = np.flatnonzero(same_line & (end == wrapped) & (tail != head))
            steps[tail[hit], axis, direction] = hit
    return steps

"""Shortest paths over any graph, for topologies written out by hand."""

from __future__ import annotations

import numpy as np

from simulator.network.graph import Ints
from simulator.network.routing.wiring import Router, Wiring, mix


def shortest(wiring: Wiring) -> Router:
    """Fewest links over any graph; a GPU forwards for others only where nothing else leads there."""
    out_links: list[list[int]] = [[] for _ in range(wiring.level.size)]
    for link, tail in enumerate(wiring.tail):
        out_links[int(tail)].append(link)
    distances: dict[tuple[int, bool], Ints] = {}

    def distance(target: int, transit: bool) -> Ints:
        if (target, transit) not in distances:
            distances[target, transit] = _distances_to(wiring, out_links, target, transit)
        return distances[target, transit]

    def open_to(place: int, target: int) -> bool:
        return place == target or not wiring.is_gpu[place]

    def walk(src: int, dst: int) -> list[int]:
        here, target = int(wiring.gpu[src]), int(wiring.gpu[dst])
        transit = bool(distance(target, False)[here] < 0)
        left, salt, path = distance(target, transit), int(mix(np.array([src]), np.array([dst]))[0]), []
        while here != target:
            closer = [link for link in out_links[here] if left[wiring.head[link]] == left[here] - 1]
            ways = [link for link in closer if transit or open_to(int(wiring.head[link]), target)]
            path.append(ways[salt % len(ways)])
            here = int(wiring.head[path[-1]])
        return path

    def router(src: Ints, dst: Ints) -> Ints:
        paths = [walk(int(s), int(d)) for s, d in zip(src, dst, strict=True)]
        padded = np.full((src.size, max(map(len, paths), default=0)), -1, dtype=np.int64)
        for i, path in enumerate(paths):
            padded[i, : len(path)] = path
        return padded

    return router


def _distances_to(wiring: Wiring, out_links: list[list[int]], target: int, transit: bool) -> Ints:
    """(num_places,) links from each place to ``target``, -1 where none leads. Cables are two-way: search outwards."""
    distance = np.full(wiring.level.size, -1, dtype=np.int64)
    distance[target] = 0
    frontier = [target]
    while frontier:
        onward: list[int] = []
        for place in frontier:
            if wiring.is_gpu[place] and place != target and not transit:
                continue
            for link in out_links[place]:
                neighbour = int(wiring.head[link])
                if distance[neighbour] < 0:
                    distance[neighbour] = distance[place] + 1
                    onward.append(neighbour)
        frontier = onward
    return distance

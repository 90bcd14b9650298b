"""What a timed collective gives: a row per size and algorithm, and where the winner changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """algbw = size / time; busbw = algbw x nccl-tests' factor. wire_bytes_per_rank: most bytes that a rank sends.

    root: of broadcast, reduce, scatter and gather; -1 for the others, as nccl-tests prints.
    padding_bytes: added so that every rank's slice is equally large; sent, but not counted in algbw.
    """

    op: str
    p: int
    root: int
    size_bytes: float
    padding_bytes: float
    algorithm: str
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    steps: int
    messages: int
    wire_bytes_per_rank: float
    fidelity: str
    handed_over: str
    fastest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """The size at which two algorithms take the same time: ``below`` wins under it, ``above`` over it."""

    op: str
    p: int
    size_bytes: float
    below: str
    above: str

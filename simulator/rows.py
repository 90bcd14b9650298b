"""What a timed collective gives: a row per size and algorithm, and where the winner changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """algbw = size / time; busbw = algbw x nccl-tests' factor. wire_bytes_per_rank: most bytes that a rank sends.

    root: of broadcast, reduce, scatter and gather; -1 for the others, as nccl-tests prints.
    groups: how many groups of p ranks ran at the same time; ``time_s`` is that of the slowest of them, the other
    columns are of one group. fastest_group_s: time of the fastest group.
    library: name of the communication library's profile.
    protocol: of the library; 'Simple' where messages are played. picked: what the library runs for this size among the
    rows' algorithms, the fastest where it has no choice of its own; believed_s: what its own cost model expects, None
    without one.
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
    groups: int
    fastest_group_s: float
    library: str
    protocol: str
    picked: bool
    believed_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way in which the library could run a collective, for ``--explain``.

    believed_s: what the library's own cost model expects, None without one; time_s = latency_s + transfer_s by measured
    constants. picked: what the library runs, and ``chosen_by`` what decides; fastest: the least time_s.
    """

    op: str
    p: int
    size_bytes: float
    algorithm: str
    protocol: str
    believed_s: float | None
    time_s: float
    latency_s: float
    transfer_s: float
    picked: bool
    fastest: bool
    chosen_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """The size at which two algorithms take the same time: ``below`` wins under it, ``above`` over it."""

    op: str
    p: int
    size_bytes: float
    below: str
    above: str

"""What playing one schedule on a network gives: the same for all engines."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine.wires import Wires
from simulator.schedule import Floats, Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Times and traffic of one collective.

    finish_s: (num_ranks,) when each rank is done, launch included; starts are absolute, so this is too.
    time_s: from the first rank's call (before its launch) to the last rank's end.
    link_bytes: (num_links,) bytes carried by each link of the network.
    fidelity: 'vector' and 'message' are exact; 'lockstep' is an estimate.
    handed_over: why the vector engine refused, when it did; else ''.
    lower_s, upper_s: certified bracket of ``time_s``: what no transfer order can beat, and what no sharing of links can
        exceed. Both are ``time_s`` where that is exact.
    """

    finish_s: Floats
    time_s: float
    num_steps: int
    num_messages: int
    sent_bytes: Floats
    received_bytes: Floats
    link_bytes: Floats
    fidelity: str
    handed_over: str
    lower_s: float
    upper_s: float


def outcome(
    schedule: Schedule, wires: Wires, starts_s: Floats, finish_s: Floats, fidelity: str, handed_over: str = ""
) -> Outcome:
    """Times, taken as exact, with the traffic that belongs to them, which is the schedule's whatever the times are."""
    time_s = float(finish_s.max() - starts_s.min())
    link_bytes = wires.link_chunks(schedule) * schedule.chunk_bytes
    return Outcome(
        finish_s=finish_s, time_s=time_s, lower_s=time_s, upper_s=time_s, num_steps=schedule.num_steps,
        num_messages=schedule.num_messages, sent_bytes=schedule.sent_bytes(),
        received_bytes=schedule.received_bytes(), link_bytes=link_bytes[:-1], fidelity=fidelity,
        handed_over=handed_over,
    )  # fmt: skip

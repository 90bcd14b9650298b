"""Plays our schedules for real: each process is a rank and sends with torch.distributed isend/irecv on gloo.

Started as ``python real_schedule.py RANK WORLD RENDEZVOUS_FILE JOBS_FILE`` by test_real_schedules.py on loopback and by
tests/lab on shaped links; needs torch 2.13.0. JOBS_FILE holds a list of jobs; rank r prints what it measured as JSON.

Kinds of job:
- 'play': collectives (``parts``: op, algorithm, size_bytes, the ranks of the world that take part, the arguments of
  their Layout), all parts at the same agreed instant, ``repeats`` times after ``warm_up`` times. Says when this rank
  started and ended each time, seconds from that instant, and whether its data was always exactly what is promised.
- 'ping': messages of each size there and back between two ranks; the times one way.
- 'cross': two messages at once, in both directions between two ranks; when this rank was done with both.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from simulator.collectives import make_schedule
from simulator.collectives.layout import Layout
from simulator.collectives.promise import promise
from simulator.schedule import Schedule

ELEMENT = torch.int32
ELEMENT_BYTES = 4
#: What a rank holds where the collective does not give it data: an algorithm that reads it is found out.
POISON = -(2**30)
#: From the agreement on an instant to that instant, s: long enough for everyone to hear of it.
NOTICE_S = 0.01


class Message(NamedTuple):
    """One transfer seen from one end. ``chunks`` is a slice of the buffer where they follow each other, else their ids.

    reduce: whether the receiver adds.
    """

    peer: int
    tag: int
    chunks: Any
    count: int
    reduce: bool


class Step(NamedTuple):
    """This rank's part in one step."""

    sends: list[Message]
    receives: list[Message]


def chunks_of(ids: np.ndarray) -> Any:
    """Chunk ids as a slice where possible, so that nothing is copied."""
    first, count = int(ids[0]), len(ids)
    return slice(first, first + count) if (ids == first + np.arange(count)).all() else torch.from_numpy(ids.copy())


def my_steps(schedule: Schedule, rank: int, ranks: list[int]) -> list[Step]:
    """The steps that ``rank`` of the schedule has a part in; peers as ranks of the world.

    A tag is the number of the transfer in the whole schedule, so that no two messages are taken for each other.
    """
    assert not schedule.num_switches, "a switch is no process"
    found, tag = [], 0
    for phase in schedule.phases:
        src, dst, counts = phase.pattern.src, phase.pattern.dst, phase.pattern.chunks
        adds = np.broadcast_to(phase.reduce, src.shape)
        stops = np.cumsum(counts)
        for number in range(phase.steps):
            moved = phase.moves(number)

            def message(i: int, peer: int, moved: np.ndarray = moved, first: int = tag) -> Message:
                ids = moved[stops[i] - counts[i] : stops[i]]  # noqa: B023 - called within this phase
                return Message(ranks[peer], first + i, chunks_of(ids), len(ids), bool(adds[i]))  # noqa: B023

            sends = [message(int(i), int(dst[i])) for i in np.flatnonzero(src == rank)]
            receives = [message(int(i), int(src[i])) for i in np.flatnonzero(dst == rank)]
            if sends or receives:
                found.append(Step(sends, receives))
            tag += len(src)
    return found


def play(mine: list[Step], buffer: torch.Tensor, scratch: torch.Tensor) -> None:
    """One rank's part, by the step rule: the next step begins when all sends and receives of this one are done.

    buffer: (num_chunks, elements). All receives of a step are posted before its sends. Gloo sends data once it has the
    receiver's notice, and notices share the pair's one connection with data (gloo/transport/tcp/pair.cc, ``tx_``): a
    notice posted behind a send waits for all of its data, and so does the other direction. With sends first, what
    exchanges between the same two ranks takes longer at 4 hosts: direct up to 2 times, halving-doubling 1.65 times,
    pairwise 1.3 times. Rings of three and more and trees do not; a ring of two would.
    What is sent is what the rank held when the step began, since received data waits in ``scratch`` until its end.
    """
    for step in mine:
        row, landed, pending = 0, [], []
        for message in step.receives:
            room = scratch[row : row + message.count]
            pending.append(dist.irecv(room, message.peer, tag=message.tag))
            landed.append(room)
            row += message.count
        pending += [dist.isend(buffer[m.chunks].contiguous(), m.peer, tag=m.tag) for m in step.sends]
        for work in pending:
            work.wait()
        for message, room in zip(step.receives, landed, strict=True):
            land(message, room, buffer)


def land(message: Message, room: torch.Tensor, buffer: torch.Tensor) -> None:
    """Add what arrived to the buffer, or put it there."""
    if not message.reduce:
        buffer[message.chunks] = room
    elif isinstance(message.chunks, slice):
        buffer[message.chunks] += room
    else:
        buffer.index_add_(0, message.chunks, room)


class Part:
    """One collective of a job, as this process sees it: its steps, its data, and what must come out."""

    def __init__(self, wanted: dict[str, Any], world_rank: int) -> None:
        self.ranks = wanted["ranks"]
        schedule = make_schedule(wanted["op"], wanted["algorithm"], layout(wanted["layout"]), wanted["size_bytes"])
        elements = schedule.chunk_bytes / ELEMENT_BYTES
        assert elements == int(elements), f"chunks of {schedule.chunk_bytes} B hold no whole elements"
        self.takes_part = world_rank in self.ranks
        if not self.takes_part:
            return
        rank = self.ranks.index(world_rank)
        self.steps = my_steps(schedule, rank, self.ranks)
        goal = promise(schedule)
        shape = (schedule.num_chunks, int(elements))
        of_rank = [number(r, shape) for r in range(schedule.num_ranks)]
        self.held, self.must_hold = (torch.from_numpy(held[rank]) for held in (goal.start, goal.end))
        self.own = torch.where(self.held[:, None], of_rank[rank], POISON)
        self.expected = torch.zeros(shape, dtype=ELEMENT)
        for contributor, values in enumerate(of_rank):
            self.expected += torch.from_numpy(goal.contributors[:, contributor])[:, None] * values
        self.buffer = torch.empty_like(self.own)
        widest = max((sum(m.count for m in step.receives) for step in self.steps), default=0)
        self.scratch = torch.zeros((widest, shape[1]), dtype=ELEMENT)

    def prepare(self) -> None:
        """Put the data of the start back."""
        if self.takes_part:
            self.buffer.copy_(self.own)

    def run(self) -> None:
        """Play this rank's part."""
        if self.takes_part:
            play(self.steps, self.buffer, self.scratch)

    def right(self) -> bool:
        """Whether every promised chunk holds, element by element, what the collective promises."""
        return not self.takes_part or torch.equal(self.buffer[self.must_hold], self.expected[self.must_hold])


def layout(arguments: dict[str, Any]) -> Layout:
    """A Layout from JSON, whose lists are its tuples."""
    return Layout(**{key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()})


def number(rank: int, shape: tuple[int, int]) -> torch.Tensor:
    """A rank's data: integers that differ by rank, chunk and element, small enough for exact sums."""
    chunk = torch.arange(shape[0], dtype=ELEMENT)[:, None]
    element = torch.arange(shape[1], dtype=ELEMENT)[None, :]
    return (rank + 1) * 1009 + chunk * 31 + element % 997


def agreed_instant(rank: int) -> float:
    """Wait for everyone, then for an instant that rank 0 names; the processes share one clock. Returns it."""
    dist.barrier()
    instant = torch.tensor([time.perf_counter() + NOTICE_S if rank == 0 else 0.0], dtype=torch.float64)
    dist.broadcast(instant, 0)
    begin = float(instant)
    time.sleep(max(0.0, begin - time.perf_counter()))
    return begin


def played(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Play the parts together, again and again."""
    parts = [Part(part, rank) for part in job["parts"]]
    mine = [part for part in parts if part.takes_part]
    assert len(mine) <= 1, "a rank takes part in one collective at a time"
    starts, ends, right = [], [], True
    for _ in range(job["warm_up"] + job["repeats"]):
        for part in mine:
            part.prepare()
        begin = agreed_instant(rank)
        starts.append(time.perf_counter() - begin)
        for part in mine:
            part.run()
        ends.append(time.perf_counter() - begin)
        dist.barrier()  # who is done first must not take the others' processor to look at its data
        right = right and all(part.right() for part in mine)
    starts, ends = starts[job["warm_up"] :], ends[job["warm_up"] :]
    return {"starts_s": starts, "ends_s": ends, "right": right} if mine else {"right": right}


def pinged(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Times one way, by size: half of there and back, one round after the other. One round more comes first."""
    times: dict[str, list[float]] = {}
    for size in job["sizes_bytes"]:
        buffer = torch.zeros(size, dtype=torch.uint8)
        agreed_instant(rank)
        if rank not in job["ranks"]:
            continue
        first, other = job["ranks"][0] == rank, job["ranks"][job["ranks"][0] == rank]
        rounds = []
        for _ in range(1 + job["repeats"]):
            begin = time.perf_counter()
            for sends in (first, not first):
                (dist.send if sends else dist.recv)(buffer, other)
            rounds.append((time.perf_counter() - begin) / 2)
        times[str(size)] = rounds[1:]
    return {"times_s": times}


def crossed(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Two ranks send each other a message at once; ``first`` says what they post first, 'irecv' or 'isend'.

    ``between_s``: what passes between the two posts. Times until both messages are over, by this rank.
    """
    there, back = torch.zeros(job["size_bytes"], dtype=torch.uint8), torch.zeros(job["size_bytes"], dtype=torch.uint8)
    times = []
    for _ in range(1 + job["repeats"]):
        begin = agreed_instant(rank)
        if rank not in job["ranks"]:
            continue
        other = job["ranks"][job["ranks"][0] == rank]
        posts = [(dist.irecv, back), (dist.isend, there)]
        pending = []
        for post, buffer in posts if job["first"] == "irecv" else posts[::-1]:
            pending.append(post(buffer, other))
            time.sleep(job["between_s"])
        for work in pending:
            work.wait()
        times.append(time.perf_counter() - begin)
    return {"ends_s": times[1:] or None}


KINDS = {"play": played, "ping": pinged, "cross": crossed}


def main() -> None:
    """Join the others, do every job, print what this rank found."""
    rank, world, rendezvous, jobs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    found = [KINDS[job["kind"]](job, rank) for job in json.loads(Path(jobs).read_text(encoding="utf-8"))]
    print(json.dumps(found), flush=True)
    dist.barrier()
    # All is said: end here, since gloo's threads may abort a process whose interpreter is taken down under them.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

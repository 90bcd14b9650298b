"""Timeline -> Chrome trace events, as Perfetto, chrome://tracing and Holistic Trace Analysis (HTA) read them. Pure.

One process per shown rank; in it a thread per stream, and one with the step, its phases and its layers. Names,
categories and arguments follow PyTorch's profiler (Kineto), so that its tools work. What the readers demand:

* Perfetto counts whole nanoseconds and wants the slices of a thread to nest: every time is rounded to a nanosecond
  once, so neighbours touch and never overlap, and is written such that rounding and truncating readers agree.
* Perfetto ties a flow event to the slice that is open where it stands: behind its slice in the file, and in its time.
* HTA takes a kernel for communication by its name (``nccl...``), and for a kernel at all by ``args.stream``.

Limits: the host has a thread only where issuing takes time (with launches made up for it, HTA would blame the host for
all idle time), with one event per task and no CUDA calls; so HTA's launch statistics, queue lengths and critical path
find nothing. The counter of what a rank sends shows the mean of each collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulator.plan import COMPUTE_LANE, Communicate, Compute, Plan, RankClass
from simulator.report.intervals import Interval, minus, total, union
from simulator.report.lanes import host_lane
from simulator.report.trace_counters import Event, links_used, memory_counter, ns, sending, us
from simulator.report.trace_flows import Flow, Meeting, flows_of, key, meetings_of
from simulator.timeline import Span, Timeline

#: Thread of the step, its phases and its layers. PyTorch computes on CUDA's stream 7; NCCL gets later ones.
STEP_THREAD, HOST_THREAD, COMPUTE_STREAM, FIRST_COMM_STREAM = 1, 2, 7, 20

#: Kinds of compute that a step consists of; copies and waits lie in between.
PHASES = ("forward", "backward", "optimizer")
#: NCCL's kernels by operation. What NCCL builds from sends and receives has one name, SENDRECV.
NCCL_KERNELS = {
    "all_reduce": "AllReduce_Sum", "reduce_scatter": "ReduceScatter_Sum", "reduce": "Reduce_Sum",
    "all_gather": "AllGather", "broadcast": "Broadcast",
}  # fmt: skip
SENDRECV = "ncclDevKernel_SendRecv"

#: Words by which HTA takes a kernel for no computation (hta.common.types); a layer may well be called so.
_MISREAD = (("Memcpy", "memcpy"), ("Memset", "memset"), ("Sync", "sync"), ("dma", "DMA"), ("ncclKernel", "nccl kernel"))


def trace_events(timeline: Timeline, shown: Sequence[RankClass]) -> Iterator[Event]:
    """Events of the representatives of ``shown``, classes of ``timeline.plan``; times in microseconds.

    Metadata first, then slices in start order with their flow events behind them, then counters.
    """
    streams, has_host = streams_of(timeline.plan), timeline.host_ahead_s is not None
    for ranks in shown:
        yield from _metadata(ranks, streams, has_host)
    for ranks in shown:
        yield from _step_events(timeline, ranks)
    yield from _kernels(timeline, {ranks.name: ranks.representative for ranks in shown}, streams)
    for ranks in shown:
        yield from _host_events(timeline, ranks)
    for ranks in shown:
        yield from sending(timeline, ranks, STEP_THREAD)
        yield from links_used(timeline, ranks, STEP_THREAD)
        yield from memory_counter(timeline, ranks, STEP_THREAD)


def streams_of(plan: Plan) -> dict[str, int]:
    """Stream of each lane: compute, then communicators and copies in the order in which the plan first uses them."""
    lanes = dict.fromkeys(task.lane for task in plan.tasks if task.lane != COMPUTE_LANE)
    return {COMPUTE_LANE: COMPUTE_STREAM} | {lane: FIRST_COMM_STREAM + i for i, lane in enumerate(lanes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """Slices of one category on one thread."""

    pid: int
    tid: int
    cat: str

    def slice(self, name: str, start_s: float, end_s: float, args: Event | None = None) -> Event:
        start, end = ns(start_s), ns(end_s)
        event: Event = {"ph": "X", "cat": self.cat, "name": name, "pid": self.pid, "tid": self.tid}
        event |= {"ts": us(start), "dur": us(end - start)}
        return event | {"args": args} if args else event


def _metadata(ranks: RankClass, streams: Mapping[str, int], has_host: bool) -> Iterator[Event]:
    pid, count = ranks.representative, len(ranks.ranks)
    host = {HOST_THREAD: "host thread"} if has_host else {}
    threads = {STEP_THREAD: "step"} | host | {stream: f"stream {stream}: {lane}" for lane, stream in streams.items()}

    def meta(what: str, tid: int, value: Event) -> Event:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": value}

    yield meta("process_name", STEP_THREAD, {"name": f"rank {pid}"})
    if count > 1:
        yield meta("process_labels", STEP_THREAD, {"labels": f"stands for {count} equal ranks"})
    yield meta("process_sort_index", STEP_THREAD, {"sort_index": pid})
    for tid, name in threads.items():
        yield meta("thread_name", tid, {"name": name})
        yield meta("thread_sort_index", tid, {"sort_index": tid})


def _step_events(timeline: Timeline, ranks: RankClass) -> Iterator[Event]:
    """The step, in it the phases (forward, backward, optimizer), in them the layers."""
    compute = [s for s in timeline.of_class(ranks.name) if s.task.lane == COMPUTE_LANE]
    phases = _runs(compute, lambda task: task.kind if task.kind in PHASES else "")
    count, seen = Counter(kind for kind, _ in phases), Counter[str]()
    track = _Track(pid=ranks.representative, tid=STEP_THREAD, cat="user_annotation")
    yield track.slice("ProfilerStep#1", 0.0, timeline.end_s)
    for kind, spans in phases:
        phase = f"{kind} {seen[kind]}" if count[kind] > 1 else kind
        seen[kind] += 1
        yield track.slice(phase, spans[0].start_s, spans[-1].end_s)
        for layer, parts in _runs(spans, lambda task: task.part):
            yield track.slice(f"{phase} {layer}", parts[0].start_s, parts[-1].end_s)


def _runs(spans: Iterable[Span], named: Callable[[Compute], str]) -> list[tuple[str, list[Span]]]:
    """Neighbours of the same name, looking past spans without one."""
    runs: list[tuple[str, list[Span]]] = []
    for span in spans:
        assert isinstance(span.task, Compute), "phases and layers are made of compute"
        name = named(span.task)
        if runs and runs[-1][0] == name:
            runs[-1][1].append(span)
        elif name:
            runs.append((name, [span]))
    return runs


def _kernels(timeline: Timeline, pids: Mapping[str, int], streams: Mapping[str, int]) -> Iterator[Event]:
    """What runs on the streams: a slice per span, and around a collective one that says which it is."""
    spans = [span for span in timeline.spans if span.ranks in pids]
    flows, busy = flows_of(spans), _busy(spans)
    meetings: dict[tuple[str, str], list[Meeting]] = {}
    for meeting in meetings_of(timeline.plan, spans):
        for end in (meeting.last, meeting.waiting):
            meetings.setdefault(key(end), []).append(meeting)
    for number, span in enumerate(spans, start=1):
        pid, stream = pids[span.ranks], streams[span.task.lane]
        args: Event = {"stream": stream, "device": pid, "correlation": number, "alone_us": us(ns(span.alone_s))}
        if isinstance(span.task, Communicate):
            label = _Track(pid=pid, tid=stream, cat="gpu_user_annotation")
            yield label.slice(span.task.name, span.start_s, span.end_s)
            args |= _collective_args(span, span.task, timeline, busy.get(span.ranks, ()))
        else:
            args |= {"kind": span.task.kind, "part": span.task.part}
        name = _kernel_name(span, timeline)
        yield _Track(pid=pid, tid=stream, cat="kernel").slice(name, span.start_s, span.end_s, args)
        for flow in flows.get(key(span), ()):
            yield _flow_event(flow, span, pid, stream)
        for meeting in meetings.get(key(span), ()):
            yield from _meeting_event(meeting, span, pid, stream)


def _busy(spans: Iterable[Span]) -> dict[str, list[Interval]]:
    """When each class computes."""
    working: dict[str, list[Interval]] = {}
    for span in spans:
        if span.task.lane == COMPUTE_LANE:
            working.setdefault(span.ranks, []).append((span.start_s, span.end_s))
    return {ranks: union(intervals) for ranks, intervals in working.items()}


def _kernel_name(span: Span, timeline: Timeline) -> str:
    """What PyTorch's profiler would show: NCCL's kernel for a collective; else the task."""
    task = span.task
    if isinstance(task, Communicate):
        kernel = NCCL_KERNELS.get(task.op)
        return f"ncclDevKernel_{kernel}_{timeline.costs[task.name].algorithm.upper()}" if kernel else SENDRECV
    return _harmless(task.name)


def _harmless(name: str) -> str:
    """A name by which HTA takes no task for something else."""
    for word, harmless in _MISREAD:
        name = name.replace(word, harmless)
    return name


def _collective_args(span: Span, task: Communicate, timeline: Timeline, busy: Sequence[Interval]) -> Event:
    cost = timeline.costs[task.name]
    exposed_s = total(minus([(span.start_s, span.end_s)], busy))
    return {
        "collective": task.op, "algorithm": cost.algorithm, "bytes": round(task.message_bytes),
        **({"repeat": task.repeat} if task.repeat > 1 else {}),
        "purpose": task.purpose, "exposed_us": us(ns(exposed_s)), "latency_us": us(ns(cost.latency_s)),
        "Process Group Name": task.axis, "Group size": cost.group_size, "steps": cost.num_steps,
        "sent_bytes_per_rank": round(cost.sent_bytes_per_rank), "fidelity": cost.fidelity,
    }  # fmt: skip


def _flow_event(flow: Flow, span: Span, pid: int, stream: int) -> Event:
    """The end of an arrow that lies on ``span``: it leaves late in its source and enters at a start."""
    start, end = ns(span.start_s), ns(span.end_s)
    event: Event = {"cat": "dependency", "name": "ready", "id": flow.number, "pid": pid, "tid": stream}
    if span is flow.source:
        # within the slice, even of one nanosecond: at its end the next slice is open
        late = end - min(1000, (end - start + 1) // 2)
        return {"ph": "s", **event, "ts": us(late)}
    return {"ph": "f" if span is flow.target else "t", "bp": "e", **event, "ts": us(start)}


def _meeting_event(meeting: Meeting, span: Span, pid: int, stream: int) -> Iterator[Event]:
    """An end of the arrow from the rank that comes last, where it comes, to one that waits, a nanosecond later: of
    events at the same time Perfetto takes the first in the file first.
    """
    time, last, waiting = ns(meeting.last.start_s), meeting.last, meeting.waiting
    if not (ns(waiting.start_s) < time < ns(waiting.end_s) - 1 and time < ns(last.end_s)):
        return  # within so little they meet at once
    event: Event = {"cat": "meeting", "name": "last to come", "id": meeting.number, "pid": pid, "tid": stream}
    end: Event = {"ph": "s", "ts": us(time)} if span is last else {"ph": "f", "bp": "e", "ts": us(time + 1)}
    yield {**end, **event}


def _host_events(timeline: Timeline, ranks: RankClass) -> Iterator[Event]:
    """What the host thread issues, and when it waits for the device before it goes on."""
    track = _Track(pid=ranks.representative, tid=HOST_THREAD, cat="cpu_op")
    for issue in host_lane(timeline, ranks):
        if issue.start_s > issue.ready_s:
            yield track.slice(
                "wait for the device", max(issue.ready_s, 0.0), issue.start_s, {"for": list(issue.task.host_after)}
            )
        if issue.end_s > max(issue.start_s, 0.0):  # what was issued before the step began is not shown
            yield track.slice(f"issue {_harmless(issue.task.name)}", max(issue.start_s, 0.0), issue.end_s)

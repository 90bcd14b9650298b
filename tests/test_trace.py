"""What a trace promises its readers: the timeline's times, slices that nest, arrows that land, the same bytes twice.

``perfetto`` below reads events as Perfetto's importer does (google/perfetto, importers/json/json_trace_parser_impl.cc):
stable sort by whole nanoseconds, one stack of open slices per thread, flow events tied to the innermost open slice.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.engine.interference import Interference
from simulator.engine.run import simulate
from simulator.errors import ScenarioError
from simulator.load import load_device, load_topology
from simulator.network.builders import build_network
from simulator.plan import Buffer, Communicate, Compute, Plan, RankClass
from simulator.report import trace as trace_module
from simulator.report.trace import check_target, write_trace
from simulator.report.trace_events import NCCL_KERNELS, trace_events, us
from simulator.schedule import Floats
from simulator.timeline import CollectiveCost, Span, Timeline

Event = dict[str, Any]
NETWORK = build_network(load_topology("uniform"), nodes=6)
CLOCKS: dict[str, Callable[[float], int]] = {
    "rounds": lambda x: round(x * 1000.0), "truncates": lambda x: int(x * 1000.0),
}  # fmt: skip
NO_LINKS: Floats = np.zeros(0)
#: Each example runs the engine, so fewer than by default.
some = settings(max_examples=60)


@dataclass(eq=False)
class Slice:
    event: Event
    start: int
    end: int


@dataclass
class Seen:
    """What an importer makes of a trace: slices, flow ends by id with the slice that each is tied to, complaints."""

    slices: list[Slice] = field(default_factory=list)
    flows: dict[int, list[tuple[str, Slice]]] = field(default_factory=lambda: defaultdict(list))
    meetings: dict[int, list[tuple[str, Slice]]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)


def perfetto(events: list[Event], clock: str = "rounds") -> Seen:
    ns, seen = CLOCKS[clock], Seen()
    stacks: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] in "Xstf"), key=lambda e: ns(e["ts"])):
        stack, start = stacks[event["pid"], event["tid"]], ns(event["ts"])
        if event["ph"] == "X":
            while stack and stack[-1].end <= start:
                stack.pop()
            new = Slice(event, start, start + ns(event["dur"]))
            if stack and new.end > stack[-1].end:
                seen.problems.append(f"{new} ends after the slice around it")
            stack.append(new)
            seen.slices.append(new)
        elif not stack or not stack[-1].start <= start <= max(stack[-1].start, stack[-1].end - 1):
            seen.problems.append(f"{event} is outside the open slice")
        else:
            arrows = seen.flows if event["cat"] == "dependency" else seen.meetings
            arrows[event["id"]].append((event["ph"], stack[-1]))
    return seen


def one_class(*ranks: int) -> tuple[RankClass, ...]:
    return (RankClass(name="all", ranks=ranks or tuple(range(4))),)


def compute(name: str, kind: str, part: str = "", after: tuple[str, ...] = (), ranks: str = "all") -> Compute:
    return Compute(name=name, kind=kind, classes=(ranks,), seconds=1.0, part=part, after=after)


def collective(name: str, op: str = "all_reduce", after: tuple[str, ...] = ()) -> Communicate:
    return Communicate(name=name, op=op, axis="dp", algorithm="auto", message_bytes=8e6, classes=("all",), after=after)


def by_hand(
    *spans: tuple[Compute | Communicate, float, float], classes: tuple[RankClass, ...] = one_class()
) -> Timeline:
    """A timeline of one class from (task, start, end) in ms; each rank sends 12 MB in a collective."""
    tasks = tuple(task for task, *_ in spans)
    cost = CollectiveCost(
        algorithm="ring", group_size=4, num_steps=6, num_messages=24, sent_bytes_per_rank=12e6, alone_s=1e-3,
        latency_s=5e-6, fidelity="vector", handed_over="",
    )  # fmt: skip
    return Timeline(
        plan=Plan(title="by hand", classes=classes, axes={"dp": ((0, 1, 2, 3),)}, tasks=tasks),
        spans=tuple(
            Span(task=task, ranks="all", start_s=start / 1e3, end_s=end / 1e3, alone_s=(end - start) / 1e3)
            for task, start, end in spans
        ),
        costs={task.name: cost for task in tasks if isinstance(task, Communicate)},
        end_s=max((end for *_, end in spans), default=0.0) / 1e3, link_names=(), link_bytes=NO_LINKS,
        link_bytes_per_s=NO_LINKS, fidelity="coflow", events=len(spans),
    )  # fmt: skip


def events_of(timeline: Timeline) -> list[Event]:
    return json.loads(json.dumps(list(trace_events(timeline, timeline.plan.classes)), allow_nan=False))


def kernels(events: list[Event]) -> list[Event]:
    return [e for e in events if e.get("cat") == "kernel"]


def counter(events: list[Event], name: str) -> list[Event]:
    return [e for e in events if e["ph"] == "C" and e["name"] == name]


STEP = by_hand(
    (compute("forward 0: a.up", "forward", "a"), 0, 1),
    (compute("forward 0: a.down", "forward", "a"), 1, 2),
    (compute("backward 0: a", "backward", "a"), 2, 5),
    (compute("scale bucket 0", "copy"), 5, 6),
    (compute("backward 0: e", "backward", "e", after=()), 6, 8),
    (collective("all-reduce bucket 0", after=("scale bucket 0",)), 6, 9),
    (collective("all-reduce bucket 1", after=("backward 0: e",)), 9, 10),
    (compute("optimizer", "optimizer", after=("all-reduce bucket 0", "all-reduce bucket 1")), 10, 11),
)


def test_a_rank_is_a_process_and_a_stream_a_thread() -> None:
    events = events_of(STEP)
    assert {(e["name"], e["pid"], e["tid"], *e["args"].values()) for e in events if e["ph"] == "M"} == {
        ("process_name", 0, 1, "rank 0"), ("process_labels", 0, 1, "stands for 4 equal ranks"),
        ("process_sort_index", 0, 1, 0),
        ("thread_name", 0, 1, "step"), ("thread_sort_index", 0, 1, 1),
        ("thread_name", 0, 7, "stream 7: compute"), ("thread_sort_index", 0, 7, 7),
        ("thread_name", 0, 20, "stream 20: comm dp"), ("thread_sort_index", 0, 20, 20),
    }  # fmt: skip
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in kernels(events)] == [
        ("forward 0: a.up", 7, 0.0, 1000.0), ("forward 0: a.down", 7, 1000.0, 1000.0),
        ("backward 0: a", 7, 2000.0, 3000.0), ("scale bucket 0", 7, 5000.0, 1000.0),
        ("backward 0: e", 7, 6000.0, 2000.0), ("ncclDevKernel_AllReduce_Sum_RING", 20, 6000.0, 3000.0),
        ("ncclDevKernel_AllReduce_Sum_RING", 20, 9000.0, 1000.0), ("optimizer", 7, 10000.0, 1000.0),
    ]  # fmt: skip


def test_the_step_holds_its_phases_and_they_their_layers() -> None:
    slices = [s for s in perfetto(events_of(STEP)).slices if s.event["tid"] == 1]
    assert [(s.event["name"], s.start / 1e6, s.end / 1e6) for s in slices] == [
        ("ProfilerStep#1", 0, 11), ("forward", 0, 2), ("forward a", 0, 2), ("backward", 2, 8), ("backward a", 2, 5),
        ("backward e", 6, 8), ("optimizer", 10, 11),
    ]  # fmt: skip


def test_micro_batches_are_numbered() -> None:
    tasks = [compute(f"{kind} {i}: a", kind, "a") for i in range(2) for kind in ("forward", "backward")]
    timeline = by_hand(*((task, i, i + 1) for i, task in enumerate(tasks)))
    names = [e["name"] for e in events_of(timeline) if e.get("cat") == "user_annotation"]
    assert [n for n in names if not n.endswith(" a")] == [
        "ProfilerStep#1", "forward 0", "backward 0", "forward 1", "backward 1"
    ]  # fmt: skip


def test_arrows_lead_from_the_backward_that_filled_a_bucket_through_the_copy_to_its_all_reduce_and_on() -> None:
    flows = perfetto(events_of(STEP)).flows
    ends = [[(phase, s.event["name"], s.start / 1e6) for phase, s in flow] for flow in flows.values()]
    assert ends == [
        [("s", "backward 0: a", 2), ("t", "scale bucket 0", 5), ("f", "ncclDevKernel_AllReduce_Sum_RING", 6)],
        [("s", "backward 0: e", 6), ("f", "ncclDevKernel_AllReduce_Sum_RING", 9)],
        [("s", "ncclDevKernel_AllReduce_Sum_RING", 9), ("f", "optimizer", 10)],
    ]


def test_a_collective_says_what_it_is_and_how_much_of_it_shows() -> None:
    first, second = (e["args"] for e in kernels(events_of(STEP)) if e["tid"] == 20)
    assert (first["exposed_us"], second["exposed_us"]) == (1000.0, 1000.0)  # [6, 9] ms against compute until 8 ms
    expected = {"collective": "all_reduce", "bytes": 8_000_000, "algorithm": "ring", "Group size": 4, "stream": 20}
    assert expected.items() <= first.items()
    assert isinstance(first["bytes"], int)  # HTA takes no other number for bytes
    labels = [e["name"] for e in events_of(STEP) if e.get("cat") == "gpu_user_annotation"]
    assert labels == ["all-reduce bucket 0", "all-reduce bucket 1"]


def test_the_counter_shows_bytes_over_time_while_a_collective_runs() -> None:
    points = [(e["ts"], e["args"]["GB/s"]) for e in counter(events_of(STEP), "sent")]
    assert points == [(6000.0, 4.0), (9000.0, 12.0), (10000.0, 0.0)]  # 12 MB in 3 ms, then in 1 ms


def test_the_memory_counter_shows_every_kind_and_the_peak() -> None:
    """1 GiB of weights; 2 GiB of activations from 0 to 3 ms, 4 GiB of gradients from 1 ms on: 7 GiB at 1 ms.

    At 3 ms the activations go before the next 1 GiB of them comes.
    """
    gib = 2.0**30
    a = replace(compute("a", "forward"), allocates=(Buffer(name="x", kind="activations", size_bytes=2 * gib),))
    b = replace(
        compute("b", "forward"), allocates=(Buffer(name="g", kind="grads", size_bytes=4 * gib),), frees=("x",)
    )  # fmt: skip
    c = replace(compute("c", "forward"), allocates=(Buffer(name="y", kind="activations", size_bytes=gib),))
    timeline = by_hand((a, 0, 1), (b, 1, 3), (c, 3, 4))
    weights = Buffer(name="w", kind="params", size_bytes=gib)
    timeline = replace(timeline, plan=replace(timeline.plan, resident=(weights,)))
    points = [(e["ts"], *e["args"].values()) for e in counter(events_of(timeline), "memory (GiB)")]
    assert points == [(0.0, 1.0, 0.0, 2.0), (1000.0, 1.0, 4.0, 2.0), (3000.0, 1.0, 4.0, 1.0)]
    assert list(counter(events_of(timeline), "memory (GiB)")[0]["args"]) == ["params", "grads", "activations"]


def test_a_peak_that_lasts_for_no_time_is_in_the_memory_counter() -> None:
    moment = replace(
        compute("a", "wait"), seconds=0.0, allocates=(Buffer(name="x", kind="gathered", size_bytes=2.0**31),),
        frees=("x",),
    )  # fmt: skip
    points = counter(events_of(by_hand((moment, 1, 1), (compute("b", "forward"), 1, 2))), "memory (GiB)")
    assert [(e["ts"], e["args"]) for e in points] == [
        (0.0, {"gathered": 0.0}), (1000.0, {"gathered": 2.0}), (1000.0, {"gathered": 0.0})
    ]  # fmt: skip


def test_the_host_thread_has_a_lane_where_issuing_takes_time() -> None:
    """1 ms to issue each; before the second it waits for the first, which runs from 1 to 3 ms."""
    first = replace(compute("forward 0: a", "forward"), seconds=2e-3, host_s=1e-3)
    second = replace(compute("forward 0: Sync", "forward"), host_s=1e-3, host_after=("forward 0: a",))
    everyone = one_class()
    plan = Plan(title="host", classes=everyone, axes={}, tasks=(first, replace(second, seconds=1e-3)))
    events = events_of(simulate(plan, NETWORK))
    host = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 2]
    assert host == [
        ("issue forward 0: a", 0.0, 1000.0), ("wait for the device", 1000.0, 2000.0),
        ("issue forward 0: sync", 3000.0, 1000.0),
    ]  # fmt: skip
    assert ("thread_name", "host thread") in {(e["name"], e["args"].get("name")) for e in events if e["ph"] == "M"}
    assert not any(e["tid"] == 2 for e in events_of(STEP))


def test_copies_on_a_lane_of_their_own_have_a_stream_and_no_place_in_the_phases() -> None:
    copy_in = replace(compute("copy in a", "copy", "a"), lane="copy-in")
    work = [compute(f"forward 0: a.{i}", "forward", "a") for i in range(2)]
    wait = replace(compute("wait for a", "wait"), seconds=0.0)
    timeline = by_hand((copy_in, 0, 1), (work[0], 1, 2), (wait, 2, 2), (work[1], 2, 3))
    events = events_of(timeline)
    assert {e["name"]: e["tid"] for e in kernels(events)} == {
        "copy in a": 20, "forward 0: a.0": 7, "wait for a": 7, "forward 0: a.1": 7
    }  # fmt: skip
    phases = [(e["name"], e["ts"]) for e in events if e.get("cat") == "user_annotation"]
    assert phases == [("ProfilerStep#1", 0.0), ("forward", 1000.0), ("forward a", 1000.0)]


@pytest.mark.parametrize(
    ("op", "kernel"),
    [(op, f"ncclDevKernel_{name}_RING") for op, name in NCCL_KERNELS.items()]
    + [(op, "ncclDevKernel_SendRecv") for op in ("scatter", "gather", "all_to_all")],
)
def test_collectives_carry_the_names_of_nccl_kernels_and_the_algorithm_that_ran(op: str, kernel: str) -> None:
    assert kernels(events_of(by_hand((collective("x", op), 0, 1))))[0]["name"] == kernel


@pytest.mark.parametrize("layer", ["SyncBatchNorm", "Memcpy", "Memset", "cudma", "ncclKernel"])
def test_no_layer_name_makes_hta_drop_a_kernel(layer: str) -> None:
    timeline = by_hand((compute(f"forward 0: {layer}", "forward", layer), 0, 1))
    (event,) = kernels(events_of(timeline))
    # hta.common.types of traceinsight 0.6.1: ComputeKernelGroupingPattern and CommunicateKernelGroupingPattern
    assert not re.match(r"(^nccl)|(.*Memcpy)|(.*Memset)|(.*dma)|(^.*Sync)|(.*ncclKernel.*)", event["name"])
    assert event["args"]["part"] == layer


@given(st.integers(min_value=0, max_value=10**15))
@example(1001)  # in floats, 1.001 * 1000 is less than 1001
def test_microseconds_give_the_nanoseconds_back_to_readers_that_round_and_that_truncate(ns: int) -> None:
    assert round(us(ns) * 1000.0) == int(us(ns) * 1000.0) == ns
    assert us(ns) == pytest.approx(ns / 1000, rel=1e-15)


def test_neighbours_that_end_between_nanoseconds_touch() -> None:
    """[0.6, 2.2] ns is 1.6 ns long: rounded by itself that is 2 ns, which would reach into the next slice."""
    edges = [0.0, 0.6e-6, 2.2e-6, 3.0e-6]
    timeline = by_hand(*((compute(f"t{a}", "forward"), a, b) for a, b in itertools.pairwise(edges)))
    seen = perfetto([e for e in events_of(timeline) if e.get("cat") == "kernel"])
    assert [(s.start, s.end) for s in seen.slices] == [(0, 1), (1, 2), (2, 3)]
    assert seen.problems == []


SECONDS = st.one_of(
    st.floats(min_value=0, max_value=2e-3, allow_subnormal=False), st.sampled_from([0.0, 1e-10, 1e-9, 1.5e-9, 1e-6])
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any small plan: up to three classes of up to two ranks, two communicators, arrows to whatever came before."""
    sizes = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    classes = tuple(
        RankClass(name=f"c{i}", ranks=tuple(range(a, a + n)))
        for i, (a, n) in enumerate(zip(starts, sizes, strict=True))
    )
    everyone = tuple(range(sum(sizes)))
    tasks: list[Compute | Communicate] = []
    for number in range(draw(st.integers(0, 12))):
        earlier = st.lists(st.sampled_from([t.name for t in tasks]), max_size=2) if tasks else st.just([])
        after = tuple(dict.fromkeys(draw(earlier)))
        if draw(st.booleans()):
            kind = draw(st.sampled_from(["forward", "backward", "copy", "optimizer"]))
            ranks, part = draw(st.sampled_from([c.name for c in classes])), draw(st.sampled_from(["", "a", "b"]))
            tasks.append(
                Compute(name=f"t{number}", kind=kind, classes=(ranks,), seconds=draw(SECONDS), part=part, after=after)
            )
        else:
            op, algorithm = draw(
                st.sampled_from([("all_reduce", "ring"), ("all_gather", "ring"), ("broadcast", "tree")])
            )
            tasks.append(Communicate(
                name=f"t{number}", op=op, axis=draw(st.sampled_from(["dp", "tp"])), algorithm=algorithm, after=after,
                message_bytes=draw(st.sampled_from([0.0, 1.0, 1e5, 3e7])), classes=tuple(c.name for c in classes),
            ))  # fmt: skip
    return Plan(title="any", classes=classes, axes={"dp": (everyone,), "tp": (everyone,)}, tasks=tuple(tasks))


TIMELINES = st.builds(
    lambda plan, core_share, fidelity: simulate(
        plan, NETWORK, interference=Interference(core_share=core_share), fidelity=fidelity
    ),
    plans(), st.sampled_from([0.0, 0.13]), st.sampled_from(["coflow", "message"]),
)  # fmt: skip


@some
@given(TIMELINES)
def test_every_span_is_one_kernel_to_a_nanosecond(timeline: Timeline) -> None:
    pids = {c.name: c.representative for c in timeline.plan.classes}
    found = kernels(events_of(timeline))
    assert len(found) == len(timeline.spans)
    for span, event in zip(timeline.spans, found, strict=True):
        assert event["pid"] == pids[span.ranks]
        assert (event["tid"] == 7) == (span.task.lane == "compute")
        assert event["ts"] / 1e6 == pytest.approx(span.start_s, abs=0.501e-9)
        assert event["dur"] / 1e6 == pytest.approx(span.duration_s, abs=1.001e-9)


@some
@given(TIMELINES, st.sampled_from(sorted(CLOCKS)))
def test_slices_nest_on_every_thread_and_every_arrow_lands_in_its_slices(timeline: Timeline, clock: str) -> None:
    seen = perfetto(events_of(timeline), clock)
    assert seen.problems == []
    for flow in seen.flows.values():
        assert [phase for phase, _ in flow] in (["s", "f"], ["s", "t", "f"])
        for (_, one), (_, other) in itertools.pairwise(flow):
            assert one.end <= other.start
            assert one is not other


@some
@given(TIMELINES)
def test_an_arrow_leads_from_what_a_task_waited_for_to_the_last_on_another_lane(timeline: Timeline) -> None:
    events = events_of(timeline)
    spans = dict(zip((e["args"]["correlation"] for e in kernels(events)), timeline.spans, strict=True))
    arrows = {}
    for flow in perfetto(events).flows.values():
        *_, last, target = (spans[end.event["args"]["correlation"]] for _, end in flow)
        arrows[target.task.name, target.ranks] = last
    for span in timeline.spans:
        waited = [s for name in span.task.after for s in timeline.spans if s.task.name == name]
        own = {s.task.name for s in waited if s.ranks == span.ranks}
        waited = [s for s in waited if s.ranks == span.ranks or s.task.name not in own]
        waited = [s for s in waited if (s.task.lane, s.ranks) != (span.task.lane, span.ranks)]
        last = arrows.pop((span.task.name, span.ranks), None)
        assert (last is None) == (not waited)
        if last is not None:
            assert last in waited
            assert last.end_s == max(s.end_s for s in waited)
            assert last.ranks == span.ranks or all(s.end_s < last.end_s for s in waited if s.ranks == span.ranks)
    assert not arrows


@some
@given(TIMELINES)
def test_an_arrow_leads_from_the_rank_that_comes_last_to_each_that_waits_for_it(timeline: Timeline) -> None:
    events = events_of(timeline)
    spans = dict(zip((e["args"]["correlation"] for e in kernels(events)), timeline.spans, strict=True))
    arrows = {}
    for ends in perfetto(events).meetings.values():
        assert [phase for phase, _ in ends] == ["s", "f"]
        last, waiting = (spans[end.event["args"]["correlation"]] for _, end in ends)
        assert last.task is waiting.task
        arrows[waiting.task.name, waiting.ranks] = last
    for span in timeline.spans:
        comes = [s.start_s for s in timeline.spans if s.task is span.task]
        arrow = arrows.pop((span.task.name, span.ranks), None)
        if arrow is not None:
            assert arrow.start_s == max(comes)
        elif isinstance(span.task, Communicate):
            ended = min(s.end_s for s in timeline.spans if s.task is span.task)
            assert max(comes) - span.start_s < 1.5e-9 or ended - max(comes) < 2.5e-9, "it waited for somebody"
    assert not arrows


def test_the_links_counter_shows_how_full_the_busiest_link_of_each_tier_is() -> None:
    """A ring all-reduce of 8 MB over 4 ranks sends 12 MB over each link of 50 GB/s: 0.24 ms of the time it runs."""
    plan = Plan(
        title="ring", classes=one_class(), axes={"dp": ((0, 1, 2, 3),)},
        tasks=(replace(collective("all-reduce bucket 0"), algorithm="ring"),),
    )  # fmt: skip
    timeline = simulate(plan, NETWORK)
    (span,) = timeline.spans
    full, none = ([*e["args"].values()] for e in counter(events_of(timeline), "busiest links (%)"))
    needed_s = timeline.link_bytes.max() / timeline.link_bytes_per_s.max()
    assert timeline.link_bytes.max() == pytest.approx(12e6)
    assert full == pytest.approx([100 * needed_s / span.duration_s], abs=1e-3)
    assert none == [0.0]


def test_two_collectives_at_once_fill_a_link_to_a_hundred_percent_at_most() -> None:
    tasks = tuple(
        Communicate(
            name=f"gather {lane}", op="all_gather", axis="dp", algorithm="ring", message_bytes=4e8, classes=("all",),
            communicator=lane,
        ) for lane in ("one", "two")
    )  # fmt: skip
    timeline = simulate(Plan(title="two", classes=one_class(), axes={"dp": ((0, 1, 2, 3),)}, tasks=tasks), NETWORK)
    shares = [max(e["args"].values()) for e in counter(events_of(timeline), "busiest links (%)")]
    assert max(shares) == pytest.approx(100.0, abs=1.0)
    assert max(shares) <= 100.0


@some
@given(TIMELINES)
def test_exposed_is_the_time_of_a_collective_in_which_its_rank_computes_nothing(timeline: Timeline) -> None:
    for span, event in zip(timeline.spans, kernels(events_of(timeline)), strict=True):
        if not isinstance(span.task, Communicate):
            continue
        work = [s for s in timeline.of_class(span.ranks) if s.task.lane == "compute"]
        inside = [t for s in work for t in (s.start_s, s.end_s) if span.start_s < t < span.end_s]
        cuts = sorted({span.start_s, span.end_s, *inside})
        exposed_s = sum(
            b - a for a, b in itertools.pairwise(cuts)
            if not any(s.start_s <= (a + b) / 2 < s.end_s for s in work)
        )  # fmt: skip
        assert event["args"]["exposed_us"] / 1e6 == pytest.approx(exposed_s, abs=1.001e-9)


@some
@given(TIMELINES)
def test_the_counter_adds_up_to_the_bytes_that_were_sent(timeline: Timeline) -> None:
    events = events_of(timeline)
    for ranks in timeline.plan.classes:
        points = [(e["ts"], e["args"]["GB/s"]) for e in counter(events, "sent") if e["pid"] == ranks.representative]
        counted = sum(rate * (b - a) * 1e3 for (a, rate), (b, _) in itertools.pairwise(points))
        sent = sum(
            timeline.costs[s.task.name].sent_bytes_per_rank for s in timeline.of_class(ranks.name)
            if isinstance(s.task, Communicate) and s.duration_s > 1e-9
        )  # fmt: skip
        assert counted == pytest.approx(sent, rel=1e-3, abs=1.0)
        assert not points or points[-1][1] == 0.0


def read(path: Path) -> dict[str, Any]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_file_says_whose_it_is_and_is_the_same_twice(tmp_path: Path, name: str) -> None:
    one, other = tmp_path / "one" / name, tmp_path / "other" / f"another-{name}"
    device = load_device("h100-sxm5-80gb")
    for path in (one, other):
        path.parent.mkdir()
        summary = write_trace(STEP, path, device=device)
    assert one.read_bytes() == other.read_bytes()
    if name.endswith(".gz"):
        assert one.read_bytes()[3:8] == bytes(5)  # RFC 1952: no flags (so no file name), no time
    content = read(one)
    assert content["traceEvents"] == events_of(STEP)
    assert content["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 4}
    assert content["schemaVersion"] == 1
    assert content["deviceProperties"] == [
        {"id": 0, "name": device.title, "totalGlobalMem": round(device.memory), "numSms": 132}
    ]
    assert (summary.files, summary.ranks, summary.warnings) == ((other,), (0,), ())
    assert summary.num_events == len(content["traceEvents"])
    assert summary.size_bytes == other.stat().st_size


def test_the_first_rank_in_the_text_is_the_rank_of_the_file(tmp_path: Path) -> None:
    """HTA looks for it line by line, with a space behind the colon (hta.common.trace_file)."""
    write_trace(by_hand((compute("x", "forward"), 0, 1), classes=one_class(3)), tmp_path / "x.json")
    match = re.search(r'"rank":\s+(\d+)', (tmp_path / "x.json").read_text())
    assert match is not None
    assert match[1] == "3"


def many(count: int) -> Timeline:
    classes = tuple(RankClass(name=f"rank {r}", ranks=(r,)) for r in range(count))
    names = tuple(c.name for c in classes)
    task = Compute(name="forward 0: a", kind="forward", classes=names, seconds=1e-3, part="a")
    plan = Plan(title="many", classes=classes, axes={}, tasks=(task,))
    spans = tuple(Span(task=task, ranks=name, start_s=0.0, end_s=1e-3, alone_s=1e-3) for name in names)
    return Timeline(
        plan=plan, spans=spans, costs={}, end_s=1e-3, link_names=(), link_bytes=NO_LINKS, link_bytes_per_s=NO_LINKS,
        fidelity="message", events=count,
    )  # fmt: skip


def test_a_file_shows_sixteen_ranks_and_says_when_there_are_more(tmp_path: Path) -> None:
    assert write_trace(many(16), tmp_path / "x.json").warnings == ()
    summary = write_trace(many(17), tmp_path / "x.json")
    assert summary.ranks == tuple(range(16))
    assert summary.warnings == ("the trace shows the first 16 of 17 different ranks",)
    assert [e["name"] for e in kernels(read(tmp_path / "x.json")["traceEvents"])] == ["forward 0: a"] * 16


def test_a_directory_gets_a_file_per_rank_and_old_ranks_are_pointed_out(tmp_path: Path) -> None:
    target = f"{tmp_path}/new/deep/"
    summary = write_trace(many(2), target)
    assert [f.name for f in summary.files] == ["rank_0.json.gz", "rank_1.json.gz"]
    assert [read(f)["distributedInfo"]["rank"] for f in summary.files] == [0, 1]
    assert [{e["pid"] for e in read(f)["traceEvents"]} for f in summary.files] == [{0}, {1}]
    assert summary.warnings == ()
    (warning,) = write_trace(many(1), Path(target)).warnings
    assert "rank_1.json.gz" in warning


def test_a_trace_too_large_for_a_browser_is_written_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MANY_EVENTS", 10)
    (warning,) = write_trace(STEP, tmp_path / "x.json").warnings
    assert "events" in warning
    assert read(tmp_path / "x.json")["traceEvents"]


@pytest.mark.parametrize("target", ["", "trace", "trace.gz", "trace.txt", "trace.JSON"])
def test_another_name_is_refused_with_what_is_accepted(target: str) -> None:
    for refuse in (check_target, lambda name: write_trace(STEP, name)):
        with pytest.raises(ScenarioError, match=r"--trace: .*expected FILE\.json, FILE\.json\.gz, or a directory"):
            refuse(target)


@pytest.mark.parametrize("target", ["none/x.json", "file/x.json.gz", "file/"])
def test_what_cannot_be_written_is_an_error_of_the_user(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ScenarioError, match=r"--trace: .*(No such file|Not a directory|File exists)"):
        write_trace(STEP, f"{tmp_path}/{target}")


def test_a_plan_without_tasks_has_a_step_and_nothing_in_it() -> None:
    events = events_of(by_hand())
    assert [e["name"] for e in events if e["ph"] == "X"] == ["ProfilerStep#1"]
    assert not math.isnan(events[-1]["dur"])

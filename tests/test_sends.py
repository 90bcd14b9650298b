"""Who waits for what stages send each other: in what order passes and messages come, and what that costs.

Sources: torch.distributed.pipelining 2.13 (schedules.py) and Megatron-LM (pipeline_parallel/schedules.py,
p2p_communication.py); what torch really does is held against real runs in test_real_pipelines.py and tests/lab.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_pipelined_steps import MB, layers, played, step_inputs

from simulator.errors import ScenarioError
from simulator.pipelines import PIPELINES, pipeline_schedule
from simulator.pipelines.messages import message_after
from simulator.pipelines.order import Action, Pair, PipelineSchedule, actions
from simulator.pipelines.playing import StageTimes, play
from simulator.strategies.meetings import Passed, Sent, in_order
from simulator.strategies.sends import (
    AHEAD,
    BETWEEN,
    EARLY,
    RUNTIME,
    TORCH_1F1B,
    TORCH_GPIPE,
    WAITING,
    Sends,
    places,
    receivers_of,
    sends_of,
)

#: What runs with which schedules: late receives belong to one stage on each rank.
SINGLE, ANY = (BETWEEN, TORCH_1F1B, TORCH_GPIPE), (AHEAD, RUNTIME, EARLY, WAITING)


def events(schedule: PipelineSchedule, sends: Sends, weights: tuple[float, ...] = (1.0,)) -> list[Passed | Sent]:
    times = [
        StageTimes(weights[n % len(weights)], weights[n % len(weights)], 1.0) for n in range(schedule.stages_per_chain)
    ]
    spans = [[(span.start, span.end) for span in row] for row in play(schedule, times).spans]
    return list(in_order(schedule, spans, receivers_of(schedule), sends))


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(PIPELINES)), p=st.sampled_from([2, 3, 4, 6]), m=st.integers(1, 12),
    v=st.sampled_from([None, 1, 2, 3]), number=st.integers(0, 3), both_ways=st.booleans(),
    weights=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10)),
)  # fmt: skip
def test_nothing_comes_before_what_it_waits_for(
    name: str, p: int, m: int, v: int | None, number: int, both_ways: bool, weights: tuple[float, ...]
) -> None:
    """Every pass once and in its rank's order, after the message that it needs; every message once, after the pass that
    makes it and after its receiver has come to where it asks. No rank waits for ever, however unlike the stages.
    """
    try:
        schedule = pipeline_schedule(name, p, m, v)
    except ScenarioError:
        assume(False)
    kinds = (*SINGLE, *ANY) if schedule.chunks == 1 and name in ("1f1b", "gpipe") else ANY
    found = events(schedule, replace(kinds[number % len(kinds)], both_ways=both_ways), weights)
    over: list[int] = [0] * p
    sent: set[Action] = set()
    made: set[Action] = set()
    for event in found:
        if isinstance(event, Sent):
            assert event.message.after in made
            assert event.asked <= over[event.message.target]
            assert sent.issuperset(event.behind)
            sent.add(event.message.after)
            continue
        assert event.step == schedule.orders[event.rank][over[event.rank]]
        assert sent.issuperset(event.needs)
        over[event.rank] += 1
        made.update(event.step if isinstance(event.step, Pair) else (event.step,))
    assert over == [len(order) for order in schedule.orders]
    assert sent == {a for order in schedule.orders for a in actions(order) if message_after(schedule, a)}


@pytest.mark.parametrize("sends", [BETWEEN, TORCH_1F1B])
def test_a_late_receiver_asks_when_the_pass_before_is_over(sends: Sends) -> None:
    """``_wait_batch_p2p(_batch_p2p(fwd_sends + bwd_recvs))`` stands before the backward (``Schedule1F1B``)."""
    schedule = pipeline_schedule("1f1b", 4, 8)
    found = places(schedule, receivers_of(schedule), sends.asks)
    for order in schedule.orders:
        for number, action in enumerate(actions(order)):
            assert found.get(action, number) == number


def test_one_ahead_is_a_pass_earlier() -> None:
    """Megatron-LM issues the receive of the next pass before it runs this one (``--overlap-p2p-communication``)."""
    schedule = pipeline_schedule("interleaved-1f1b", 4, 8, 2)
    late, ahead = (places(schedule, receivers_of(schedule), asks) for asks in ("late", "ahead"))
    assert {action: max(0, place - 1) for action, place in late.items()} == ahead


def test_a_sender_waits_at_once_or_a_pass_later_or_for_the_row() -> None:
    """1F1B with 4 ranks warms up the first with 4 forwards: Megatron-LM waits for each send, torch for the one before,
    its GPipe for all once the forwards are over.
    """
    needs = {}
    for name, schedule_name, sends in (
        ("megatron", "1f1b", BETWEEN), ("torch", "1f1b", TORCH_1F1B), ("gpipe", "gpipe", TORCH_GPIPE)
    ):  # fmt: skip
        schedule = pipeline_schedule(schedule_name, 4, 4)
        passes = [e for e in events(schedule, sends) if isinstance(e, Passed) and e.rank == 0]
        needs[name] = [[str(a) for a in e.needs if message_after(schedule, a).source == 0] for e in passes]  # type: ignore[union-attr]
    assert needs["megatron"][:5] == [[], ["0F0"], ["0F1"], ["0F2"], ["0F3"]]
    assert needs["torch"][:5] == [[], [], ["0F0"], ["0F1"], ["0F2", "0F3"]]
    assert needs["gpipe"][:5] == [[], [], [], [], ["0F0", "0F1", "0F2", "0F3"]]


@pytest.mark.parametrize(
    ("schedule", "overlap", "by_torch", "expected"),
    [
        ("1f1b", None, True, TORCH_1F1B), ("1f1b", None, False, BETWEEN), ("1f1b", True, True, AHEAD),
        ("gpipe", None, True, TORCH_GPIPE), ("interleaved-1f1b", None, True, RUNTIME),
        ("interleaved-1f1b", None, False, AHEAD), ("interleaved-1f1b", False, False, WAITING),
        ("zbv", None, True, RUNTIME), ("zb-h1", None, True, AHEAD), ("dualpipe", None, False, EARLY),
    ],
)  # fmt: skip
def test_each_framework_has_its_way(schedule: str, overlap: bool | None, by_torch: bool, expected: Sends) -> None:
    assert sends_of(pipeline_schedule(schedule, 4, 8), overlap=overlap, by_torch=by_torch) == expected


# -------------------------------------------------------------------------------------------------------- what it costs


def step_s(c: float, p: int, m: int, **parallel: Any) -> float:
    """Of 1F1B or GPipe with forwards of 1 s, backwards of 2 s and messages of ``c`` seconds."""
    return played(step_inputs(layers(p), p, m, pp=p, **parallel), bytes_per_s=MB / c).end_s


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (3, 8), (4, 4), (4, 16)])
@pytest.mark.parametrize("c", [0.05, 0.25])
def test_gpipe_waits_for_each_message_of_the_last_rank(p: int, m: int, c: float) -> None:
    """The last rank asks for a forward's input when the one before is over: m messages of its own, after p - 2 of the
    fill; and so the first rank in the drain: 2 (m + p - 2) c beyond (m + p - 1) (tF + tB).
    """
    assert step_s(c, p, m, schedule="gpipe") == pytest.approx((m + p - 1) * 3.0 + 2 * (m + p - 2) * c, rel=1e-9)


@pytest.mark.parametrize("m", [2, 4, 8])
@pytest.mark.parametrize("c", [0.05, 0.25])
def test_1f1b_of_two_ranks_pays_for_each_round_once(m: int, c: float) -> None:
    """Fill and drain are a message each; in between both ranks send and receive at once, m - 1 times."""
    assert step_s(c, 2, m) == pytest.approx((m + 1) * 3.0 + (m + 1) * c, rel=1e-9)


@pytest.mark.parametrize(("p", "m"), [(3, 8), (4, 4), (4, 8), (4, 16)])
def test_1f1b_without_overlap_pays_for_more_than_fill_and_drain(p: int, m: int) -> None:
    """With overlap 2 (p - 1) messages of fill and drain and what a forward is too short to hide; without, nearly two
    for each micro-batch, though never more than where all forwards come first.
    """
    c, alone = 0.25, (m + p - 1) * 3.0
    late, ahead, gpipe = (
        (step_s(c, p, m, **how) - alone) / c for how in ({}, {"overlap_p2p": True}, {"schedule": "gpipe"})
    )
    assert 2 * (p - 1) <= ahead < late <= gpipe == pytest.approx(2 * (m + p - 2))


def test_messages_that_may_not_pass_each_other_take_turns() -> None:
    """Over gloo the notice of a receive waits behind data: two stages of two ranks that send both ways at once."""
    inputs = step_inputs(layers(4), 2, 8, pp=2, chunks=2, schedule="interleaved-1f1b")
    free, turns = (
        played(replace(inputs, both_ways=both_ways), bytes_per_s=MB / 0.5).end_s for both_ways in (True, False)
    )
    assert free < turns


def test_steps_grow_with_the_message() -> None:
    for parallel in ({}, {"schedule": "gpipe"}, {"overlap_p2p": True}):
        times = [step_s(c, 4, 8, **parallel) for c in (0.01, 0.1, 0.3, 1.0)]
        assert all(a < b for a, b in pairwise(times))

"""Pipeline schedules: the bubbles and live micro-batches that the papers state, and laws that hold for any order.

Without communication. tF, tI, tW are the times of one micro-batch in all layers of a rank: forward, gradient of the
input, gradient of the weights; p ranks, m micro-batches, v chunks. That orders are those of torch is checked in
test_real_pipelines.py against the real package.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.errors import DeadlockError, ScenarioError
from simulator.pipelines import PIPELINES, named, pipeline_schedule, placement, refusal
from simulator.pipelines.claims import Shape
from simulator.pipelines.holding import peak_held
from simulator.pipelines.messages import messages
from simulator.pipelines.order import Action, Pair, PipelineSchedule, actions
from simulator.pipelines.playing import Played, StageTimes, even_times, needs, play

TIMES = (StageTimes(1, 1, 1), StageTimes(1, 1, 0.5), StageTimes(1, 1.3, 0.7), StageTimes(2, 1.1, 0.9))
NAMES = list(PIPELINES)


def played(name: str, shape: Shape, times: StageTimes, hidden: float = 0.0) -> Played:
    schedule = pipeline_schedule(name, shape.p, shape.m, shape.v)
    return play(schedule, even_times(schedule, times), hidden=hidden)


def idle(name: str, p: int, m: int, v: int, times: StageTimes) -> float:
    """What a step takes beyond the work of a rank, which is the same on all."""
    work = m * (times.forward + times.input_grad + times.weight_grad)
    return played(name, Shape(p, m, v), times).makespan - work


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def shapes(chunks: tuple[int, ...] = (1,), rounds: tuple[int, ...] = (1, 2, 4)) -> list[tuple[int, int, int]]:
    return [(p, k * p, v) for p, k, v in product(range(2, 9), rounds, chunks)]


# ---- bubbles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_gpipe_and_1f1b_is_p_minus_1_micro_batches(name: str) -> None:
    """(p - 1)(tF + tI + tW), also with fewer micro-batches than ranks: Huang et al. 2019 (arXiv 1811.06965) 2.3;
    Narayanan et al. 2021 (arXiv 2104.04473) 2.2.1. As a share (p - 1)/(m + p - 1)."""
    for (p, m, v), t in product([*shapes(), (4, 1, 1), (5, 3, 1), (3, 7, 1)], TIMES):
        assert idle(name, p, m, v, t) == near((p - 1) * (t.forward + t.input_grad + t.weight_grad))
        assert played(name, Shape(p, m, v), t).bubble_share == near((p - 1) / (m + p - 1))


@pytest.mark.parametrize("name", ["looped-bfs", "interleaved-1f1b"])
def test_chunks_divide_the_bubble(name: str) -> None:
    """(p - 1)(tF + tI + tW)/v: arXiv 2211.05953 section 4.1; arXiv 2104.04473 section 2.2.2."""
    for (p, m, v), t in product([*shapes((1, 2), (1, 3)), (4, 8, 3), (4, 8, 4), (3, 5, 2)], TIMES[2:]):
        assert idle(name, p, m, v, t) == near((p - 1) * (t.forward + t.input_grad + t.weight_grad) / v)


@pytest.mark.parametrize(("name", "chunks"), [("zb-h1", (1,)), ("zb1p", (2, 3))])
def test_split_backward_takes_the_weight_gradient_out_of_the_bubble_twice(name: str, chunks: tuple[int, ...]) -> None:
    """(p - 1)(tF + tI - tW)/v: Qi et al. 2024 (arXiv 2401.10241), section 2.3, for tW no longer than the others."""
    for (p, m, v), t in product(shapes(chunks, (1, 3)), TIMES):
        assert idle(name, p, m, v, t) == near((p - 1) * (t.forward + t.input_grad - t.weight_grad) / v)


def test_zbv_waits_only_at_its_start() -> None:
    """(p - 1) tF/2 where tI = tF >= tW and (p - 1) tF where tI = 2 tF, tW = tF, from 2 p - 1 micro-batches on. With
    equal times each rank's own span has no gap (Qi et al. 2024, arXiv 2405.15362, section 4)."""
    for p, more, tw in product(range(2, 9), (0, 1, 9), (1.0, 0.6)):
        found = played("zbv", Shape(p, 2 * p - 1 + more, 2), StageTimes(1, 1, tw))
        assert found.idle(0) == near((p - 1) / 2)
        gaps = [two.start - one.end for spans in found.spans for one, two in pairwise(spans)]
        assert tw < 1 or max(gaps) == near(0)
        assert idle("zbv", p, 2 * p - 1 + more, 2, StageTimes(1, 2, 1)) == near(p - 1)


def test_dualpipe_halves_the_way_and_dualpipe_v_its_ranks() -> None:
    """(PP/2 - 1)(F&B + B - 3W) on the rank that waits most, where tI = tF >= tW: DeepSeek-V3 report (arXiv 2412.19437),
    table 2, and README of deepseek-ai/DualPipe. PP stages: p ranks of DualPipe, 2 p chunks on p ranks of DualPipeV."""
    for half, more, tw, hidden in product(range(1, 5), (0, 2, 8), (1.0, 0.5), (0.0, 0.3)):
        t = StageTimes(1, 1, tw)
        pair = t.of("F") + t.of("B") - hidden * t.of("F")
        bubble = (half - 1) * (pair + t.of("B") - 3 * t.of("W"))
        whole = played("dualpipe", Shape(2 * half, 4 * half + more, 1), t, hidden)
        folded = played("dualpipe-v", Shape(half, 2 * half + more, 2), t, hidden)
        assert max(map(whole.idle, range(2 * half))) == near(bubble)
        assert max(map(folded.idle, range(half))) == near(bubble / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_closed_forms_hold_wherever_they_say_so(name: str) -> None:
    """All those of ``claims``, over shapes that are not round and times that are not equal."""
    told = 0
    for p, m, v, t in product((1, 2, 3, 5, 6), (1, 2, 5, 9, 12, 14), (1, 2, 3), (*TIMES, StageTimes(0.5, 1, 1))):
        shape, claim = Shape(p, m, v), PIPELINES[name].claim
        if refusal(name, shape) or (expected := claim.idle(shape, t)) is None:
            continue
        told += 1
        assert idle(name, p, m, v, t) == near(expected), (shape, t)
    assert told > 5


# ---- what ranks hold -------------------------------------------------------------------------------------------------


def held(name: str, p: int, m: int, v: int) -> list[float]:
    schedule = pipeline_schedule(name, p, m, v)
    return [peak_held(schedule, rank) for rank in range(p)]


def test_gpipe_and_looped_bfs_hold_every_micro_batch_and_1f1b_one_for_each_rank_behind() -> None:
    """m; p - r: arXiv 2104.04473 section 2.2.1."""
    for p, m, _ in shapes():
        assert held("gpipe", p, m, 1) == [m] * p
        assert held("looped-bfs", p, m, 2) == [m] * p
        assert held("1f1b", p, m, 1) == [p - rank for rank in range(p)]


def test_interleaving_costs_the_first_rank_1_plus_p_minus_1_over_pv_times_the_memory() -> None:
    """min(v m, (v - 1) p + 2 (p - 1 - r) + 1)/v; rank 0: p (1 + (p - 1)/(p v)), Korthikanti et al. 2022 (arXiv
    2205.05198), section 4.2.3."""
    for p, m, v in shapes((2, 3, 4), (2, 4)):
        found = held("interleaved-1f1b", p, m, v)
        expected = [min(v * m, (v - 1) * p + 2 * (p - 1 - rank) + 1) / v for rank in range(p)]
        assert found == [near(one) for one in expected]
        assert found[0] == near(p * (1 + (p - 1) / (p * v)))


def test_zero_bubble_schedules_hold_p_micro_batches_on_every_rank() -> None:
    """No more than the first rank of 1F1B: arXiv 2401.10241 section 2.3 (ZB-H1); arXiv 2405.15362 (ZBV)."""
    for p, m, v in shapes((1, 2, 3), (1, 3)):
        assert held("zb1p", p, m, v) == [near(p)] * p
        if v == 2 and m >= 2 * p - 1:
            assert held("zbv", p, m, 2) == [p] * p


def test_dualpipe_holds_pp_plus_1() -> None:
    """PP + 1 stages of activations on every rank (README of deepseek-ai/DualPipe): p + 1 of DualPipe, whose stage is a
    rank's share of the layers, p + 1/2 of DualPipeV, whose stage is half of one."""
    for p in range(2, 9):
        assert held("dualpipe-v", p, 3 * p, 2) == [p + 0.5] * p
        if p % 2 == 0:
            assert held("dualpipe", p, 4 * p, 1) == [p + 1] * p


@pytest.mark.parametrize("name", NAMES)
def test_stated_numbers_of_held_micro_batches_are_those_of_the_orders(name: str) -> None:
    told = 0
    for p, m, v in product(range(1, 7), (1, 2, 5, 8, 12), (1, 2, 3)):
        if refusal(name, Shape(p, m, v)):
            continue
        for rank, found in enumerate(held(name, p, m, v)):
            expected = PIPELINES[name].claim.held(Shape(p, m, v), rank)
            told += expected is not None
            assert expected is None or found == near(expected), (p, m, v, rank)
    assert told > 5


def test_what_weights_do_not_need_goes_with_the_input_gradient() -> None:
    """ZB-H1 then holds no more than 1F1B of it; and amounts of stages count in place of micro-batches."""
    split, whole = pipeline_schedule("zb-h1", 4, 8), pipeline_schedule("1f1b", 4, 8)
    for rank in range(4):
        assert peak_held(split, rank, for_weights=0.0) == peak_held(whole, rank) == 4 - rank
        assert 4 - rank <= peak_held(split, rank, for_weights=0.5) <= 4
    assert peak_held(whole, 1, amounts=(5e9, 3e9, 1e9, 1e9)) == 3 * 3e9


# ---- laws ------------------------------------------------------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn) -> PipelineSchedule:
    name = draw(st.sampled_from(NAMES))
    p, m, v = draw(st.integers(1, 6)), draw(st.integers(1, 14)), draw(st.integers(1, 3))
    shape = Shape(p, m, PIPELINES[name].chunks if draw(st.booleans()) else v)
    assume(not refusal(name, shape))
    return pipeline_schedule(name, shape.p, shape.m, shape.v)


positive = st.floats(0.05, 5)


@st.composite
def with_times(draw: st.DrawFn) -> tuple[PipelineSchedule, list[StageTimes]]:
    schedule = draw(schedules())
    times = st.builds(StageTimes, positive, positive, positive)
    return schedule, [draw(times) for _ in range(schedule.stages_per_chain)]


@given(schedules())
def test_every_micro_batch_passes_every_stage_of_a_model_once_each_way(schedule: PipelineSchedule) -> None:
    count = Counter(action for order in schedule.orders for action in actions(order))
    assert set(count.values()) == {1}
    passed: dict[int, set[int]] = {}
    for stage, kind, micro_batch in count:
        if kind == "F":
            passed.setdefault(micro_batch, set()).add(stage)
            whole, halves = (Action(stage, "B", micro_batch) in count, sum(
                Action(stage, half, micro_batch) in count for half in ("I", "W")))  # fmt: skip
            assert (whole, halves) in ((True, 0), (False, 2))
    assert sorted(passed) == list(range(schedule.num_micro_batches))
    for stages in passed.values():
        assert sorted(map(schedule.part_of_model, stages)) == list(range(schedule.stages_per_chain))
        assert len({stage // schedule.stages_per_chain for stage in stages}) == 1
    backwards = [action for action in count if action.kind in ("B", "I")]
    assert len(backwards) == sum(map(len, passed.values()))


@given(schedules())
def test_ranks_run_their_own_stages_and_each_at_its_time(schedule: PipelineSchedule) -> None:
    for rank, order in enumerate(schedule.orders):
        place = {action: number for number, action in enumerate(actions(order))}
        assert {action.stage for action in place} == set(schedule.stages_of(rank))
        for stage, kind, micro_batch in place:
            before = {"W": "I", "B": "F", "I": "F"}.get(kind)
            if before:
                assert place[Action(stage, before, micro_batch)] < place[Action(stage, kind, micro_batch)]


@settings(max_examples=40)
@given(with_times(), st.sampled_from([0.0, 0.4]))
def test_playing_keeps_orders_and_dependencies_and_no_rank_does_two_things(
    given_: tuple[PipelineSchedule, list[StageTimes]], hidden: float
) -> None:
    schedule, times = given_
    found = play(schedule, times, hidden=hidden)
    assert tuple(tuple(span.step for span in spans) for spans in found.spans) == schedule.orders
    ends = {
        action._replace(kind="I") if action.kind == "B" else action: span.end
        for spans in found.spans for span in spans for action in actions((span.step,))
    }  # fmt: skip
    for spans in found.spans:
        assert all(one.end <= two.start for one, two in pairwise(spans))
        for before, span in zip([None, *spans], spans, strict=False):
            found_needs = [ends[need] for action in actions((span.step,)) for need in needs(schedule, action)]
            assert span.start == max([before.end if before else 0.0, *found_needs]), "as early as can be, no earlier"


@settings(max_examples=40)
@given(with_times())
def test_work_is_that_of_the_stages_and_a_step_takes_no_less_than_its_longest_path(
    given_: tuple[PipelineSchedule, list[StageTimes]],
) -> None:
    schedule, times = given_
    found = play(schedule, times)
    m, work = schedule.num_micro_batches, sum(t.of("F") + t.of("B") for t in times)
    busy = [found.busy(rank) for rank in range(schedule.num_ranks)]
    assert sum(busy) == near(m * work)
    assert found.makespan >= max(busy) - 1e-9
    assert found.makespan >= sum(t.of("F") + t.of("I") for t in times) + times[0].of("W") - 1e-9
    assert 0 <= found.bubble_share < 1


@settings(max_examples=40)
@given(with_times(), st.integers(0, 99), st.sampled_from([2.0, 0.5]))
def test_a_slower_stage_ends_no_step_earlier_and_all_slower_is_all_later(
    given_: tuple[PipelineSchedule, list[StageTimes]], which: int, factor: float
) -> None:
    schedule, times = given_
    found = play(schedule, times)
    one = which % len(times)
    slower = [replace(t, forward=3 * t.forward, weight_grad=2 * t.weight_grad) if k == one else t
              for k, t in enumerate(times)]  # fmt: skip
    for before, after in zip(found.spans, play(schedule, slower).spans, strict=True):
        assert all(b.end <= a.end for b, a in zip(before, after, strict=True))
    scaled = [StageTimes(*(factor * t.of(kind) for kind in ("F", "I", "W"))) for t in times]
    assert play(schedule, scaled).makespan == near(factor * found.makespan)


def test_hiding_a_pair_shortens_dualpipe_alone() -> None:
    for name in NAMES:
        shape, t = Shape(4, 8, PIPELINES[name].chunks), StageTimes(1, 1, 1)
        plain, hiding = played(name, shape, t), played(name, shape, t, hidden=0.5)
        assert (hiding.makespan < plain.makespan) == name.startswith("dualpipe")
        has_pairs = any(isinstance(step, Pair) for order in plain.schedule.orders for step in order)
        assert has_pairs == name.startswith("dualpipe")


def test_playing_does_not_slow_down_with_length() -> None:
    """Linear: each step of 32 ranks with 128 micro-batches asks at most twice whether it can start."""
    schedule = pipeline_schedule("1f1b", 32, 128)
    asked = 0

    class Counting(tuple):  # type: ignore[type-arg]
        __slots__ = ()

        def __getitem__(self, key: object) -> object:
            nonlocal asked
            asked += 1
            return super().__getitem__(key)  # type: ignore[call-overload]

    counting = replace(schedule, orders=tuple(Counting(order) for order in schedule.orders))
    play(counting, even_times(counting, StageTimes(1, 1, 1)))
    assert asked <= 2 * 2 * 32 * 128


# ---- messages --------------------------------------------------------------------------------------------------------


def test_chunks_multiply_messages_and_a_v_turns_without_one() -> None:
    """One each way over every boundary between ranks, for each micro-batch: p v - 1 boundaries of a loop, so that
    interleaving sends v times as much (arXiv 2104.04473 section 2.2.2), v (p - 1) of a V. On one rank none."""

    def sent(name: str, p: int, m: int, v: int | None = None) -> int:
        schedule = pipeline_schedule(name, p, m, v)
        return sum(1 for rank in range(p) for _ in messages(schedule, rank))

    for p, m in ((2, 4), (4, 8), (8, 16)):
        assert sent("1f1b", p, m) == sent("gpipe", p, m) == sent("zb-h1", p, m) == 2 * m * (p - 1)
        for v in (2, 3):
            assert sent("interleaved-1f1b", p, m, v) == sent("looped-bfs", p, m, v) == 2 * m * (p * v - 1)
        assert sent("zbv", p, m) == sent("dualpipe-v", p, m) == 2 * m * 2 * (p - 1)
        assert sent("dualpipe", p, m) == 2 * m * (p - 1)
    assert sent("zbv", 1, 4) == sent("looped-bfs", 1, 4, 3) == 0


@given(schedules())
def test_every_message_is_what_another_rank_needs(schedule: PipelineSchedule) -> None:
    sent = {
        (message.after._replace(kind="I") if message.after.kind == "B" else message.after, message.target)
        for rank in range(schedule.num_ranks) for message in messages(schedule, rank)
    }  # fmt: skip
    needed = {
        (need, rank)
        for rank, order in enumerate(schedule.orders) for action in actions(order) for need in needs(schedule, action)
        if schedule.ranks_of_stages[need.stage] != rank
    }  # fmt: skip
    assert sent == needed


# ---- single schedules ------------------------------------------------------------------------------------------------


def text_of(schedule: PipelineSchedule, rank: int) -> str:
    return " ".join(f"{step}" for step in schedule.orders[rank])


def test_1f1b_of_the_papers_figure() -> None:
    """Figure 4 (top) of arXiv 2104.04473: 4 devices, 8 micro-batches; here the third device."""
    assert text_of(pipeline_schedule("1f1b", 4, 8), 2) == (
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7"
    )


def test_zb_h1_is_zb1p_with_one_chunk() -> None:
    assert pipeline_schedule("zb-h1", 4, 8).orders == pipeline_schedule("zb1p", 4, 8, 1).orders


def test_dualpipe_is_its_own_mirror_and_two_of_dualpipe_v() -> None:
    """A rank does what the rank at the other end does, on the other model; and what a rank of DualPipeV does, with half
    as many ranks and the micro-batches of one direction."""
    p, m = 8, 20
    whole, folded = pipeline_schedule("dualpipe", p, m), pipeline_schedule("dualpipe-v", p // 2, m // 2)

    def mirrored(action: Action) -> Action:
        return Action((action.stage + p) % (2 * p), action.kind, (action.micro_batch + m // 2) % m)

    for rank in range(p // 2):
        here, there = list(actions(whole.orders[rank])), list(actions(whole.orders[p - 1 - rank]))
        assert [mirrored(action) for action in here] == there
        at_turn = [(a.kind, a.micro_batch % (m // 2), a.stage >= p) for a in here]
        assert at_turn == [(a.kind, a.micro_batch, a.stage >= p // 2) for a in actions(folded.orders[rank])]


def test_first_backward_at_the_turn_of_dualpipe_runs_alone() -> None:
    """Not in a pair, "to further reduce bubble size": deepseek-ai/DualPipe, dualpipe.py, step 4."""
    assert text_of(pipeline_schedule("dualpipe-v", 2, 4), 1) == (
        "1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0) (1F3;2B1) (2F3;1B1) 2B2 1B2 2I3 1I3 2W3 1W3"
    )


def test_stages_go_round_or_down_and_up() -> None:
    assert placement.loop(3, 2) == (0, 1, 2, 0, 1, 2)
    assert placement.v_shape(3, 2) == (0, 1, 2, 2, 1, 0)
    assert placement.v_shape(2, 3) == (0, 1, 1, 0, 0, 1)
    dual = pipeline_schedule("dualpipe", 4, 8)
    assert [dual.stages_of(rank) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [dual.part_of_model(stage) for stage in (0, 7, 4)] == [0, 3, 0]
    assert [dual.is_first(4), dual.is_last(3), dual.is_last(7), dual.is_first(3)] == [True, True, True, False]


def test_uneven_stages_make_everyone_wait_for_the_slowest() -> None:
    """With m micro-batches the slow stage of 1F1B works without a gap, and the others fill and drain around it."""
    schedule = pipeline_schedule("1f1b", 3, 12)
    fast, slow = StageTimes(1, 1, 1), StageTimes(2, 2, 2)
    found = play(schedule, (fast, slow, fast))
    # It starts when the first has sent, waits once for the last (F and B while it has one F to do), and the first ends.
    assert found.makespan == near(1 + 12 * 6 + (1 + 2 - 2) + 2)
    assert found.idle(1) == near(1 + 1 + 2)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "words"),
    [
        ("1f1b", 4, 8, 2, "a rank has one chunk, not 2; possible: chunks 1"),
        ("interleaved-1f1b", 4, 10, 2, None),
        ("interleaved-1f1b", 2, 5, 2, "2 rounds of at least one for each rank, which must be equal; possible: "
         "micro-batches 4 or 6; or ranks 1 or 3"),
        ("zb1p", 4, 15, 2, "3 rounds"),
        ("zb1p", 4, 13, 2, "possible: micro-batches 12 or 15"),
        ("zbv", 4, 6, 1, "the two chunks of a V, not 1; possible: chunks 2"),
        ("dualpipe-v", 4, 7, 2, "at least two micro-batches for each rank, 8; possible: micro-batches 8; or ranks 3"),
        ("dualpipe", 4, 9, 1, "must be even, not micro-batches 9; possible: micro-batches 8 or 10"),
        ("dualpipe", 3, 8, 1, "must be even, not ranks 3; possible: ranks 2 or 4"),
        ("dualpipe", 3, 7, 1, "not ranks 3 and micro-batches 7; possible: 2 ranks, 6 micro-batches, 1 chunk"),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused_with_the_nearest_possible(
    name: str, p: int, m: int, v: int, words: str | None
) -> None:
    if words is None or words == "3 rounds":
        pipeline_schedule(name, p, m, v)
        return
    with pytest.raises(ScenarioError, match=f"^{name} with {p} ranks, {m} micro-batches, {v} chunk") as caught:
        pipeline_schedule(name, p, m, v)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("p", "m", "v", "words"), [(0, 1, 1, "0 ranks"), (1, 0, 1, "0 micro"), (1, 1, -1, "-1 chunks")]
)
def test_fewer_than_one_is_refused(p: int, m: int, v: int, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        pipeline_schedule("gpipe", p, m, v)


def test_schedules_are_found_under_the_names_of_torch_and_a_misspelt_one_is_refused() -> None:
    for name, kind in PIPELINES.items():
        assert named(name.upper()) == name
        if kind.torch_name:
            assert named(kind.torch_name) == named(f"Schedule{kind.torch_name}") == name
    with pytest.raises(ScenarioError, match="did you mean '1f1b'"):
        named("1f1")


# ---- orders that can never run ---------------------------------------------------------------------------------------


def test_deadlock_names_the_ranks_and_what_they_wait_for() -> None:
    """Rank 1 wants a micro-batch that rank 0 sends only after the gradient of another."""
    good = pipeline_schedule("1f1b", 2, 2)
    forward, backward = (Action(0, "F", m) for m in range(2)), (Action(0, "B", m) for m in range(2))
    f0, f1, b0, b1 = *forward, *backward
    bad = replace(good, name="mine", orders=((f0, b0, f1, b1), tuple(Action(1, *ending) for ending in (
        ("F", 1), ("B", 1), ("F", 0), ("B", 0)))))  # fmt: skip
    with pytest.raises(DeadlockError) as caught:
        play(bad, even_times(bad, StageTimes(1, 1, 1)))
    assert str(caught.value) == (
        "mine: this order can never run: "
        "rank 0 waits at 0B0 for the input gradient of micro-batch 0 in stage 1 (rank 1); "
        "rank 1 waits at 1F1 for the forward of micro-batch 1 in stage 0 (rank 0)"
    )


def test_missing_action_deadlocks_those_behind_it_and_times_must_fit() -> None:
    good = pipeline_schedule("gpipe", 12, 2)
    bad = replace(good, orders=((), *good.orders[1:]))
    with pytest.raises(
        DeadlockError, match=r"rank 1 waits at 1F0 for the forward of micro-batch 0 in stage 0 .*; and 3 more ranks$"
    ):
        play(bad, even_times(bad, StageTimes(1, 1, 1)))
    with pytest.raises(ScenarioError, match="3 times for 12 stages"):
        play(good, [StageTimes(1, 1, 1)] * 3)

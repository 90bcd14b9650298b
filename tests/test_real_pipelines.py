"""The orders of our pipelines are those that ``torch.distributed.pipelining`` makes and runs, action by action.

torch 2.13.0 (extra ``real``; .ci/run installs it in an environment of its own). No processes: its schedules get
stand-ins for stages, which compute nothing and write down what is asked of them. Orders are compared as torch makes
them and as its runtime then runs them, where the two of a pair come one after the other. Of 1F1B only what runs
counts: the list that torch 2.13 makes of it begins with micro-batch 1 on the last rank and ends with one too many.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from simulator.errors import ScenarioError
from simulator.pipelines import PIPELINES, pipeline_schedule, placement
from simulator.pipelines.messages import messages
from simulator.pipelines.order import Action, actions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'clustersim[real]'"),
]
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
OF_TORCH = {name: kind.torch_name for name, kind in PIPELINES.items() if kind.torch_name}
ONE_STAGE = ("gpipe", "1f1b")


class StandIn:
    """A stage as schedules see it. ``ran`` gets every action asked of it; whatever else is asked gets an empty list."""

    has_backward = True
    submod = None

    def __init__(self, stage: int, num_stages: int, rank: int, num_ranks: int, ran: list[Action]) -> None:
        self.stage_index, self.num_stages, self.group_rank, self.group_size = stage, num_stages, rank, num_ranks
        self.is_first, self.is_last = stage == 0, stage == num_stages - 1
        self._ran = ran

    def forward_one_chunk(self, micro_batch: int, *args: object, **more: object) -> None:
        self._ran.append(Action(self.stage_index, "F", micro_batch))

    def backward_one_chunk(self, micro_batch: int, *, full_backward: bool = True, **more: object) -> None:
        self._ran.append(Action(self.stage_index, "B" if full_backward else "I", micro_batch))

    def backward_weight_one_chunk(self, micro_batch: int, **more: object) -> None:
        self._ran.append(Action(self.stage_index, "W", micro_batch))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **more: []


def torch_schedule(name: str, p: int, m: int, v: int, rank: int, ran: list[Action]) -> Any:
    """torch's schedule object of one rank. Raises what torch raises for numbers that it does not take."""
    import torch
    from torch.distributed.pipelining.schedules import get_schedule_class

    made = get_schedule_class(OF_TORCH[name])
    home = PIPELINES[name].placement(p, v)
    stages = [StandIn(stage, p * v, rank, p, ran) for stage in range(p * v) if home[stage] == rank]
    for stage in stages:
        stage.submod = torch.nn.Identity()  # type: ignore[assignment]
    given = stages[0] if name in ONE_STAGE else stages
    return made(given, m, loss_fn=lambda output, target: None)


def made_by_torch(name: str, p: int, m: int, v: int) -> list[list[str]]:
    """Orders of all ranks, as text; a pair in parentheses. Without idle places and what follows the last backward."""
    orders = torch_schedule(name, p, m, v, 0, []).pipeline_order
    return [list(texts(orders[rank])) for rank in range(p)]


def texts(order: Sequence[Any]) -> Iterator[str]:
    for action in order:
        if action is None or action.computation_type.name == "REDUCE_GRAD":
            continue
        if action.sub_actions is not None:
            yield f"({';'.join(texts(action.sub_actions))})"
        else:
            yield f"{action.stage_index}{KINDS[action.computation_type.name]}{action.microbatch_index}"


def run_by_torch(name: str, p: int, m: int, v: int, rank: int) -> list[Action]:
    """What torch's runtime asks of the stages of a rank, in its order."""
    ran: list[Action] = []
    schedule = torch_schedule(name, p, m, v, rank, ran)
    for name_ in (
        "_initialize_stage",
        "_initialize_stages",
        "_maybe_compute_loss",
        "_maybe_get_loss",
        "_update_losses",
    ):
        setattr(schedule, name_, lambda *args: None)
    schedule._step_microbatches([()] * m, [{}] * m, [None] * m, [])
    return ran


def ours(name: str, p: int, m: int, v: int) -> list[list[str]]:
    return [list(map(str, order)) for order in pipeline_schedule(name, p, m, v).orders]


# ---- orders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("name", [name for name in OF_TORCH if name != "1f1b"])
def test_orders_are_those_that_torch_makes(name: str, p: int) -> None:
    """For every number of micro-batches up to 4 p, odd ones and fewer than ranks among them, and up to 4 chunks; what
    torch does not take we do not take either, and the reverse."""
    compared = 0
    for m in range(1, 4 * p + 1):
        for v in (1,) if name in ONE_STAGE else (1, 2, 3, 4):
            try:
                expected = made_by_torch(name, p, m, v)
            except ValueError:
                with pytest.raises(ScenarioError, match="; possible: "):
                    pipeline_schedule(name, p, m, v)
                continue
            assert ours(name, p, m, v) == expected, (p, m, v)
            compared += 1
    assert compared >= 2 * p


@pytest.mark.parametrize("name", ONE_STAGE)
def test_orders_of_one_stage_on_a_rank_are_those_that_torch_runs(name: str) -> None:
    for p in range(1, 9):
        for m in range(p, 4 * p + 1):
            for rank, order in enumerate(pipeline_schedule(name, p, m).orders):
                assert run_by_torch(name, p, m, 1, rank) == list(order), (p, m, rank)


@pytest.mark.parametrize("name", [name for name in OF_TORCH if name not in ONE_STAGE])
def test_orders_of_several_stages_on_a_rank_are_those_that_torch_runs(name: str) -> None:
    for p, m in ((1, 2), (2, 4), (3, 9), (4, 8), (4, 12), (8, 16)):
        for rank, order in enumerate(pipeline_schedule(name, p, m, 2).orders):
            assert run_by_torch(name, p, m, 2, rank) == list(actions(order)), (p, m, rank)


@pytest.mark.parametrize("name", [name for name in OF_TORCH if name not in ONE_STAGE])
def test_messages_are_those_that_torch_sends(name: str) -> None:
    """SEND_F and SEND_B of the order with communication that torch derives from its own."""
    for p, m in ((1, 2), (2, 4), (3, 9), (4, 8)):
        with_sends = torch_schedule(name, p, m, 2, 0, []).pipeline_order_with_comms
        schedule = pipeline_schedule(name, p, m)
        for rank in range(p):
            expected = [
                (action.stage_index, action.computation_type.name, action.microbatch_index)
                for action in with_sends[rank] if action.computation_type.name in ("SEND_F", "SEND_B")
            ]  # fmt: skip
            sent = [
                (message.after.stage, "SEND_F" if message.after.kind == "F" else "SEND_B", message.after.micro_batch)
                for message in messages(schedule, rank)
            ]
            assert sorted(sent) == sorted(expected)
            assert name == "dualpipe-v" or sent == expected


def test_1f1b_wants_a_micro_batch_for_each_rank_only_in_torch() -> None:
    with pytest.raises(ValueError, match="must be greater than or equal to the number of stages"):
        torch_schedule("1f1b", 4, 3, 1, 0, [])
    assert len(pipeline_schedule("1f1b", 4, 3).orders) == 4


def test_every_schedule_of_torch_is_here() -> None:
    from torch.distributed.pipelining import schedules

    public = {name for name in vars(schedules) if name.startswith("Schedule")}
    assert public == {f"Schedule{name}" for name in OF_TORCH.values()}


def test_stages_stand_where_torch_puts_them() -> None:
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    for p, v in ((1, 2), (2, 2), (4, 3), (8, 2)):
        assert tuple(generate_stage_to_rank_mapping(p, p * v, style="loop").values()) == placement.loop(p, v)
        assert tuple(generate_stage_to_rank_mapping(p, p * v, style="v").values()) == placement.v_shape(p, v)


def test_stand_ins_see_an_order_that_is_wrong() -> None:
    """The comparison can fail: two forwards exchanged are another order."""
    order = list(pipeline_schedule("1f1b", 4, 8).orders[0])
    exchanged = next(k for k, (one, two) in enumerate(pairwise(order)) if one[1] == two[1] == "F")
    order[exchanged : exchanged + 2] = reversed(order[exchanged : exchanged + 2])
    assert run_by_torch("1f1b", 4, 8, 1, 0) != order

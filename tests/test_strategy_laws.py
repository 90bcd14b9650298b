"""What holds for every strategy: nobody waits for ever, memory comes back, time adds up, folding changes nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import graph, uniform
from stepping import collectives_of, inputs_of, plan_of, played

from simulator.answer import StepAnswer, answer_step
from simulator.errors import ScenarioError
from simulator.load import load_scenario
from simulator.parallel_spec import KEYS as ASKED
from simulator.plan import Compute, Plan
from simulator.report.memory import memory_of
from simulator.strategies import STRATEGIES
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import TrainingModel

KEYS = sorted(STRATEGIES)
NAMES = ["-".join(key) for key in KEYS]
#: Every owner broadcasts its weights.
PER_RANK = {("zero1", "torch")}
#: Links of their own for shards over neighbours and for their replicas.
APART = graph(
    [(f"gpu{i}", f"node{i // 2}", 1e9, 2.5e-6) for i in range(8)]
    + [(f"gpu{i}", f"rail{i % 2}", 1e9, 2.5e-6) for i in range(8)]
)
every_strategy = pytest.mark.parametrize("key", KEYS, ids=NAMES)


def asked(key: tuple[str, str], **more: Any) -> dict[str, Any]:
    """The ``parallel`` block; HSDP shards over two ranks."""
    hybrid = {"shard_size": 2} if key[0] == "hsdp" else {}
    return {"strategy": key[0], "implementation": key[1], **hybrid, **more}


@st.composite
def models(draw: st.DrawFn) -> TrainingModel:
    """2 to 6 layers of odd sizes that keep some activations."""
    layers = tuple(
        MeasuredLayer(
            name=f"layer{k}", params=tuple(draw(st.lists(st.integers(1, 3_000_000), min_size=1, max_size=3))),
            forward_s=draw(st.integers(0, 20)) * 1e-3, backward_s=draw(st.integers(0, 40)) * 1e-3,
            activation_bytes=float(draw(st.integers(0, 10_000_000))),
        )
        for k in range(draw(st.integers(2, 6)))
    )  # fmt: skip
    return measured_model(layers, name="any", seq_len=1, micro_batch=1)


def busy_s(plan: Plan) -> float:
    """Time of all compute on the compute lane."""
    return sum(task.seconds for task in plan.tasks if isinstance(task, Compute) and task.lane == "compute")


def test_whatever_can_be_asked_for_can_be_planned() -> None:
    assert set(STRATEGIES) == set(ASKED)


@pytest.mark.slow
@every_strategy
@settings(max_examples=5, deadline=None)
@given(model=models(), micro_batches=st.integers(1, 3))
def test_a_step_ends_with_the_memory_it_began_with(
    key: tuple[str, str], model: TrainingModel, micro_batches: int
) -> None:
    """Steps repeat for days: what one allocates it frees, but for what it frees first and makes anew."""
    plan = plan_of(inputs_of(model, 4, asked(key), micro_batches=micro_batches))
    made = Counter(buffer.name for task in plan.tasks for buffer in task.allocates)
    freed = Counter(name for task in plan.tasks for name in task.frees)
    assert max(made.values(), default=1) == 1
    assert made == freed
    memory = memory_of(played(inputs_of(model, 4, asked(key), micro_batches=micro_batches)))
    assert memory.peak_bytes >= sum(buffer.size_bytes for buffer in plan.resident)


@every_strategy
@settings(max_examples=5, deadline=None)
@given(model=models())
def test_a_step_takes_at_least_its_compute_and_at_most_all_of_its_parts_in_a_row(
    key: tuple[str, str], model: TrainingModel
) -> None:
    inputs = inputs_of(model, 4, asked(key))
    timeline = played(inputs)
    in_a_row = sum(span.alone_s for span in timeline.spans)
    assert busy_s(timeline.plan) * (1 - 1e-9) <= timeline.end_s <= in_a_row * (1 + 1e-9)


@pytest.mark.slow
@every_strategy
@settings(max_examples=5, deadline=None)
@given(model=models())
def test_one_class_of_ranks_and_each_rank_by_itself_take_the_same_time(
    key: tuple[str, str], model: TrainingModel
) -> None:
    """Folded against every rank and every message, where nothing is contended asymmetrically: 1e-6. 8 ranks.

    An owner's broadcast is over for it before it is for the last rank, so broadcasts one after the other overlap a bit.
    """
    inputs = inputs_of(model, 8, asked(key))
    network = APART if key[0] == "hsdp" else uniform(8, 5e-6, 1e9)
    folded, each = (played(inputs, network, fidelity=fidelity) for fidelity in ("coflow", "message"))
    broadcasts_s = sum(folded.costs[t.name].alone_s for t in collectives_of(folded.plan) if t.op == "broadcast")
    assert (broadcasts_s > 0) == (key in PER_RANK)
    assert each.end_s * (1 - 1e-6) <= folded.end_s <= each.end_s * (1 + 1e-6) + broadcasts_s
    assert len(folded.plan.classes) == 1
    assert len(each.plan.classes) == 8


def answered(path: Path, key: tuple[str, str], nodes: int, layers: int = 4) -> StepAnswer:
    """A small transformer on DGX H100."""
    hybrid = {"shard_size": 8} if key[0] == "hsdp" else {}
    scenario = {
        "cluster": {"topology": "dgx-h100", "nodes": nodes},
        "model": {
            "family": "llama", "num_layers": layers, "hidden_size": 1024, "num_attention_heads": 16,
            "intermediate_size": 4096, "vocab_size": 32_000,
        },
        "parallel": {"strategy": key[0], "implementation": key[1], **hybrid},
        "train": {"seq_len": 1024, "micro_batch": 1, "precision": "bf16-mixed"},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    return answer_step(load_scenario(path))


@pytest.mark.slow
@every_strategy
def test_work_to_simulate_a_step_grows_with_layers_not_with_ranks(key: tuple[str, str], tmp_path: Path) -> None:
    """Spans: one per task and class of equal ranks. From 16 to 1,024 GPUs, and from 4 to 8 layers."""
    path = tmp_path / "step.yaml"
    small, wide, deep = answered(path, key, 2), answered(path, key, 128), answered(path, key, 2, layers=8)
    assert len(small.timeline.plan.classes) == len(wide.timeline.plan.classes) == 1
    if key not in PER_RANK:
        assert wide.timeline.events <= 1.05 * small.timeline.events
    assert deep.timeline.events <= 2 * small.timeline.events


@pytest.mark.parametrize("key", [key for key in KEYS if key[0] not in ("ddp", "hsdp")], ids="-".join)
def test_a_model_without_parameters_has_nothing_to_share(key: tuple[str, str], tmp_path: Path) -> None:
    """An error that names file and line; data parallelism by itself runs it, and sends nothing."""
    scenario = {
        "cluster": {"topology": "uniform", "nodes": 4},
        "model": {"layers": [{"name": "layer", "params": 0, "forward": "1 ms", "backward": "2 ms"}]},
        "parallel": {"strategy": key[0], "implementation": key[1]}, "train": {"micro_batch": 1},
    }  # fmt: skip
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"s.yaml.*measured layers has no parameters that {key[0]} could share"):
        answer_step(load_scenario(path))
    path.write_text(yaml.safe_dump({**scenario, "parallel": {}}), encoding="utf-8")
    assert answer_step(load_scenario(path)).report.step_time_s == pytest.approx(3e-3)

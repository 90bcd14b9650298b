"""FSDP's mixed precision is no autocast: units are cast as they are gathered, and the model computes in that type."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.answer import StepAnswer, answer_step
from simulator.load import load_topology
from simulator.model_spec import PresetModel
from simulator.scenario import Scenario
from simulator.training.operations import TrainingModel
from simulator.training.presets import build_model


def answered(
    strategy: str = "fsdp", precision: str = "bf16-mixed", topology: str = "dgx-h100", **par: Any
) -> StepAnswer:
    return answer_step(Scenario.model_validate({
        "cluster": {"topology": load_topology(topology), "nodes": 1}, "model": {"preset": "llama-3.2-1b"},
        "parallel": {"strategy": strategy, **par},
        "train": {"seq_len": 512, "micro_batch": 2, "precision": precision},
    }))  # fmt: skip


def built(precision: str) -> TrainingModel:
    return build_model(
        PresetModel(preset="llama-3.2-1b"), seq_len=512, micro_batch=2, precision=precision, attention="flash"
    )  # fmt: skip


def held_bytes(found: StepAnswer, kind: str) -> float:
    return sum(buffer.size_bytes for buffer in found.job.step.resident if buffer.kind == kind)


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
@pytest.mark.parametrize("implementation", ["fsdp2", "fsdp1"])
def test_fsdp_computes_in_the_type_of_its_gathered_weights(strategy: str, implementation: str) -> None:
    """Norms and residual stream in 16 bits, and no operation casts its weights (torch 2.13, ``_cast_forward_inputs``):
    the operations are those of a model that is 16-bit throughout, and not those that autocast makes under DDP."""
    shards = {"shard_size": 4} if strategy == "hsdp" else {}
    found = answered(strategy, implementation=implementation, **shards)
    assert found.job.model.operations == built("bf16").operations
    assert answered("ddp").job.model.operations == built("bf16-mixed").operations


def test_its_states_stay_in_fp32() -> None:
    """16 B/param over 8 ranks: 4 of weights and 8 of moments all step long, 4 of gradients reduced in fp32."""
    found = answered()
    share = found.job.model.num_parameters / 8
    assert held_bytes(found, "params") == pytest.approx(4 * share)
    assert held_bytes(found, "optimizer") == pytest.approx(8 * share)
    scattered = [task for task in found.job.step.tasks if getattr(task, "op", "") == "reduce_scatter"]
    assert sum(task.message_bytes for task in scattered) == pytest.approx(4 * 8 * share)


def test_megatron_runs_no_autocast_whatever_the_recipe_is_called() -> None:
    """``Float16Module`` casts the model itself; fp32 weights are the optimizer's. Only gradients are fp32."""
    for precision in ("bf16-mixed", "bf16-master", "bf16"):
        found = answered("zero1", precision, implementation="megatron")
        assert found.job.model.saved_bytes == built("bf16").saved_bytes
        assert found.job.model.operations[1:] == built("bf16").operations[1:]
        assert held_bytes(found, "params") == pytest.approx(2 * found.job.model.num_parameters, rel=1e-3)


def test_weights_gathered_in_fp32_are_left_to_autocast() -> None:
    assert answered(param_dtype="fp32").job.model.operations == built("bf16-mixed").operations


def test_fp32_states_gathered_in_bf16_run_on_bf16_units() -> None:
    """``MixedPrecisionPolicy(param_dtype=bfloat16)`` over an fp32 model is mixed precision by another name: the same
    operations at the same rate, and MFU is told of the units that run."""
    found, plain = answered(precision="fp32", param_dtype="bf16"), answered()
    assert found.job.inputs.forward_s == plain.job.inputs.forward_s
    assert found.report.mfu == pytest.approx(plain.report.mfu, rel=0.02)


def test_fp32_weights_still_run_on_tf32_units() -> None:
    found, plain = (answered(precision="tf32", param_dtype=dtype) for dtype in ("fp32", None))
    assert found.job.inputs.forward_s == plain.job.inputs.forward_s


def test_fp16_needs_no_bf16_units_under_fsdp() -> None:
    """A V100 has none."""
    found = answered(precision="fp16-mixed", topology="dgx2-v100")
    assert sum(op.saved_bytes for op in found.job.model.operations) == built("bf16").saved_bytes


@pytest.mark.parametrize("precision", ["tf32", "fp32", "bf16-master"])
def test_precisions_without_autocast_stay_as_they_are(precision: str) -> None:
    found = answered(precision=precision)
    assert found.job.model.operations == built(precision).operations
    assert found.job.inputs.forward_s == answered("ddp", precision).job.inputs.forward_s

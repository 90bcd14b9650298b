"""Published training runs against predictions, of compute alone and of the whole step.

Of compute alone (what `test_accuracy` asserts and `fit_efficiency` fits) runs count only where communication is small:
an estimate of its time, as if nothing were hidden, must stay within ``HIDDEN`` of the measured step. Whole steps
(`test_field_training`) are simulated with their strategy on their network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from simulator import shipped, units
from simulator.answer import answer_step
from simulator.device import DeviceSpec
from simulator.load import load_device, load_scenario
from simulator.model_spec import ArchitectureModel
from simulator.scenario import Scenario
from simulator.training.compute import operation_time, optimizer_time_s
from simulator.training.operations import TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.presets import build_model

DATA: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "data" / "training_runs.yaml").read_text())
PRECISION = PRECISIONS["bf16-master"]
HIDDEN = 0.10
GPUS_PER_NODE = 8
device_named = cache(load_device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run of one source, with the columns of the data file."""

    source: str
    use: str
    device: str
    family: str
    attention: str
    kernels: str
    state: str
    node_bytes_per_s: float
    fabric_bytes_per_s: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    micro_batch: int
    accumulation: int
    gpus: int
    recompute: str
    tokens_per_s_per_gpu: float
    step: str

    @property
    def micro_step_s(self) -> float:
        """Measured seconds of one micro-batch."""
        return self.seq_len * self.micro_batch / self.tokens_per_s_per_gpu


def runs() -> Iterator[Run]:
    """All runs in file order."""
    for source in DATA["sources"]:
        shared = {key: source[key] for key in ("use", "device", "family", "attention", "kernels", "state")}
        for row in source["rows"]:
            yield Run(
                source=source["name"], node_bytes_per_s=units.parse_bandwidth(source["node_rate"]),
                fabric_bytes_per_s=units.parse_bandwidth(source["fabric_rate"]), **shared,
                step=json.dumps(source.get("step")), **dict(zip(DATA["columns"], row, strict=True)),
            )  # fmt: skip


def _sizes(run: Run) -> dict[str, Any]:
    """The model as a scenario states it."""
    return {
        "family": "gpt2" if run.family == "gpt2" else "llama", "num_layers": run.layers, "hidden_size": run.hidden,
        "num_attention_heads": run.heads, "num_key_value_heads": run.kv_heads, "intermediate_size": run.ffn,
        "vocab_size": run.vocab, "max_position_embeddings": run.seq_len,
    }  # fmt: skip


@cache
def model(run: Run) -> TrainingModel:
    """The operations of one micro-batch of the run, 16 bits throughout as FSDP and Megatron train."""
    return build_model(
        ArchitectureModel.model_validate(_sizes(run)), seq_len=run.seq_len, micro_batch=run.micro_batch,
        precision=PRECISION.name, attention=run.attention, kernels=run.kernels, recompute=run.recompute,
    )  # fmt: skip


def communication_share(run: Run) -> float:
    """Time of all communication over the measured step, if none were hidden.

    16-bit weights are gathered for each forward (and again for a recomputed one) and backward and gradients scattered
    each micro-batch (``fsdp``), or gradients and weights move once a step (``zero1``).
    """
    passes = (4 if run.recompute == "full" else 3) if run.state == "fsdp" else 2 / run.accumulation
    moved = 2.0 * model(run).num_parameters * passes * (run.gpus - 1) / run.gpus
    across = run.gpus > GPUS_PER_NODE
    rate = min(run.node_bytes_per_s, run.fabric_bytes_per_s) if across else run.node_bytes_per_s
    return moved / rate / run.micro_step_s


def hidden(run: Run) -> bool:
    """Whether the run may be compared with a prediction of compute alone."""
    return communication_share(run) <= HIDDEN


def compute_s(step: TrainingModel, device: DeviceSpec) -> dict[str, float]:
    """Seconds of one micro-batch by kind of operation, work that is run again included."""
    parts: dict[str, float] = {}
    for operation in step.operations:
        own = sum(operation_time(replace(operation, replayed=()), device, PRECISION))
        parts[operation.kind] = parts.get(operation.kind, 0.0) + own
        for again in operation.replayed:
            parts[again.kind] = parts.get(again.kind, 0.0) + operation_time(again, device, PRECISION)[0]
    return parts


def parts_s(run: Run, device: DeviceSpec | None = None) -> dict[str, float]:
    """``compute_s`` of a run, and the optimizer's share of it (states are sharded over the node or over all)."""
    device = device or device_named(run.device)
    step = model(run)
    shards = run.gpus if run.state == "fsdp" else min(run.gpus, GPUS_PER_NODE)
    optimizer = optimizer_time_s(step.num_parameters / shards, device, PRECISION, "adamw") / run.accumulation
    return compute_s(step, device) | {"optimizer": optimizer}


@cache
def ratio(run: Run) -> float:
    """Predicted over measured tokens per second: above 1 is too fast."""
    return run.micro_step_s / sum(parts_s(run).values())


def scenario(run: Run) -> Scenario:
    """The run as one would ask for it. Its source must have a ``step``."""
    asked = json.loads(run.step)
    topology = yaml.safe_load(shipped.topology_file(asked["topology"]).read_text(encoding="utf-8"))
    kept = asked.get("shard_grad_op", {"gpus": math.inf, "hidden": 0})
    sharding = {"reshard_after_forward": not (run.gpus >= kept["gpus"] and run.hidden <= kept["hidden"])}
    told = {
        "cluster": {
            "topology": topology | {"device": run.device}, "nodes": max(1, run.gpus // GPUS_PER_NODE),
            "gpus_per_node": min(run.gpus, GPUS_PER_NODE),
        },
        "model": _sizes(run),
        "parallel": asked["parallel"] | sharding,
        "train": {
            "seq_len": run.seq_len, "micro_batch": run.micro_batch, "grad_accumulation": run.accumulation,
            "attention": run.attention, "kernels": run.kernels, "recompute": asked.get("recompute", run.recompute),
        },
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(yaml.safe_dump(told), encoding="utf-8")
        return load_scenario(path)


@cache
def step_ratio(run: Run) -> float:
    """Simulated over measured tokens per second of the whole step: above 1 is too fast."""
    step_s = answer_step(scenario(run), with_startup=False).timeline.end_s
    return run.micro_step_s * run.accumulation / step_s

"""What a rank would hold under a layout, by formula: so that only layouts with a chance to fit are simulated.

States: those of the rank's share of the parameters (mean over the stages), sharded as the strategy shards them.
Activations: what the whole model keeps for a sequence, over tensor and context parallelism (with sequence parallelism
all of it is shared: Korthikanti et al. 2022, arXiv:2205.05198), times the micro-batches that the first stage of 1F1B
holds, min(m, p), each of 1/p of the layers (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
Left out: what lives for moments, buckets, and that stages are uneven. Nothing is told to users from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.job import Job
from simulator.strategies import megatron
from simulator.strategies.recomputing import checkpoints_of
from simulator.strategies.sharding import computing_precision
from simulator.training.experts import is_expert
from simulator.training.precision import optimizer_state_bytes
from simulator.training.presets import build_model
from simulator.training.recompute import Checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How many ways the model is cut, and how often a stage runs in a step."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 1
    micro_batch: int = 1
    micro_batches: int = 1

    @property
    def replica(self) -> int:
        """Ranks that work on the same samples."""
        return self.tp * self.cp * self.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Of a model: parameters outside and inside experts, and bytes that a sequence keeps, by mode of recomputation."""

    dense: int
    experts: int
    kept_bytes: Mapping[str, float]
    job: Job

    def least_bytes(self, degrees: Degrees, strategy: str, recompute: str) -> float:
        """What a rank of the first stage holds at least, in the mean of the stages."""
        return self._states_bytes(degrees, strategy) + self._activation_bytes(degrees, recompute)

    def _activation_bytes(self, degrees: Degrees, recompute: str) -> float:
        live = min(degrees.micro_batches, degrees.pp) / degrees.pp
        return self.kept_bytes[recompute] * degrees.micro_batch * live / (degrees.tp * degrees.cp)

    def _states_bytes(self, degrees: Degrees, strategy: str) -> float:
        precision = self.job.inputs.precision
        if strategy == "zero1":
            precision = megatron.states(precision)
        kept = precision.param_bytes + precision.grad_bytes
        states = optimizer_state_bytes(precision, self.job.inputs.optimizer)
        dense, experts = self.dense / (degrees.tp * degrees.pp), self.experts / (degrees.ep * degrees.pp)
        copies = degrees.dp * degrees.cp
        copies_of_experts = max(1.0, copies * degrees.tp / degrees.ep)
        if strategy == "fsdp":
            whole = precision.grad_bytes if degrees.micro_batches > 1 else 0
            return dense * ((kept + states) / copies + whole) + experts * (
                (kept + states) / copies_of_experts + whole
            )  # fmt: skip
        return dense * (kept + states / copies) + experts * (kept + states / copies_of_experts)


def room_of(job: Job) -> Room:
    """Built once for a job; cheap beside a simulation."""
    whole, train = job.whole, job.train
    assert job.scenario.model is not None, "a job has a model"
    computing = computing_precision(job.inputs.precision, job.scenario.parallel)
    kernels = train.kernels or (job.device.kernels if job.device else "eager")
    modes: dict[str, Checkpoints] = {
        "none": Checkpoints(),
        "full": Checkpoints(),
        train.recompute: checkpoints_of(train),
    }
    kept: dict[str, float] = {
        mode: build_model(
            job.scenario.model, seq_len=train.seq_len, micro_batch=1, precision=computing, attention=train.attention,
            kernels=kernels, recompute=mode, checkpoints=checkpoints, base_dir=Path(),
        ).saved_bytes
        for mode, checkpoints in modes.items()
    }  # fmt: skip
    experts = sum(tensor.numel for tensor in whole.parameters if is_expert(tensor))
    return Room(dense=whole.num_parameters - experts, experts=experts, kept_bytes=kept, job=job)

"""No key of ``parallel`` is accepted and ignored: each that an implementation reads changes what its step does."""

from __future__ import annotations

from typing import Any

import pytest
from stepping import inputs_of, plan_of

from simulator.model_parallel_spec import ModelParallel
from simulator.parallel_spec import COMMON, KEYS, Parallel
from simulator.training.operations import Operation, ParameterTensor, TrainingModel

TWO_SYNCED = {"sync_each_micro_batch": True}
#: DeepSpeed keeps tensors of up to 100,000 elements whole, here all of them, and gathers none of those.
CUT = {"param_persistence_threshold": 0, "max_reuse_distance": 0}
#: Two values of each key, and what else has to be set for it to matter.
VALUES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "algorithm": ("ring", "tree", {}),
    "all_reduce_each_micro_batch": (True, False, TWO_SYNCED),
    "backward_prefetch": (0, 2, {}),
    "bucket_cap": ("20 kB", "1 MB", {}),
    "comm_hook": ("none", "bf16", {}),
    "find_unused_parameters": (True, False, {}),
    "first_bucket": ("20 kB", "1 MB", {}),
    "forward_prefetch": (0, 1, {}),
    "gradient_as_bucket_view": (True, False, {}),
    "iteration": ("steady", "first", {"bucket_cap": "20 kB"}),
    "limit_all_gathers": (True, False, {}),
    "max_live_parameters": (1, 10**9, CUT),
    "max_reuse_distance": (0, 10**9, {"param_persistence_threshold": 0, "prefetch_bucket_size": 0}),
    "overlap": ("bucketed", "none", {}),
    "overlap_comm": (True, False, {}),
    "overlap_grad_reduce": (True, False, {}),
    "overlap_param_gather": (True, False, {}),
    "param_dtype": ("bf16", "fp32", {}),
    "param_persistence_threshold": (0, 10**5, {}),
    "parameters_as_bucket_view": (True, False, {}),
    "prefetch_bucket_size": (0, 10**5, CUT),
    "reduce_bucket_size": (10_000, 10**6, {}),
    "reduce_dtype": ("bf16", "fp32", {}),
    "reduce_scatter_buffers": (1, 3, {}),
    "reshard_after_backward": (True, False, {}),
    "reshard_after_forward": (True, False, {}),
    "separate_reduce_scatter_group": (True, False, {}),
    "shard_size": (2, 4, {}),
    "sync_each_micro_batch": (True, False, {}),
    "use_multi_rank_bucket_allreduce": (True, False, {}),
    "wait_each_micro_batch": (True, False, TWO_SYNCED),
    "wrap": ("block", "root", {}),
}
#: Where the words for it are others.
OTHERS = {("backward_prefetch", "fsdp1"): ("pre", "post")}
READ = [(*implementation, key) for implementation, keys in KEYS.items() for key in keys.split()]


def the_layers() -> TrainingModel:
    """Six blocks of two tensors, 100 kB in fp32."""
    operations = tuple(
        Operation(
            name=f"layers.{number}", layer=f"layers.{number}", kind="gemm",
            parameters=tuple(
                ParameterTensor(name=f"layers.{number}.{kind}", numel=numel, rows=16)
                for kind, numel in (("bias", 1600), ("weight", 24_000))
            ),
        )
        for number in range(6)
    )  # fmt: skip
    parameters = tuple(tensor for operation in operations for tensor in operation.parameters)
    return TrainingModel(
        name="six", operations=operations, parameters=parameters, num_parameters=6 * 25_600, num_layers=6
    )  # fmt: skip


@pytest.mark.parametrize(("strategy", "implementation", "key"), READ, ids=["-".join(one) for one in READ])
def test_a_key_that_is_read_changes_the_plan(strategy: str, implementation: str, key: str) -> None:
    first, second, around = VALUES[key]
    first, second = OTHERS.get((key, implementation), (first, second))
    base = {"strategy": strategy, "implementation": implementation, **around}
    base |= {"shard_size": 2} if strategy == "hsdp" else {}
    step = {"precision": "fp32", "micro_batches": 2, "copy_bytes_per_s": 1e9}
    plans = [plan_of(inputs_of(the_layers(), 4, {**base, key: value}, **step)) for value in (first, second)]
    assert (plans[0].tasks, plans[0].resident) != (plans[1].tasks, plans[1].resident)


def test_each_key_of_the_schema_is_read_by_someone() -> None:
    assert {key for _, _, key in READ} | set(COMMON) | set(ModelParallel.model_fields) == set(Parallel.model_fields)

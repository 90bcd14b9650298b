"""``parallel`` in a scenario: how the work is spread over the GPUs, and what each framework lets one set about it.

One flat block. Which keys a strategy reads follows from its implementation (``KEYS``); any other key is refused, since
setting it would change nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    model_validator,
)

from simulator.errors import ScenarioError
from simulator.fields import Bytes, Count, Items, Text, errors_at
from simulator.model_parallel_spec import ModelParallel, idle_keys
from simulator.problems import nearest

FIRST_BUCKET_BYTES: Final = 2.0**20
_BUCKETS = "bucket_cap first_bucket gradient_as_bucket_view"
_UNITS = "wrap reshard_after_forward forward_prefetch backward_prefetch param_dtype reduce_dtype sync_each_micro_batch"
_FSDP2 = f"{_UNITS} reshard_after_backward wait_each_micro_batch reduce_scatter_buffers separate_reduce_scatter_group"
_FSDP1 = f"{_UNITS} limit_all_gathers"
_DEEPSPEED = "reduce_bucket_size overlap_comm use_multi_rank_bucket_allreduce algorithm"
#: (strategy, implementation) -> the keys that it reads. The first implementation of a strategy is its default.
KEYS: Final = {
    ("ddp", "torch"): f"{_BUCKETS} overlap find_unused_parameters comm_hook iteration sync_each_micro_batch algorithm",
    ("zero1", "deepspeed"): _DEEPSPEED,
    ("zero1", "torch"): f"{_BUCKETS} find_unused_parameters comm_hook sync_each_micro_batch parameters_as_bucket_view"
    " algorithm",
    ("zero1", "megatron"): "reduce_bucket_size overlap_grad_reduce overlap_param_gather",
    ("zero1", "textbook"): "",
    ("zero2", "deepspeed"): _DEEPSPEED,
    ("zero2", "textbook"): "wrap",
    ("zero3", "deepspeed"): "reduce_bucket_size overlap_comm prefetch_bucket_size param_persistence_threshold"
    " max_live_parameters max_reuse_distance",
    ("zero3", "textbook"): "wrap reshard_after_forward forward_prefetch backward_prefetch",
    ("fsdp", "fsdp2"): _FSDP2,
    ("fsdp", "fsdp1"): _FSDP1,
    ("hsdp", "fsdp2"): f"{_FSDP2} shard_size all_reduce_each_micro_batch algorithm",
    ("hsdp", "fsdp1"): f"{_FSDP1} shard_size algorithm",
}
#: Settings of DDP's reducer and what they are without it: tensors that are reduced one by one do not pass it.
_REDUCER: Final = {"find_unused_parameters": False, "comm_hook": "none", "iteration": "steady"}
STRATEGIES: Final = tuple(dict.fromkeys(strategy for strategy, _ in KEYS))
#: Keys that every strategy reads.
COMMON: Final = ("strategy", "implementation")
Dtype = Literal["bf16", "fp16", "fp32"]
Elements = Annotated[int, Field(ge=1, le=10**13)]


def _strategy(name: str) -> str:
    if name not in STRATEGIES:
        raise ScenarioError(f"unknown strategy; accepted: {', '.join(STRATEGIES)}{nearest(name, STRATEGIES)}")
    return name


Strategy = Annotated[str, AfterValidator(_strategy), WithJsonSchema({"type": "string", "enum": list(STRATEGIES)})]


def implementations(strategy: str) -> tuple[str, ...]:
    """Implementations of a strategy, the default first."""
    return tuple(implementation for name, implementation in KEYS if name == strategy)


class Parallel(ModelParallel):
    """How the work is spread over the GPUs. Data parallelism takes what the other degrees leave."""

    strategy: Strategy = Field(default="ddp", description="how the replicas of data parallelism share their state")
    implementation: Text | None = Field(
        default=None,
        description="whose: ddp torch; zero1 deepspeed, torch, megatron or textbook; zero2 and zero3 deepspeed or "
        "textbook; fsdp and hsdp fsdp2 or fsdp1. The first when left out",
    )
    algorithm: Text = Field(
        default="auto", description="algorithm of the gradients' all-reduce; 'auto' is the fastest on the network"
    )
    # DDP, and what is built on it
    overlap: Literal["bucketed", "per_parameter", "none"] = Field(
        default="bucketed", description="when gradients are reduced: in buckets, one by one, or after the backward"
    )
    bucket_cap: Bytes = Field(
        default=25 * 2.0**20,
        description="size at which a gradient bucket closes (PyTorch's bucket_cap_mb)",
        json_schema_extra={"default": "25 MiB"},
    )
    first_bucket: Bytes | None = Field(
        default=None,
        description="size at which the first bucket closes; as in PyTorch 1 MiB, but bucket_cap where that is given",
    )
    gradient_as_bucket_view: bool = Field(
        default=False, description="whether gradients live in the buckets instead of a copy beside them"
    )
    find_unused_parameters: bool = Field(
        default=False, description="whether DDP looks for parameters without gradient, each step (buckets by "
        "registration order, one more all-reduce)"
    )  # fmt: skip
    comm_hook: Literal["none", "fp16", "bf16"] = Field(
        default="none", description="gradients sent in 16 bits by DDP's fp16_compress_hook or bf16_compress_hook"
    )
    iteration: Literal["steady", "first"] = Field(
        default="steady", description="which step: a steady one, or the first, whose gradients are one bucket"
    )
    sync_each_micro_batch: bool = Field(
        default=False, description="whether gradients are reduced in every micro-batch, not only in the last (no_sync)"
    )
    parameters_as_bucket_view: bool = Field(
        default=False, description="ZeroRedundancyOptimizer: one broadcast per owner instead of one per parameter"
    )
    # FSDP, and ZeRO-3 by hand
    wrap: Literal["block", "root"] | Count | Items[Text] = Field(
        default="block",
        description="what is sharded and gathered as one unit: each block, so many blocks, the modules of these names "
        "(layers.*.mlp), or only the root",
    )
    reshard_after_forward: bool | Annotated[int, Field(ge=2)] | Literal["not-last"] | Items[bool] = Field(
        default=True,
        description="whether units are freed after their forward; a number keeps shards over that many ranks; "
        "one value per unit, or all but the last",
    )
    reshard_after_backward: bool = Field(default=True, description="whether units are freed after their backward")
    wait_each_micro_batch: bool = Field(
        default=True, description="FSDP2: whether each backward ends with a wait for its reductions; false: only the "
        "last one does (set_is_last_backward)"
    )  # fmt: skip
    forward_prefetch: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="units gathered ahead in forward, beyond what the streams overlap by themselves"
    )
    backward_prefetch: Annotated[int, Field(ge=0, le=1000)] | Literal["pre", "post"] | None = Field(
        default=None, description="units gathered ahead in backward (fsdp2: 1), or when (fsdp1: pre, post; 0 for never)"
    )
    limit_all_gathers: bool = Field(
        default=True, description="FSDP1: whether the host waits so that at most two gathered units are in flight"
    )
    reduce_scatter_buffers: Count = Field(
        default=1, description="FSDP2: inputs of reduce-scatters that may be alive at the same time"
    )
    separate_reduce_scatter_group: bool = Field(
        default=False, description="FSDP2: whether reduce-scatters have a communicator of their own"
    )
    param_dtype: Dtype | None = Field(
        default=None, description="type in which units are gathered and used; that of train.precision when left out"
    )
    reduce_dtype: Dtype | None = Field(
        default=None, description="type in which gradients are reduced; fp32 for mixed precision when left out"
    )
    shard_size: Annotated[Count, Field(ge=2)] | None = Field(
        default=None, description="HSDP: ranks that share one copy of the states; the GPUs of a node when left out"
    )
    all_reduce_each_micro_batch: bool = Field(
        default=True,
        description="HSDP: whether replicas are reduced whenever shards are, or only in the last micro-batch",
    )
    # DeepSpeed and Megatron. Sizes are in elements, as there.
    reduce_bucket_size: Elements | None = Field(
        default=None, description="elements of a gradient bucket; 500,000,000 (DeepSpeed), 40,000,000 (Megatron)"
    )
    overlap_comm: bool | None = Field(
        default=None, description="DeepSpeed: whether gradients are reduced during backward; true for stage 3 only"
    )
    use_multi_rank_bucket_allreduce: bool = Field(
        default=True, description="DeepSpeed 1 and 2: one all-reduce per bucket; false: one reduce per owner"
    )
    prefetch_bucket_size: Annotated[int, Field(ge=0, le=10**13)] = Field(
        default=50_000_000, description="DeepSpeed 3: elements gathered ahead"
    )
    param_persistence_threshold: Annotated[int, Field(ge=0, le=10**13)] = Field(
        default=100_000, description="DeepSpeed 3: parameters of at most so many elements stay whole"
    )
    max_live_parameters: Elements = Field(
        default=1_000_000_000, description="DeepSpeed 3: elements that may be gathered at the same time"
    )
    max_reuse_distance: Annotated[int, Field(ge=0, le=10**13)] = Field(
        default=1_000_000_000, description="DeepSpeed 3: a parameter used again within so many elements is not freed"
    )
    overlap_grad_reduce: bool = Field(
        default=True, description="Megatron: whether gradients are reduced during backward"
    )
    overlap_param_gather: bool | None = Field(
        default=None,
        description="Megatron: whether weights are gathered during the next forward; as overlap_grad_reduce when "
        "left out",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _reads_all_its_keys(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Parallel:
        """Checks across keys, reported together with the errors inside them."""
        problems = _problems(data) if isinstance(data, dict) else []
        try:
            parallel: Parallel = handler(data)
        except ValidationError as error:
            if not problems:
                raise
            raise errors_at("Parallel", *problems, also=error) from None
        if problems:
            raise errors_at("Parallel", *problems)
        return parallel

    @property
    def implemented_by(self) -> str:
        """The implementation, the strategy's default when none is given."""
        return self.implementation or implementations(self.strategy)[0]

    @property
    def first_bucket_bytes(self) -> float:
        """PyTorch's own small first bucket is gone once ``bucket_cap_mb`` is passed."""
        if self.first_bucket is not None:
            return self.first_bucket
        return self.bucket_cap if "bucket_cap" in self.model_fields_set else FIRST_BUCKET_BYTES


def _problems(data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    strategy = data.get("strategy") or "ddp"
    if strategy not in STRATEGIES:
        return []
    accepted = implementations(strategy)
    implementation = data.get("implementation") or accepted[0]
    if implementation not in accepted:
        told = f"{strategy} has no implementation {implementation!r}; accepted: {', '.join(accepted)}"
        return [(("implementation",), told + nearest(str(implementation), accepted))]
    readable = (*COMMON, *KEYS[strategy, implementation].split())
    everywhere = ModelParallel.model_fields
    name = strategy if len(accepted) == 1 else f"{strategy} ({implementation})"
    settings = ", ".join(readable[len(COMMON) :]) or "no settings of its own"
    unread = [
        ((key,), f"{name} does not read it; it has {settings}{nearest(key, readable)}")
        for key, value in data.items()
        if key in Parallel.model_fields and key not in (*readable, *everywhere) and value is not None
    ]
    return [*unread, *_without_reducer(data), *_without_all_reduce(data), *idle_keys(data)]


def _without_reducer(data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    overlap = data.get("overlap") or "bucketed"
    if overlap == "bucketed":
        return []
    told = f"needs overlap 'bucketed'; with '{overlap}' tensors are reduced one by one, apart from DDP"
    return [((key,), told) for key, default in _REDUCER.items() if data.get(key) not in (None, default)]


def _without_all_reduce(data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    if data.get("use_multi_rank_bucket_allreduce") is not False or data.get("algorithm") in (None, "auto"):
        return []
    return [(("algorithm",), "is that of all-reduces; use_multi_rank_bucket_allreduce: false reduces to each owner")]

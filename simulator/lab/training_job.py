"""A scenario as a job of ``real_run``: which real torch program does what it says. Pure: nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from simulator.errors import ScenarioError, UnsupportedError
from simulator.lab.spread_model import spread
from simulator.library import NcclLibrary
from simulator.model_spec import LayersModel, MeasuredExchange
from simulator.parallel_spec import Parallel
from simulator.problems import Loc
from simulator.ranks_spec import Host
from simulator.scenario import Scenario

#: Steps before the timed ones, in which memory is first used; DistributedDataParallel rebuilds its buckets after one.
WARM_UP, WARM_UP_DDP = 1, 2
#: One thread per group of gloo, so that a group runs one collective at a time, in order, as NCCL's communicators do;
#: torch's usual two let two buckets share the links (``real_groups``).
WORKERS = 1
MIB = 2.0**20
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Options = dict[str, Any]


def training_job(
    scenario: Scenario, num_ranks: int, node_size: int, steps: int, speeds: Sequence[float] = ()
) -> dict[str, Any]:
    """The job: sleeping layers of the scenario's times with real parameters, under the strategy it names.

    The optimizer is left out, as measured layers leave out its time. speeds: of each rank over the nominal one, where
    they differ. Raises as ``check_scenario``, and UnsupportedError for a strategy that torch does not run.
    """
    check_scenario(scenario)
    if isinstance(scenario.cluster.spec.library, NcclLibrary):
        _refuse(scenario, ("cluster", "library"), "the lab's processes talk over gloo; accepted: gloo")
    assert isinstance(scenario.model, LayersModel)
    assert scenario.train is not None
    layers = layers_of(scenario.model)
    strategy, options = _strategy(scenario, num_ranks, node_size)
    if scenario.parallel.sync_each_micro_batch:
        options["sync"] = "every"
    return {
        "kind": "train", "model": {"layers": layers}, "strategy": strategy, "options": options,
        "optimizer": "none", "accumulation": scenario.train.grad_accumulation, "steps": steps,
        "warm_up": WARM_UP_DDP if strategy in _DDP else WARM_UP,
        "workers": WORKERS, **({"speed": [1 / speed for speed in speeds]} if speeds else {}),
        **spread(scenario, num_ranks, layers),
    }  # fmt: skip


def layers_of(model: LayersModel) -> list[dict[str, Any]]:
    """The layers of ``real_model``, repeats written out under the names that the simulator gives them."""
    return [
        {
            "name": layer.name if layer.repeat == 1 else f"{layer.name}.{index}",
            "params": [layer.params] if isinstance(layer.params, int) else list(layer.params),
            "forward_s": layer.forward, "backward_s": layer.backward,
            **({"output": layer.output} if layer.output else {}),
            **({"exchanges": [_exchange(e) for e in layer.exchanges]} if layer.exchanges else {}),
        }
        for layer in model.layers
        for index in range(layer.repeat)
    ]  # fmt: skip


def _exchange(sent: MeasuredExchange) -> dict[str, Any]:
    return {
        "axis": sent.axis, "op": sent.op, "size_bytes": sent.size, "when": sent.when, "count": sent.count,
        "pieces": sent.pieces,
    }  # fmt: skip


def check_scenario(scenario: Scenario) -> None:
    """Raises ScenarioError for what layers that sleep on the hosts of a lab cannot be."""
    if not isinstance(scenario.model, LayersModel) or scenario.train is None:
        loc: Loc = ("model",) if scenario.model is not None else ("collective",)
        _refuse(scenario, loc, "the lab runs layers of stated times; accepted: {layers: [...]}, see 'lab-ddp'")
    if scenario.train.precision != "fp32" or scenario.model.dtype not in (None, "fp32"):
        key: Loc = ("train", "precision") if scenario.train.precision != "fp32" else ("model", "dtype")
        _refuse(scenario, key, "the lab trains in fp32; accepted: fp32")
    if scenario.parallel.algorithm not in ("auto", "ring"):
        _refuse(scenario, ("parallel", "algorithm"), "gloo all-reduces on a ring; accepted: auto, ring")
    cluster, train = scenario.cluster, scenario.train
    left_out: dict[Loc, tuple[bool, str]] = {
        ("cluster", "faults"): (bool(cluster.faults), "the lab builds links without faults"),
        ("cluster", "jitter"): (cluster.jitter is not None, "the lab's ranks are as fast as cluster.stragglers says"),
        ("cluster", "host"): (cluster.host != Host(), "the lab's host thread is that of this machine"),
        ("train", "uneven"): (bool(train.uneven), "sleeping layers take the stated time whatever the batch"),
        ("train", "host_syncs"): (train.host_syncs != "never", "there is no device to wait for in the lab"),
        ("train", "recompute"): (train.recompute != "none", "sleeping layers keep nothing to compute again"),
        ("train", "offload_activations"): (bool(train.offload_activations), "the lab has no device to copy from"),
        ("train", "clip_grad_norm"): (
            train.clip_grad_norm and scenario.parallel.strategy not in ("fsdp", "hsdp"), "the lab clips under FSDP only"
        ),
    }  # fmt: skip
    for loc, (given, why) in left_out.items():
        if given:
            _refuse(scenario, loc, f"{why}; accepted: left out")


def _refuse(scenario: Scenario, loc: Loc, message: str) -> NoReturn:
    raise ScenarioError(scenario.describe(loc, message))


def _strategy(scenario: Scenario, num_ranks: int, node_size: int) -> tuple[str, Options]:
    parallel = scenario.parallel
    key = (parallel.strategy, parallel.implemented_by)
    if key not in REAL:
        accepted = ", ".join(f"{name} ({by})" for name, by in REAL)
        message = f"the lab does not run {key[0]} ({key[1]}); accepted: {accepted}"
        raise UnsupportedError(scenario.describe(("parallel", "strategy"), message))
    name, make = REAL[key]
    options = make(scenario, num_ranks, node_size)
    if key == ("ddp", "torch") and parallel.overlap != "bucketed":
        return {"none": "naive", "per_parameter": "per_parameter"}[parallel.overlap], {}
    return name, options


def _ddp(scenario: Scenario, _num_ranks: int, _node_size: int) -> Options:
    parallel = scenario.parallel
    options: Options = {}
    if parallel.first_bucket is not None:
        _refuse(scenario, ("parallel", "first_bucket"), "torch has no such option; accepted: left out")
    if parallel.iteration != "steady":
        _refuse(scenario, ("parallel", "iteration"), "the lab times steady steps; accepted: steady")
    if "bucket_cap" in parallel.model_fields_set:
        options["bucket_cap_mb"] = parallel.bucket_cap / MIB
    for key in ("gradient_as_bucket_view", "find_unused_parameters"):
        if getattr(parallel, key):
            options[key] = True
    if parallel.comm_hook != "none":
        options["hook"] = parallel.comm_hook
    return options


def _zero1_torch(scenario: Scenario, num_ranks: int, node_size: int) -> Options:
    options = _ddp(scenario, num_ranks, node_size)
    return options | {"parameters_as_bucket_view": scenario.parallel.parameters_as_bucket_view}


def _none(_scenario: Scenario, _num_ranks: int, _node_size: int) -> Options:
    return {}


def _units(scenario: Scenario) -> Options:
    """Layers per unit; None: only the root."""
    wrap = scenario.parallel.wrap
    if not isinstance(wrap, int | str):
        _refuse(scenario, ("parallel", "wrap"), "measured layers hold no modules; accepted: block, root, a number")
    return {} if wrap == "root" else {"units": 1 if wrap == "block" else wrap}


def _zero3(scenario: Scenario, _num_ranks: int, _node_size: int) -> Options:
    parallel = scenario.parallel
    backward = parallel.backward_prefetch if isinstance(parallel.backward_prefetch, int) else parallel.forward_prefetch
    options = _units(scenario) | {"forward_prefetch": parallel.forward_prefetch, "backward_prefetch": backward}
    if isinstance(parallel.reshard_after_forward, bool):
        return options | {"reshard_after_forward": parallel.reshard_after_forward}
    if parallel.reshard_after_forward == "not-last":
        return options | {"keep_last": True}
    _refuse(scenario, ("parallel", "reshard_after_forward"), "accepted in the lab: true, false, not-last")


def _types(parallel: Parallel) -> Options:
    held = {"param_dtype": parallel.param_dtype, "reduce_dtype": parallel.reduce_dtype}
    return {name: DTYPES[dtype] for name, dtype in held.items() if dtype is not None}


#: Settings of FSDP2 about what goes on while a collective runs.
_OF_STREAMS = ("reduce_scatter_buffers", "separate_reduce_scatter_group")


def _fsdp2(scenario: Scenario, _num_ranks: int, _node_size: int) -> Options:
    parallel = scenario.parallel
    reshard = parallel.reshard_after_forward
    if isinstance(reshard, tuple):
        _refuse(scenario, ("parallel", "reshard_after_forward"), "accepted in the lab: true, false, a number, not-last")
    options = _units(scenario) | _types(parallel)
    options["reshard_after_forward"] = "all but last" if reshard == "not-last" else reshard
    options["forward_prefetch"] = parallel.forward_prefetch
    if isinstance(parallel.backward_prefetch, int):
        options["backward_prefetch"] = parallel.backward_prefetch
    for key in _OF_STREAMS:
        if getattr(parallel, key) != type(parallel).model_fields[key].default:
            _refuse(
                scenario, ("parallel", key), "changes nothing where a call to a collective blocks; accepted: left out"
            )
    if not parallel.reshard_after_backward:
        options["reshard_after_backward"] = "last"
    if parallel.wait_each_micro_batch:
        options["wait"] = "every"
    assert scenario.train is not None
    return options | ({"clip": 1.0} if scenario.train.clip_grad_norm else {})


def _hsdp(scenario: Scenario, num_ranks: int, node_size: int) -> Options:
    options = _fsdp2(scenario, num_ranks, node_size) | {"mesh": _mesh(scenario, num_ranks, node_size)}
    return options | ({} if scenario.parallel.all_reduce_each_micro_batch else {"all_reduce": "last"})


def _mesh(scenario: Scenario, num_ranks: int, node_size: int) -> list[int]:
    shards = scenario.parallel.shard_size or node_size
    return [num_ranks // shards, shards]


def _fsdp1(scenario: Scenario, _num_ranks: int, _node_size: int) -> Options:
    parallel = scenario.parallel
    if not isinstance(parallel.reshard_after_forward, bool):
        _refuse(scenario, ("parallel", "reshard_after_forward"), "accepted for fsdp1: true, false")
    options = _units(scenario) | _types(parallel)
    options["sharding"] = "full_shard" if parallel.reshard_after_forward else "shard_grad_op"
    options["limit_all_gathers"] = parallel.limit_all_gathers
    options["forward_prefetch"] = bool(parallel.forward_prefetch)
    if isinstance(parallel.backward_prefetch, str):
        options["backward_prefetch"] = parallel.backward_prefetch
    assert scenario.train is not None
    return options | ({"clip": 1.0} if scenario.train.clip_grad_norm else {})


def _hsdp1(scenario: Scenario, num_ranks: int, node_size: int) -> Options:
    options = _fsdp1(scenario, num_ranks, node_size) | {"mesh": _mesh(scenario, num_ranks, node_size)}
    return options | {"sharding": "hybrid_shard" if scenario.parallel.reshard_after_forward else "_hybrid_shard_zero2"}


#: Those of ``real_strategies`` that wrap the model in DistributedDataParallel.
_DDP = ("ddp", "zero1_torch")
#: (strategy, implementation) -> its name in ``real_strategies``, and what makes its options.
REAL: Mapping[tuple[str, str], tuple[str, Callable[[Scenario, int, int], Options]]] = {
    ("ddp", "torch"): ("ddp", _ddp),
    ("zero1", "torch"): ("zero1_torch", _zero1_torch),
    ("zero1", "textbook"): ("zero1", _none),
    ("zero2", "textbook"): ("zero2", lambda scenario, _num_ranks, _node_size: _units(scenario)),
    ("zero3", "textbook"): ("zero3", _zero3),
    ("fsdp", "fsdp2"): ("fsdp2", _fsdp2),
    ("fsdp", "fsdp1"): ("fsdp1", _fsdp1),
    ("hsdp", "fsdp2"): ("fsdp2", _hsdp),
    ("hsdp", "fsdp1"): ("fsdp1", _hsdp1),
}

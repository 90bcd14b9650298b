"""Scenario -> Plan: builds the model, times its operations, and lets the strategy lay out the step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from simulator.collectives import AUTO, algorithms_of
from simulator.device import DeviceSpec
from simulator.errors import ScenarioError, UnsupportedError
from simulator.host_costs import host_costs, with_syncs
from simulator.job import Job
from simulator.library import NcclLibrary
from simulator.library_rules import IN_SWITCHES
from simulator.mesh import Mesh, make_mesh
from simulator.network.graph import Network
from simulator.network.placement import place_ranks
from simulator.plan import Plan, with_classes
from simulator.problems import nearest
from simulator.rank_classes import Look, classes_of_roles, fold_ranks, merge_looks
from simulator.rank_looks import looks_of
from simulator.scenario import Scenario, Train
from simulator.strategies.composed import drafts
from simulator.strategies.recomputing import checkpoints_in_stages, checkpoints_of
from simulator.strategies.sharding import computing_precision
from simulator.strategies.step import Draft, StepInputs
from simulator.training.compute import (
    memory_rate_bytes_per_s,
    operation_time,
    optimizer_time_s,
    weight_gradient_time_s,
)
from simulator.training.operations import TrainingModel
from simulator.training.presets import build_model, model_precision
from simulator.training.shards import shards_of
from simulator.tuning.choice import KERNELS, native
from simulator.tuning.place import shape_of


def make_job(scenario: Scenario, network: Network) -> Job:
    """Plan one steady step and the start-up of ``scenario`` on all GPUs of ``network``.

    Raises ScenarioError when the model needs a device that the topology does not name or ranks are named that there
    are not, UnsupportedError when the device lacks the precision, or the library does not run the algorithm here.
    """
    assert scenario.model is not None, "a collective scenario has no step to plan"
    assert scenario.train is not None, "the scenario model was checked when loaded"
    device = scenario.cluster.spec.device
    assert not isinstance(device, str), "the device is read when the scenario is loaded"
    _check_algorithm(scenario, network)
    with _with_file_and_line(scenario):
        inputs, whole = _step_inputs(scenario, scenario.train, device, network)
        step, startup = drafts(inputs)
    disturbed = device if not inputs.model.measured else None
    unmerged = looks_of(scenario, scenario.train, network)
    looks = unmerged if scenario.engine.fidelity == "message" else merge_looks(unmerged)
    if inputs.host.syncs:
        step = replace(step, tasks=with_syncs(step.tasks))
    return Job(
        scenario=scenario, train=scenario.train, inputs=inputs, device=device,
        step=_plan(f"{inputs.model.name}, one step", step, looks), unsharded=whole,
        startup=_plan(f"{inputs.model.name}, start-up", startup, looks),
        core_share=disturbed.comm_sm_share if disturbed else 0.0,
        channel_share=disturbed.sms_per_channel / disturbed.sm_count if disturbed and disturbed.comm_sm_share else 0.0,
        memory_s_per_byte=disturbed.comm_memory_accesses / memory_rate_bytes_per_s(disturbed) if disturbed else 0.0,
        merged_ranks=sum(before != after for before, after in zip(unmerged, looks, strict=True)),
    )  # fmt: skip


@contextmanager
def _with_file_and_line(scenario: Scenario) -> Iterator[None]:
    """``parallel.wrap: ...``, raised by what knows no file, with those of the key that it begins with."""
    try:
        yield
    except ScenarioError as error:
        found = re.match(r"(parallel|train)\.(\w+): ", str(error))
        if found is None:
            raise
        told = scenario.describe((found[1], found[2]), str(error)[found.end() :])
        raise type(error)(told) from None


def _check_algorithm(scenario: Scenario, network: Network) -> None:
    """A kernel of the library is no schedule of messages: where the library does not run it, its time is unknown."""
    name, lacks = scenario.parallel.algorithm, _kernels_it_lacks(network)
    switched = any(role == "nvswitch" for _, role in network.graph.nodes(data="role"))
    unfit = {*(() if switched else IN_SWITCHES), *(() if network.torus_shape else ("torus",))}
    fitting = (a for a in algorithms_of("all_reduce") if a not in unfit)
    accepted = (AUTO, *(a for a in fitting if a not in lacks))
    if name in accepted:
        return
    told, kind = f"'{name}' is no all_reduce for {network.name}", ScenarioError
    if name in lacks:
        told = f"{network.library.name} does not run '{name}' for all_reduce on these {network.num_gpus} ranks"
        kind = UnsupportedError
    message = f"{told}; accepted: {', '.join(accepted)}{nearest(name, accepted)}"
    if name in lacks:
        message += "; 'cluster.library=textbook' plays its schedule on bare links"
    raise kind(scenario.describe(("parallel", "algorithm"), message))


def _kernels_it_lacks(network: Network) -> frozenset[str]:
    """Kernels that the network's library would need for an all-reduce of all ranks and does not run there."""
    shape, library = shape_of(network, place_ranks(network)), network.library
    if shape is None or not isinstance(library, NcclLibrary):
        return frozenset()
    return (KERNELS & set(algorithms_of("all_reduce"))) - set(native("all_reduce", shape, library))


def _plan(title: str, draft: Draft, looks: list[Look]) -> Plan:
    """Classes of equal ranks in the place of all, or of those of a role."""
    classes = fold_ranks(looks, draft.axes, draft.roles or None)
    of_role = classes_of_roles(classes)
    held = {name: draft.resident_of[role] for role in draft.resident_of for name in of_role[role]}
    return Plan(
        title=title, classes=classes, axes=draft.axes, tasks=with_classes(draft.tasks, of_role),
        resident=draft.resident, resident_of=held,
    )  # fmt: skip


def _step_inputs(
    scenario: Scenario, train: Train, device: DeviceSpec | None, network: Network
) -> tuple[StepInputs, TrainingModel]:
    """What a rank's strategy gets, and the whole model, of which the rank may hold a part."""
    assert scenario.model is not None
    mesh = _mesh(scenario, network)
    kernels = train.kernels or (device.kernels if device else "eager")
    precision = model_precision(scenario.model, train.precision)
    computing = computing_precision(precision, scenario.parallel)
    build = partial(
        build_model, scenario.model, seq_len=train.seq_len, micro_batch=train.micro_batch, precision=computing,
        attention=train.attention, kernels=kernels, recompute=train.recompute, base_dir=Path(),
    )  # fmt: skip
    whole = build(checkpoints=checkpoints_of(train))
    checkpoints = checkpoints_in_stages(train, whole, scenario.parallel)
    model = whole
    if mesh:
        model = build(checkpoints=checkpoints, shards=shards_of(scenario.parallel, _node_size(network)))
    if not model.num_parameters and scenario.parallel.strategy != "ddp":
        told = f"{model.name} has no parameters that {scenario.parallel.strategy} could share; accepted: ddp"
        raise ScenarioError(scenario.describe(("parallel", "strategy"), told))
    host = host_costs(scenario, None if model.measured else device)
    host = replace(host, syncs=train.host_syncs == "micro_batch")
    if device is None and not model.measured:
        told = (
            f"'{scenario.cluster.spec.name}' names no device, so the time of {model.name} is unknown; add 'device: "
            "NAME' to the topology, or give measured 'layers'"
        )
        raise ScenarioError(scenario.describe(("cluster", "topology"), told))
    if model.measured:
        times = [(op.forward_s or 0.0, op.backward_s or 0.0) for op in model.operations]
        optimizer_s, copy_rate, launch_s = 0.0, math.inf, 0.0
        weights_s = [backward / 2 for _, backward in times]
    else:
        assert device is not None
        _check_dtype(scenario, device, precision.dtype, computing.dtype)
        times = [operation_time(op, device, computing) for op in model.operations]
        weights_s = [weight_gradient_time_s(op, device, computing) for op in model.operations] if mesh else []
        optimizer_s = optimizer_time_s(model.num_parameters, device, precision, train.optimizer)
        copy_rate, launch_s = memory_rate_bytes_per_s(device), device.efficiency.launch
    return StepInputs(
        mesh=mesh, model=model, precision=precision, parallel=scenario.parallel,
        forward_s=tuple(f for f, _ in times), backward_s=tuple(b for _, b in times), weight_grad_s=tuple(weights_s),
        optimizer_s=optimizer_s, optimizer=train.optimizer,
        offloaded_share=train.offload_activations, host_bytes_per_s=_host_link(train, device),
        copy_bytes_per_s=copy_rate, launch_s=launch_s, num_ranks=mesh.size("dp", "cp") if mesh else network.num_gpus,
        node_size=max(1, _node_size(network) // (mesh.tp if mesh else 1)), micro_batches=train.grad_accumulation,
        clip_grad_norm=train.clip_grad_norm, context_bytes=device.context if device else 0.0,
        communicator_bytes=device.communicator if device else 0.0, host=host, streams=_streams(network),
        both_ways=getattr(network.library, "both_ways", True),
    ), whole  # fmt: skip


def _host_link(train: Train, device: DeviceSpec | None) -> float:
    """Bytes/s between device and host. Raises ScenarioError where copies are asked for and the rate is unknown."""
    if device is not None and device.host_link is not None:
        return device.host_link
    if train.offload_activations:
        named = "the topology names no device" if device is None else f"{device.name} has no 'host_link'"
        raise ScenarioError(
            f"train.offload_activations: the rate of copies to the host is unknown, as {named}; accepted: false, or a "
            "device with one, such as 55.4 GB/s for PCIe 5.0 x16"
        )
    return math.inf


def _mesh(scenario: Scenario, network: Network) -> Mesh | None:
    """Where ranks stand, where a replica or its experts take several."""
    parallel = scenario.parallel
    if not parallel.splits_model:
        return None
    return make_mesh(
        network.num_gpus, tp=parallel.tp, cp=parallel.cp, pp=parallel.pp, ep=parallel.ep, etp=parallel.expert_tp,
        order=parallel.order,
    )  # fmt: skip


def _check_dtype(scenario: Scenario, device: DeviceSpec, asked: str, computing: str) -> None:
    """Raises UnsupportedError, about the key that asks for it, for a type that the device has no matrix units for."""
    try:
        device.peak_flop_per_s(computing)
    except UnsupportedError as error:
        key = ("train", "precision") if computing == asked else ("parallel", "param_dtype")
        raise UnsupportedError(scenario.describe(key, str(error))) from None


def _node_size(network: Network) -> int:
    """Ranks of each node; 1 where nodes differ, as no group of one size is a node then."""
    _, sizes = np.unique(network.node_of_gpu, return_counts=True)
    return int(sizes[0]) if np.all(sizes == sizes[0]) else 1


def _streams(network: Network) -> bool:
    """Whether calls to collectives return at once: with every library for devices, but not with one for CPU tensors."""
    return isinstance(network.library, NcclLibrary) or network.library.streams

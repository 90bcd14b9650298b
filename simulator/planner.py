"""Scenario -> Plan: builds the model, times its operations, and lets the strategy lay out the step."""

from __future__ import annotations

import math
from pathlib import Path

from simulator.collectives import AUTO, algorithms_of
from simulator.device import DeviceSpec
from simulator.errors import ScenarioError, UnsupportedError
from simulator.job import Job
from simulator.library import NcclLibrary
from simulator.library_rules import IN_SWITCHES
from simulator.network.graph import Network
from simulator.network.placement import place_ranks
from simulator.plan import Plan, RankClass, Task
from simulator.problems import nearest
from simulator.scenario import Scenario, Train
from simulator.training.compute import memory_rate_bytes_per_s, operation_time, optimizer_time_s
from simulator.training.ddp import AXIS
from simulator.training.presets import build_model, model_precision
from simulator.training.step import ALL_RANKS, StepInputs
from simulator.training.strategies import STRATEGIES
from simulator.tuning.choice import KERNELS, native
from simulator.tuning.place import shape_of


def make_job(scenario: Scenario, network: Network) -> Job:
    """Plan one steady step and the start-up of ``scenario`` on all GPUs of ``network``.

    Raises ScenarioError when the model needs a device that the topology does not name, UnsupportedError when the
    device lacks the precision, or the library does not run the algorithm here.
    """
    assert scenario.model is not None, "a collective scenario has no step to plan"
    assert scenario.train is not None, "the scenario model was checked when loaded"
    device = scenario.cluster.spec.device
    assert not isinstance(device, str), "the device is read when the scenario is loaded"
    _check_algorithm(scenario, network)
    inputs = _step_inputs(scenario, scenario.train, device, network.num_gpus)
    strategy = STRATEGIES[scenario.parallel.strategy]
    return Job(
        scenario=scenario, train=scenario.train, inputs=inputs, device=device,
        step=_plan(f"{inputs.model.name}, one step", strategy.step(inputs), network.num_gpus),
        startup=_plan(f"{inputs.model.name}, start-up", strategy.startup(inputs), network.num_gpus),
        memory=strategy.memory(inputs, scenario.train.optimizer),
        slowdown=0.0 if device is None or inputs.model.measured else device.comm_sm_share,
    )  # fmt: skip


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


def _plan(title: str, tasks: tuple[Task, ...], num_ranks: int) -> Plan:
    everyone = tuple(range(num_ranks))
    return Plan(
        title=title, classes=(RankClass(name=ALL_RANKS, ranks=everyone),), axes={AXIS: (everyone,)}, tasks=tasks
    )  # fmt: skip


def _step_inputs(scenario: Scenario, train: Train, device: DeviceSpec | None, num_ranks: int) -> StepInputs:
    assert scenario.model is not None
    kernels = train.kernels or (device.kernels if device else "eager")
    model = build_model(
        scenario.model, seq_len=train.seq_len, micro_batch=train.micro_batch, precision=train.precision,
        attention=train.attention, kernels=kernels, recompute=train.recompute, base_dir=Path(),
    )  # fmt: skip
    precision = model_precision(scenario.model, train.precision)
    if device is None and not model.measured:
        raise ScenarioError(
            f"cluster.topology: '{scenario.cluster.spec.name}' names no device, so the time of {model.name} is "
            "unknown; add 'device: NAME' to the topology, or give measured 'layers'"
        )
    if model.measured:
        times = [(op.forward_s or 0.0, op.backward_s or 0.0) for op in model.operations]
        optimizer_s, copy_rate, launch_s = 0.0, math.inf, 0.0
    else:
        assert device is not None
        times = [operation_time(op, device, precision) for op in model.operations]
        optimizer_s = optimizer_time_s(model.num_parameters, device, precision, train.optimizer)
        copy_rate, launch_s = memory_rate_bytes_per_s(device), device.efficiency.launch
    parallel = scenario.parallel
    return StepInputs(
        model=model, precision=precision, forward_s=tuple(f for f, _ in times),
        backward_s=tuple(b for _, b in times), optimizer_s=optimizer_s, copy_bytes_per_s=copy_rate,
        launch_s=launch_s, num_ranks=num_ranks, micro_batches=train.grad_accumulation, overlap=parallel.overlap,
        bucket_cap_bytes=parallel.bucket_cap, first_bucket_bytes=parallel.first_bucket_bytes,
        gradient_as_bucket_view=parallel.gradient_as_bucket_view, algorithm=parallel.algorithm,
        context_bytes=device.context if device else 0.0, communicator_bytes=device.communicator if device else 0.0,
    )  # fmt: skip

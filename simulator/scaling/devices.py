"""Inputs of a device and its host, scaled. Each function: (scenario, factor) -> scenario."""

from __future__ import annotations

from typing import Any

from simulator.device import DeviceSpec
from simulator.scaling.editing import with_cluster, with_device
from simulator.scenario import Scenario


def _device(scenario: Scenario, **update: Any) -> Scenario:
    return with_device(scenario, device_of(scenario).model_copy(update=update))


def _efficiency(scenario: Scenario, **update: Any) -> Scenario:
    return _device(scenario, efficiency=device_of(scenario).efficiency.model_copy(update=update))


def device_of(scenario: Scenario) -> DeviceSpec:
    """The device of a scenario that has one."""
    device = scenario.cluster.spec.device
    assert isinstance(device, DeviceSpec), "inputs of a device are scaled only where there is one"
    return device


def matmul_rate(scenario: Scenario, factor: float) -> Scenario:
    """Matrix products that run ``factor`` times as fast."""
    held = device_of(scenario).efficiency.sustained
    return _efficiency(scenario, sustained=held.model_copy(update={"share": held.share * factor}))


def attention_rate(scenario: Scenario, factor: float) -> Scenario:
    """Fused attention kernels that run ``factor`` times as fast."""
    held = device_of(scenario).efficiency.attention
    faster = {"forward": held.forward * factor, "backward": held.backward * factor}
    return _efficiency(scenario, attention=held.model_copy(update=faster))


def memory_bandwidth(scenario: Scenario, factor: float) -> Scenario:
    """Device memory of ``factor`` times the bandwidth."""
    return _device(scenario, memory_bandwidth=device_of(scenario).memory_bandwidth * factor)


def memory_capacity(scenario: Scenario, factor: float) -> Scenario:
    """Device memory of ``factor`` times the size."""
    return _device(scenario, memory=device_of(scenario).memory * factor)


def kernel_gap(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the idle time between two kernels."""
    return _efficiency(scenario, launch=device_of(scenario).efficiency.launch * factor)


def channel_sms(scenario: Scenario, factor: float) -> Scenario:
    """Collectives that take ``factor`` times the cores, at most 95 % of them."""
    held = device_of(scenario)
    share = min(0.95, held.comm_sm_share * factor)
    return _device(scenario, comm_sm_share=share, sms_per_channel=held.sms_per_channel * factor)


def comm_memory_traffic(scenario: Scenario, factor: float) -> Scenario:
    """Collectives that read and write ``factor`` times as many bytes of memory for each byte sent."""
    return _device(scenario, comm_memory_accesses=device_of(scenario).comm_memory_accesses * factor)


def context(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the memory that a process takes before its first tensor."""
    return _device(scenario, context=device_of(scenario).context * factor)


def communicator(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the memory that the first communicator takes."""
    return _device(scenario, communicator=device_of(scenario).communicator * factor)


def host_launch(scenario: Scenario, factor: float) -> Scenario:
    """A host thread that takes ``factor`` times as long to issue what it issues."""
    host = scenario.cluster.host
    return with_cluster(scenario, host=host.model_copy(update={"speed": host.speed / factor}))


def price(scenario: Scenario, factor: float) -> Scenario:
    """``factor`` times the price of a GPU-hour; low and high stay, if need be widened to hold it."""
    held = scenario.cost
    assert held is not None, "a price is scaled only where there is one"
    now, (low, high) = held.gpu_hour * factor, held.range
    ends = {"low": min(low, now), "high": max(high, now)}
    return scenario.model_copy(update={"cost": held.model_copy(update={"gpu_hour": now, **ends})})

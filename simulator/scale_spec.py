"""Inputs of a scenario times a factor: ``cluster.scale: {nic_bandwidth: 2, matmul_rate: 80%}``. What if?

An input noun; ``scaling`` applies it once the topology, its device and its library are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from simulator import units
from simulator.errors import UnitError
from simulator.fields import Frozen

LEAST, MOST = 0.001, 1000.0


def _factor(value: Any) -> float:
    try:
        number = units.parse_fraction(value)
    except UnitError:
        raise UnitError("expected a factor such as 2 or 80%") from None
    if not LEAST <= number <= MOST:
        raise UnitError(f"must lie between {LEAST:g} and {MOST:g}; 1 changes nothing, 2 is twice as much")
    return number


Scaled = Annotated[
    float | None,
    BeforeValidator(_factor),
    WithJsonSchema({"type": ["string", "number"], "examples": [2, "80%"], "description": "a factor, such as 2 or 80%"}),
]


class Scale(Frozen):
    """Factors on what the profiles say; what is left out stays as it is. Each is for what the cluster has."""

    matmul_rate: Scaled = Field(default=None, description="rate of matrix products")
    attention_rate: Scaled = Field(default=None, description="rate of fused attention kernels")
    memory_bandwidth: Scaled = Field(default=None, description="bandwidth of the device memory")
    memory_capacity: Scaled = Field(default=None, description="size of the device memory")
    kernel_gap: Scaled = Field(default=None, description="idle time of the device between two kernels")
    host_launch: Scaled = Field(default=None, description="time of the host thread to issue kernels and collectives")
    channel_sms: Scaled = Field(default=None, description="cores that collectives take from compute")
    comm_memory_traffic: Scaled = Field(default=None, description="memory traffic of collectives per byte sent")
    context: Scaled = Field(default=None, description="memory of a process before its first tensor")
    communicator: Scaled = Field(default=None, description="memory of the first communicator")
    intra_node_bandwidth: Scaled = Field(default=None, description="rate of links inside a node (NVLink, xGMI, PCIe)")
    intra_node_efficiency: Scaled = Field(default=None, description="usable share of that rate, at most 100 %")
    nic_bandwidth: Scaled = Field(default=None, description="rate of the NICs, and of leaves and spines behind them")
    nic_efficiency: Scaled = Field(default=None, description="usable share of that rate, at most 100 %")
    pcie_bandwidth: Scaled = Field(default=None, description="rate of PCIe between GPUs and NICs")
    link_bandwidth: Scaled = Field(default=None, description="rate of the links of a uniform network, torus or graph")
    link_efficiency: Scaled = Field(default=None, description="usable share of that rate, at most 100 %")
    network_latency: Scaled = Field(default=None, description="latency of links, and of steps between nodes")
    library_overhead: Scaled = Field(default=None, description="time of the library's software, steps in a node")

    def factors(self) -> Iterator[tuple[str, float]]:
        """What is scaled, in a fixed order."""
        for name in type(self).model_fields:
            factor = getattr(self, name)
            if factor is not None:
                yield name, factor

    def words(self) -> str:
        """``nic_bandwidth x 2, matmul_rate x 0.8``; '' where nothing is scaled."""
        return ", ".join(f"{name} x {factor:g}" for name, factor in self.factors())

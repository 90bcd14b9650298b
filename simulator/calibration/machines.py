"""Which shipped topology a log's GPUs belong to: by the name that the driver gives a GPU, and the ranks of a node.

A log says nothing of the fabric between nodes, and the same GPUs are sold on several, so this is a guess that a user
confirms or corrects: of several machines with one GPU it names the vendor's own (a DGX rather than a cloud's copy).

Names as nccl-tests prints them (``cudaDeviceProp.name``). Source: NVIDIA/open-gpu-kernel-modules@315fd96 README.md,
"Compatible GPUs", for A100, H100, H200, H800, H20, L40S and RTX 4090; published nccl-tests and rccl-tests logs of B200,
GB200, GB10, MI300X (also as the virtual function "MI300X VF") and MI350X; NVIDIA's driver read-me, appendix A
"Supported NVIDIA GPU products", for the Tesla names. Old drivers leave "NVIDIA" out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU's name without its vendor's, how many of them a node of the topology has, and the topology."""

    device: str
    gpus_per_node: int
    topology: str


MACHINES = (
    Machine("Tesla T4", 8, "aws-g4dn-metal"),
    Machine("Tesla V100-SXM3-32GB", 16, "dgx2-v100"),
    Machine("A100-SXM4-40GB", 8, "dgx-a100"),
    Machine("A100-SXM4-40GB", 4, "polaris"),
    Machine("A100-SXM4-80GB", 8, "dgx-a100"),
    Machine("A100 80GB PCIe", 8, "a100-bridged"),
    Machine("H100 80GB HBM3", 8, "dgx-h100"),
    Machine("H100 PCIe", 2, "h100-pcie-bridged"),
    Machine("H200", 8, "hgx-h200"),
    Machine("H800", 8, "hgx-h800"),
    Machine("H20", 8, "hgx-h20"),
    Machine("B200", 8, "dgx-b200"),
    Machine("GB200", 4, "gb200-nvl72"),
    Machine("GB10", 1, "dgx-spark"),
    Machine("L40S", 8, "l40s-pcie"),
    Machine("GeForce RTX 4090", 8, "rtx4090-pcie"),
    Machine("Instinct MI300X", 8, "mi300x"),
    Machine("Instinct MI350X", 8, "mi350x"),
)


def machine_of(device: str, ranks_per_node: int, machines: Sequence[Machine] = MACHINES) -> Machine | None:
    """The machine whose nodes have these GPUs and room for so many ranks: the smallest such, then the first; None where
    there is none.
    """
    name = device.strip().removeprefix("NVIDIA ").removeprefix("AMD ").removesuffix(" VF").casefold()
    fitting = [one for one in machines if one.device.casefold() == name and one.gpus_per_node >= ranks_per_node]
    return min(fitting, key=lambda one: one.gpus_per_node, default=None)

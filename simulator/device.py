"""The input noun of an accelerator: what its data sheet promises and what measurements say it reaches.

Rates are dense (no sparsity), bandwidths are decimal, one number per device as the operating system sees it.
Every block of numbers names its source; ``uncertain`` marks one that no fetched source confirms. A number may have a
range beside it, such as ``share_range`` beside ``share`` (``range_spec`` says what low and high mean).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.errors import UnsupportedError
from simulator.fields import (
    Bandwidth,
    Bytes,
    BytesOrZero,
    FlopPerSecond,
    Frozen,
    Price,
    Share,
    ShareOrZero,
    TimeOrZero,
    errors_at,
)
from simulator.library import Generation
from simulator.range_spec import BytesRange, FactorRange, NumberRange, ShareRange, TimeRange, check_ranges

FlashKernel = Literal["flash-1", "flash-3"]
Dtype = Literal["bf16", "fp16", "fp8", "tf32", "fp32"]


class MatmulEfficiency(Frozen):
    """How much of the peak a matrix product reaches, as ``training.compute.matmul_efficiency`` reads it.

    ``ceiling`` is the share a large product reaches once its work fills all cores; ``tile`` the output tile one core
    works on; ``depth_half`` the inner dimension at which filling the pipeline and writing the tile cost as much as
    the work itself; ``quantisation`` says how much of the last, partly filled wave of tiles is really lost.
    """

    ceiling: Share
    tile: int = Field(gt=0)
    depth_half: float = Field(ge=0)
    quantisation: ShareOrZero
    uncertain: bool = False
    source: str = Field(min_length=1)


class AttentionEfficiency(Frozen):
    """Share of peak that a fused (flash) attention kernel reaches at head size 128 on long sequences.

    ``forward`` and ``backward`` count only the half of the score matrix that a causal kernel computes;
    ``seq_half`` is the sequence length at which the share is half of that. ``head_dim_64`` scales for heads of 64.
    ``relative`` gives other kernels' speed relative to this one (FlashAttention-2 on NVIDIA devices), where measured.
    ``rate_range``: factors on all of these rates.
    """

    forward: Share
    backward: Share
    seq_half: float = Field(ge=0)
    head_dim_64: Share
    relative: dict[FlashKernel, Annotated[float, Field(gt=0, le=10)]] = Field(default_factory=dict)
    rate_range: FactorRange | None = None
    uncertain: bool = False
    source: str = Field(min_length=1)


class MemoryEfficiency(Frozen):
    """Share of the nominal memory bandwidth that streaming kernels (copies, norms, optimizer) reach."""

    share: Share
    share_range: ShareRange | None = None
    uncertain: bool = False
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _is_inside_its_range(self) -> MemoryEfficiency:
        check_ranges(self, "share")
        return self


class SustainedRate(Frozen):
    """Share of the benchmarked matrix rate that a training run keeps for hours: clocks under the power limit, cold
    caches, the slowest of many devices. Attention and memory kernels draw less power and keep theirs.
    """

    share: Share
    share_range: ShareRange | None = None
    uncertain: bool = False
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _is_inside_its_range(self) -> SustainedRate:
        check_ranges(self, "share")
        return self


class Efficiency(Frozen):
    """What the device reaches, by kind of work, and the time between two kernels.

    ``rate_range``: factors on the rates of all kinds of work that states no range of its own.
    """

    matmul: MatmulEfficiency
    sustained: SustainedRate
    attention: AttentionEfficiency
    memory: MemoryEfficiency
    launch: TimeOrZero
    launch_range: TimeRange | None = None
    launch_source: str = Field(min_length=1)
    rate_range: FactorRange | None = None

    @model_validator(mode="after")
    def _is_inside_its_range(self) -> Efficiency:
        check_ranges(self, "launch")
        return self


class DeviceSpec(Frozen):
    """One accelerator: peak rates by dtype, memory, and achieved shares.

    ``generation`` is the row of a communication library's tables that holds for it, none where no such library runs.
    ``memory`` is what the driver reports (the context is taken from it), ``memory_bandwidth`` the nominal rate,
    ``comm_sm_share`` the share of compute lost while a collective runs on this device, where the library's channels are
    unknown (0: it needs no cores), ``sms_per_channel`` the cores of one channel, ``comm_memory_accesses`` the bytes of
    memory traffic for each byte sent, which compute then lacks. ``context`` is the memory a process takes before its
    first tensor, ``communicator`` what the first communicator adds. ``host_link`` is what a copy between its memory and
    that of the host reaches, each way, of this device alone: several that share a PCIe switch get less. ``kernels``
    is how the device's usual ``framework`` runs element-wise work (``training.elementwise``): PyTorch eager, XLA fused.
    """

    name: str
    vendor: str
    title: str
    generation: Generation | None = None
    peak: dict[Dtype, FlopPerSecond]
    peak_source: str = Field(min_length=1)
    memory: Bytes
    memory_source: str = Field(min_length=1)
    memory_bandwidth: Bandwidth
    sm_count: int = Field(gt=0)
    comm_sm_share: ShareOrZero
    sms_per_channel: Annotated[float, Field(gt=0, le=1000)] = 1.0
    comm_sm_source: str = Field(min_length=1)
    comm_memory_accesses: float = Field(ge=0, le=10)
    comm_memory_accesses_range: NumberRange | None = None
    comm_memory_source: str = Field(min_length=1)
    comm_memory_uncertain: bool = False
    context: BytesOrZero
    context_range: BytesRange | None = None
    context_source: str = Field(min_length=1)
    communicator: BytesOrZero
    communicator_range: BytesRange | None = None
    communicator_source: str = Field(min_length=1)
    host_link: Bandwidth | None = None
    host_link_source: Annotated[str, Field(min_length=1)] | None = None
    framework: Literal["pytorch", "xla"] = "pytorch"
    kernels: Literal["eager", "fused"] = "eager"
    efficiency: Efficiency
    price: Price | None = None
    uncertain: bool = False
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _is_inside_its_ranges(self) -> DeviceSpec:
        if self.host_link is not None and self.host_link_source is None:
            raise errors_at("DeviceSpec", (("host_link_source",), ""))
        check_ranges(self, "comm_memory_accesses", "context", "communicator")
        return self

    def peak_flop_per_s(self, dtype: str) -> float:
        """Peak of one dtype. Raises UnsupportedError naming what the device has when it lacks that dtype."""
        for name, rate in self.peak.items():
            if name == dtype:
                return rate
        accepted = ", ".join(self.peak)
        raise UnsupportedError(f"{self.name} has no {dtype} matrix units; it has {accepted}")

"""The input noun of a communication library: which algorithm it picks, and what its software costs in time.

Two models. ``alpha_beta`` adds seconds per message and per collective to what the links give (textbook, gloo, XLA on
TPUs). ``nccl`` is a library that chooses among algorithms and protocols by a cost model of its own (``choice``: what
NCCL believes, with its constants) and then takes the time that runs really show (``measured``). Both are data: every
block of numbers names its source. One latency or rate per protocol stands in the order LL, LL128, Simple.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from simulator.fields import Bandwidth, Bytes, Frozen, Items, Share, Time, TimeOrZero, errors_at
from simulator.library_fits import FittedOperation
from simulator.library_rules import families_without_row, missing_beliefs, missing_constants, unknown_algorithms
from simulator.range_spec import FactorRange

Text = Annotated[str, Field(min_length=1)]
Source = Annotated[str, Field(min_length=3, description="where the numbers of this block come from")]
Protocol = Literal["LL", "LL128", "Simple"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
Generation = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3"]
Fabric = Literal["infiniband", "roce", "efa", "slingshot", "slingshot_rdzv", "ethernet"]
Cpu = Literal["intel", "amd", "arm", "other"]

#: Seconds with LL, LL128 and Simple.
ByProtocol = Annotated[tuple[TimeOrZero, TimeOrZero, TimeOrZero], Field(strict=False)]
#: Rates with one node, two nodes, and more.
ByNodes = Annotated[tuple[Bandwidth, Bandwidth, Bandwidth], Field(strict=False)]
#: (time, share): a transfer that takes this time at full rate really runs at this share of it. From short to long;
#: a power law between, flat outside. By time and not by size, so that one ramp serves links of any rate.
Ramp = Annotated[tuple[Annotated[tuple[Time, Share], Field(strict=False)], ...], Field(strict=False, min_length=1)]

#: Measured time / model's time.
Factor = Annotated[float, Field(gt=0, le=1000)]
Operation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send_recv"
]  # fmt: skip
#: (message bytes, factor); log-linear between, flat outside.
Correction = Annotated[tuple[Annotated[tuple[Bytes, Factor], Field(strict=False)], ...],
                       Field(strict=False, min_length=1)]  # fmt: skip


class Corrections(Frozen):
    """Factors of an operation by where its ranks are: in one node (an NVLink domain) or on several; None: as it is."""

    one_node: Correction | None = None
    several_nodes: Correction | None = None

    def over(self, num_nodes: int) -> Correction | None:
        """The factors that hold for ranks on so many nodes."""
        return self.one_node if num_nodes == 1 else self.several_nodes


class Latencies(Frozen):
    """Constants of the latency formula, by algorithm: ``base`` once, then a time for each step over a kind of link."""

    base: Mapping[str, ByProtocol]
    nvlink: Mapping[str, ByProtocol]
    pcie: Mapping[str, ByProtocol]
    net: Mapping[str, ByProtocol]
    source: Source


class Caps(Frozen):
    """Rates that NCCL's model never goes above on one generation, and the share NVLS is taken to reach.

    ``ll`` is of all channels together, the other rates of one channel. ``nvlink_share`` is the part of NVLink's
    nominal rate that the search counts on; ``channel_speeds`` and ``net_speeds`` are what it may give a channel.
    ``simple_multi_node`` scales the latency of a ring all-reduce with Simple over several nodes.
    """

    ll: ByNodes
    ring_ll128: Bandwidth
    tree_ll128: ByNodes
    tree: ByNodes
    nvls_tree: ByNodes | None = None
    nvls_efficiency: Share | None = None
    nvlink_share: Share
    channel_speeds: Items[Bandwidth]
    net_speeds: Items[Bandwidth]
    max_channels: int
    nvls_channels: int = 8
    simple_multi_node: float


class Choice(Frozen):
    """NCCL's own cost model, which decides the algorithm and the protocol, right or wrong.

    ``family`` names the row of ``caps`` that a generation without one of its own uses. ``tree_correction`` scales the
    rate of an algorithm by size; ``corrected_on_x86`` names algorithms that take a tree's on such GPUs and x86.
    """

    latency: Latencies
    family: Mapping[Generation, Generation]
    caps: Mapping[Generation, Caps]
    ll_multi_node: Mapping[Cpu, Generation]
    net_overhead: Mapping[Cpu, TimeOrZero]
    tree_correction: Mapping[str, Items[Items[float]]]
    corrected_on_x86: Mapping[str, Items[Generation]] = {}
    source: Source


class OnNode(Frozen):
    """What one generation of GPUs really takes inside a node (its part of the latency formula, and rates).

    ``rate`` is the share of the links' rate that a protocol's payload can use, ``ll_cap`` the bus rate that LL reaches
    at most, ``pair_rate`` the share that two ranks alone reach, since both directions then join the same two GPUs.
    In-switch reduction moves each GPU's bytes at ``nvls_rate`` at most, and the bus rate ``nvls_cap``. ``ramps`` says
    how much of the rate a transfer reaches: by algorithm for Simple, and under LL and LL128. ``rate_range`` and
    ``latency_range``: factors on all rates and all latencies of this block that published tables bear out.
    """

    base: Mapping[str, ByProtocol]
    nvlink: Mapping[str, ByProtocol]
    pcie: Mapping[str, ByProtocol]
    ll_cap: Bandwidth
    rate: Annotated[tuple[Share, Share, Share], Field(strict=False)]
    pair_rate: Share = 1.0
    nvls_rate: Bandwidth | None = None
    nvls_cap: Bandwidth | None = None
    ramps: Mapping[str, Ramp]
    rate_range: FactorRange | None = None
    latency_range: FactorRange | None = None
    source: Source


class OnFabric(Frozen):
    """What one kind of network really takes: protocols that run over it, latency per step between nodes, rates.

    ``gap`` is the least time between two messages of a channel's ring; for messages above ``rendezvous`` bytes it is
    ``rendezvous_gap``, which each hop of a tree then pays too (sender and receiver agree before data moves).
    ``tuner``: a plugin of the network's vendor overrides the library's choice; it is taken
    to know the measured times. ``rate_range``, ``latency_range``: as in ``OnNode``, of runs over this network.
    """

    protocols: Items[Protocol]
    tuner: bool = False
    net: Mapping[str, ByProtocol]
    gap: TimeOrZero = 0.0
    rendezvous: Bytes | None = None
    rendezvous_gap: TimeOrZero = 0.0
    ramps: Mapping[str, Ramp]
    rate_range: FactorRange | None = None
    latency_range: FactorRange | None = None
    source: Source


class Measured(Frozen):
    """What runs show, by generation and by fabric: never by system. ``family``: see Choice."""

    family: Mapping[Generation, Generation] = {}
    generations: Mapping[Generation, OnNode]
    fabrics: Mapping[Fabric, OnFabric]


class AlphaBetaLibrary(Frozen):
    """Seconds per message and per collective on top of the links.

    ``algorithms`` fixes what runs for an operation (none: the fastest on the network). ``runs_as`` names operations
    that the library performs by another of the same size, as gloo's reduce-scatter performs an all-reduce.
    ``fabrics``: the kinds of network that it runs over, any when left out; on other machines its bytes would take other
    ways than the links that are described. ``operation_launch``: where it is not the usual one, by what really runs.
    ``streams``: whether calls return before the collective is done, which then runs on a stream of the device; with
    tensors on the CPU a synchronous call blocks its thread. ``both_ways``: whether a message to a rank and one from it
    may pass each other; else one that is asked for after the other has begun waits for that to end.
    """

    model: Literal["alpha_beta"] = "alpha_beta"
    name: Text = "textbook"
    title: str = ""
    message_overhead: TimeOrZero = 0.0
    collective_launch: TimeOrZero = 0.0
    operation_launch: Mapping[Operation, TimeOrZero] = {}
    algorithms: Mapping[str, str] = {}
    runs_as: Mapping[str, str] = {}
    fabrics: Items[Fabric] = ()
    streams: bool = True
    both_ways: bool = True
    source: Source = "closed forms of the textbooks: no software cost"

    @model_validator(mode="after")
    def _names_what_can_run(self) -> AlphaBetaLibrary:
        problems = [*unknown_algorithms(self.algorithms, self.runs_as)]
        if problems:
            raise errors_at("AlphaBetaLibrary", *problems)
        return self


class NcclLibrary(Frozen):
    """A library with a cost model of its own, see the module. ``protocols`` limits them, as NCCL_PROTO does.

    ``message_overhead`` and ``collective_launch`` are for algorithms that the library does not have and that a user
    would write with its send and receive. ``corrections`` multiply the time of an operation by the message's size, as
    a user's own runs say (``simulator calibrate``), never below what the links need for its bytes. ``calibrated_for``:
    the GPUs of those runs, the only ones that such a library is for.
    """

    model: Literal["nccl"]
    name: Text
    title: str = ""
    message_overhead: TimeOrZero
    collective_launch: TimeOrZero
    protocols: Items[Protocol] = PROTOCOLS
    corrections: Mapping[str, Corrections] = {}
    calibrated_for: Generation | None = None
    choice: Choice | None = None
    measured: Measured
    source: Source

    @model_validator(mode="after")
    def _says_all_that_its_algorithms_need(self) -> NcclLibrary:
        problems = [
            *missing_constants(self.measured, self.choice, self.protocols),
            *missing_beliefs(self.choice, self.measured, get_args(Cpu)),
            *families_without_row(self.measured.family, self.measured.generations, ("measured",)),
            *(families_without_row(self.choice.family, self.choice.caps, ("choice",)) if self.choice else ()),
        ]
        if problems:
            raise errors_at("NcclLibrary", *problems)
        return self


class CalibratedLibrary(Frozen):
    """A shipped library corrected by the user's own runs, as ``simulator calibrate`` writes it.

    ``base`` is the library and ``topology`` the machine, with GPUs of ``generation``, on which the two were compared.
    ``corrections``: by operation and span of its ranks, [size, measured time / time of the base], sizes ascending;
    log-linear between, flat outside. ``fits`` say what the runs showed, for people.
    """

    model: Literal["calibrated"]
    name: Text
    title: str = ""
    base: Text
    topology: Text
    generation: Generation | None = None
    corrections: Mapping[Operation, Corrections]
    fits: Items[FittedOperation] = ()
    source: Source

    @model_validator(mode="after")
    def _sizes_ascend(self) -> CalibratedLibrary:
        spans = ((op, span, points) for op, held in self.corrections.items() for span, points in held if points)
        for op, span, points in spans:
            for place, ((size, _), (following, _)) in enumerate(pairwise(points), 1):
                if following <= size:
                    problem = f"sizes must ascend: {following:.0f} B after {size:.0f} B"
                    raise errors_at("CalibratedLibrary", (("corrections", op, span, place), problem))
        return self


def _model(value: Any) -> str:
    given = value.get("model", "alpha_beta") if isinstance(value, dict) else getattr(value, "model", "alpha_beta")
    return str(given)


AnyLibrary = Annotated[
    Annotated[AlphaBetaLibrary, Tag("alpha_beta")]
    | Annotated[NcclLibrary, Tag("nccl")]
    | Annotated[CalibratedLibrary, Tag("calibrated")],
    Discriminator(_model),
]


LIBRARIES: dict[str, type[AlphaBetaLibrary | NcclLibrary | CalibratedLibrary]] = {
    "alpha_beta": AlphaBetaLibrary, "nccl": NcclLibrary, "calibrated": CalibratedLibrary,
}  # fmt: skip

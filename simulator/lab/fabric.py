"""What a lab is made of, and the ``ip`` and ``tc`` commands that build it. Pure: nothing runs here.

Hosts are network namespaces, each with one cable (a veth pair) to a bridge; a second bridge is joined to the first by
one shaped cable, the uplink. Both ends of every cable send through HTB at the cable's rate, so that several senders to
one host share its link as they do on a real switch.

What made times true (Linux 6.18, torch 2.13, two cores): HTB with small packets first, small send buffers, and
programs that run before all others (``inside``). Each says what happens without; ``tests/lab`` holds the simulator to
what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulator.errors import ScenarioError

#: Share of the wire's rate that payload gets: 1,448 bytes of a segment in a frame of 1,514 (Ethernet 14, IP 20, TCP 20
#: and timestamps 12; MTU 1,500). HTB counts frames without preamble and gap, and each segment of a large packet.
PAYLOAD_SHARE = 1448 / 1514
#: A larger bucket lets a message run ahead of its rate, a smaller one cannot keep it. With HTB, not TBF (measured).
BURST = "16kb"
#: Largest packet that a host hands to its link, cut into frames only there. A bucket pays for a packet when it is gone,
#: so with the usual 64 KiB the end of a message arrives up to 1.3 ms early at 400 Mbit/s: 8 % of 1 MB.
SEGMENTS = "gso_max_size 16384"
#: Least, first and largest send buffer of a TCP connection, bytes (tcp(7), tcp_wmem). A send is over for its sender
#: once the rest is in this buffer. With the usual 4 MiB a rank begins its next step while the last still flows: a tree
#: over 4 hosts took 104 ms for 1 MB instead of 84, its root serving two children at once.
SEND_BUFFER = "4096 16384 32768"
#: Accepted rates. Below the kernel's buffers dominate, above it two cores cannot move the bytes of a few hosts.
RATES_BIT_PER_S = (1e6, 10e9)
#: A machine that runs more has no processors for them; all have addresses in 10.77.0.0/24.
MAX_HOSTS = 64

#: Holds the names of namespaces; covered by a private tmpfs, so that the machine's own stays as it was. What programs
#: print and the files that they are given are there too, and go with it.
RUN = Path("/run")

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedFabric:
    """Hosts 0, 1, ... in the order of their sides.

    hosts_per_side: one number for a flat fabric, two for a two-level one.
    host_bit_per_s: wire rate of each host's link, each way. uplink_bit_per_s: that of the link between the sides.
    """

    hosts_per_side: tuple[int, ...]
    host_bit_per_s: float
    uplink_bit_per_s: float | None = None

    def __post_init__(self) -> None:
        if len(self.hosts_per_side) not in (1, 2) or min(self.hosts_per_side) < 1 or self.num_hosts > MAX_HOSTS:
            raise ScenarioError(
                f"lab: hosts per side {list(self.hosts_per_side)}: expected one or two numbers of at least 1, "
                f"together at most {MAX_HOSTS}"
            )
        if (len(self.hosts_per_side) == 2) != (self.uplink_bit_per_s is not None):
            raise ScenarioError("lab: two sides need an uplink rate, one side has none")
        low, high = RATES_BIT_PER_S
        for name, rate in (("host rate", self.host_bit_per_s), ("uplink rate", self.uplink_bit_per_s)):
            if rate is not None and not low <= rate <= high:
                raise ScenarioError(
                    f"lab: {name} {rate / 1e6:g} Mbit/s: expected {low / 1e6:g} to {high / 1e6:g} Mbit/s"
                )

    @property
    def num_hosts(self) -> int:
        """How many hosts, of all sides."""
        return sum(self.hosts_per_side)

    @property
    def sides(self) -> tuple[int, ...]:
        """The side of each host."""
        return tuple(side for side, count in enumerate(self.hosts_per_side) for _ in range(count))


def flat(hosts: int, host_bit_per_s: float) -> ShapedFabric:
    """Hosts on one bridge."""
    return ShapedFabric(hosts_per_side=(hosts,), host_bit_per_s=host_bit_per_s)


def two_level(hosts_per_side: int, host_bit_per_s: float, uplink_bit_per_s: float) -> ShapedFabric:
    """Two bridges with as many hosts each, joined by one cable that all of them share."""
    return ShapedFabric(
        hosts_per_side=(hosts_per_side, hosts_per_side), host_bit_per_s=host_bit_per_s,
        uplink_bit_per_s=uplink_bit_per_s,
    )  # fmt: skip


def host_name(tag: str, host: int) -> str:
    """Name of a host's namespace, and of the bridge's end of its cable."""
    return f"cs{tag}h{host}"


def address(host: int) -> str:
    """IPv4 address of a host's eth0."""
    return f"10.77.0.{host + 1}"


def build_commands(fabric: ShapedFabric, tag: str) -> tuple[Command, ...]:
    """Everything that builds the fabric, in order. ``tag`` makes the names of one lab its own."""
    made: list[Command] = [_words("ip link set lo up")]
    for bridge in (_bridge(tag, side) for side in range(len(fabric.hosts_per_side))):
        made += [_words(f"ip link add {bridge} type bridge"), _words(f"ip link set {bridge} up")]
    for host in range(fabric.num_hosts):
        made += _host(fabric, tag, host)
    if fabric.uplink_bit_per_s is not None:
        made += _uplink(tag, fabric.uplink_bit_per_s)
    return tuple(made)


def _bridge(tag: str, side: int) -> str:
    return f"cs{tag}b{side}"


def _host(fabric: ShapedFabric, tag: str, host: int) -> list[Command]:
    name, rate = host_name(tag, host), fabric.host_bit_per_s
    return [
        _words(f"ip netns add {name}"),
        _words(f"ip link add {name} type veth peer name eth0 netns {name}"),
        _words(f"ip link set {name} master {_bridge(tag, fabric.sides[host])} up"),
        _words(f"ip -n {name} link set lo up"),
        _words(f"ip -n {name} address add {address(host)}/24 dev eth0"),
        _words(f"ip -n {name} link set eth0 up {SEGMENTS}"),
        inside(name, f"echo {SEND_BUFFER} > /proc/sys/net/ipv4/tcp_wmem"),
        *shaping("eth0", rate, f"tc -n {name}"),
        *shaping(name, rate),
    ]


def namespace(name: str) -> str:
    """The file by which ``ip netns`` names a network namespace."""
    return str(RUN / "netns" / name)


def inside(name: str, line: str) -> Command:
    """A line of shell in the network namespace ``name``."""
    return ("nsenter", f"--net={namespace(name)}", "sh", "-c", line)


def _uplink(tag: str, bit_per_s: float) -> list[Command]:
    ends = [f"cs{tag}u{side}" for side in (0, 1)]
    joined = [_words(f"ip link set {end} master {_bridge(tag, side)} up") for side, end in enumerate(ends)]
    shaped = [command for end in ends for command in shaping(end, bit_per_s)]
    return [_words(f"ip link add {ends[0]} type veth peer name {ends[1]}"), *joined, *shaped]


def shaping(device: str, bit_per_s: float, tc: str = "tc") -> list[Command]:
    """HTB on what ``device`` sends: packets below 128 bytes in a class that goes first, the rest behind.

    The small ones are acknowledgements and gloo's notices. Queued behind the data that goes the other way they hold
    their own data up: a ring over 4 hosts takes 1.3 times as long, halving-doubling 1.2 times.
    """
    rate = f"{bit_per_s:.0f}bit"
    limits = f"ceil {rate} burst {BURST} cburst {BURST}"
    lines = (
        f"qdisc add dev {device} root handle 1: htb default 20",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate} {limits}",
        f"class add dev {device} parent 1:1 classid 1:10 htb rate {bit_per_s * 0.1:.0f}bit {limits} prio 0",
        f"class add dev {device} parent 1:1 classid 1:20 htb rate {bit_per_s * 0.9:.0f}bit {limits} prio 1",
        # total length in the IP header, its 9 high bits zero: below 128
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 match u16 0x0000 0xff80 at 2 flowid 1:10",
    )
    return [_words(f"{tc} {line}") for line in lines]


def _words(line: str) -> Command:
    return tuple(line.split())

"""How the ranges of the library and device profiles come about: ``python tests/fit_ranges.py`` prints them again.

* libraries: the 10th and 90th percentile of what published tables of collectives show over what the model predicts: of
  rates, rows of 1 MiB and more; of latencies, smaller ones. By generation of GPUs inside a node, by kind of network
  between nodes; where fewer than ``FEWEST`` rows are held, of all inside nodes, or of all between them.
* devices: the same percentiles of the rate of compute that published runs show over the predicted one, of runs whose
  communication is small; of a device without runs of its own, those of all.
"""

from __future__ import annotations

import numpy as np
import runs

from simulator import shipped
from simulator.device import DeviceSpec
from simulator.load import load_topology
from simulator.measurements.accuracy import MIB, Compared
from simulator.measurements.tables import published
from simulator.topology import Nvl72Spec, TopologySpec
from simulator.validation import compare

FEWEST = 10
ENDS = (0.1, 0.9)
Key = tuple[str, str, str]


def _key(row: Compared, spec: TopologySpec) -> tuple[str, str]:
    """('node', generation), or ('net', fabric) where the ranks leave NVLink's domain."""
    domain = spec.trays_per_rack if isinstance(spec, Nvl72Spec) else 1
    if row.measured.nodes <= domain:
        assert isinstance(spec.device, DeviceSpec)
        return "node", str(spec.device.generation)
    return "net", str(spec.network.fabric)  # type: ignore[attr-defined]


def library_ratios() -> dict[Key, list[float]]:
    """(where, what, 'rate' or 'latency') -> measured over predicted, each row once; 'all' holds every 'what'."""
    specs = {name: load_topology(name) for name in {row.topology for row in published().rows}}
    found: dict[Key, list[float]] = {}
    for row in compare(row for row in published().rows if not row.peak):
        where, what = _key(row, specs[row.measured.topology])
        slower = row.measured.time_s / row.time_s
        kind, ratio = ("rate", 1 / slower) if row.measured.size_bytes >= MIB else ("latency", slower)
        for group in (what, "all"):
            found.setdefault((where, group, kind), []).append(ratio)
    return found


def library_range(ratios: dict[Key, list[float]], where: str, what: str, kind: str) -> tuple[float, float, int, bool]:
    """Low, high, rows, and whether they are the group's own."""
    own = ratios.get((where, what, kind), [])
    chosen = own if len(own) >= FEWEST else ratios[where, "all", kind]
    low, high = np.quantile(chosen, ENDS)
    return min(1.0, round(float(low), 2)), max(1.0, round(float(high), 2)), len(chosen), len(own) >= FEWEST


#: Devices with published runs of their own, and the sources of these.
SOURCES = {"a100-sxm4": ("llm-foundry A100",), "h100-sxm5": ("llm-foundry H100",)}


def compute_rates(*sources: str) -> list[float]:
    """Measured over predicted rate of the compute of each published run whose communication is small."""
    return [1 / runs.ratio(run) for run in runs.runs() if run.source in sources and runs.hidden(run)]


def device_range(name: str) -> tuple[float, float, int]:
    """Low, high and the number of runs: the device's own, or all."""
    own = next((sources for start, sources in SOURCES.items() if name.startswith(start)), None)
    found = compute_rates(*(own or [source for sources in SOURCES.values() for source in sources]))
    low, high = np.quantile(found, ENDS)
    return round(float(low), 2), round(float(high), 2), len(found)


def main() -> None:
    """Print every range."""
    ratios = library_ratios()
    for where, what, kind in sorted(ratios):
        print(where, what, kind, library_range(ratios, where, what, kind))
    for name in shipped.names("device"):
        print(name, device_range(name))


if __name__ == "__main__":
    main()

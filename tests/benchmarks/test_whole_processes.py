"""The largest collectives as whole processes: interpreter, network and answer. CPU s, wall s and peak MiB, printed.

pytest tests/benchmarks/test_whole_processes.py -o addopts= -s --benchmark-disable
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import resource
import sys
import numpy as np
from simulator.collectives import make_schedule
from simulator.engine.layouts import layout_of
from simulator.engine.collective import simulate_collective
from simulator.engine.wires import make_wires
from simulator.load import load_topology
from simulator.network.builders import build_network

topology, nodes, op, algorithm = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
network = build_network(load_topology(topology), nodes=nodes)
gpus = np.arange(network.num_gpus)
schedule = make_schedule(op, algorithm, layout_of(network, gpus), 2.0**30)
outcome = simulate_collective(schedule, make_wires(network, gpus))
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, outcome.fidelity, outcome.time_s * 1e3,
      outcome.lower_s / outcome.time_s, outcome.upper_s / outcome.time_s)
"""

#: (topology, nodes, operation, algorithm): a ring of 131,072 ranks, 16,384 GPUs, an all-to-all of 2,048 ranks.
LARGEST = [
    ("uniform", 131_072, "all_reduce", "ring"),
    ("dgx-h100", 16_384, "all_reduce", "ring"),
    *(("dgx-h100", 2048, "all_reduce", name) for name in ("ring", "hierarchical", "tree", "double_tree", "nvls")),
    *(("dgx-h100", 256, "all_to_all", name) for name in ("direct", "pairwise", "rail", "bruck")),
    *(("uniform", 2048, "all_to_all", name) for name in ("direct", "pairwise")),
]


@pytest.mark.parametrize(("topology", "nodes", "op", "algorithm"), LARGEST)
def test_whole_process(benchmark: BenchmarkFixture, topology: str, nodes: int, op: str, algorithm: str) -> None:
    def run() -> tuple[float, list[str]]:
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, topology, str(nodes), op, algorithm],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return time.perf_counter() - start, done.stdout.split()

    wall_s, (cpu, peak, fidelity, milliseconds, least, most) = benchmark.pedantic(run, rounds=1)
    bracket = "" if fidelity != "lockstep" else f", truth between {float(least):.4f} and {float(most):.4f} of it"
    benchmark.extra_info.update(cpu_s=float(cpu), wall_s=wall_s, peak_mib=float(peak), fidelity=fidelity)
    print(
        f"\n{op}/{algorithm}, {topology} x {nodes}: CPU {float(cpu):.1f} s, wall {wall_s:.1f} s, peak "
        f"{float(peak):.0f} MiB; {float(milliseconds):.3f} ms, {fidelity}{bracket}"
    )
    assert float(milliseconds) > 0


#: (preset, nodes of eight H100, recompute): whole commands, which read YAML and print the answer too.
STEPS = [("llama-3-8b", 128, "none"), ("llama-3-70b", 512, "full"), ("llama-3-70b", 2048, "full")]


@pytest.mark.parametrize(("preset", "nodes", "recompute"), STEPS)
def test_whole_command_of_an_fsdp_step(
    benchmark: BenchmarkFixture, tmp_path: Path, preset: str, nodes: int, recompute: str
) -> None:
    """CPU s of ``simulator run`` for a step of FSDP2, sequences of 8,192 tokens."""
    path = tmp_path / "step.yaml"
    path.write_text(
        f"cluster: {{topology: dgx-h100, nodes: {nodes}}}\nmodel: {{preset: {preset}}}\nparallel: {{strategy: fsdp}}\n"
        f"train: {{seq_len: 8192, micro_batch: 1, precision: bf16-mixed, recompute: {recompute}}}\n"
    )

    def run() -> tuple[float, str]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "simulator", "run", str(path)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout

    cpu_s, said = benchmark.pedantic(run, rounds=3)
    print(f"\n{preset} on {nodes * 8:,} GPUs: {cpu_s:.2f} s of CPU; {said.splitlines()[-1]}")
    assert said.splitlines()[-1].startswith(f"simulated 1 rank class of {nodes * 8} ranks")

"""What ranks of tensor parallelism send each other is what torch's own ``parallelize_module`` launches, in its order.

torch 2.13.0 on gloo, blocks of column- and row-parallel products; its numbers are also checked against the same blocks
on one rank, so that what it leaves out cannot be needed. Megatron-LM differs in one thing, which is named below.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from real_steps import environment, needs_torch

from simulator.strategies.weaving import exchanges_of
from simulator.training.architecture import Architecture
from simulator.training.batch import Batch
from simulator.training.families.gpt2 import LAYOUT as GPT2
from simulator.training.operations import Exchange, Operation
from simulator.training.precision import PRECISIONS
from simulator.training.shards import Shards
from simulator.training.transformer import transformer

pytestmark = [pytest.mark.slow, needs_torch]

SCRIPT = Path(__file__).with_name("real_tensor.py")
LAYERS, HIDDEN, WIDE, TOKENS, BATCH = 2, 32, 96, 24, 3
#: Generous: the machine may be busy.
PATIENCE_S = 240.0


@cache
def real(world: int, *, sequence: bool) -> list[dict[str, Any]]:
    """What each rank launched."""
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "wide": WIDE, "tokens": TOKENS, "batch": BATCH, "sequence": sequence}
    with TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", str(SCRIPT), str(rank), str(world), f"{folder}/meeting",
                 json.dumps(sizes)],
                stdout=subprocess.PIPE, encoding="utf-8", env=environment("lo"),
            )
            for rank in range(world)
        ]  # fmt: skip
        return [json.loads(process.communicate(timeout=PATIENCE_S)[0].splitlines()[-1]) for process in running]


def planned(world: int, way: str, *, sequence: bool) -> list[Exchange]:
    """Of the blocks of our model, in the order in which they come."""
    arch = Architecture(
        name="blocks", layout=GPT2, num_layers=LAYERS, hidden_size=HIDDEN, num_heads=world, num_kv_heads=world,
        head_dim=HIDDEN // world, intermediate_size=WIDE, vocab_size=64, max_positions=TOKENS, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformer(arch, Batch(
        seq_len=TOKENS, micro_batch=BATCH, precision=PRECISIONS["fp32"], attention="eager", kernels="eager",
        shards=Shards(tp=world, sequence_parallel=sequence),
    ))  # fmt: skip
    blocks: list[Operation] = [o for o in model.operations if o.layer.startswith("layers.")]
    order = ("before", "beside input", "beside weights", "after")
    found = []
    for operation in blocks if way == "forward" else blocks[::-1]:
        sent = exchanges_of(operation, way)
        found += [e for when in order for e in sent if e.when.startswith(when)]
    return found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_column_and_row_sum_once_each_way(world: int, way: str) -> None:
    """2 all-reduces forward and 2 backward of s b h elements in each layer, in the order of the products."""
    ranks = real(world, sequence=False)
    assert all(rank["right"] for rank in ranks)
    told = [[e.op, e.size_bytes, world] for e in planned(world, way, sequence=False)]
    assert told == [["all_reduce", 4 * BATCH * TOKENS * HIDDEN, world]] * (2 * LAYERS)
    for rank in ranks:
        assert rank[way] == told


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_sharded_sequence_gathers_and_scatters(world: int, way: str) -> None:
    """2 + 2 forward and 2 + 2 backward. Megatron-LM gathers the inputs of first products once more in the backward, as
    it kept a part of each (core/tensor_parallel/layers.py); torch has kept them whole. Gradients of norms' weights are
    left to the optimizer by both: Megatron-LM sums them before it, torch's are partial sums until somebody reads them.
    """
    ranks = real(world, sequence=True)
    assert all(rank["right"] for rank in ranks)
    again = planned(world, way, sequence=True)
    told = [[e.op, e.size_bytes, world] for e in again if not (e.op == "all_gather" and e.when == "beside input")]
    assert len(again) - len(told) == (2 * LAYERS if way == "backward" else 0)
    for rank in ranks:
        assert rank[way] == told

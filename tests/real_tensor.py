"""One rank of a transformer that torch's own tensor parallelism shards, and what it sends: needs torch 2.13.0.

Started as ``python real_tensor.py RANK WORLD RENDEZVOUS_FILE SIZES_JSON`` by test_real_tensor_parallel.py. Blocks of
two pairs of products, the first of each sharded by columns and the second by rows (``parallelize_module``), with norms
and residuals; with ``sequence`` the sequence is sharded between the pairs (``SequenceParallel``). Prints what one
forward and backward launch, in order: {"forward": [[op, bytes, ranks], ...], "backward": [...], "right": whether output
and gradients are those of the same blocks on one rank}.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from simulator.lab.real_trace import Recorder

#: Longest wait for another rank, which may have failed.
PATIENCE = timedelta(seconds=60)


class Pair(nn.Module):
    """A first and a second product around something that works on each column alike."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(hidden, wide, bias=False), nn.Linear(wide, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


class Block(nn.Module):
    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attn, self.mlp = Pair(hidden, hidden), Pair(hidden, wide)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def sharded(block: Block, mesh: DeviceMesh, *, sequence: bool) -> Block:
    """As torchtitan shards its blocks (models/llama3, ``apply_tp``); without ``sequence`` as PyTorch's tutorial."""
    plan: dict[str, Any] = {}
    for pair in ("attn", "mlp"):
        plan[f"{pair}.first"] = ColwiseParallel()
        plan[f"{pair}.second"] = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
        if sequence:
            plan[f"{pair}_norm"] = SequenceParallel()
            plan[pair] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(block, mesh, plan)
    return block


def main() -> None:
    rank, world, meeting, told = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=PATIENCE)
    torch.manual_seed(1)
    layers, hidden, wide, tokens, batch = (told[key] for key in ("layers", "hidden", "wide", "tokens", "batch"))
    alone = nn.Sequential(*(Block(hidden, wide) for _ in range(layers)))
    blocks = nn.Sequential(*(Block(hidden, wide) for _ in range(layers)))
    blocks.load_state_dict(alone.state_dict())
    whole = torch.randn(batch, tokens, hidden)
    mesh = DeviceMesh("cpu", list(range(world)))
    for block in blocks:
        sharded(block, mesh, sequence=told["sequence"])
    held = whole.chunk(world, dim=1)[rank] if told["sequence"] else whole
    local, single = held.clone().requires_grad_(), whole.clone().requires_grad_()
    with Recorder() as forward:
        last = blocks(local)
    with Recorder() as backward:
        last.pow(2).sum().backward()
    wanted = alone(single)
    wanted.pow(2).sum().backward()
    part = (lambda t: t.chunk(world, dim=1)[rank]) if told["sequence"] else (lambda t: t)
    assert local.grad is not None
    assert single.grad is not None
    right = torch.allclose(last, part(wanted), atol=1e-4) and torch.allclose(local.grad, part(single.grad), atol=1e-3)
    answer = {"forward": forward.launched, "backward": backward.launched, "right": bool(right)}
    print(json.dumps(answer), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()

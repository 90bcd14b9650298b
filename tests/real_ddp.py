"""Runs DistributedDataParallel for real, on gloo, and prints the buckets of a steady step as JSON.

Started by test_real_ddp.py as ``python real_ddp.py RANK WORLD RENDEZVOUS_FILE MODEL CAP_MIB``; needs torch 2.13.0.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Mlp(nn.Module):
    """The lecture's model, smaller: blocks of Linear and LayerNorm, then a head."""

    def __init__(self, width: int = 320, depth: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"linear": nn.Linear(width, width), "norm": nn.LayerNorm(width)}) for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)
        self.width = width

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = batch.float().unsqueeze(-1).expand(*batch.shape, self.width)
        for block in self.blocks:
            x = torch.relu(block["norm"](block["linear"](x)))
        return self.head(x).mean()


class Gpt(nn.Module):
    """GPT-2's blocks at toy size, output head tied to the token embedding."""

    def __init__(self, vocab: int = 3000, width: int = 128, depth: int = 3, positions: int = 64) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(_block(width) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            query, key, value = block["c_attn"](block["ln_1"](x)).chunk(3, dim=-1)
            x = x + block["c_proj"](nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))
            x = x + block["mlp_proj"](nn.functional.gelu(block["c_fc"](block["ln_2"](x))))
        return nn.functional.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), tokens.flatten())


def _block(width: int) -> nn.ModuleDict:
    return nn.ModuleDict({
        "ln_1": nn.LayerNorm(width), "c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width),
        "ln_2": nn.LayerNorm(width), "c_fc": nn.Linear(width, 4 * width), "mlp_proj": nn.Linear(4 * width, width),
    })  # fmt: skip


MODELS = {"mlp": Mlp, "gpt": Gpt}
STEPS = 4  # iteration 0 is one bucket, iteration 1 rebuilds them


def main() -> None:
    """Train STEPS steps and print what the last one reduced, rank 0 only."""
    rank, world, rendezvous, model_name, cap = sys.argv[1:6]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(world))
    model = MODELS[model_name]()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    options = {} if cap == "default" else {"bucket_cap_mb": float(cap)}
    wrapped = DistributedDataParallel(model, **options)
    steps: list[list[dict[str, object]]] = []

    def record(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        held = [names[id(parameter)] for parameter in bucket.parameters()]
        steps[-1].append({"bytes": bucket.buffer().numel() * bucket.buffer().element_size(), "tensors": held})
        return (
            dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / int(world))
        )

    wrapped.register_comm_hook(None, record)
    tokens = torch.randint(0, 3000, (2, 64))
    for _ in range(STEPS):
        steps.append([])
        wrapped(tokens).backward()
        wrapped.zero_grad()
    if rank == "0":
        print(json.dumps({"first": steps[0], "steady": steps[-1]}), flush=True)
    dist.barrier()
    # Everything is measured: end here. Gloo's threads may still hold our hook when the interpreter takes it down, which
    # aborts the process now and then ("terminate called without an active exception").
    os._exit(0)


if __name__ == "__main__":
    main()

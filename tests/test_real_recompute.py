"""Selective activation checkpointing per operation as PyTorch 2.13 runs it, against ``train.recompute: selective-op``.

The policy is torchtitan's (torchtitan/parallelisms/parallelize_llama.py, ``_save_list`` and ``_custom_policy``): it
keeps outputs of attention and of every second ``aten.mm``. Exact: bytes that the cache holds, products that run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from real_steps import needs_torch

from simulator.training.architecture import Architecture
from simulator.training.batch import Batch
from simulator.training.families.llama import LAYOUT
from simulator.training.operations import Operation
from simulator.training.precision import PRECISIONS
from simulator.training.recompute import Checkpoints
from simulator.training.transformer import transformer

pytestmark = [pytest.mark.slow, needs_torch]

SEQ, MICRO = 64, 2
Shape = tuple[int, int, int]
LLAMA = Architecture(
    name="one block", layout=LAYOUT, num_layers=1, hidden_size=128, num_heads=8, num_kv_heads=2, head_dim=16,
    intermediate_size=448, vocab_size=64,
)  # fmt: skip
#: As Llama 3, with all heads of keys, as Qwen 2 (biases of q, k, v), and with biases in the MLP.
BLOCKS = {
    "grouped": LLAMA, "all heads": replace(LLAMA, num_kv_heads=8), "biased qkv": replace(LLAMA, qkv_bias=True),
    "biased mlp": replace(LLAMA, mlp_bias=True), "biased everywhere": replace(
        LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True
    ),
}  # fmt: skip


def ours(arch: Architecture, kernels: str) -> list[Operation]:
    batch = Batch(
        seq_len=SEQ, micro_batch=MICRO, precision=PRECISIONS["bf16"], attention="flash", kernels=kernels,
        recompute="selective-op",
    )  # fmt: skip
    return [operation for operation in transformer(arch, batch).operations if operation.layer == "layers.0"]


def _block(arch: Architecture) -> Any:
    """One Llama block in PyTorch, bf16."""
    import torch
    from torch import nn

    def linear(size: int, out: int, bias: bool) -> nn.Linear:
        return nn.Linear(size, out, bias=bias)

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(arch.hidden_size))

        def forward(self, x: Any) -> Any:
            y = x.float()
            return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            h, kv, f = arch.hidden_size, arch.kv_size, arch.intermediate_size
            self.q, self.k, self.v = (linear(h, size, arch.qkv_bias) for size in (arch.query_size, kv, kv))
            self.out = linear(arch.query_size, h, arch.output_bias)
            self.gate, self.up, self.down = (linear(*io, arch.mlp_bias) for io in ((h, f), (h, f), (f, h)))
            self.attn_norm, self.mlp_norm = Norm(), Norm()
            self.register_buffer("cos", torch.randn(SEQ, arch.head_dim))
            self.register_buffer("sin", torch.randn(SEQ, arch.head_dim))

        def rotate(self, x: Any) -> Any:
            one, other = x.chunk(2, -1)
            return x * self.cos[None, :, None] + torch.cat((-other, one), -1) * self.sin[None, :, None]

        def forward(self, x: Any) -> Any:
            h, groups = self.attn_norm(x), arch.num_heads // arch.num_kv_heads
            q, k, v = (p(h).view(MICRO, SEQ, -1, arch.head_dim) for p in (self.q, self.k, self.v))
            k, v = (t.repeat_interleave(groups, 2) if groups > 1 else t for t in (self.rotate(k), v))
            heads = (t.transpose(1, 2) for t in (self.rotate(q), k, v))
            core = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.out(core.transpose(1, 2).reshape(MICRO, SEQ, -1))
            h = self.mlp_norm(x)
            return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))

    torch.manual_seed(0)
    return Block().to(torch.bfloat16)


def _checkpointed(block: Any, caches: list[dict[Any, Any]]) -> Any:
    """The block under torchtitan's policy. caches: where the forward of each call puts what it keeps."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    mm = torch.ops.aten.mm.default
    kept = {mm, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}

    def contexts() -> tuple[Any, Any]:
        numbers: dict[str, int] = defaultdict(int)

        def policy(ctx: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            mode = "recompute" if ctx.is_recompute else "forward"
            numbers[mode] += func == mm
            keep = func in kept and not (func == mm and numbers[mode] % 2 == 0)
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        made = create_selective_checkpoint_contexts(policy)
        caches.append(made[0].storage)
        return made

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Any) -> Any:
            return checkpoint(self.block, x, use_reentrant=False, context_fn=contexts, preserve_rng_state=False)

    return Checkpointed()


def _tensors(cache: dict[Any, Any]) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    entries = [entry for calls in cache.values() for entry in calls.values()]
    return [
        leaf.val for entry in entries for leaf in tree_leaves(entry) if hasattr(getattr(leaf, "val", None), "nbytes")
    ]


def _input(arch: Architecture) -> Any:
    import torch

    return torch.randn(MICRO, SEQ, arch.hidden_size, dtype=torch.bfloat16, requires_grad=True)


def _products(run: Any) -> Counter[Shape]:
    """(m, n, k) of every matrix product of two dimensions that ``run`` launches."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: Counter[Shape] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                left, right = args[-2:]
                found[(left.shape[0], right.shape[1], left.shape[1])] += 1
            return func(*args, **(kwargs or {}))

    with Count():
        run()
    return found


@pytest.mark.parametrize("name", BLOCKS)
def test_an_eager_block_keeps_and_runs_again_what_torch_does(name: str) -> None:
    arch, caches = BLOCKS[name], []
    block = ours(arch, "eager")
    real, x = _checkpointed(_block(arch), caches), _input(arch)
    y = real(x)
    assert sum(op.saved_bytes for op in block) == x.nbytes + sum(tensor.nbytes for tensor in _tensors(caches[0]))
    once = Counter(shape for op in block if op.parameters for shape in op.gemm)
    back = Counter(
        shape for op in block if op.parameters for m, n, k in op.gemm for shape in ((m, k, n), (n, k, m))
    )  # fmt: skip
    assert _products(lambda: real(x)) == once
    assert _products(lambda: y.float().sum().backward()) - back == Counter(
        shape for op in block[-1].replayed for shape in op.gemm
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_a_compiled_block_keeps_all_of_it_but_the_output_of_its_last_product() -> None:
    """What the forward that torch.compile makes hands to its backward, by PyTorch's partitioner."""
    import torch

    arch = LLAMA
    real, x = _block(arch), _input(arch)
    compiled = torch.compile(_checkpointed(real, []), backend="aot_eager_decomp_partition", fullgraph=True)
    own = {tensor.untyped_storage()._cdata for tensor in (*real.parameters(), *real.buffers())}
    kept = {t.untyped_storage()._cdata: t.nbytes for t in compiled(x).grad_fn.saved_tensors}
    assert sum(op.saved_bytes for op in ours(arch, "fused")) == sum(kept[at] for at in kept.keys() - own)


def _saved(run: Any, own: Any) -> tuple[Any, int]:
    """What ``run`` returns, and bytes of the distinct tensors that autograd saves meanwhile, without parameters'."""
    import torch

    known = {t.untyped_storage()._cdata for t in (*own.parameters(), *own.buffers())}
    sizes: dict[int, int] = {}
    alive: list[Any] = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            sizes[storage._cdata] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = run()
    return made, sum(sizes.values())


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_group_keeps_the_input_of_its_first_block_and_runs_all_of_it_again(group: int) -> None:
    """``--recompute-method uniform``: Megatron-LM's ``checkpoint`` is torch's re-entrant one around several layers. The
    forward saves the inputs of groups alone; each group is one replay, in which all that its blocks keep is alive at
    once.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    blocks = 4
    arch = replace(LLAMA, num_layers=blocks, num_kv_heads=8)
    model = torch.nn.Sequential(*(_block(arch) for _ in range(blocks)))
    batch = Batch(
        seq_len=SEQ, micro_batch=MICRO, precision=PRECISIONS["bf16"], attention="flash", kernels="eager",
        recompute="full", checkpoints=Checkpoints(group=group),
    )  # fmt: skip
    operations = [o for o in transformer(arch, batch).operations if o.layer.startswith("layers.")]
    replays: list[int] = []

    def run(first: int, x: Any) -> Any:
        again = torch.is_grad_enabled()  # a re-entrant forward runs without gradients
        made, size = _saved(lambda: model[first : first + group](x), model)
        replays.extend([size] if again else [])
        return made

    def forward(x: Any) -> Any:
        for first in range(0, blocks, group):
            x = checkpoint(run, first, x, use_reentrant=True, preserve_rng_state=False)
        return x

    y, kept = _saved(lambda: forward(_input(arch)), model)
    assert kept == sum(o.saved_bytes for o in operations) == blocks // group * MICRO * SEQ * arch.hidden_size * 2
    assert not replays
    products = _products(lambda: y.float().sum().backward())
    again = Counter(shape for o in operations for other in o.replayed for shape in other.gemm if other.parameters)
    back = Counter(
        shape for o in operations if o.parameters for m, n, k in o.gemm for shape in ((m, k, n), (n, k, m))
    )  # fmt: skip
    assert products - back == again
    statistics = group * 2 * MICRO * SEQ * 4  # of two norms a block, which are left out (``training.transformer``)
    assert replays == [transformer(arch, batch).replayed_bytes + statistics] * (blocks // group)

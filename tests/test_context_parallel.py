"""Context parallelism: what travels, what is held, and who works longest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ScenarioError
from simulator.model_spec import PresetModel
from simulator.training.architecture import Architecture
from simulator.training.attention import keys_computed
from simulator.training.batch import Batch
from simulator.training.context import spans
from simulator.training.families.llama import LAYOUT as LLAMA
from simulator.training.operations import Exchange, Operation, TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.presets import build_model
from simulator.training.shards import Shards
from simulator.training.transformer import transformer

S, B, KV = 8192, 1, 8
ARCH = Architecture(
    name="Llama", layout=LLAMA, num_layers=2, hidden_size=4096, num_heads=32, num_kv_heads=KV, head_dim=128,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip
H_KV = KV * 128
METHODS = ("ring", "all_gather", "ulysses")


def model_of(**shards: object) -> TrainingModel:
    return transformer(ARCH, Batch(
        seq_len=S, micro_batch=B, precision=PRECISIONS["bf16-master"], attention="flash", kernels="fused",
        shards=Shards(**shards),  # type: ignore[arg-type]
    ))  # fmt: skip


def core(model: TrainingModel) -> Operation:
    return next(o for o in model.operations if o.name == "layers.1.attn.core")


def sent_bytes(exchange: Exchange, c: int) -> float:
    """What one rank sends."""
    share = 1.0 if exchange.op == "send_recv" else (c - 1) / c
    return exchange.count * exchange.size_bytes * share


@pytest.mark.parametrize("c", [2, 4, 16])
def test_a_ring_sends_all_chunks_but_its_own(c: int) -> None:
    """(c - 1) chunks of 2 (s/c) b h_kv e forward, beside attention; again and their gradients backward (2310.01889)."""
    chunk = 2 * (S / c) * B * H_KV * 2
    assert [(e.op, e.size_bytes, e.count, e.when) for e in core(model_of(cp=c)).exchanges] == [
        ("send_recv", chunk, c - 1, "beside forward"), ("send_recv", chunk, c - 1, "beside input"),
        ("send_recv", chunk, c - 1, "beside input"),
    ]  # fmt: skip


@pytest.mark.parametrize("c", [2, 4, 16])
def test_gathering_moves_what_a_ring_moves(c: int) -> None:
    """The same volume each way, exposed (arXiv:2407.21783, section 3.3.2)."""
    ring, gathered = (core(model_of(cp=c, cp_method=method)).exchanges for method in ("ring", "all_gather"))
    assert sum(sent_bytes(e, c) for e in ring) == pytest.approx(sum(sent_bytes(e, c) for e in gathered))
    assert [e.when for e in gathered] == ["before forward", "before backward", "after backward"]


def test_ulysses_exchanges_q_k_v_and_the_result_both_ways() -> None:
    """4 all-to-alls each way of (s/c) b (h, h_kv, h_kv, h) elements (arXiv:2309.14509, section 3.2)."""
    sent = core(model_of(cp=4, cp_method="ulysses")).exchanges
    widths = [e.size_bytes / (S / 4 * B * 2) for e in sent]
    assert widths == [4096, H_KV, H_KV, 4096, 4096, 4096, H_KV, H_KV]
    assert {e.op for e in sent} == {"all_to_all"}


def test_key_value_heads_fewer_than_ranks_are_sent_several_times() -> None:
    """8 key-value heads over 16 ranks: each rank gets one, so k and v travel twice."""
    sent = core(model_of(cp=16, cp_method="ulysses")).exchanges
    assert sent[1].size_bytes == 2 * (S / 16) * 16 * 128
    kept, others = (core(model_of(cp=16, cp_method=method)).saved_bytes for method in ("ulysses", "ring"))
    assert kept - others == 2 * (S / 16) * (4096 + 2 * H_KV)  # its own result, and the copies of k and v


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("c", [2, 8])
def test_the_parts_add_up_to_the_whole(c: int, method: str) -> None:
    """FLOP and what is kept are shared evenly where causal work is balanced; parameters are on every rank. Ulysses
    keeps the kernel's result beside the one that it sent, which the output layer keeps: s/c b h elements a layer.
    """
    whole, part = model_of(), model_of(cp=c, cp_method=method)
    assert part.forward_flop * c == pytest.approx(whole.forward_flop)
    assert part.backward_flop * c == pytest.approx(whole.backward_flop)
    results = 2 * 2 * S * B * 4096 if method == "ulysses" else 0
    assert part.saved_bytes * c == pytest.approx(whole.saved_bytes + results)
    assert part.parameters == whole.parameters


@pytest.mark.parametrize("c", [2, 4, 16])
def test_without_balance_the_last_rank_works_nearly_twice_as_long(c: int) -> None:
    """Its queries see (2 c - 1)/(2 c) of all keys, the mean sees half: (2 c - 1)/c times the mean."""
    even, busiest = core(model_of(cp=c)), core(model_of(cp=c, cp_balanced=False))
    assert busiest.forward_flop / even.forward_flop == pytest.approx((2 * c - 1) / c)


@given(
    st.integers(1, 16), st.integers(1, 64), st.integers(0, 4096), st.booleans(),
)  # fmt: skip
def test_all_ranks_together_compute_the_whole(c: int, piece: int, window: int, balanced: bool) -> None:
    """Keys of all ranks, a mean over queries, are those of one rank: s/2, or ``w - w^2 / (2 s)`` with a window of w."""
    seq = 2 * c * piece
    found = spans(seq, window, c, balanced=balanced)
    assert len(found) == c
    assert sum(found) / c == pytest.approx(keys_computed(seq, window))
    if not window and balanced:
        assert found == pytest.approx([seq / 2] * c)
    if not window and not balanced:
        assert found == pytest.approx([(2 * i + 1) / (2 * c) * seq for i in range(c)])


def test_a_window_shorter_than_a_part_leaves_nothing_to_balance() -> None:
    """All queries but the first w see w keys, so the last of 4 ranks has them all; what is sent does not change."""
    batch = Batch(
        seq_len=S, micro_batch=B, precision=PRECISIONS["bf16-master"], attention="flash",
        shards=Shards(cp=4, cp_balanced=False),
    )  # fmt: skip
    windowed, full = (core(transformer(replace(ARCH, windows=w), batch)) for w in ((512, 512), ()))
    assert windowed.forward_flop == pytest.approx(2 * S / 4 * B * 512 * 2 * 4096)
    assert windowed.exchanges == full.exchanges


@pytest.mark.parametrize("c", [2, 8])
def test_a_ring_runs_a_kernel_for_each_chunk_and_adds_up(c: int) -> None:
    """c kernels on s/c keys; c - 1 sums, each three passes over s/c b h elements (Transformer Engine,
    ``flash_attn_fwd_out_correction``), backward over q, k and v.
    """
    alone, ring, gathered = core(model_of()), core(model_of(cp=c)), core(model_of(cp=c, cp_method="all_gather"))
    assert (ring.seq_len, gathered.seq_len) == (S / c, S)
    assert ring.forward_kernels == c * alone.forward_kernels + c - 1
    assert ring.elementwise_forward_bytes == (c - 1) * 3 * S / c * B * 4096 * 2
    assert ring.elementwise_backward_bytes == (c - 1) * 3 * S / c * B * (4096 + 2 * H_KV) * 2
    assert gathered.elementwise_forward_bytes == 0


def test_latent_attention_sends_keys_and_values_of_all_heads() -> None:
    """DeepSeek-V3: 128 heads with keys of 192 and values of 128 (arXiv:2412.19437, section 4.2)."""
    build = {"seq_len": 4096, "micro_batch": 1, "precision": "bf16-master", "attention": "flash", "kernels": "fused"}
    model = build_model(PresetModel(preset="deepseek-v3"), **build, shards=Shards(cp=4))  # type: ignore[arg-type]
    assert core(model).exchanges[0].size_bytes == 4096 / 4 * 128 * (192 + 128) * 2


@pytest.mark.parametrize(("method", "again"), [("ring", 0), ("all_gather", 0), ("ulysses", 4)])
def test_selective_op_sends_again_only_what_the_kernel_keeps_exchanged(method: str, again: int) -> None:
    """The kernel's result is kept (torchtitan's policy), so a ring need not run again; q, k, v and the result of
    Ulysses have to be exchanged anew. Full recomputation repeats all of the forward's.
    """

    def forward_sends(recompute: str) -> int:
        model = transformer(ARCH, Batch(
            seq_len=S, micro_batch=B, precision=PRECISIONS["bf16-master"], attention="flash", recompute=recompute,
            shards=Shards(cp=4, cp_method=method),
        ))  # fmt: skip
        return sum(
            e.when.endswith("forward") for o in model.operations if o.layer == "layers.1" for r in o.replayed
            for e in r.exchanges
        )  # fmt: skip

    assert forward_sends("selective-op") == again
    assert forward_sends("full") == (again or 1)


def test_keys_of_one_rank_of_tp_are_those_of_its_heads() -> None:
    """h_kv is shared over tp."""
    chunk = core(model_of(cp=4)).exchanges[0].size_bytes
    assert core(model_of(cp=4, tp=8, sequence_parallel=True)).exchanges[0].size_bytes == chunk / 8


def test_one_rank_is_the_model_as_it_was() -> None:
    assert model_of(cp=1, cp_method="ulysses") == model_of()


@pytest.mark.parametrize(
    ("shards", "told"),
    [
        ({"cp": 3}, "parallel.cp: train.seq_len 8192 is no multiple of 6 .*; accepted: 1, 2, 4, .*"),
        ({"cp": 8192}, "parallel.cp: train.seq_len 8192 is no multiple of 16384"),
        ({"cp": 64, "cp_method": "ulysses"}, "parallel.cp: 64 does not divide the 32 heads on each rank of tp"),
        ({"cp": 2048, "tp": 8, "sequence_parallel": True}, "parallel.tp: 4 tokens of a sequence on each rank of cp"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_refused(shards: dict[str, object], told: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{told}"):
        model_of(**shards)


def test_ulysses_refuses_key_value_heads_that_do_not_fit() -> None:
    """12 heads and 3 of keys on 4 ranks: neither shared evenly nor held equally often."""
    arch = replace(ARCH, num_heads=12, num_kv_heads=3)
    batch = Batch(
        seq_len=S, micro_batch=B, precision=PRECISIONS["bf16-master"], attention="flash",
        shards=Shards(cp=4, cp_method="ulysses"),
    )  # fmt: skip
    with pytest.raises(
        ScenarioError, match=r"^parallel.cp: 4 does not divide the 3 key-value .*; accepted: 1, 3, 6, 12$"
    ):
        transformer(arch, batch)


def test_eager_attention_sends_the_same() -> None:
    """The way keys travel does not depend on the kernel."""
    batch = Batch(seq_len=S, micro_batch=B, precision=PRECISIONS["bf16-master"], attention="eager", shards=Shards(cp=4))
    assert (
        core(transformer(ARCH, batch)).exchanges == core(transformer(ARCH, replace(batch, attention="flash"))).exchanges
    )

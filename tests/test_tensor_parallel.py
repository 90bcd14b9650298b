"""Tensor and sequence parallelism: what a rank computes, holds and sends, against Megatron's papers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ScenarioError
from simulator.model_spec import PresetModel
from simulator.training.architecture import Architecture
from simulator.training.batch import Batch
from simulator.training.families.gpt2 import LAYOUT as GPT2
from simulator.training.families.llama import LAYOUT as LLAMA
from simulator.training.operations import Operation, TrainingModel
from simulator.training.precision import PRECISIONS
from simulator.training.presets import build_model
from simulator.training.shards import Shards
from simulator.training.transformer import transformer

S, B, H, A, V = 2048, 2, 6144, 64, 51200
#: A GPT of the 22B model's shape (arXiv:2205.05198, table 3), with dropout.
GPT = Architecture(
    name="GPT", layout=GPT2, num_layers=3, hidden_size=H, num_heads=A, num_kv_heads=A, head_dim=H // A,
    intermediate_size=4 * H, vocab_size=V, max_positions=S, tie_word_embeddings=True, dropout=True,
)  # fmt: skip
KV = 8
LLAMA3 = Architecture(
    name="Llama", layout=LLAMA, num_layers=3, hidden_size=4096, num_heads=32, num_kv_heads=KV, head_dim=128,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip
TENSOR = Shards(tp=8)
SEQUENCE = Shards(tp=8, sequence_parallel=True)


def model_of(arch: Architecture, shards: Shards, *, attention: str = "flash", recompute: str = "none") -> TrainingModel:
    return transformer(arch, Batch(
        seq_len=S, micro_batch=B, precision=PRECISIONS["bf16-master"], attention=attention, kernels="fused",
        recompute=recompute, shards=shards,
    ))  # fmt: skip


def block_bytes(model: TrainingModel) -> float:
    """What a block in the middle keeps."""
    return sum(o.saved_bytes for o in model.operations if o.layer == "layers.1")


def of_block(model: TrainingModel) -> list[Operation]:
    return [o for o in model.operations if o.layer == "layers.1"]


# --------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_activations_are_those_of_korthikanti(t: int) -> None:
    """sbh(34 + 5as/h); tensor parallel sbh(10 + 24/t + 5as/(ht)); with sequence parallelism all of it / t
    (arXiv:2205.05198, equations 1, 2 and 4). Attention that keeps its scores, fused kernels, dropout, 16 bits.
    """
    sbh, scores = S * B * H, 5 * A * S / H
    whole = block_bytes(model_of(GPT, Shards(), attention="eager"))
    tensor = block_bytes(model_of(GPT, Shards(tp=t), attention="eager"))
    both = block_bytes(model_of(GPT, Shards(tp=t, sequence_parallel=True), attention="eager"))
    assert whole == pytest.approx(sbh * (34 + scores), rel=1e-9)
    assert tensor == pytest.approx(sbh * (10 + 24 / t + scores / t), rel=1e-9)
    assert both == pytest.approx(sbh * (34 + scores) / t, rel=1e-9)


@pytest.mark.parametrize("t", [2, 8])
def test_selective_recomputation_drops_the_scores_and_full_keeps_an_input(t: int) -> None:
    """34 sbh / t with selective recomputation (equation 6), 2 sbh with full, 2 sbh / t where inputs are shared."""
    shards = Shards(tp=t, sequence_parallel=True)
    sbh = S * B * H
    assert block_bytes(model_of(GPT, shards, attention="eager", recompute="selective")) == pytest.approx(34 * sbh / t)
    assert block_bytes(model_of(GPT, Shards(tp=t), recompute="full")) == pytest.approx(2 * sbh)
    assert block_bytes(model_of(GPT, shards, recompute="full")) == pytest.approx(2 * sbh / t)


@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_a_llama_block_keeps_a_tth_with_sequence_parallelism(t: int) -> None:
    """s b (12 h + 4 h kv / a + 6 f + 4 a) / t: the counterpart for RMSNorm, grouped queries, fused SwiGLU, flash."""
    arch = LLAMA3
    h, a, f = arch.hidden_size, arch.num_heads, arch.intermediate_size
    expected = S * B * (12 * h + 4 * h * KV / a + 6 * f + 4 * a) / t
    assert block_bytes(model_of(arch, Shards(tp=t, sequence_parallel=t > 1))) == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------------------------------- parameters and arithmetic


@given(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.sampled_from([GPT, LLAMA3]))
def test_the_parts_add_up_to_the_whole(t: int, sequence: bool, arch: Architecture) -> None:
    """Matrices and the vocabulary are cut, norms and biases of second matrices are on every rank; FLOP are shared."""
    whole, part = model_of(arch, Shards()), model_of(arch, Shards(tp=t, sequence_parallel=sequence))
    assert part.forward_flop * t == pytest.approx(whole.forward_flop, rel=1e-9)
    assert part.backward_flop * t == pytest.approx(whole.backward_flop, rel=1e-9)
    sizes = {tensor.name: tensor.numel for tensor in whole.parameters}
    for tensor in part.parameters:
        assert tensor.numel in (sizes[tensor.name], sizes[tensor.name] // t), tensor.name
    copies = {tensor.name for tensor in part.parameters if tensor.numel == sizes[tensor.name]}
    again = sum(sizes[name] for name in copies) * (t - 1) if t > 1 else 0
    assert part.num_parameters * t == whole.num_parameters + again
    assert [t.name for t in part.parameters] == [t.name for t in whole.parameters]


def test_key_value_heads_fewer_than_ranks_are_held_several_times() -> None:
    """8 key-value heads on 16 ranks: each rank has one (Megatron-LM, ``num_query_groups`` < tp)."""
    part = model_of(replace(LLAMA3, num_heads=32), Shards(tp=16))
    k = next(tensor for tensor in part.parameters if tensor.name.endswith("layers.1.self_attn.k_proj.weight"))
    assert k.numel == 128 * 4096


def test_one_rank_is_the_model_as_it_was() -> None:
    for arch in (GPT, LLAMA3):
        assert model_of(arch, Shards(tp=1)) == model_of(arch, Shards())
        assert all(not operation.exchanges for operation in model_of(arch, Shards()).operations)


# ------------------------------------------------------------------------------------------------------------- messages


def sent(operations: list[Operation]) -> Counter[tuple[str, str, float]]:
    """How often each collective runs, by pass and bytes."""
    found: Counter[tuple[str, str, float]] = Counter()
    for operation in operations:
        for exchange in operation.exchanges:
            passing = "forward" if exchange.when.endswith("forward") else "backward"
            found[passing, exchange.op, exchange.size_bytes] += exchange.count
    return found


@pytest.mark.parametrize("arch", [GPT, LLAMA3])
def test_a_layer_has_two_all_reduces_each_way(arch: Architecture) -> None:
    """2 forward and 2 backward of s b h elements (arXiv:1909.08053, section 3; core/tensor_parallel/layers.py)."""
    size = float(2 * S * B * arch.hidden_size)
    assert sent(of_block(model_of(arch, TENSOR))) == {
        ("forward", "all_reduce", size): 2, ("backward", "all_reduce", size): 2,
    }  # fmt: skip


@pytest.mark.parametrize("arch", [GPT, LLAMA3])
def test_sequence_parallelism_gathers_six_times_and_scatters_four_times(arch: Architecture) -> None:
    """2 AG + 2 RS forward, 4 AG + 2 RS backward (Megatron-LM: inputs of first matrices are gathered anew)."""
    size = float(2 * S * B * arch.hidden_size)
    assert sent(of_block(model_of(arch, SEQUENCE))) == {
        ("forward", "all_gather", size): 2, ("forward", "reduce_scatter", size): 2,
        ("backward", "all_gather", size): 4, ("backward", "reduce_scatter", size): 2,
    }  # fmt: skip


def test_full_recomputation_repeats_what_its_forward_sends() -> None:
    """Running a block again sends again: 2 + 2 forward, and 6 + 4 backward."""
    size = float(2 * S * B * H)
    last = of_block(model_of(GPT, SEQUENCE, recompute="full"))[-1]
    again = sent(list(last.replayed))
    assert again["forward", "all_gather", size] == again["forward", "reduce_scatter", size] == 2


def test_what_overlaps_stands_beside_the_product_it_overlaps() -> None:
    """The second gather beside the gradient of the input, the scatter beside that of the weights (layers.py)."""
    qkv = next(o for o in of_block(model_of(GPT, SEQUENCE)) if o.name.endswith("attn.qkv"))
    assert [(e.op, e.when) for e in qkv.exchanges] == [
        ("all_gather", "before forward"), ("all_gather", "beside input"), ("reduce_scatter", "beside weights"),
    ]  # fmt: skip
    hidden = [
        e.when for o in of_block(model_of(GPT, replace(SEQUENCE, async_tp=True))) for e in o.exchanges
    ]  # fmt: skip
    assert set(hidden) == {"beside forward", "beside input", "beside weights"}


def test_embedding_head_and_loss_send_once() -> None:
    """Vocabulary parallel: the embedding's sum, the head's input, three fp32 sums of s b (cross_entropy.py)."""
    around = [o for o in model_of(GPT, TENSOR).operations if o.layer in ("embedding", "head")]
    size = float(2 * S * B * H)
    assert sent(around) == {
        ("forward", "all_reduce", size): 1, ("backward", "all_reduce", size): 1,
        ("forward", "all_reduce", 4.0 * S * B): 3,
    }  # fmt: skip


def test_stages_pass_on_a_part_of_the_sequence_each() -> None:
    """s b h / t with sequence parallelism, s b h without (Megatron-LM, schedules.py, ``get_tensor_shapes``)."""
    for shards, parts in ((TENSOR, 1), (SEQUENCE, 8)):
        ends = [o.output_bytes for o in model_of(GPT, shards).operations if o.output_bytes]
        assert ends == [2 * S * B * H / parts] * 4


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("heads", "tp", "accepted"),
    [
        (40, 3, "1, 2, 4, 5, 8, 10, 20, 40"), (52, 3, "1, 2, 4, 13, 26, 52"), (52, 8, "1, 2, 4, 13, 26, 52"),
        (25, 2, "1, 5, 25"), (28, 8, "1, 2, 4, 7, 14, 28"), (40, 6, "1, 2, 4, 5, 8, 10, 20, 40"),
    ],
)  # fmt: skip
def test_heads_that_do_not_divide_are_refused_with_those_that_do(heads: int, tp: int, accepted: str) -> None:
    """vllm issues 596, 414, 1705 and DeepSpeed issue 3634: both numbers, and all valid degrees."""
    arch = replace(LLAMA3, num_heads=heads, num_kv_heads=heads, hidden_size=heads * 128)
    told = f"^parallel.tp: {tp} does not divide the {heads} attention heads of Llama; accepted: {accepted}$"
    with pytest.raises(ScenarioError, match=told):
        model_of(arch, Shards(tp=tp))


@pytest.mark.parametrize(("heads", "tp"), [(28, 7), (52, 4)])
def test_heads_need_not_be_a_power_of_two(heads: int, tp: int) -> None:
    arch = replace(LLAMA3, num_heads=heads, num_kv_heads=heads, hidden_size=heads * 128, intermediate_size=28 * 512)
    model_of(arch, Shards(tp=tp))


@pytest.mark.parametrize("name", ["deepseek-v3", "mixtral-8x7b", "qwen3-8b", "gpt2"])
def test_every_family_has_a_part(name: str) -> None:
    """Latent attention, experts, norms of q and k, fused matrices: less to hold, and something sent, in each layer."""
    build = {"seq_len": 1024, "micro_batch": 1, "precision": "bf16-master", "attention": "flash", "kernels": "fused"}
    whole = build_model(PresetModel(preset=name), **build)
    part = build_model(PresetModel(preset=name), **build, shards=Shards(tp=4, sequence_parallel=True))
    assert part.saved_bytes < whole.saved_bytes
    assert part.num_parameters < whole.num_parameters
    layers = {o.layer for o in part.operations if o.exchanges}
    assert layers == {o.layer for o in part.operations}


def test_key_value_heads_divide_the_ranks_or_are_divided() -> None:
    """12 heads and 3 key-value heads: not over 2 or 4 ranks, which would need parts of heads."""
    arch = replace(LLAMA3, num_heads=12, num_kv_heads=3, hidden_size=12 * 128, intermediate_size=3 * 4096)
    told = r"^parallel.tp: 4 neither divides the 3 key-value heads of Llama .*: 1, 3, 6, 12$"
    with pytest.raises(ScenarioError, match=told):
        model_of(arch, Shards(tp=4))
    model_of(arch, Shards(tp=3))


def test_latent_attention_gathers_its_latents() -> None:
    """DeepSeek-V3: down-projections are whole on each rank: 1,536 + 512 + 64 numbers a token travel, not 7,168."""
    part = build_model(
        PresetModel(preset="deepseek-v3"), seq_len=1024, micro_batch=1, precision="bf16-master", attention="flash",
        kernels="fused", shards=Shards(tp=4, sequence_parallel=True),
    )  # fmt: skip
    qkv = next(o for o in part.operations if o.name == "layers.5.attn.qkv")
    assert {e.size_bytes for e in qkv.exchanges} == {2.0 * 1024 * (1536 + 512 + 64)}
    assert not next(o for o in part.operations if o.name == "layers.5.attn.latent").exchanges


def test_attention_and_mlp_side_by_side_are_summed_once() -> None:
    """GPT-NeoX: one sum after both; two norms, so that each gathers an input of its own."""
    layout = replace(LLAMA, parallel=True)
    found = sent(of_block(model_of(replace(LLAMA3, layout=layout), SEQUENCE)))
    size = float(2 * S * B * LLAMA3.hidden_size)
    assert found == {
        ("forward", "all_gather", size): 2, ("forward", "reduce_scatter", size): 1,
        ("backward", "all_gather", size): 3, ("backward", "reduce_scatter", size): 2,
    }  # fmt: skip

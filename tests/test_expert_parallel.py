"""Expert parallelism: what tokens travel, which rank has how many, and what is held."""

from __future__ import annotations

import json
from collections import Counter
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ScenarioError
from simulator.model_spec import PresetModel
from simulator.training.architecture import Experts, block_tensors, parameter_tensors
from simulator.training.experts import (
    busiest_load,
    bytes_across_nodes,
    bytes_inside_nodes,
    dropped_share,
    is_expert,
    loads,
    nodes_of_token,
    sends_per_token,
)
from simulator.training.hf_config import architecture_from_config
from simulator.training.operations import Operation, TrainingModel
from simulator.training.presets import build_model
from simulator.training.shards import Shards

S, K, HIDDEN, E = 4096, 2, 4096, 8


def model_of(preset: str = "mixtral-8x7b", **shards: object) -> TrainingModel:
    return build_model(
        PresetModel(preset=preset), seq_len=S, micro_batch=1, precision="bf16-master", attention="flash",
        kernels="fused", shards=Shards(**shards),  # type: ignore[arg-type]
    )  # fmt: skip


def layer(model: TrainingModel, number: int = 5) -> list[Operation]:
    return [o for o in model.operations if o.layer == f"layers.{number}"]


def sent(operations: list[Operation]) -> Counter[tuple[str, str, float]]:
    return Counter((e.axis, e.op, e.size_bytes) for o in operations for e in o.exchanges for _ in range(e.count))


def expert_elements(model: TrainingModel) -> int:
    return sum(tensor.numel for tensor in model.parameters if tensor.columns is not None)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_a_layer_has_four_all_to_alls_of_the_tokens(ep: int) -> None:
    """T k h e each, dispatch and combine, forward and backward; 4 T k for probabilities, and for their gradients; and
    the counts of all ranks (megatron/core/transformer/moe/token_dispatcher.py).
    """
    assert sent(layer(model_of(ep=ep))) == {
        ("ep", "all_to_all", 2.0 * S * K * HIDDEN): 4, ("ep", "all_to_all", 4.0 * S * K): 2,
        ("ep", "all_gather", 8.0 * E * ep): 1,
    }  # fmt: skip


def test_tokens_of_a_rank_are_its_part_of_the_sequence() -> None:
    """With tp 4 and sequence parallelism each rank routes a quarter of the tokens."""
    whole, part = (sent(layer(model_of(ep=8, **more))) for more in ({}, {"tp": 4, "sequence_parallel": True}))
    size = 2.0 * S * K * HIDDEN
    assert whole["ep", "all_to_all", size] == part["ep", "all_to_all", size / 4] == 4


def test_width_is_gathered_next_to_the_experts() -> None:
    """Forward all-to-all, gather, experts, scatter, all-to-all; backward the same from the other end."""
    ops = layer(model_of(ep=2, etp=4, tp=4, sequence_parallel=True))
    ends = [next(o for o in ops if o.name.endswith(part)) for part in ("mlp.dispatch", "mlp.combine")]
    large = [[(e.axis, e.when) for e in o.exchanges if e.size_bytes > 1e6] for o in ends]
    assert [pair for pair in large[0] if pair[1] == "after forward"] == [
        ("ep", "after forward"),
        ("etp", "after forward"),
    ]
    assert [pair for pair in large[0] if "backward" in pair[1]] == [
        ("etp", "before backward"),
        ("ep", "before backward"),
    ]
    assert large[1] == [
        ("etp", "before forward"), ("ep", "before forward"), ("ep", "after backward"), ("etp", "after backward"),
    ]  # fmt: skip


@pytest.mark.parametrize("capacity", [0.5, 1.25])
def test_capacity_sizes_buffers_and_rows(capacity: float) -> None:
    """Buffers of capacity_factor times T k rows are sent and computed, also where that is fewer."""
    part, even = layer(model_of(ep=8, capacity_factor=capacity)), layer(model_of(ep=8))
    up = [next(o for o in ops if o.name.endswith("experts.up")) for ops in (part, even)]
    assert up[0].forward_flop == pytest.approx(capacity * up[1].forward_flop)
    assert sent(part)["ep", "all_to_all", capacity * 2.0 * S * K * HIDDEN] == 4


@pytest.mark.parametrize("config", ["gpt-oss-20b", "deepseek-v3", "qwen1.5-moe-a2.7b", "mixtral-8x7b", "olmoe-1b-7b"])
def test_parameters_of_routed_experts_are_told_by_name(config: str) -> None:
    """Weights and biases of routed experts, and no router, shared expert or dense layer."""
    path = Path(__file__).parent / "data" / "hf_configs" / f"{config}.json"
    arch = architecture_from_config(json.loads(path.read_text()), where=config)
    routed = {
        t.name
        for n in range(arch.num_layers)
        for part in ("experts_up", "experts_down")
        for t in block_tensors(arch, n)[part]
    }
    assert {t.name for t in parameter_tensors(arch) if is_expert(t)} == routed
    assert routed


def test_experts_cut_over_etp_gather_rows_and_scatter_results() -> None:
    """One all-gather and one reduce-scatter each way of the rows of all etp ranks."""
    found = sent(layer(model_of(ep=2, etp=4, tp=4, sequence_parallel=True)))
    rows = 2.0 * S / 4 * K * HIDDEN * 4
    assert found["etp", "all_gather", rows] == found["etp", "reduce_scatter", rows] == 2


@given(st.sampled_from([(1, 1), (2, 1), (8, 1), (4, 2), (1, 4)]), st.sampled_from(["mixtral-8x7b", "qwen3-30b-a3b"]))
def test_the_parts_add_up_to_the_whole(degrees: tuple[int, int], preset: str) -> None:
    """Experts of all ranks are all experts; the arithmetic of each rank's tokens is what it was, wherever done."""
    ep, etp = degrees
    whole, part = model_of(preset), model_of(preset, ep=ep, etp=etp)
    assert expert_elements(part) * ep * etp == expert_elements(whole)
    assert part.num_parameters - expert_elements(part) == whole.num_parameters - expert_elements(whole)
    assert part.forward_flop == pytest.approx(whole.forward_flop)


def test_one_rank_is_the_model_as_it_was() -> None:
    assert model_of(ep=1) == model_of()
    assert not any(o.exchanges for o in model_of().operations)


# ----------------------------------------------------------------------------------------------------------------- load


@given(st.integers(0, 100), st.floats(0, 3), st.floats(0, 3), st.sampled_from([1, 2, 8, 32]))
def test_steeper_loads_make_the_busiest_rank_busier(seed: int, one: float, more: float, ep: int) -> None:
    """Zipf loads average 1 whatever the exponent; one expert a rank: the busiest has E / sum(k^-x) times the mean."""
    low, high = (Shards(ep=32, zipf=(x, seed)) for x in sorted((one, more)))
    assert np.mean(loads(32, low)) == pytest.approx(1.0)
    assert busiest_load(32, low) <= busiest_load(32, high) + 1e-9
    exponent = sorted((one, more))[1]
    assert busiest_load(32, high) == pytest.approx(32 / sum(k**-exponent for k in range(1, 33)))
    assert busiest_load(32, Shards(ep=ep, zipf=(0.0, seed))) == pytest.approx(1.0)


def test_given_loads_make_the_busiest_rank() -> None:
    """Experts 0 and 1 are on rank 0: (3 + 1) / 2 over a mean of 1."""
    assert busiest_load(4, Shards(ep=2, expert_load=(3, 1, 0, 0))) == pytest.approx(2.0)


def test_the_busiest_rank_computes_holds_and_is_sent_more() -> None:
    load = (4.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)  # mean 1
    even, uneven = layer(model_of(ep=8)), layer(model_of(ep=8, expert_load=load))
    up = [next(o for o in ops if o.name.endswith("experts.up")) for ops in (even, uneven)]
    assert up[1].forward_flop / up[0].forward_flop == pytest.approx(4.0)
    assert up[1].saved_bytes / up[0].saved_bytes == pytest.approx(4.0)
    assert ("ep", "all_to_all", 4 * 2.0 * S * K * HIDDEN) in sent(uneven)


def test_capacity_pads_to_it_and_drops_beyond_it() -> None:
    """GShard (arXiv:2006.16668, section 2.2): with loads 3, 1, 0, 0 and capacity 1.5, 1.5 of 4 are dropped."""
    shards = Shards(ep=4, expert_load=(3, 1, 0, 0), capacity_factor=1.5)
    assert dropped_share(4, shards) == pytest.approx(1.5 / 4)
    assert busiest_load(4, shards) == pytest.approx(1.5)
    assert dropped_share(4, Shards(ep=4, expert_load=(3, 1, 0, 0))) == 0.0


# ---------------------------------------------------------------------------------------------------------------- nodes


@pytest.mark.parametrize(("count", "top_k", "nodes", "limit"), [(256, 8, 8, 4), (256, 8, 8, None), (64, 6, 4, 2)])
def test_nodes_of_a_token_are_what_drawing_gives(count: int, top_k: int, nodes: int, limit: int | None) -> None:
    """n (1 - C(E - E/N, k) / C(E, k)) against 20,000 draws with a fixed seed."""
    rng, each, most = np.random.default_rng(0), count // nodes, min(nodes, limit or nodes)
    drawn = [len(set(rng.choice(each * most, top_k, replace=False) // each)) for _ in range(20_000)]
    assert nodes_of_token(count, top_k, nodes, limit) == pytest.approx(np.mean(drawn), rel=0.01)


def test_a_token_crosses_to_each_node_once() -> None:
    """DeepSeek-V3: 8 of 256 experts on 8 nodes, at most 4 of them: 3.6 copies in the place of 8 (arXiv:2412.19437)."""
    experts = Experts(count=4, top_k=8, intermediate_size=2048, routed=256)
    shards = Shards(ep=64, deduplicate=True, expert_nodes=4, node_size=8)
    assert sends_per_token(experts, shards) == pytest.approx(3.62, abs=0.01)
    assert sends_per_token(experts, Shards(ep=64, node_size=8)) == 8
    inside = 8 * (1 - comb(224, 8) / comb(256, 8))  # one node: to each of its ranks once
    assert sends_per_token(experts, Shards(ep=8, deduplicate=True, node_size=8)) == pytest.approx(inside)


def test_bytes_between_nodes_and_inside_them_are_what_drawing_gives() -> None:
    """One row for each other node of a token, and for each other rank that has an expert of it inside a node; without
    deduplication a row for each expert. Against 4,000 draws of 8 of 64 experts on 16 ranks of 4 nodes, at most 2 nodes.
    """
    rng, rows = np.random.default_rng(0), 4_000
    experts = Experts(count=4, top_k=8, intermediate_size=1, routed=64)
    drawn = np.zeros((2, 2))
    for _ in range(rows):
        nodes, own = rng.choice(4, 2, replace=False), int(rng.integers(16))
        ranks = np.concatenate([np.arange(4 * n, 4 * n + 4) for n in nodes])
        chosen = np.repeat(ranks, 4)[rng.choice(32, 8, replace=False)]
        once, row = set(chosen.tolist()), own % 4
        drawn[0] += (len({r // 4 for r in once} - {own // 4}), sum(r % 4 != row for r in once))
        drawn[1] += (sum(r // 4 != own // 4 for r in chosen), sum(r // 4 == own // 4 and r != own for r in chosen))
    for number, deduplicate in enumerate((True, False)):
        shards = Shards(ep=16, node_size=4, expert_nodes=2, deduplicate=deduplicate)
        found = bytes_across_nodes(experts, shards, 1.0), bytes_inside_nodes(experts, shards, 1.0)
        assert found == pytest.approx(drawn[number] / rows, rel=0.04)


def test_a_limit_picks_the_best_nodes_and_spreads_wider_than_drawing() -> None:
    """DeepSeek-V3's routing (the 4 nodes with the highest 2 scores, then the best 8; arXiv:2412.19437, 2.1.2) on
    independent scores: between the closed form and the limit.
    """
    scores = np.random.default_rng(0).random((1_000, 8, 32))
    best = np.argsort(np.sort(scores, 2)[:, :, -2:].sum(2), 1)[:, -4:]
    held = np.take_along_axis(scores, best[:, :, None], 1).reshape(1_000, -1)
    nodes = np.mean([len(set(row // 32)) for row in np.argsort(held, 1)[:, -8:]])
    assert nodes_of_token(256, 8, 8, 4) < nodes < 4
    assert nodes == pytest.approx(3.95, abs=0.02)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("preset", "shards", "told"),
    [
        ("mixtral-8x7b", {"ep": 3}, "parallel.ep: 3 does not divide the 8 experts of .*; accepted: 1, 2, 4, 8$"),
        ("llama-3-8b", {"ep": 2}, "parallel.ep: .* has no experts to share; accepted: 1"),
        ("mixtral-8x7b", {"ep": 2, "expert_load": (1.0, 2.0)}, "parallel.expert_load: has 2 numbers; .* has 8 experts"),
        ("mixtral-8x7b", {"expert_load": (1.0, 2.0)}, "parallel.expert_load: has 2 numbers; .* has 8 experts"),
        ("llama-3-8b", {"expert_load": (1.0, 2.0)}, "parallel.expert_load: .* has no experts"),
        ("llama-3-8b", {"capacity_factor": 1.5}, "parallel.capacity_factor: .* has no experts"),
        ("mixtral-8x7b", {"ep": 2, "expert_load": (0.0,) * 8}, "parallel.expert_load: all are 0"),
        ("mixtral-8x7b", {"ep": 2, "tp": 2}, "parallel.sequence_parallel: false leaves every rank of tp"),
        ("mixtral-8x7b", {"ep": 2, "etp": 3}, "parallel.etp: 3 does not divide the 14336 columns"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(preset: str, shards: dict[str, object], told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        model_of(preset, **shards)

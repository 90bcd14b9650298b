"""Published FSDP runs with a known answer: what a GPU's memory holds, and how throughput changes with their number.

No number of the model is fitted to these runs. Where it misses, the test holds what it gives and says by how much.
"""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import Any

import pytest

from simulator.answer import StepAnswer, answer_step
from simulator.load import load_device, load_topology
from simulator.report.slack import slack_of
from simulator.scenario import Scenario

GIB = 2**30
#: Standard deviation of the speed of GPUs of one cluster that are all alike: 8 % (at most 22 %) from whisker to whisker
#: of a box plot, 5.4 deviations of a normal distribution; Sinha et al., SC22, arXiv:2208.11035, abstract.
SPREAD = 0.08 / 5.4


def answered(cluster: dict[str, Any], **asked: Any) -> StepAnswer:
    return answer_step(Scenario.model_validate({"cluster": cluster, **asked}))


# -------------------------------------------------------------------------------------------- c02: torchtitan, Llama 8B

#: pytorch/torchtitan@31a17bf benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3 (FSDP, not float8): GiB that
#: the allocator has reserved at most (torchtitan/metrics.py logs ``max_reserved_gib``) and tokens/s of each GPU.
RESERVED_GIB = {("eager", 8): 82.4, ("eager", 128): 67.0, ("fused", 8): 77.0, ("fused", 128): 62.0}
TOKENS_PER_S = {("eager", 8): 5762, ("eager", 128): 5605, ("fused", 8): 6667, ("fused", 128): 6514}


@cache
def llama_8b(kernels: str, num_gpus: int, seed: int | None = None) -> StepAnswer:
    """As in that page: H100 of 96 GB, 8 a node, 400 Gb/s each; sequences of 8,192, two at a time; fp32 states, bf16.

    From parallelize_llama.py and train.py of that time: selective recompute per operation, the last block is not
    resharded, gradients are clipped, the loss is not compiled. seed: GPUs that differ by ``SPREAD``.
    """
    topology = load_topology("dgx-h100").model_copy(update={"device": load_device("h100-sxm5-96gb")})
    cluster: dict[str, Any] = {"topology": topology, "nodes": num_gpus // 8}
    if seed is not None:
        cluster["jitter"] = {"share": SPREAD, "seed": seed}
    return answered(
        cluster, model={"preset": "llama-3.1-8b"}, parallel={"strategy": "fsdp", "reshard_after_forward": "not-last"},
        train={"seq_len": 8192, "micro_batch": 2, "recompute": "selective-op", "clip_grad_norm": True,
               "kernels": kernels},
    )  # fmt: skip


def reserved_gib(found: StepAnswer) -> tuple[float, float]:
    """What the allocator reserves, low and high: tensors, the pools of other streams, fragmentation; no context."""
    memory = found.report.memory
    tensors = memory.peak_bytes - memory.by_kind_bytes["workspace"]
    slack = slack_of(memory.by_kind_bytes, memory.pools_bytes)
    return (tensors + slack.low_bytes) / GIB, (tensors + slack.high_bytes) / GIB


@pytest.mark.parametrize(("kernels", "num_gpus"), RESERVED_GIB)
def test_field_case_c02_peak_memory_of_llama_8b(kernels: str, num_gpus: int) -> None:
    """Within 12 %; like with like, memory that the allocator has reserved. The middle of our range is 2 to 4 % low.

    Tensors alone are 69.0, 58.5, 64.8 and 54.3 GiB, 13 to 16 % low: the rest is what the streams' pools do not share.
    """
    low, high = reserved_gib(llama_8b(kernels, num_gpus))
    published = RESERVED_GIB[kernels, num_gpus]
    assert (low + high) / 2 == pytest.approx(published, rel=0.12)
    assert low < published < high


@pytest.mark.parametrize("kernels", ["eager", "fused"])
def test_field_case_c02_only_sharded_states_shrink_from_8_to_128_gpus(kernels: str) -> None:
    """15.2 GiB to 12 %: 16 B/param, sharded 16 times less, are 14.0 GiB. A memory that fell 16 times would lose 77."""
    few, many = (mean(reserved_gib(llama_8b(kernels, num_gpus))) for num_gpus in (8, 128))
    assert few - many == pytest.approx(15.2, rel=0.12)
    states = 16 * 8.03e9 * (1 / 8 - 1 / 128) / GIB
    assert states < few - many < 1.1 * states


def test_field_case_c02_compiled_blocks_keep_less() -> None:
    """5.4 and 5.0 GiB less where blocks are compiled; 4 GiB of these are 32 outputs of down (2 s b h) never read."""
    for num_gpus in (8, 128):
        saved = mean(reserved_gib(llama_8b("eager", num_gpus))) - mean(reserved_gib(llama_8b("fused", num_gpus)))
        assert 4.0 < saved == pytest.approx(5.2, rel=0.2)


def test_field_case_c02_the_network_costs_no_throughput_that_shows() -> None:
    """Of the 2.7 % that 128 GPUs lost against 8, next to nothing: every gather but the first hides behind compute."""
    few, many = (llama_8b("eager", num_gpus).report.tokens_per_s_per_gpu for num_gpus in (8, 128))
    assert abs(1 - many / few) < 0.005


@pytest.mark.slow
def test_field_case_c02_throughput_lost_from_8_to_128_gpus() -> None:
    """1 to 5 % (2.7 % published): with GPUs as unlike as they are elsewhere, 128 wait for a slower one than 8 do.

    About 1.4 % in the mean of 24 draws, between -0.2 and 3.4 % in each.
    """
    lost = mean(
        1 - llama_8b("eager", 128, seed).report.tokens_per_s_per_gpu
        / llama_8b("eager", 8, seed).report.tokens_per_s_per_gpu
        for seed in range(24)
    )  # fmt: skip
    assert 0.01 < lost < 0.05


@pytest.mark.parametrize(("kernels", "num_gpus", "too_fast"), [
    ("eager", 8, 1.17), ("eager", 128, 1.20), ("fused", 8, 1.26), ("fused", 128, 1.29)
])  # fmt: skip
def test_throughput_of_boards_capped_at_500_w_is_overestimated(kernels: str, num_gpus: int, too_fast: float) -> None:
    """No claim of the case. The runs' boards are capped at 500 W, ours run as at 700 W, so products are too fast."""
    found = llama_8b(kernels, num_gpus).report.tokens_per_s_per_gpu
    assert found / TOKENS_PER_S[kernels, num_gpus] == pytest.approx(too_fast, rel=0.03)


# ---------------------------------------------------------------------------------------------- c08: llm-foundry, MPT

#: mosaicml/llm-foundry@c90b9b3 scripts/train/benchmarking/README.md, "H100 80GB BF16 (Large Scale, >= 128 GPUs)" and
#: the table after it: (layers, hidden size, heads), micro-batch, sharding and checkpointing; tokens/s of each GPU.
MPT: dict[str, tuple[tuple[int, int, int], int, bool, str]] = {
    "70B": ((80, 8192, 64), 8, True, "full"), "30B": ((48, 7168, 56), 8, True, "full"),
    "7B": ((32, 4096, 32), 6, True, "none"), "1B": ((24, 2048, 16), 12, False, "none"),
}  # fmt: skip
MPT_TOKENS_PER_S = {
    "70B": {128: 1058, 256: 1035, 512: 1007}, "30B": {128: 2199, 256: 2148, 512: 2115},
    "7B": {128: 10475, 256: 10119, 512: 9670}, "1B": {128: 44123, 256: 42555, 512: 39837},
}  # fmt: skip
PARAMETERS = {"70B": 64_862_437_376, "30B": 29_975_214_080, "7B": 6_658_859_008, "1B": 1_315_950_592}


@cache
def mpt(name: str, num_gpus: int, micro_batch: int = 0, accumulated: int = 1) -> StepAnswer:
    """FSDP1 with ``limit_all_gathers``, bf16 weights and fp32 reductions (Composer's DEFAULT), FlashAttention 1.

    Composer reduces in every micro-batch (its ``ddp_sync_context`` leaves FSDP alone). The fabric is not stated there:
    8 x 400 Gb/s a node, as a DGX has. The model is a GPT-2 of those sizes, equal to the last parameter.
    """
    (layers, hidden, heads), usual, reshard, recompute = MPT[name]
    sizes = {"family": "gpt2", "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
             "vocab_size": 50368, "max_position_embeddings": 2048}  # fmt: skip
    return answered(
        {"topology": load_topology("dgx-h100"), "nodes": num_gpus // 8}, model=sizes,
        parallel={"strategy": "fsdp", "implementation": "fsdp1", "reshard_after_forward": reshard,
                  "sync_each_micro_batch": True},
        train={"seq_len": 2048, "micro_batch": micro_batch or usual, "grad_accumulation": accumulated,
               "recompute": recompute, "attention": "flash-1", "clip_grad_norm": True},
    )  # fmt: skip


def tokens_per_s(name: str, num_gpus: int) -> float:
    return mpt(name, num_gpus).report.tokens_per_s_per_gpu


@pytest.mark.slow
@pytest.mark.parametrize("name", MPT)
def test_field_case_c08_throughput_of_mpt(name: str) -> None:
    """Within 20 %: 0.5 to 17 % too fast, the more GPUs and the smaller the model the more."""
    assert mpt(name, 128).job.model.num_parameters == PARAMETERS[name]
    for num_gpus, published in MPT_TOKENS_PER_S[name].items():
        assert tokens_per_s(name, num_gpus) == pytest.approx(published, rel=0.20)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ours"), [("70B", 0.005), ("30B", 0.006), ("7B", 0.016), ("1B", 0.018)])
def test_field_case_c08_weak_scaling_loses_less_than_was_measured(name: str, ours: float) -> None:
    """128 to 512 GPUs lost 4.8, 3.8, 7.7 and 9.7 %, of which ours lose 0.5, 0.6, 1.6 and 1.8 %: a miss.

    The order is right. The next test says what is missing.
    """
    lost = {each: 1 - tokens_per_s(each, 512) / tokens_per_s(each, 128) for each in MPT}
    published = 1 - MPT_TOKENS_PER_S[name][512] / MPT_TOKENS_PER_S[name][128]
    assert lost[name] == pytest.approx(ours, abs=0.003)
    assert lost[name] < published
    assert lost["1B"] > lost["7B"] > lost["30B"] >= lost["70B"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MPT)
def test_field_case_c08_what_was_lost_is_what_collectives_take_longer(name: str) -> None:
    """From 128 to 512 GPUs a step took 784, 296, 98 and 60 ms longer; our collectives, hidden ones too, take 562, 293,
    110 and 51 ms longer: rings of four times as many ranks. So their times are right to 40 %, and those runs hid next
    to nothing of what came on top, although compute is 6 to 10 times as long. Our plan of FSDP1 hides all of it (also
    with Composer's ``backward_prefetch: post``), and no public source says what held the real streams up; a collective
    that waits for its ring costs our compute only the 16 of 132 cores that it occupies. Case c02 says the same: 90 ms
    longer there, and 80 and 58 ms lost.
    """
    layout = MPT[name]
    took = {num_gpus: layout[1] * 2048 / rate for num_gpus, rate in MPT_TOKENS_PER_S[name].items()}
    longer = mpt(name, 512).report.comm_total_s - mpt(name, 128).report.comm_total_s
    assert longer == pytest.approx(took[512] - took[128], rel=0.4)


@pytest.mark.slow
def test_field_case_c08_a_small_micro_batch_exposes_its_gathers() -> None:
    """70B on 32 GPUs, micro-batch 2 x 16, at least 10 % slower for each GPU than on 64, micro-batch 8 x 4 (15 %)."""
    few, more = mpt("70B", 32, 2, 16).report, mpt("70B", 64, 8, 4).report
    assert few.tokens_per_s_per_gpu <= 0.9 * more.tokens_per_s_per_gpu
    assert few.breakdown.exposed_comm > 2 * more.breakdown.exposed_comm
    for found, published in ((few, 882), (more, 1039)):
        assert found.tokens_per_s_per_gpu == pytest.approx(published, rel=0.20)

"""REQUIREMENTS 13 to 17: what the lectures say of data parallelism, out of the product's own commands.

The model is a list of measured layers whose times are those of an H100 at 40 % MFU, 2 FLOP per parameter and token
forward and 4 backward; the network is the lectures' alpha and beta. Nothing else is put in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator

#: FLOP/s of an H100 in bf16, and the share of it that the lectures count on.
ACHIEVED = 0.4 * 989e12
INFINIBAND, NVLINK = "50 GB/s", "450 GB/s"

SCENARIO = """
cluster:
  topology: {{name: ideal, kind: uniform, nodes: {ranks}, alpha: {alpha_s} s, bandwidth: {bandwidth}, source: lectures}}
model:
  layers: {layers}
parallel: {parallel}
train: {{micro_batch: 1, precision: {precision}, optimizer: sgd}}
"""

Answer = dict[str, Any]


def ask(
    folder: Path, layers: list[dict[str, Any]], *, ranks: int, bandwidth: str, parallel: dict[str, Any],
    precision: str = "bf16-master", alpha_s: float = 0.0,
) -> Answer:  # fmt: skip
    """What ``simulator run --json`` says."""
    file = folder / "scenario.yaml"
    file.write_text(SCENARIO.format(
        ranks=ranks, alpha_s=f"{alpha_s:.9f}", bandwidth=bandwidth, layers=json.dumps(layers),
        parallel=json.dumps(parallel), precision=precision,
    ))  # fmt: skip
    result = simulator("run", str(file), "--json")
    assert result.code == 0, result.err
    found: Answer = json.loads(result.out)
    return found


def transformer(parameters: float, tokens: float, layers: int = 32) -> list[dict[str, Any]]:
    """Equal layers that work for 6 N T FLOP in all."""
    each = int(parameters / layers)
    forward_s = 2 * each * tokens / ACHIEVED
    return [{
        "name": "block", "params": each, "forward": f"{forward_s:.12f} s", "backward": f"{2 * forward_s:.12f} s",
        "repeat": layers,
    }]  # fmt: skip


def fewest_tokens(lacking: Callable[[int], float]) -> int:
    """The smallest number of tokens per GPU that is enough. lacking: how many times as many it takes, at most 1 where
    they are enough; what it says is a guess, which is tried, and so is one less.
    """
    tokens = 1_000
    for _ in range(2):
        tokens = max(2, round(tokens * lacking(tokens)))
    while lacking(tokens) > 1:
        tokens += 1
    while lacking(tokens - 1) <= 1:
        tokens -= 1
    return tokens


# ------------------------------------------------------------------------------------------------- 13: bucket sizes

#: 8 x (Linear(1024) + LayerNorm) and a head: 34 tensors. Bytes of a block's gradients and of the head's, fp32.
BLOCK, HEAD = 4 * (1024 * 1024 + 3 * 1024), 4 * (1024 * 10 + 10)
ALPHA_S, BYTES_PER_S = 50e-6, 1.25e9
#: MB -> (blocks of each bucket). The head shares the first.
BUCKETS = {1: [1] * 8, 25: [6, 2], 64: [8]}


def curve(folder: Path, backward_s: float) -> dict[int, float]:
    layers = [
        {"name": "block", "params": [1024 * 1024, 1024, 1024, 1024], "forward": f"{backward_s / 2:.6f} s",
         "backward": f"{backward_s:.6f} s", "repeat": 8},
        {"name": "head", "params": [10240, 10], "forward": "1 ps", "backward": "1 ps"},
    ]  # fmt: skip
    steps = {}
    for cap in BUCKETS:
        parallel = {"bucket_cap": f"{cap} MB", "algorithm": "ring"}
        found = ask(
            folder, layers, ranks=4, bandwidth="1.25 GB/s", parallel=parallel, precision="fp32", alpha_s=ALPHA_S
        )
        sizes = [use["message_bytes"] for use in found["buckets"]]
        assert sizes == [BLOCK * blocks + (0 if number else HEAD) for number, blocks in enumerate(BUCKETS[cap])]
        steps[cap] = found["step_time_s"]
    return steps


def by_hand(cap: int, backward_s: float) -> float:
    """Each bucket starts when it is ready and the one before is over: 6 (alpha + n / 4 beta) on a ring of 4."""
    ready, end = 4 * backward_s, 0.0
    for number, blocks in enumerate(BUCKETS[cap]):
        ready += blocks * backward_s
        end = max(ready, end) + 6 * (ALPHA_S + (BLOCK * blocks + (0 if number else HEAD)) / 4 / BYTES_PER_S)
    return end


@pytest.mark.parametrize(
    ("backward_s", "best_first"),
    [(20e-3, [1, 25, 64]), (0.2e-3, [25, 64, 1])],
    ids=["compute hides small buckets", "communication bounds"],
)
def test_step_time_against_bucket_size(tmp_path: Path, backward_s: float, best_first: list[int]) -> None:
    """REQUIREMENTS 13: the notes' model on 4 ranks, 1, 25 and 64 MB.

    With long layers the step ends one bucket after the backward, so small buckets win. With short ones the wire never
    rests: a small bucket pays alpha too often, a bucket of everything starts too late, and 25 MB is best.
    """
    steps = curve(tmp_path, backward_s)
    for cap, step_s in steps.items():
        assert step_s == pytest.approx(by_hand(cap, backward_s), rel=1e-9)
    assert sorted(steps, key=steps.__getitem__) == best_first


# ------------------------------------------------------------------------------------------------- 14: accumulation


@pytest.mark.parametrize("overlap", ["none", "bucketed"])
def test_accumulation_over_k_micro_batches_communicates_one_kth_per_sample(tmp_path: Path, overlap: str) -> None:
    """REQUIREMENTS 14: bytes and time. The same seconds are exposed of a step whose compute is k times as long."""
    ask(tmp_path, transformer(1e9, 1000), ranks=8, bandwidth=INFINIBAND, parallel={**DDP, "overlap": overlap})
    bytes_each, seconds_each, exposed = {}, {}, {}
    for k in (1, 2, 4, 8):
        result = simulator("run", str(tmp_path / "scenario.yaml"), f"train.grad_accumulation={k}", "--json")
        found = json.loads(result.out)
        assert found["tokens_per_step"] == 8 * k
        sent = sum(use["wire_bytes_per_rank"] * use["count"] for use in found["collectives"])
        bytes_each[k], seconds_each[k] = (amount / found["tokens_per_step"] for amount in (sent, found["comm_total_s"]))
        exposed[k] = found["exposed_share"]
    assert bytes_each == pytest.approx({k: bytes_each[1] / k for k in bytes_each}, rel=1e-9)
    assert seconds_each == pytest.approx({k: seconds_each[1] / k for k in bytes_each}, rel=1e-9)
    share = exposed[1]
    assert exposed == pytest.approx({k: share / (share + k * (1 - share)) for k in exposed}, rel=1e-9)


# --------------------------------------------------------------------------------- 15: tokens that hide communication

DDP = {"strategy": "ddp", "algorithm": "ring"}
#: Gathers bf16 weights twice and reduces fp32 gradients: 8 bytes per parameter.
FSDP = {"strategy": "fsdp", "param_dtype": "bf16", "reduce_dtype": "fp32"}


def balanced(folder: Path, parallel: dict[str, Any], bandwidth: str, parameters: float) -> int:
    """Fewest tokens per GPU for which a step computes as long as it communicates, on 1,024 GPUs."""

    def lacking(tokens: int) -> float:
        precision = "bf16-mixed" if parallel is FSDP else "bf16-master"
        found = ask(
            folder, transformer(parameters, tokens), ranks=1024, bandwidth=bandwidth, parallel=parallel,
            precision=precision,
        )  # fmt: skip
        return float(found["comm_total_s"] / found["breakdown_s"]["compute"])

    return fewest_tokens(lacking)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "bandwidth", "tokens"), [(DDP, INFINIBAND, 5_300), (DDP, NVLINK, 590), (FSDP, INFINIBAND, 10_560)]
)
def test_tokens_per_gpu_that_balance_communication(
    tmp_path: Path, parallel: dict[str, Any], bandwidth: str, tokens: int
) -> None:
    """REQUIREMENTS 15: H100 at 40 % MFU; of 1,024 ranks (p - 1) / p is lost to the notes, which count p -> infinity."""
    assert balanced(tmp_path, parallel, bandwidth, 7e9) == pytest.approx(tokens, rel=0.01)


@pytest.mark.slow
def test_tokens_do_not_depend_on_the_size_of_the_model(tmp_path: Path) -> None:
    """REQUIREMENTS 15."""
    small, large = (balanced(tmp_path, DDP, INFINIBAND, parameters) for parameters in (1e9, 64e9))
    assert small == pytest.approx(large, rel=1e-3)


def test_1024_gpus_need_10_8_million_tokens_for_zero_3(tmp_path: Path) -> None:
    """REQUIREMENTS 15: at 10,560 tokens each the step computes longer than it communicates, at 10,400 not."""
    for each, total, balanced_ in ((10_560, 10.8e6, True), (10_400, 10.65e6, False)):
        found = ask(
            tmp_path, transformer(7e9, each), ranks=1024, bandwidth=INFINIBAND, parallel=FSDP, precision="bf16-mixed"
        )
        assert (found["breakdown_s"]["compute"] > found["comm_total_s"]) is balanced_
        assert each * found["engine"]["ranks_total"] == pytest.approx(total, rel=0.002)


def test_ddp_hides_under_backward_only_so_it_takes_half_as_many_tokens_again(tmp_path: Path) -> None:
    """At the notes' 5,300 the third of the all-reduces that forward would have to hide is exposed.

    At 1.5 times as many all but the last bucket is hidden: one of 32 layers.
    """
    shares = {}
    for tokens in (5_300, 7_950):
        found = ask(tmp_path, transformer(7e9, tokens), ranks=1024, bandwidth=INFINIBAND, parallel=DDP)
        shares[tokens] = found["breakdown_s"]["exposed_comm"] / found["comm_total_s"]
    assert shares[5_300] == pytest.approx(1 / 3, abs=1 / 32)
    assert shares[7_950] == pytest.approx(1 / 32, rel=0.01)


# --------------------------------------------------------------------------------------------------- 16: the limits


def test_a_batch_of_64_samples_feeds_64_ranks_and_no_more(tmp_path: Path) -> None:
    """REQUIREMENTS 16: each rank works on whole samples, so the batch bounds the ranks. The step shrinks until then."""
    scenario = Path(tmp_path / "scenario.yaml")
    ask(tmp_path, transformer(1e9, 1), ranks=8, bandwidth=NVLINK, parallel=DDP)
    for ranks in (16, 64):
        result = simulator("run", str(scenario), f"cluster.nodes={ranks}", f"train.micro_batch={64 // ranks}", "--json")
        assert json.loads(result.out)["tokens_per_step"] == 64
    refused = simulator("run", str(scenario), "cluster.nodes=128", f"train.micro_batch={64 // 128}")
    assert refused.code == 2
    assert "train.micro_batch" in refused.err
    assert "must be at least 1" in refused.err


@pytest.mark.parametrize(("ranks", "ok"), [(8, True), (16, False)])
def test_ranks_that_lift_the_batch_over_the_critical_one_are_told(tmp_path: Path, ranks: int, ok: bool) -> None:
    """REQUIREMENTS 16: 8 samples per rank; beyond a critical batch of 64 more ranks add tokens of little worth."""
    ask(tmp_path, transformer(1e9, 1000), ranks=ranks, bandwidth=NVLINK, parallel=DDP)
    settings = ("train.micro_batch=8", "goal={tokens: 1M, critical_batch: 64}", "--no-search", "--json")
    result = simulator("check", str(tmp_path / "scenario.yaml"), *settings)
    (verdict,) = [verdict for verdict in json.loads(result.out)["verdicts"] if verdict["what"] == "batch"]
    assert (verdict["ok"], result.code) == (ok, 0 if ok else 1)


# ----------------------------------------------------------------------------------------------- 17: 7B on 8 ranks


@pytest.mark.parametrize(
    ("parallel", "sent_bytes", "seconds"),
    [
        ({**DDP, "overlap": "none"}, 24.5e9, 0.49),
        ({"strategy": "fsdp", "param_dtype": "bf16", "reduce_dtype": "bf16"}, 36.8e9, 0.74),
    ],
    ids=["ddp", "zero-3"],
)
def test_a_step_of_7b_on_8_ranks_moves_what_the_notes_say(
    tmp_path: Path, parallel: dict[str, Any], sent_bytes: float, seconds: float
) -> None:
    """REQUIREMENTS 17: bf16, 50 GB/s; 2 x 7/8 x 14 GB, and 3 x 7/8 x 14 GB (the notes round 36.75 GB and 0.735 s)."""
    found = ask(tmp_path, transformer(7e9, 1000), ranks=8, bandwidth=INFINIBAND, parallel=parallel)
    sent = sum(use["wire_bytes_per_rank"] * use["count"] for use in found["collectives"])
    assert sent == pytest.approx(sent_bytes, rel=0.002)
    assert found["comm_total_s"] == pytest.approx(seconds, rel=0.01)

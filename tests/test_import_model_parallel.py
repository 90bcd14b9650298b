"""What files say of tensor, pipeline, context and expert parallelism is what their scenarios say, and it runs."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imports import from_text, values, written

from simulator.answer import answer_step, cluster_network
from simulator.errors import ScenarioError
from simulator.importing.draft import Draft
from simulator.importing.kinds import checked_text
from simulator.importing.stage_cuts import at_points, inner_first, of_layout, weighted, with_ends
from simulator.load import load_scenario
from simulator.planner import make_job
from simulator.strategies.stages import cut

#: A mixture of 8 experts in each of 8 layers, small enough to simulate hundreds of times.
EXPERTS = {
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 1000,
    "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip
GPT = "--num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 256 --micro-batch-size 1 --vocab-size 1000"
LLAMA = f"{GPT} --swiglu --normalization RMSNorm --bf16"
MIXTURE = f"{LLAMA} --num-experts 8 --moe-token-dispatcher-type alltoall"


def experts(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(EXPERTS), encoding="utf-8")
    return str(path)


def titan(tmp_path: Path, parallelism: dict[str, Any], section: str = "parallelism", **more: Any) -> Draft:
    """A torchtitan TOML of Llama 3 8B (32 layers) on 64 GPUs; ``training`` and extras as given."""
    training = {"local_batch_size": 8, "seq_len": 4096, **more.pop("training", {})}
    lines = ['[model]\nname = "llama3"\nflavor = "8B"', "[training]", *(f"{k} = {v}" for k, v in training.items())]
    lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in parallelism.items())]
    lines += ["[compile]\nenable = true"]
    return from_text(tmp_path, "torchtitan", "\n".join(lines), **{"gpus": 64, **more})


def megatron(tmp_path: Path, flags: str, base: str = LLAMA, **extras: Any) -> Draft:
    return from_text(tmp_path, "megatron", f"{base} {flags}", **{"gpus": 16, **extras})


def deepspeed(tmp_path: Path, options: dict[str, Any], **extras: Any) -> Draft:
    return from_text(tmp_path, "deepspeed", json.dumps(options), **{"gpus": 16, "seq_len": 256, **extras})


def warned(draft: Draft, *parts: str) -> bool:
    return any(all(part in warning for part in parts) for warning in draft.warnings)


def runs(tmp_path: Path, draft: Draft) -> bool:
    return answer_step(load_scenario(written(tmp_path, draft))).report.step_time_s > 0


# ---- torchtitan: micro-batches ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("section", ["parallelism", "experimental"])
@pytest.mark.parametrize(
    ("local", "more", "micro"),
    [
        (8, {}, None), (8, {"pipeline_parallel_microbatch_size": 2}, 2),
        (12, {"pipeline_parallel_microbatch_size": 4}, 4),
        (8, {"pipeline_parallel_microbatches": 2}, 4), (16, {"num_pp_microbatches": 16}, 1),
    ],
)  # fmt: skip
def test_micro_batches_of_a_pipeline_are_together_the_local_batch(
    local: int, more: dict[str, Any], micro: int | None, section: str, tmp_path: Path
) -> None:
    """``build_pipeline_schedule``: by default of one sequence each; in 2024 as many as there are stages."""
    draft = titan(tmp_path, {"pipeline_parallel_degree": 4, **more}, section, training={"local_batch_size": local})
    size, count = values(draft, "train.micro_batch", "train.grad_accumulation")
    assert size * count == local
    assert size == (micro or (1 if section == "parallelism" else local // 4))


def test_a_global_batch_fills_the_pipeline_several_times_which_is_told(tmp_path: Path) -> None:
    training = {"local_batch_size": 8, "global_batch_size": 384}
    draft = titan(tmp_path, {"pipeline_parallel_degree": 4}, training=training)
    replicas, rounds = 64 // 4, 384 // (8 * 16)
    size, count = values(draft, "train.micro_batch", "train.grad_accumulation")
    assert (size, size * count * replicas) == (1, 384)
    assert warned(draft, "training.global_batch_size: 384", f"empty after each of {rounds} rounds of 8 micro-batches")
    with pytest.raises(ScenarioError, match=r"global_batch_size = 100: global batch size \(100\) is not divisible"):
        titan(tmp_path, {"pipeline_parallel_degree": 4}, training={"global_batch_size": 100})


def test_the_command_line_cuts_the_local_batch_otherwise(tmp_path: Path) -> None:
    draft = titan(tmp_path, {"pipeline_parallel_degree": 4}, micro_batch=2)
    assert values(draft, "train.micro_batch", "train.grad_accumulation") == [2, 4]
    with pytest.raises(ScenarioError, match=r"--micro-batch 3 does not divide training.local_batch_size: 8"):
        titan(tmp_path, {"pipeline_parallel_degree": 4}, micro_batch=3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pipeline_parallel_microbatch_size": 3}, "Batch size 8 must be divisible by microbatch_size 3"),
        ({"num_pp_microbatches": 5}, "Batch size 8 must be divisible by number of microbatches 5"),
        ({"pipeline_parallel_schedule": "DualPipV"}, "accepted: GPipe, 1F1B, .*did you mean 'DualPipeV'"),
        ({"pipeline_parallel_schedule": "zb-h1"}, "accepted: GPipe, 1F1B"),
        ({"pipeline_parallel_layers_per_stage": 3}, "num_stages 12 must be .* divisible by pp_degree 8"),
        ({"pipeline_parallel_layers_per_stage": 2}, "num_stages 17 must be .* divisible by pp_degree 8"),
        ({"pipeline_parallel_first_stage_less_layers": 9}, r"input_weight \(9\) exceeds minimum layers per stage"),
        ({"pipeline_parallel_split_points": ["layers.9", "layers.3"]}, "expected layers in ascending order"),
        ({"pipeline_parallel_split_points": ["layer.9"]}, "expected modules such as layers.8, norm or output"),
        ({"module_fqns_per_model_part": [["layers.0"], ["layers.2"]]}, "layers.0 to layers.31 in order"),
        ({"expert_tensor_parallel_degree": 3, "expert_parallel_degree": 2}, None),
    ],
)  # fmt: skip
def test_a_pipeline_that_torchtitan_refuses_is_refused_in_its_words(
    options: dict[str, Any], told: str | None, tmp_path: Path
) -> None:
    asked = {"pipeline_parallel_degree": 8, **options}
    if told is None:  # without experts nothing follows from it
        assert warned(titan(tmp_path, asked), "expert_parallel_degree: 2", "no experts")
        return
    with pytest.raises(ScenarioError, match=told) as error:
        titan(tmp_path, asked)
    assert f"parallelism.{next(iter(options))} = " in str(error.value)


# ---- torchtitan: stages ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (8, 9, 8, 7)),  # 34 over 4 is 9, 9, 8, 8; the ends have a layer less
        ({"pipeline_parallel_schedule": "Interleaved1F1B"}, (4, 5, 4, 4, 4, 4, 4, 3)),
        ({"pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 0}, (8, 8, 8, 8)),
        ({"pipeline_parallel_last_stage_less_layers": 3}, (8, 9, 9, 6)),
        ({"pipeline_parallel_layers_per_stage": 3, "pipeline_parallel_schedule": "Interleaved1F1B"},
         (2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1)),
        ({"pipeline_parallel_split_points": ["layers.7", "layers.16", "layers.30"]}, (7, 9, 14, 2)),
        ({"module_fqns_per_model_part": [
            ["tok_embeddings"], [f"layers.{n}" for n in range(16)], [f"layers.{n}" for n in range(16, 32)],
            ["norm", "output"]]}, (0, 16, 16, 0)),
    ],
)  # fmt: skip
def test_stages_have_the_layers_that_torchtitan_gives_them(
    options: dict[str, Any], expected: tuple[int, ...], tmp_path: Path
) -> None:
    """``generate_llm_fqn_per_model_part``: embedding and head count as layers, of which the first stages have more."""
    draft = titan(tmp_path, {"pipeline_parallel_degree": 4, **options})
    scenario = load_scenario(written(tmp_path, draft))
    inputs = make_job(scenario, cluster_network(scenario)).inputs
    stages = cut(inputs, len(expected))
    assert tuple(stage.layers for stage in stages) == expected
    assert runs(tmp_path, draft)


def test_files_of_2024_give_inner_stages_what_is_left_over(tmp_path: Path) -> None:
    """``generate_split_points``: 32 layers in 6 stages."""
    draft = titan(tmp_path, {"pipeline_parallel_degree": 6}, "experimental", training={"local_batch_size": 12}, gpus=12)
    assert draft.value("parallel.stages") == [5, 6, 6, 5, 5, 5]
    even = titan(tmp_path, {"pipeline_parallel_degree": 4}, "experimental")
    assert values(even, "parallel.stages", "parallel.embedding_as_layer") == [None, None]


@given(layers=st.integers(1, 130), stages=st.integers(2, 40), first=st.integers(0, 4), last=st.integers(0, 4))
def test_cuts_hold_every_layer_once_and_differ_by_the_ends_alone(
    layers: int, stages: int, first: int, last: int
) -> None:
    try:
        sizes = weighted(layers, stages, first, last)
    except ValueError:
        assert stages > layers + first + last or max(first, last) > (layers + first + last) // stages
        return
    units = (sizes[0] + first, *sizes[1:-1], sizes[-1] + last)
    assert sum(sizes) == layers
    assert list(units) == sorted(units, reverse=True)
    assert units[0] - units[-1] <= 1
    if stages <= layers:
        assert sum(inner_first(layers, stages)) == layers
        assert ceil(layers / stages) >= max(inner_first(layers, stages)[1:], default=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "ours", "chunks"),
    [
        ("1F1B", "1f1b", None), ("1f1b", "1f1b", None), ("GPipe", "gpipe", None), ("LoopedBFS", "looped-bfs", 2),
        ("interleaved_1f1b", "interleaved-1f1b", 2), ("flexible_interleaved_1f1b", "interleaved-1f1b", 2),
        ("InterleavedZeroBubble", "zb1p", 2), ("ZBVZeroBubble", "zbv", 2), ("DualPipeV", "dualpipe-v", 2),
    ],
)  # fmt: skip
def test_schedules_are_those_of_torch_with_two_stages_where_it_has_several(
    schedule: str, ours: str, chunks: int | None, tmp_path: Path
) -> None:
    draft = titan(tmp_path, {"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": schedule})
    assert values(draft, "parallel.schedule", "parallel.chunks") == [ours, chunks]
    assert runs(tmp_path, draft)


def test_a_table_of_actions_is_not_read_which_is_told(tmp_path: Path) -> None:
    options = {"pipeline_parallel_degree": 4, "pipeline_parallel_schedule_csv": "zb.csv"}
    assert warned(titan(tmp_path, options), "pipeline_parallel_schedule_csv: 'zb.csv'", "not read")


# ---- torchtitan: the rest --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("word", "told"), [(None, False), ("default", False), ("never", False), ("always", True)])
def test_nothing_is_resharded_in_a_pipeline_unless_told_and_then_it_is_said(
    word: str | None, told: bool, tmp_path: Path
) -> None:
    """``reshard_after_forward = not pp_enabled``; without a pipeline the default reshards."""
    option = {} if word is None else {"fsdp_reshard_after_forward": word}
    draft = titan(tmp_path, {"pipeline_parallel_degree": 4, **option})
    assert draft.value("parallel.reshard_after_forward") is False
    assert warned(draft, "fsdp_reshard_after_forward: 'always'", "stay gathered") == bool(draft.warnings) == told
    assert runs(tmp_path, draft)
    alone = titan(tmp_path, option)
    assert alone.value("parallel.reshard_after_forward") == (word != "never")


def test_beside_experts_weights_of_several_micro_batches_stay_gathered_which_is_told(tmp_path: Path) -> None:
    model, training = experts(tmp_path), {"local_batch_size": 1, "global_batch_size": 32, "seq_len": 256}
    draft = titan(tmp_path, {"expert_parallel_degree": 4}, training=training, model=model, gpus=16)
    assert draft.value("parallel.reshard_after_forward") is False
    assert warned(draft, "torchtitan's default", "beside experts")
    once = titan(tmp_path, {"expert_parallel_degree": 4}, training=training | {"global_batch_size": 16}, model=model,
                 gpus=16)  # fmt: skip
    assert (once.value("parallel.reshard_after_forward"), once.warnings) == (True, ())
    assert all(runs(tmp_path, one) for one in (draft, once))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["all_gather", None]), ({"context_parallel_rotate_method": "allgather"}, ["all_gather", None]),
        ({"context_parallel_rotate_method": "alltoall"}, ["ring", None]),
        ({"context_parallel_load_balancer": "headtail"}, ["all_gather", True]),
        ({"context_parallel_load_balancer": "None"}, ["all_gather", False]),
    ],
)  # fmt: skip
def test_context_parallelism_gathers_unless_told_to_rotate(
    options: dict[str, Any], expected: list[Any], tmp_path: Path
) -> None:
    draft = titan(tmp_path, {"context_parallel_degree": 4, **options})
    assert values(draft, "parallel.cp_method", "parallel.cp_balanced") == expected
    assert runs(tmp_path, draft)


def test_states_are_sharded_over_context_parallel_ranks_too(tmp_path: Path) -> None:
    """``dp_shard_cp``: with one data-parallel rank there is FSDP all the same, and replicas hold cp times the ranks."""
    alone = titan(tmp_path, {"context_parallel_degree": 64}, training={"seq_len": 8192})
    assert alone.value("parallel.strategy") == "fsdp"
    both = titan(tmp_path, {"context_parallel_degree": 4, "data_parallel_replicate_degree": 2})
    assert values(both, "parallel.strategy", "parallel.shard_size") == ["hsdp", 64 // 2]
    assert runs(tmp_path, both)


def test_tensor_parallelism_says_how_it_works(tmp_path: Path) -> None:
    options = {"tensor_parallel_degree": 4, "enable_async_tensor_parallel": True, "disable_loss_parallel": True}
    draft = titan(tmp_path, {**options, "enable_sequence_parallel": False})
    assert values(draft, "parallel.async_tp", "parallel.sequence_parallel") == [True, False]
    assert warned(draft, "parallelism.disable_loss_parallel: true", "not gathered first")
    alone = titan(tmp_path, {**options, "tensor_parallel_degree": 1})
    reasons = {item.option.partition(".")[2]: item.reason for item in alone.ignored}
    assert reasons["disable_loss_parallel"] == "without tensor parallelism it does nothing"
    assert alone.warnings == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"expert_parallel_degree": 8}, [8, None, None]),
        ({"expert_parallel_degree": 8, "expert_parallel_comm_backend": "deepep"}, [8, None, True]),
        ({"expert_parallel_degree": 4, "tensor_parallel_degree": 2, "expert_tensor_parallel_degree": 2}, [4, 2, None]),
        ({"expert_parallel_degree": 8, "tensor_parallel_degree": 2, "expert_tensor_parallel_degree": 1}, [8, 1, None]),
        ({"tensor_parallel_degree": 2}, [None, 2, None]),
    ],
)  # fmt: skip
def test_experts_are_spread_over_ep_and_cut_over_tp(
    options: dict[str, Any], expected: list[Any], tmp_path: Path
) -> None:
    """``expert_tensor_parallel_degree`` is 1 or tp; without ep torchtitan cuts experts over tp."""
    draft = titan(tmp_path, options, training={"local_batch_size": 1, "seq_len": 256}, model=experts(tmp_path), gpus=16)
    assert values(draft, "parallel.ep", "parallel.etp", "parallel.deduplicate") == expected
    assert runs(tmp_path, draft)


def test_other_degrees_of_cut_experts_are_refused_in_torchtitans_words(tmp_path: Path) -> None:
    options = {"expert_parallel_degree": 4, "tensor_parallel_degree": 4, "expert_tensor_parallel_degree": 2}
    with pytest.raises(ScenarioError, match="we only support ETP=TP or ETP=1; tensor_parallel_degree is 4"):
        titan(tmp_path, options, training={"seq_len": 256}, model=experts(tmp_path))


# ---- Megatron-LM -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "schedule", "chunks", "overlaps"),
    [
        ("", "1f1b", None, False), ("--overlap-p2p-communication", "1f1b", None, False),
        ("--num-layers-per-virtual-pipeline-stage 1", "interleaved-1f1b", 2, True),
        ("--num-virtual-stages-per-pipeline-rank 2", "interleaved-1f1b", 2, True),
        ("--num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication", "interleaved-1f1b", 2, False),
        ("--num-virtual-stages-per-pipeline-rank 2 --overlap-p2p-communication", "interleaved-1f1b", 2, True),
    ],
)  # fmt: skip
def test_sends_overlap_in_the_interleaved_schedule_only(
    flags: str, schedule: str, chunks: int | None, overlaps: bool, tmp_path: Path
) -> None:
    """``validate_args``: 'Overlap P2P communication is disabled if not using the interleaved schedule.'"""
    draft = megatron(tmp_path, f"--pipeline-model-parallel-size 4 --global-batch-size 32 {flags}")
    places = ("parallel.schedule", "parallel.chunks", "parallel.overlap_p2p")
    assert values(draft, *places) == [schedule, chunks, overlaps]
    assert runs(tmp_path, draft)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--decoder-first-pipeline-num-layers 2", [2, 2, 2, 2]),
        ("--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1", [1, 3, 3, 1]),
        ("--decoder-last-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 2", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("--pipeline-model-parallel-layout Et|tt|ttt|ttL", [1, 2, 3, 2]),
        ("--pipeline-model-parallel-layout E|(t|)*6ttL", [0, 1, 1, 1, 1, 1, 1, 2]),
    ],
)  # fmt: skip
def test_uneven_stages_are_those_of_the_flags(flags: str, expected: list[int], tmp_path: Path) -> None:
    draft = megatron(tmp_path, f"--pipeline-model-parallel-size 4 --global-batch-size 32 {flags}")
    assert draft.value("parallel.stages") == expected
    assert runs(tmp_path, draft)


@pytest.mark.slow
def test_embedding_and_loss_count_as_layers_where_flags_say_so(tmp_path: Path) -> None:
    """14 layers and two of 4 ranks make 4 each; with either alone 15 do, with neither 16 (``validate_args``)."""
    embedding, loss = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
    for layers, flags, expected in (
        (14, f"{embedding} {loss}", [None, True]), (15, embedding, [[3, 4, 4, 4], None]),
        (15, loss, [[4, 4, 4, 3], None]), (16, "", [None, None]),
    ):  # fmt: skip
        base = LLAMA.replace("--num-layers 8", f"--num-layers {layers}")
        draft = megatron(tmp_path, f"--pipeline-model-parallel-size 4 --global-batch-size 32 {flags}", base)
        assert values(draft, "parallel.stages", "parallel.embedding_as_layer") == expected
        assert runs(tmp_path, draft)
        other = LLAMA.replace("--num-layers 8", f"--num-layers {layers + 1}")
        with pytest.raises(ScenarioError, match="must be divisible by 4 pipeline ranks"):
            megatron(tmp_path, f"--pipeline-model-parallel-size 4 --global-batch-size 32 {flags}", other)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--num-layers-per-virtual-pipeline-stage 3", "does not divide 2 of 8 layers on each of 4 pipeline ranks"),
        ("--num-layers-per-virtual-pipeline-stage 1 --num-virtual-stages-per-pipeline-rank 2", "at the same time"),
        ("--num-layers-per-virtual-pipeline-stage 1 --decoder-first-pipeline-num-layers 2", "--num-virtual-stages"),
        ("--decoder-first-pipeline-num-layers 3", "the 5 layers that are left must be divisible by the 3 other"),
        ("--decoder-first-pipeline-num-layers 2 --account-for-loss-in-pipeline-split", "uneven pipeline stages"),
        ("--pipeline-model-parallel-layout Ett|ttL", "has 2 stages, which must be divisible by 4"),
        ("--pipeline-model-parallel-layout Et|t|t|tL", "has 4 layers; the model has 8"),
        ("--pipeline-model-parallel-layout Exy", "expected letters E, t, m and L"),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "Megatron-LM takes it with --sequence-parallel only"),
        ("--context-parallel-size 2 --cp-comm-type ring", "accepted: p2p, all_gather, allgather, a2a, a2a+p2p"),
        ("--use-torch-fsdp2", "--use-torch-fsdp2 is not supported with pipeline parallelism"),
    ],
)  # fmt: skip
def test_flags_that_megatron_refuses_are_refused_by_name(flags: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as error:
        megatron(tmp_path, f"--pipeline-model-parallel-size 4 --global-batch-size 32 {flags}")
    assert told in str(error.value)
    assert "--" in str(error.value)


@pytest.mark.parametrize(
    ("way", "method", "told"),
    [
        (None, "ring", ""), ("p2p", "ring", ""), ("all_gather", "all_gather", ""), ("allgather", "all_gather", ""),
        ("a2a", "ulysses", ""), ("a2a+p2p", "ring", "two levels of context parallelism are not in this version"),
        ("a2a a2a p2p", "ulysses", "all layers have the way of most of them here, a2a"),
    ],
)  # fmt: skip
def test_context_parallelism_is_what_the_comm_type_says_or_what_is_told(
    way: str | None, method: str, told: str, tmp_path: Path
) -> None:
    draft = megatron(tmp_path, "--context-parallel-size 4" + (f" --cp-comm-type {way}" if way else ""))
    assert draft.value("parallel.cp_method") == method
    assert warned(draft, f"--cp-comm-type {way}", told) if told else not draft.warnings
    assert runs(tmp_path, draft)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--expert-model-parallel-size 4", {"ep": 4, "etp": None, "deduplicate": None}),
        ("--tensor-model-parallel-size 2 --sequence-parallel", {"ep": None, "etp": 2}),
        ("--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4", {"ep": 4, "etp": 2}),
        ("--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4 "
         "--expert-tensor-parallel-size 1", {"ep": 4, "etp": 1}),
        ("--expert-model-parallel-size 4 --moe-token-dispatcher-type flex --moe-enable-deepep", {"deduplicate": True}),
        ("--expert-model-parallel-size 4 --moe-expert-capacity-factor 1.5", {"capacity_factor": None}),
        ("--expert-model-parallel-size 4 --moe-expert-capacity-factor 0.5", {"capacity_factor": 0.5}),
        ("--expert-model-parallel-size 4 --moe-expert-capacity-factor 1.5 --moe-pad-expert-input-to-capacity",
         {"capacity_factor": 1.5}),
    ],
)  # fmt: skip
def test_experts_are_spread_and_sent_as_the_flags_say(flags: str, expected: dict[str, Any], tmp_path: Path) -> None:
    """Experts are cut over tp unless told otherwise; buffers are padded to the capacity with a flag of its own."""
    flags = f"{flags} --use-distributed-optimizer"
    draft = megatron(tmp_path, flags, MIXTURE.replace(*(("--moe-token-dispatcher-type alltoall", "") if "flex" in flags
                                                        else ("", ""))))  # fmt: skip
    assert {key: draft.value(f"parallel.{key}") for key in expected} == expected
    assert draft.warnings == ()
    assert runs(tmp_path, draft)


@pytest.mark.parametrize(
    ("groups", "most", "gpus", "ep", "nodes"),
    [(8, 4, 64, 64, 4), (8, 2, 64, 32, 2), (4, 1, 64, 64, 2), (8, 8, 64, 64, None), (8, 4, 8, 8, None)],
)
def test_groups_of_experts_are_nodes(
    groups: int, most: int, gpus: int, ep: int, nodes: int | None, tmp_path: Path
) -> None:
    """DeepSeek-V3 (arXiv:2412.19437, section 2.1.2): 8 groups, of which a token takes 4, are the 8 nodes of EP 64."""
    base = MIXTURE.replace("--num-experts 8", "--num-experts 64")
    flags = f"--expert-model-parallel-size {ep} --moe-router-num-groups {groups} --moe-router-group-topk {most}"
    draft = megatron(tmp_path, f"{flags} --use-distributed-optimizer", base, gpus=gpus)
    assert draft.value("parallel.expert_nodes") == nodes
    assert runs(tmp_path, draft)


@pytest.mark.parametrize(
    ("often", "dense"), [("1", None), ("([0]*3+[1]*5)", 3), ("([0]*1+[1]*7)*1", 1), ("[0,0,1,1,1,1,1,1]", 2)]
)
def test_layers_before_the_first_experts_are_dense(often: str, dense: int | None, tmp_path: Path) -> None:
    flags = f"--moe-ffn-hidden-size 64 --moe-router-topk 4 --moe-layer-freq '{often}'"
    draft = megatron(tmp_path, flags, MIXTURE)
    places = ("model.first_k_dense_replace", "model.moe_intermediate_size", "model.num_experts_per_tok")
    assert values(draft, *places) == [dense, 64, 4]
    assert warned(megatron(tmp_path, "--moe-layer-freq 2", MIXTURE), "--moe-layer-freq 2", "all layers")
    with pytest.raises(ScenarioError, match=r"--moe-layer-freq = '\[1\]\*3': has 3 layers; the model has 8"):
        megatron(tmp_path, "--moe-layer-freq [1]*3", MIXTURE)


def test_what_megatron_does_otherwise_is_told_by_its_flag(tmp_path: Path) -> None:
    gathers = MIXTURE.replace("--moe-token-dispatcher-type alltoall", "")
    draft = megatron(tmp_path, "--expert-model-parallel-size 4 --overlap-moe-expert-parallel-comm", gathers)
    assert warned(draft, "--moe-token-dispatcher-type (default: allgather)")
    assert warned(draft, "--overlap-moe-expert-parallel-comm")
    dense = megatron(tmp_path, "--num-experts 8 --expert-model-parallel-size 4", GPT)
    assert warned(dense, "--num-experts 8", "dense here")
    assert warned(dense, "--expert-model-parallel-size 4", "no experts")
    assert dense.value("parallel.ep") is None


# ---- DeepSpeed and accelerate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_pipeline_goes_with_zero_1_at_most(stage: int, tmp_path: Path) -> None:
    options = {
        "zero_optimization": {"stage": stage}, "pipeline": {"stages": 4, "partition": "uniform"},
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
    }  # fmt: skip
    if stage > 1:
        with pytest.raises(ScenarioError, match="ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"):
            deepspeed(tmp_path, options)
        return
    draft = deepspeed(tmp_path, options)
    assert values(draft, "parallel.pp", "parallel.schedule", "train.recompute") == [4, "1f1b", None]
    assert (draft.warnings, runs(tmp_path, draft)) == ((), True)


def test_stages_that_the_program_gives_and_cuts_of_its_own_are_told(tmp_path: Path) -> None:
    automatic = deepspeed(tmp_path, {"pipeline": {"stages": "auto"}, "steps_per_print": 1})
    assert automatic.value("parallel.pp") is None
    assert {"pipeline.stages": "auto: the program says how many stages there are; set parallel.pp"}.items() <= {
        item.option: item.reason for item in automatic.ignored
    }.items()
    best = deepspeed(tmp_path, {"pipeline": {"stages": 2, "partition": "best", "activation_checkpoint_interval": 4}})
    assert warned(best, "pipeline.partition: 'best'", "equal numbers of layers")
    assert warned(best, "pipeline.activation_checkpoint_interval: 4")
    assert best.value("train.recompute") == "full"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sequence_and_tensor_parallel_sizes_leave_fewer_ranks_for_the_batch(stage: int, tmp_path: Path) -> None:
    """train_batch_size = micro x accumulation x data-parallel ranks: 16 / (2 x 2) of them."""
    options = {
        "zero_optimization": {"stage": stage}, "sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 2},
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
    }  # fmt: skip
    draft = deepspeed(tmp_path, options | {"train_batch_size": 2 * 4 * 4})
    places = ("parallel.cp", "parallel.cp_method", "parallel.tp", "parallel.sequence_parallel")
    assert values(draft, *places) == [2, "ulysses", 2, False]
    assert runs(tmp_path, draft)
    counted = deepspeed(tmp_path, options | {"train_batch_size": 2 * 4 * 8})
    assert warned(counted, "train_batch_size: 64: counts tensor-parallel ranks", "32 are different")
    with pytest.raises(ScenarioError, match=r"check batch related parameters: .* 48 != 2 \* 4 \* 4;"):
        deepspeed(tmp_path, options | {"train_batch_size": 48})
    with pytest.raises(ScenarioError, match="16 ranks are not divisible by tensor x pipeline x sequence parallel"):
        deepspeed(tmp_path, {**options, "sequence_parallel_size": 3})


def test_experts_of_deepspeed_are_spread_where_they_are_enabled(tmp_path: Path) -> None:
    model, size = experts(tmp_path), {"autoep_size": 4}
    draft = deepspeed(tmp_path, {"zero_optimization": {"stage": 1}, "expert_parallel": {"enabled": True, **size}},
                      model=model)  # fmt: skip
    assert (draft.value("parallel.ep"), runs(tmp_path, draft)) == (4, True)
    off = deepspeed(tmp_path, {"zero_optimization": {"stage": 1}, "expert_parallel": {"enabled": False, **size}},
                    model=model)  # fmt: skip
    assert off.value("parallel.ep") is None


def test_replicas_of_accelerate_are_sharded_over_context_parallel_ranks(tmp_path: Path) -> None:
    sizes = {"dp_replicate_size": 2, "dp_shard_size": 2, "cp_size": 4, "tp_size": 1}
    text = "\n".join([
        "distributed_type: FSDP", "num_processes: 16", "fsdp_config: {fsdp_version: 2}", "parallelism_config:",
        *(f"  parallelism_config_{name}: {size}" for name, size in sizes.items()),
        "  parallelism_config_cp_comm_strategy: alltoall",
    ])  # fmt: skip
    draft = from_text(tmp_path, "accelerate", text)
    places = ("parallel.strategy", "parallel.shard_size", "parallel.cp", "parallel.cp_method")
    assert values(draft, *places) == ["hsdp", 8, 4, "ring"]
    assert runs(tmp_path, draft)


# ---- what the simulator refuses is told by the option of the file ----------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "option", "told"),
    [
        ("--tensor-model-parallel-size 16", "--tensor-model-parallel-size 16", "parallel.tp: 16 does not divide the 8"),
        ("--context-parallel-size 16 --seq-length 248", "--context-parallel-size 16", "no multiple of 32"),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 36",
         "--num-virtual-stages-per-pipeline-rank 2", "9 micro-batches come in 2 rounds"),
        ("--num-experts 8 --moe-token-dispatcher-type alltoall --tensor-model-parallel-size 2",
         "no --sequence-parallel", "parallel.sequence_parallel"),
        ("--num-experts 8 --moe-token-dispatcher-type alltoall --expert-model-parallel-size 4 --use-tp-pp-dp-mapping "
         "--pipeline-model-parallel-size 2", "--use-tp-pp-dp-mapping", "an order that ends in pp"),
    ],
)  # fmt: skip
def test_a_warning_names_the_option_that_keeps_a_scenario_from_running(
    flags: str, option: str, told: str, tmp_path: Path
) -> None:
    draft = megatron(tmp_path, flags)
    (warning,) = [text for text in draft.warnings if "refuses" in text]
    assert warning.startswith(f"{option}")
    assert "'simulator run' refuses parallel." in warning
    assert told in warning
    with pytest.raises(ScenarioError):
        answer_step(load_scenario(written(tmp_path, draft)))


def test_the_command_tells_it_and_prints_the_scenario_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "flags.sh"
    path.write_text(f"{LLAMA} --tensor-model-parallel-size 16", encoding="utf-8")
    result = simulator("import", "megatron", str(path), "--gpus", "16")
    assert result.code == 0
    assert "warning: --tensor-model-parallel-size 16: 'simulator run' refuses parallel.tp: 16 does not" in result.err
    assert "# warning: --tensor-model-parallel-size 16: " in result.out


def test_thousands_of_micro_batches_are_not_planned_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial needs two for each rank of the pipeline: planning all 512 takes seconds at the size of GPT-3."""
    seen: list[int] = []
    monkeypatch.setattr(
        "simulator.importing.trial.make_job", lambda scenario, network: seen.append(scenario.train.grad_accumulation)
    )
    draft = megatron(tmp_path, "--pipeline-model-parallel-size 4 --global-batch-size 2048")
    assert (draft.value("train.grad_accumulation"), seen) == (512, [8])


maybe = st.booleans()
FLAGS = [
    "--bf16", "--sequence-parallel", "--num-experts 4", "--use-distributed-optimizer", "--overlap-grad-reduce",
    "--use-torch-fsdp2", "--num-virtual-stages-per-pipeline-rank 2", "--num-layers-per-virtual-pipeline-stage 1",
    "--decoder-first-pipeline-num-layers 1", "--decoder-last-pipeline-num-layers 1", "--cp-comm-type a2a",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split", "--tp-comm-overlap",
    "--use-tp-pp-dp-mapping", "--no-overlap-p2p-communication", "--expert-tensor-parallel-size 1",
    "--moe-token-dispatcher-type flex --moe-enable-deepep", "--moe-layer-freq ([0]*1+[1]*3)",
    "--moe-expert-capacity-factor 1.5 --moe-pad-expert-input-to-capacity", "--untie-embeddings-and-output-weights",
    "--recompute-granularity full", "--swiglu --normalization RMSNorm",
]  # fmt: skip


def runs_or_was_told(tmp_path: Path, made: Draft) -> None:
    told = any("'simulator run' refuses" in warning for warning in made.warnings)
    path = tmp_path / "scenario.yaml"
    path.write_text(checked_text(made, "the file"), encoding="utf-8")
    if told:
        with pytest.raises(ScenarioError):
            answer_step(load_scenario(path))
    else:
        assert answer_step(load_scenario(path)).report.step_time_s > 0


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    degrees=st.tuples(*(st.sampled_from([1, 2, 4]) for _ in range(4))), layers=st.sampled_from([4, 6, 8]),
    heads=st.sampled_from([4, 8]), length=st.sampled_from([256, 384]), batch=st.sampled_from([8, 16, 24]),
    flags=st.sets(st.sampled_from(FLAGS), max_size=8), gpus=st.sampled_from([None, 8, 16, 32]),
)  # fmt: skip
def test_flags_of_megatron_make_a_scenario_that_runs_or_that_is_warned_of(
    tmp_path_factory: pytest.TempPathFactory, degrees: tuple[int, ...], layers: int, heads: int, length: int,
    batch: int, flags: set[str], gpus: int | None,
) -> None:  # fmt: skip
    names = ("tensor-model", "pipeline-model", "context", "expert-model")
    sizes = " ".join(f"--{name}-parallel-size {size}" for name, size in zip(names, degrees, strict=True))
    base = (f"--num-layers {layers} --hidden-size 256 --num-attention-heads {heads} --seq-length {length} "
            f"--micro-batch-size 1 --global-batch-size {batch} --vocab-size 1000 {sizes}")  # fmt: skip
    folder = tmp_path_factory.mktemp("m")
    try:
        made = megatron(folder, " ".join(sorted(flags)), base, gpus=gpus)
        checked_text(made, "the file")
    except ScenarioError:
        return
    runs_or_was_told(folder, made)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    degrees=st.tuples(*(st.sampled_from([1, 2, 4]) for _ in range(4))), section=st.sampled_from(["parallelism",
    "experimental"]), local=st.sampled_from([1, 4, 8, 16]), mixture=maybe, gpus=st.sampled_from([16, 32]),
    options=st.fixed_dictionaries({}, optional={
        "fsdp_reshard_after_forward": st.sampled_from(["default", "always", "never"]),
        "pipeline_parallel_schedule": st.sampled_from(["1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"]),
        "pipeline_parallel_layers_per_stage": st.integers(2, 9),
        "pipeline_parallel_microbatch_size": st.sampled_from([1, 2]),
        "pipeline_parallel_last_stage_less_layers": st.integers(0, 3), "data_parallel_replicate_degree": st.just(2),
        "expert_tensor_parallel_degree": st.sampled_from([1, 2]), "enable_async_tensor_parallel": maybe,
        "expert_parallel_comm_backend": st.just("deepep"),
        "context_parallel_rotate_method": st.sampled_from(["allgather", "alltoall"]),
    }),
)  # fmt: skip
def test_options_of_torchtitan_make_a_scenario_that_runs_or_that_is_warned_of(
    tmp_path_factory: pytest.TempPathFactory, degrees: tuple[int, ...], section: str, local: int, mixture: bool,
    gpus: int, options: dict[str, Any],
) -> None:  # fmt: skip
    names = ("tensor", "pipeline", "context", "expert")
    sizes = {f"{name}_parallel_degree": size for name, size in zip(names, degrees, strict=True)}
    folder = tmp_path_factory.mktemp("t")
    model = experts(folder) if mixture else "gpt2"
    training = {"local_batch_size": local, "seq_len": 256}
    try:
        made = titan(folder, sizes | options, section, training=training, model=model, gpus=gpus)
        checked_text(made, "the file")
    except ScenarioError:
        return
    runs_or_was_told(folder, made)


# ---- cuts of Megatron-LM ---------------------------------------------------------------------------------------------


def test_a_layout_repeats_letters_and_brackets() -> None:
    """The example of Megatron-LM's documentation: ``Et*3|(tt|)*29,m|L`` has 32 stages and 61 layers."""
    stages = of_layout("Et*3|(tt|)*29,m|L")
    assert (len(stages), sum(stage.count("t") for stage in stages)) == (32, 61)
    assert (stages[0], stages[1], stages[-2:]) == ("Ettt", "tt", ("m", "L"))
    with pytest.raises(ValueError, match="expected letters"):
        of_layout("t*9999|" + "(t|)*9999" * 40)


@given(ranks=st.integers(2, 8), chunks=st.integers(1, 3), inner=st.integers(0, 4), ends=st.integers(0, 4))
def test_ends_have_what_is_asked_and_the_rest_is_even(ranks: int, chunks: int, inner: int, ends: int) -> None:
    layers = chunks * (inner * (ranks - 2) + 2 * ends)
    sizes = with_ends(layers, ranks, chunks, ends * chunks, ends * chunks)
    assert sum(sizes) == layers
    assert sizes == (ends, *(inner for _ in range(ranks - 2)), ends) * chunks


def test_stages_begin_where_they_are_told() -> None:
    assert at_points(12, (3, 3, 12)) == (3, 0, 9, 0)
    with pytest.raises(ValueError, match="ascending"):
        at_points(12, (4, 3))

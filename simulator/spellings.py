"""What other frameworks call the keys of a scenario, so that an error can name ours.

A scenario takes one spelling of each key. Who brings one from elsewhere is told the key that means it.
"""

from __future__ import annotations

from typing import Final

from simulator.problems import Loc

#: Key of a scenario -> what Hugging Face, DeepSpeed, Megatron-LM, torchtitan, accelerate and torchrun call it.
_ELSEWHERE: Final = {
    "cluster.nodes": "num_nodes nnodes num_machines",
    "cluster.gpus_per_node": "nproc_per_node num_gpus_per_node num_gpus gpus ngpu",
    "model.hf": "model_name_or_path hf_config config_path",
    "model.num_layers": "num_hidden_layers n_layer n_layers",
    "model.hidden_size": "n_embd d_model",
    "model.num_attention_heads": "n_head n_heads num_heads",
    "model.num_key_value_heads": "num_query_groups n_kv_heads num_kv_heads",
    "model.head_dim": "kv_channels",
    "model.intermediate_size": "ffn_hidden_size n_inner ffn_dim",
    "model.vocab_size": "padded_vocab_size",
    "model.max_position_embeddings": "n_positions n_ctx",
    "parallel.strategy": "zero_stage zero_optimization stage sharding_strategy fsdp_sharding_strategy distributed_type",
    "parallel.implementation": "fsdp_version use_distributed_optimizer",
    "parallel.bucket_cap": "bucket_cap_mb ddp_bucket_cap_mb",
    "parallel.reduce_bucket_size": "ddp_bucket_size",
    "parallel.prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "parallel.param_persistence_threshold": "stage3_param_persistence_threshold",
    "parallel.max_live_parameters": "stage3_max_live_parameters",
    "parallel.max_reuse_distance": "stage3_max_reuse_distance",
    "parallel.wrap": "auto_wrap_policy fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap",
    "parallel.reshard_after_forward": "fsdp_reshard_after_forward",
    "parallel.backward_prefetch": "fsdp_backward_prefetch",
    "parallel.forward_prefetch": "fsdp_forward_prefetch",
    "parallel.param_dtype": "mixed_precision_param",
    "parallel.reduce_dtype": "mixed_precision_reduce communication_data_type",
    "parallel.shard_size": "data_parallel_shard_degree dp_shard dp_shard_size parallelism_config_dp_shard_size",
    "parallel.tp": "tensor_parallel_degree tensor_model_parallel_size tensor_parallel_size tp_size tp_degree",
    "parallel.pp": "pipeline_parallel_degree pipeline_model_parallel_size pipeline_parallel_size pp_size pp_degree",
    "parallel.cp": "context_parallel_degree context_parallel_size cp_size cp_degree",
    "parallel.ep": "expert_parallel_degree expert_model_parallel_size expert_parallel_size ep_size ep_degree",
    "train.seq_len": "seq_length sequence_length max_seq_length max_seq_len max_length block_size",
    "train.micro_batch": "per_device_train_batch_size train_micro_batch_size_per_gpu micro_batch_size local_batch_size "
    "batch_size microbatch mbs",
    "train.grad_accumulation": "gradient_accumulation_steps accumulate_grad_batches global_batch_size train_batch_size "
    "gbs",
    "train.precision": "bf16 fp16 mixed_precision torch_dtype",
    "train.optimizer": "optim optimizer_type optimizer_name",
    "train.attention": "attn_implementation attention_backend use_flash_attn",
    "train.kernels": "compile torch_compile",
    "train.recompute": "gradient_checkpointing activation_checkpointing activation_checkpoint recompute_activations "
    "recompute_granularity activation_recomputation",
    "train.recompute_layers": "recompute_num_layers checkpoint_num_layers activations_checkpoint_num_layers",
    "train.recompute_group": "recompute_method activations_checkpoint_method",
    "train.offload_activations": "activation_offloading enable_activation_offloading cpu_offloading "
    "cpu_offloading_num_layers fine_grained_activation_offloading cpu_checkpointing",
    "train.clip_grad_norm": "gradient_clipping clip_grad max_grad_norm max_norm gradient_clip_val",
}
_OURS: Final = {name: ours for ours, names in _ELSEWHERE.items() for name in names.split()}


def ours_for(word: str, block: Loc) -> str:
    """``train.micro_batch`` for ``per_device_train_batch_size``, without the block inside it; "" for any other word."""
    ours = _OURS.get(word.strip("-").replace("-", "_").lower(), "")
    inside, _, key = ours.partition(".")
    return key if block == (inside,) else ours

"""Why options of a DeepSpeed JSON have no place in a scenario."""

from __future__ import annotations

from typing import Any, Final

_TIME: Final = "no effect on time worth modelling"
_LOSS: Final = "scaling of the loss: the check for overflow is counted"
_ALWAYS: Final = "as the simulator runs DeepSpeed"

#: Under ``zero_optimization``: whose ``device``, or which flag, moves states to the host.
OFFLOADS: Final = ("offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_param")

#: Option -> values with which it changes nothing, and what is done otherwise here.
OTHERWISE: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "zero_optimization.zero_hpz_partition_size": ((0, 1), "secondary shards (ZeRO++) are not in this version"),
    "zero_optimization.zero_quantized_weights": ((False,), "weights are gathered whole here, not quantized (ZeRO++)"),
    "zero_optimization.zero_quantized_gradients": ((False,), "gradients are sent whole here, not quantized (ZeRO++)"),
    "zero_optimization.zero_quantized_nontrainable_weights": ((False,), "weights are kept whole here, not quantized"),
    "zero_optimization.mics_shard_size": ((-1, 0), "MiCS is not in this version; states are sharded over all ranks"),
    "zero_optimization.mics_hierarchical_params_gather": ((False,), "MiCS is not in this version"),
    "zero_optimization.contiguous_gradients": ((True,), "gradients are copied into buckets all the same here"),
    "zero_optimization.reduce_scatter": ((True,), "buckets are reduced as with reduce_scatter here"),
    "zero_optimization.allgather_partitions": ((True,), "weights come back by one all-gather here, not by broadcasts"),
    "zero_optimization.round_robin_gradients": ((False,), "gradients are in their usual order here"),
    "zero_optimization.stage3_use_all_reduce_for_fetch_params": ((False,), "weights are fetched by all-gathers here"),
    "zero_optimization.stage3_allgather_sequential": ((False,), "weights are gathered coalesced here"),
    "zero_optimization.stage3_module_granularity_threshold": ((0,), "each module is fetched by itself here"),
    "zero_optimization.legacy_stage1": ((False,), "stage 1 is the present one here"),
    "communication_data_type": ((), "gradients are sent in the type that train.precision keeps them in"),
    "data_types.grad_accum_dtype": ((), "gradients add up in the type that train.precision keeps them in"),
    "sparse_attention.mode": ((), "attention is dense here"),
    "sparse_gradients": ((False,), "gradients are dense here"),
    "prescale_gradients": ((False,), "scaling before the reduction costs nothing here"),
    "amp.enabled": ((False,), "Apex AMP is not modelled; set train.precision"),
    "compression_training": (({},), "compression is not modelled"),
    "wall_clock_breakdown": ((False,), "its timers wait for the device in each phase, which is not counted"),
    "flops_profiler.enabled": ((False,), "the profiler's own time is not counted"),
    "elasticity.enabled": ((False,), "the batch is that of the scenario"),
    "activation_checkpointing.cpu_checkpointing": ((False,), "checkpoints stay on the GPU here"),
    "progressive_layer_drop.enabled": ((False,), "all layers run here"),
    "curriculum_learning.enabled": ((False,), "all sequences are train.seq_len long"),
}  # fmt: skip

REASONS: Final = {
    "scheduler.*": "the learning rate costs no time", "optimizer.params.*": "the optimizer's own settings cost no time",
    "optimizer.legacy_fusion": _TIME,
    "fp16.*": _LOSS, "bf16.*": _TIME, "bfloat16.*": _TIME, "amp.*": _LOSS,
    "steps_per_print": "printing is not modelled", "dump_state": "printing is not modelled",
    "zero_optimization.allgather_bucket_size": "stages 1 and 2 gather all weights by one call here",
    "zero_optimization.sub_group_size": "the optimizer steps over all its states at once here",
    "zero_optimization.load_from_fp32_weights": "for checkpoints",
    "zero_optimization.elastic_checkpoint": "for checkpoints",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "for checkpoints",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "for checkpoints",
    "zero_optimization.gather_16bit_weights_on_model_save": "for checkpoints",
    "zero_optimization.ignore_unused_parameters": "a check", "zero_optimization.memory_efficient_linear": _TIME,
    "zero_optimization.stage3_model_persistence_threshold": "no bound on persistent parameters here",
    "zero_optimization.offload_optimizer.*": "offload is not in this version",
    "zero_optimization.offload_param.*": "offload is not in this version",
    "zero_optimization.cpu_offload_use_pin_memory": "offload is not in this version",
    "zero_optimization.cpu_offload_params": "offload is not in this version",
    "zero_optimization.leaf_module.*": "each module is fetched by itself here",
    "zero_allow_untested_optimizer": "a check", "zero_force_ds_cpu_optimizer": "a check",
    "aio.*": "offload is not in this version", "gradient_predivide_factor": _TIME,
    "activation_checkpointing.*": "says how, not whether: set train.recompute if the model checkpoints",
    "flops_profiler.*": "the profiler's own time is not counted", "tensorboard.*": "logging is not modelled",
    "wandb.*": "logging is not modelled", "csv_monitor.*": "logging is not modelled",
    "comms_logger.*": "logging is not modelled", "memory_breakdown": "logging is not modelled",
    "autotuning.*": "the tuner is not modelled",
    "checkpoint.*": "for checkpoints", "data_types.*": _TIME, "elasticity.*": "the batch is that of the scenario",
    "sparse_attention.*": "attention is dense here", "compression_training.*": "compression is not modelled",
    "data_efficiency.*": "data are not modelled", "curriculum_learning.*": "data are not modelled",
    "progressive_layer_drop.*": "all layers run here", "disable_allgather": _ALWAYS, "seed": _TIME,
    "torch_autocast.*": _TIME, "nebula.*": "for checkpoints", "hybrid_engine.*": "for inference",
    "tensor_parallel.*": "how AutoTP cuts layers, and what it overlaps, is not read",
    "pipeline.*": "a detail of DeepSpeed's pipeline that a scenario does not have",
    "expert_parallel.*": "how AutoEP finds experts is not read",
    "data_parallel_size": "what the other sizes leave",
    "seq_parallel_communication_data_type": "activations are sent in the type of their computation",
    "compile.*": "set train.kernels: fused for compiled kernels", "eigenvalue.*": "not modelled",
    "quantize_training.*": "quantized training is not modelled", "dataloader_drop_last": "data are not modelled",
    "fp16_master_weights_and_gradients": "masters are fp32 here",
    "fp32_allreduce": "gradients are sent in the type that train.precision keeps them in",
}  # fmt: skip

"""Why options of an accelerate YAML have no place in a scenario."""

from __future__ import annotations

from typing import Final

_LAUNCH, _FILES = "how processes find each other", "files and checkpoints are not modelled"
_START: Final = "how weights are loaded at the start"
_TPU: Final = "for TPUs and clouds"

REASONS: Final = {
    "compute_environment": _LAUNCH, "debug": "a check", "main_training_function": _LAUNCH, "machine_rank": _LAUNCH,
    "main_process_ip": _LAUNCH, "main_process_port": _LAUNCH, "rdzv_backend": _LAUNCH, "same_network": _LAUNCH,
    "gpu_ids": _LAUNCH, "use_cpu": "training is on GPUs here", "enable_cpu_affinity": "CPU placement is not modelled",
    "num_cpu_threads_per_process": "CPU threads are not modelled", "mpirun_config*": _LAUNCH, "ipex_config*": _TPU,
    "deepspeed_config.deepspeed_multinode_launcher": _LAUNCH, "deepspeed_config.deepspeed_hostfile": _LAUNCH,
    "deepspeed_config.deepspeed_inclusion_filter": _LAUNCH, "deepspeed_config.deepspeed_exclusion_filter": _LAUNCH,
    "deepspeed_config.deepspeed_config_file": "its options are read", "deepspeed_config.zero3_init_flag": _START,
    "deepspeed_config.zero3_save_16bit_model": _FILES,
    "deepspeed_config.deepspeed_moe_layer_cls_names": "for mixtures of experts",
    "deepspeed_config.offload_*": "offload is not in this version",
    "downcast_bf16": _TPU, "tpu_*": _TPU, "command_file": _TPU, "commands": _TPU, "aws_*": _TPU, "sagemaker_*": _TPU,
    "fp8_config*": "8-bit products are not in this version", "dynamo_config.*": "compiled as a whole here",
    "fsdp_config.fsdp_cpu_ram_efficient_loading": _START, "fsdp_config.fsdp_sync_module_states": _START,
    "fsdp_config.fsdp_state_dict_type": _FILES, "fsdp_config.fsdp_use_orig_params": "no effect on what is sent",
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "each block is a unit, whatever its class",
    "fsdp_config.fsdp_offload_params": "as the simulator does it", 
    "fsdp_config.fsdp_ignored_params": "all parameters are sharded here",
    "fsdp_config.fsdp_cpu_offload*": "offload is not in this version",
    "fsdp_config.cpu_ram_efficient_loading": _START, "fsdp_config.sync_module_states": _START,
    "fsdp_config.state_dict_type": _FILES, "fsdp_config.use_orig_params": "no effect on what is sent",
    "fsdp_config.transformer_layer_cls_to_wrap": "each block is a unit, whatever its class",
    "fsdp_config": "empty", "deepspeed_config": "empty", "tpu_env": _TPU, "megatron_lm_config*": "not the type in use",
    "parallelism_config.parallelism_config_dp_*": "what the other sizes leave",
    "deepspeed_config.seq_parallel_communication_data_type": "activations are sent in the type of their computation",
    "parallelism_config.parallelism_config_cp_*": "a detail of context parallelism that a scenario does not have",
    "parallelism_config.parallelism_config_sp_*": "a detail of Ulysses that a scenario does not have",
    "parallelism_config.parallelism_config_tp_*": "a detail of tensor parallelism that a scenario does not have",
}  # fmt: skip

"""Why options of a torchtitan configuration have no place in a scenario."""

from __future__ import annotations

from typing import Final

_FP8: Final = "8-bit products are not in this version"
_OWN: Final = "the optimizer's own settings cost no time"
_RESIDENT: Final = "sends and gathered weights of a pipeline are not bounded here"

REASONS: Final = {
    "job.*": "files and names", "profiling.*": "profiling is not modelled", "metrics.*": "logging is not modelled",
    "model.tokenizer_path": "data are not modelled", "model.hf_assets_path": "files and names",
    "model.norm_type": "that of the shipped model", "model.print_after_conversion": "logging is not modelled",
    **{f"optimizer.{name}": _OWN for name in ("lr", "eps", "beta1", "beta2", "weight_decay", "min_lr_factor")},
    "optimizer.early_step_in_backward": "the optimizer steps after the backward here",
    "optimizer.implementation": "the optimizer is fused here", "optimizer.fused": "the optimizer is fused here",
    "lr_scheduler.*": "the learning rate costs no time", "training.warmup_steps": "the learning rate costs no time",
    "training.dataset": "data are not modelled", "training.dataset_path": "data are not modelled",
    "dataset.*": "data are not modelled", "training.seed": "no effect on time",
    "training.deterministic": "its slower kernels are not modelled",
    "training.gc_freq": "Python's collector is not modelled", "training.gc_debug": "Python's collector is not modelled",
    "debug.*": "no effect on time worth modelling",
    "checkpoint.*": "checkpoints are not modelled", "comm.*": "timeouts and traces", "memory_estimation.*": "see the "
    "report's memory", "validation.*": "validation is not modelled", "fault_tolerance.*": "nothing fails here",
    "experimental.custom_*": "code of one's own is not seen", "training.data_parallel_type": "as the degrees say",
    "compile.components": "compiled as a whole here",
    "compile.backend": "as inductor does", "compile.*": "compiled as a whole here",
    "float8.*": _FP8, "mx.*": _FP8, "quantize.*": _FP8,
    "parallelism.enable_compiled_autograd": "compiled autograd is not modelled",
    "experimental.enable_compiled_autograd": "compiled autograd is not modelled",
    "parallelism.pp_*": _RESIDENT, "parallelism.pipeline_parallel_max_outstanding_sends": _RESIDENT,
    "parallelism.fsdp_*": "FSDP2 is played as it is by default",
    "parallelism.save_parallelism_file": "files and names",
    "activation_checkpoint.*": "which operations are kept is the simulator's own list",
}  # fmt: skip

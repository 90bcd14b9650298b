"""Why flags of Megatron-LM have no place in a scenario."""

from __future__ import annotations

from typing import Final

_LOGS, _FILES, _DATA = "logging is not modelled", "files and checkpoints are not modelled", "data are not modelled"
_RATE, _START = "the learning rate costs no time", "weights at the start"
_FUSED: Final = "which kernels are fused is the device profile's, or train.kernels"
_MOE: Final = "how tokens choose experts; they are taken to be spread evenly"
_TP: Final = "a detail of model parallelism that a scenario does not have"

REASONS: Final = {
    **{f"--{name}": _LOGS for name in (
        "log-*", "tensorboard-*", "wandb-*", "timing-log-*", "profile", "profile-*", "use-pytorch-profiler",
        "one-logger-*", "record-memory-history", "memory-snapshot-path",
    )},
    **{f"--{name}": _FILES for name in (
        "save", "save-*", "load", "load-*", "ckpt-*", "dist-ckpt-*", "no-save-*", "no-load-*", "use-checkpoint-*",
        "exit-on-missing-checkpoint", "async-save", "use-dist-ckpt", "auto-detect-ckpt-format", "finetune",
    )},
    **{f"--{name}": _DATA for name in (
        "data-*", "train-data-path", "valid-data-path", "split", "vocab-file", "merge-file", "tokenizer-*", "mock-data",
        "dataloader-type", "num-workers", "tiktoken-*", "make-vocab-size-divisible-by", "reset-*", "eod-mask-loss",
        "no-create-attention-mask-in-dataloader", "no-mmap-bin-files", "num-dataset-builder-threads",
    )},
    **{f"--{name}": _RATE for name in (
        "lr", "lr-*", "min-lr", "decoupled-*", "weight-decay", "weight-decay-*", "adam-*", "sgd-momentum",
        "start-weight-decay", "end-weight-decay", "override-opt-param-scheduler", "use-checkpoint-opt-param-scheduler",
    )},
    **{f"--{name}": _START for name in ("init-*", "apply-residual-connection-post-layernorm", "seed")},
    **{f"--{name}": _FUSED for name in (
        "no-rope-fusion", "no-masked-softmax-fusion", "no-bias-*", "no-gradient-accumulation-fusion",
        "cross-entropy-*", "enable-cuda-graph", "cuda-graph-*", "transformer-impl", "use-mcore-models",
        "attention-softmax-in-fp32", "use-fused-*", "use-transformer-engine-*", "external-cuda-graph",
    )},
    **{f"--{name}": _MOE for name in ("moe-router-*", "moe-aux-*", "moe-z-*", "moe-token-drop-policy")},
    **{f"--{name}": _FUSED for name in ("moe-grouped-gemm", "moe-permute-fusion", "moe-use-legacy-grouped-gemm")},
    **{f"--{name}": "experts have no such thing here" for name in ("moe-*", "expert-*")},
    **{f"--{name}": _TP for name in (
        "tp-comm-*", "no-async-tensor-model-parallel-allreduce", "standalone-*", "wgrad-*", "pipeline-*", "context-*",
        "hierarchical-*",
    )},
    **{f"--{name}": "one step is simulated; goal.tokens says how long a run is" for name in (
        "exit-*", "rampup-batch-size", "iterations-to-skip",
    )},
    **{f"--{name}": "validation is not modelled" for name in ("eval-*", "test-mode")},
    **{f"--{name}": "how torchrun finds the ranks" for name in (
        "master-addr", "master-port", "node-rank", "rdzv-*", "max-restarts", "tee", "log-dir", "redirects",
        "standalone",
    )},
    **{f"--{name}": "how it is computed, which costs no time worth modelling" for name in (
        "position-embedding-type", "rotary-*", "use-rotary-*", "no-position-embedding", "use-rope-scaling",
        "layernorm-epsilon", "norm-epsilon", "apply-layernorm-1p", "attention-mask-type", "rope-*",
        "calculate-per-token-loss", "loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window",
        "hysteresis", "no-query-key-layer-scaling", "apply-query-key-layer-scaling", "openai-gelu", "squared-relu",
    )},
    **{f"--{name}": "8-bit products are not in this version" for name in ("fp8-*", "fp4-*")},
    **{f"--{name}": "not counted" for name in (
        "attention-dropout", "hidden-dropout", "manual-gc", "manual-gc-*", "empty-unused-memory-level",
        "check-for-nan-in-loss-and-grad", "no-check-for-nan-in-loss-and-grad", "distributed-timeout-minutes",
        "distributed-backend", "nccl-communicator-config-path", "deterministic-mode",
        "accumulate-allreduce-grads-in-fp32", "align-*", "ddp-*", "keep-fp8-*", "no-*", "distribute-saved-activations",
        "local-rank", "high-priority-stream-groups", "use-precision-aware-optimizer",
    )},
    "--disable-bias-linear": "the llama family has no biases; gpt2 has them",
    "--add-qkv-bias": "biases of q, k and v: family qwen has them", "--qk-layernorm": "norms of q and k: give --model",
    "--mtp-*": "heads for several tokens are not in this version",
    "--multi-latent-attention": "latent attention: give --model with a config.json",
    "--kv-lora-rank": "latent attention: give --model", "--q-lora-rank": "latent attention: give --model",
    "--q-*": "latent attention: give --model", "--kv-*": "latent attention: give --model",
    "--v-head-dim": "latent attention: give --model", "--qk-*": "latent attention: give --model",
}  # fmt: skip

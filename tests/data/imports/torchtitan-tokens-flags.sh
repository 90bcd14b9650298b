#!/bin/bash
# Options of torchtitan's recipes of 2026, which count batches in tokens.
TOKENS=8192
torchrun --nproc_per_node=8 --nnodes=2 -m torchtitan.train \
  --model.name llama3 --model.flavor 8B \
  --training.max_context_length $TOKENS \
  --training.num-tokens-per-microbatch-per-dp-rank $TOKENS \
  --training.num-tokens-per-train-step $(($TOKENS * 64)) \
  --parallelism.pipeline_parallel_degree 4 \
  --parallelism.pipeline_parallel_schedule ZBVZeroBubble \
  --parallelism.num-pp-microbatches 8 \
  --parallelism.data_parallel_shard_degree 2 \
  --parallelism.tensor_parallel_degree 2 \
  --parallelism.no-enable-sequence-parallel \
  --activation_checkpoint.mode none

#!/bin/bash
# Long sequences of Llama 3 8B, with fewer layers in the first and in the last stage; see README.md.
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --context-parallel-size 4 --cp-comm-type a2a \
  --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7 --use-tp-pp-dp-mapping \
  --use-distributed-optimizer --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 32768 --max-position-embeddings 32768 \
  --micro-batch-size 1 --global-batch-size 16 --train-iters 100 --bf16

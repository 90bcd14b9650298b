#!/bin/bash
# Qwen3 235B A22B over stages that count embedding and loss as layers; see README.md.
TP=${TP:-2}
PP=${PP:-8}
EP=${EP:-16}
VPP=${VPP:-6}
python -m torch.distributed.run --nproc-per-node 8 --nnodes 16 pretrain_gpt.py \
  --tensor-model-parallel-size $TP \
  --pipeline-model-parallel-size $PP \
  --expert-model-parallel-size $EP \
  --expert-tensor-parallel-size 1 \
  --num-layers-per-virtual-pipeline-stage $VPP \
  --account-for-embedding-in-pipeline-split \
  --account-for-loss-in-pipeline-split \
  --overlap-p2p-communication-warmup-flush \
  --use-distributed-optimizer \
  --overlap-grad-reduce \
  --overlap-param-gather \
  --sequence-parallel \
  --tp-comm-overlap \
  --micro-batch-size 1 \
  --global-batch-size 256 \
  --vocab-size 151936 \
  --untie-embeddings-and-output-weights \
  --position-embedding-type rope \
  --normalization RMSNorm \
  --swiglu \
  --disable-bias-linear \
  --num-layers 94 \
  --hidden-size 4096 \
  --ffn-hidden-size 12288 \
  --num-attention-heads 64 \
  --group-query-attention \
  --num-query-groups 4 \
  --kv-channels 128 \
  --seq-length 4096 \
  --max-position-embeddings 4096 \
  --num-experts 128 \
  --moe-ffn-hidden-size 1536 \
  --moe-router-topk 8 \
  --moe-router-num-groups 4 \
  --moe-router-group-topk 1 \
  --moe-grouped-gemm \
  --moe-token-dispatcher-type flex \
  --moe-enable-deepep \
  --moe-expert-capacity-factor 1.25 \
  --moe-pad-expert-input-to-capacity \
  --clip-grad 1.0 \
  --train-iters 1000 \
  --bf16

#!/bin/bash
# The 145B case of table 1 of the Megatron-LM paper of 2021, on fewer nodes; see README.md.
MODEL_SIZE=145B
if [ ${MODEL_SIZE} == "76B" ]; then
    TP=8
    PP=4
    MBS=2
    GBS=1792
    NLS=60
    HS=10240
    NAH=80
    NNODES=128
elif [ ${MODEL_SIZE} == "145B" ]; then
    TP=8
    PP=8
    MBS=2
    GBS=2304
    NLS=80
    HS=12288
    NAH=96
    NNODES=16
fi
MEGATRON_EXTRA_PARAMS="--recompute-granularity full --num-layers-per-virtual-pipeline-stage 5 "
MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --micro-batch-size ${MBS} \
    --global-batch-size ${GBS} \
    --num-layers ${NLS} \
    --hidden-size ${HS} \
    --num-attention-heads ${NAH} \
    --data-path ${MEGATRON_DATA} \
    --vocab-file ${BPE_VOCAB_FILE} \
    --merge-file ${BPE_MERGE_FILE} \
    --log-interval 5 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --train-iters 500 \
    --lr-decay-iters 320 \
    --lr 0.0001 \
    --min-lr 0.00001 \
    --lr-decay-style cosine \
    --lr-warmup-fraction 0.01 \
    --split 969,30,1 \
    --eval-iters 100 \
    --eval-interval 1000 \
    --clip-grad 1.0 \
    --fp16 \
    --loss-scale 8192 "
srun -N ${NNODES} torchrun --nproc_per_node 8 --nnodes ${NNODES} pretrain_gpt.py ${MEGATRON_PARAMS}

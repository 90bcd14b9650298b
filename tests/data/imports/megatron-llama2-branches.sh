#!/bin/bash
# The variables, branches and flags of the Llama 2 example in AMD's examples of Megatron-LM; see README.md.
GPUS_PER_NODE=`python3 -c "import torch; print(torch.cuda.device_count())"`
NNODES="${NNODES:-1}"
MODEL_SIZE="${MODEL_SIZE:-7}"
TP="${TP:-1}"
MBS="${MBS:-2}"
BS="${BS:-128}"
SEQ_LENGTH="${SEQ_LENGTH:-4096}"
RECOMPUTE="${RECOMPUTE:-0}"
OPTIMIZER="${OPTIMIZER:-adam}"
FSDP="${FSDP:-0}"
SEQ_PARALLEL="${SEQ_PARALLEL:-1}"
echo "no --flag-of-an-echo here"
if [[ $MODEL_SIZE -eq 7 ]]; then # Llama 2 7B
        HIDDEN_SIZE=4096 # e.g. 5120
        FFN_HIDDEN_SIZE=11008
        NUM_LAYERS=32
        NUM_HEADS=32
        NUM_KV_HEADS=32
elif [[ $MODEL_SIZE -eq 70 ]]; then
    HIDDEN_SIZE=8192
    FFN_HIDDEN_SIZE=28672
    NUM_LAYERS=80
    NUM_HEADS=64
    NUM_KV_HEADS=8
else
    exit 1
fi
GROUP_SIZE=$(( ${NUM_HEADS} / ${NUM_KV_HEADS} ))
NUM_GROUPS=$(( ${NUM_HEADS} / ${GROUP_SIZE} ))
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \
    --num-layers $NUM_LAYERS \
    --hidden-size $HIDDEN_SIZE \
    --ffn-hidden-size $FFN_HIDDEN_SIZE \
    --num-attention-heads $NUM_HEADS \
    --seq-length $SEQ_LENGTH \
    --max-position-embeddings 32000 \
    --untie-embeddings-and-output-weights \
    --position-embedding-type rope \
    --no-position-embedding \
    --swiglu \
    --disable-bias-linear \
    --normalization RMSNorm \
    --micro-batch-size $MBS \
    --global-batch-size $BS \
    --bf16 \
"
if [ "$RECOMPUTE" -eq 1 ]; then
    GPT_ARGS="$GPT_ARGS --recompute-num-layers $NUM_LAYERS \
        --recompute-granularity full \
        --recompute-method block \
        "
fi
TRAIN_ARGS="--lr 1e-4 --clip-grad 1.0 "
if [ "$OPTIMIZER" == "adam" ]; then
    TRAIN_ARGS="$TRAIN_ARGS --optimizer adam \
        --adam-beta1 0.9 \
        "
else
    TRAIN_ARGS="$TRAIN_ARGS --optimizer sgd \
        "
fi
DATA_ARGS="--tokenizer-type Llama2Tokenizer --split 99990,8,2"
if [ -z ${DATA_PATH+x} ]; then
    DATA_ARGS="$DATA_ARGS --mock-data"
else
    DATA_ARGS="$DATA_ARGS --data-path $DATA_PATH"
fi
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
"
EXTRA_ARGS="
    --group-query-attention \
    --num-query-groups $NUM_GROUPS \
    --overlap-grad-reduce \
"
if [ "$FSDP" -eq 1 ]; then
    EXTRA_ARGS="$EXTRA_ARGS --use-torch-fsdp2"
    if [ "$SEQ_PARALLEL" -eq 1 ]; then
        SEQ_PARALLEL=0
    fi
else
    if [ "$OPTIMIZER" == "adam" ]; then
        EXTRA_ARGS="$EXTRA_ARGS --use-distributed-optimizer --overlap-param-gather"
    fi
fi
if [ "$SEQ_PARALLEL" -eq 1 ]; then
    EXTRA_ARGS="$EXTRA_ARGS --sequence-parallel"
fi
run_cmd="
    torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
        $GPT_ARGS \
        $DATA_ARGS \
        $EXTRA_ARGS \
        $TRAIN_ARGS
"
eval $run_cmd

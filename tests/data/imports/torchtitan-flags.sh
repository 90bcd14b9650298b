#!/bin/bash
# Not a published file: options on the command line, as torchtitan's README shows them.
NGPU=${NGPU:-"16"}
SHARD=8
torchrun --nproc_per_node=${NGPU} -m torchtitan.train \
    --model.name llama3 --model.flavor=8B --training.local_batch_size=1 \
    --training.seq_len 8192 --parallelism.data_parallel_replicate_degree 2 \
    --parallelism.data_parallel_shard_degree=$SHARD --training.compile \
    --activation_checkpoint.mode full --training.global_batch_size 64

"""What ``train`` says about recomputation, for the stages that a pipeline makes of the model.

Megatron-LM counts ``--recompute-num-layers`` in each pipeline stage, in each chunk where a rank has several
(megatron/core/transformer/transformer_block.py, ``num_layers_per_pipeline_rank``); so do ``train.recompute_layers`` and
``train.recompute_group`` here. Its groups are whole ones: a group that ran over the end of a stage would ask for layers
that the stage lacks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import gcd

from simulator.errors import ScenarioError
from simulator.parallel_spec import Parallel
from simulator.strategies.pipelined import schedule_for
from simulator.strategies.stages import layers_of_stages
from simulator.train_spec import Train
from simulator.training.operations import TrainingModel
from simulator.training.recompute import EVERY_BLOCK, Checkpoints


def checkpoints_of(train: Train) -> Checkpoints:
    """As the scenario asks for them, in a model of one stage."""
    modules = train.recompute_modules or EVERY_BLOCK.modules
    return Checkpoints(layers=train.recompute_layers, group=train.recompute_group or 1, modules=modules)


def checkpoints_in_stages(train: Train, model: TrainingModel, parallel: Parallel) -> Checkpoints:
    """The same with the layers of each stage. model: the whole one, however it is recomputed.

    Raises ScenarioError for more layers than a stage has, for groups that do not come out even, and for a model whose
    layers are measured, or none.
    """
    found = checkpoints_of(train)
    if found.layers is None and train.recompute_group is None:
        return found
    key = "recompute_layers" if found.layers is not None else "recompute_group"
    if not any(operation.layer.startswith("layers.") for operation in model.operations) or model.measured:
        raise ScenarioError(
            f"train.{key}: {model.name} has no transformer layers whose forward could run again; accepted: no such key"
        )
    stages: tuple[int, ...] = ()
    if parallel.pp > 1:
        count = schedule_for(parallel, train.grad_accumulation).stages_per_chain
        stages = layers_of_stages(model, count, parallel)
    _check(key, found, stages or (model.num_layers,))
    return replace(found, stages=stages)


def _check(key: str, found: Checkpoints, sizes: tuple[int, ...]) -> None:
    """Raises ScenarioError for what Megatron-LM would refuse, or what changes nothing."""
    most, where = max(sizes), "a stage of the pipeline has at most" if len(sizes) > 1 else "the model has"
    if found.layers is not None and found.layers > most:
        raise ScenarioError(
            f"train.{key}: {found.layers} layers; {where} {most}; accepted: 1 to {most}, or leave it out for all"
        )
    if any(size % found.group for size in sizes):
        common = reduce(gcd, sizes)
        accepted = ", ".join(str(n) for n in range(1, common + 1) if common % n == 0)
        told = "all stages" if len(set(sizes)) > 1 else f"the {sizes[0]} layers of {_whose(sizes)}"
        raise ScenarioError(f"train.{key}: groups of {found.group} do not divide {told}; accepted: {accepted}")


def _whose(sizes: tuple[int, ...]) -> str:
    return "a stage of the pipeline" if len(sizes) > 1 else "the model"

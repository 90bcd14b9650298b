"""From the ``model`` of a scenario, in any of its four forms, to the operations of one rank's micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from simulator.errors import ScenarioError
from simulator.load import load_preset
from simulator.model_spec import ArchitectureModel, HfModel, LayersModel, PresetModel
from simulator.training.architecture import Architecture, Experts
from simulator.training.batch import Batch
from simulator.training.families.gpt2 import LAYOUT as GPT2
from simulator.training.families.llama import LAYOUT as LLAMA
from simulator.training.families.qwen_moe import QWEN2
from simulator.training.hf_config import architecture_from_config, read_config
from simulator.training.images import lecture_mlp, resnet18
from simulator.training.measured import MeasuredLayer, measured_model
from simulator.training.operations import Exchange, TrainingModel
from simulator.training.precision import Precision, precision_named
from simulator.training.recompute import EVERY_BLOCK, Checkpoints
from simulator.training.shards import WHOLE, Shards
from simulator.training.transformer import transformer

BUILDERS: dict[str, Callable[..., TrainingModel]] = {"lecture-mlp": lecture_mlp, "resnet-18": resnet18}

ModelSpec: TypeAlias = PresetModel | HfModel | LayersModel | ArchitectureModel
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def model_precision(spec: ModelSpec, name: str) -> Precision:
    """The precision of a run: as ``train.precision`` says, with the parameters and gradients of measured layers in
    the layers' own ``dtype`` when they give one."""
    precision = precision_named(name)
    if not isinstance(spec, LayersModel) or spec.dtype is None:
        return precision
    size = DTYPE_BYTES[spec.dtype]
    return replace(precision, param_bytes=size, grad_bytes=size, reduce_bytes=size, cached_weight_bytes=0)


def build_model(
    spec: ModelSpec, *, seq_len: int, micro_batch: int, precision: str | Precision, attention: str,
    kernels: str = "eager", recompute: str = "none", checkpoints: Checkpoints = EVERY_BLOCK,
    base_dir: Path | None = None, shards: Shards = WHOLE,
) -> TrainingModel:  # fmt: skip
    """The operations of one micro-batch of ``micro_batch`` sequences of ``seq_len`` tokens on one rank.

    ``precision`` is a key of ``PRECISIONS`` or what a strategy makes of one, ``attention`` 'eager' or a fused kernel
    ('flash', 'flash-1', 'flash-3'), ``kernels`` one of ``elementwise.KERNELS``, ``recompute`` one of
    ``recompute.MODES``, ``checkpoints`` the layers that 'full' runs again; measured layers, image models and the
    lecture's MLP know none of these. ``base_dir`` is where a relative ``hf`` path starts. ``shards``: which part of a
    transformer the rank holds; measured layers are those of one rank already. Raises ScenarioError or UnsupportedError
    for a model we cannot build.
    """
    batch = Batch(
        seq_len=seq_len, micro_batch=micro_batch, attention=attention, kernels=kernels, recompute=recompute,
        checkpoints=checkpoints, shards=shards,
        precision=precision_named(precision) if isinstance(precision, str) else precision,
    )  # fmt: skip
    if isinstance(spec, LayersModel):
        return _from_layers(spec, batch)
    if isinstance(spec, PresetModel):
        preset = load_preset(spec.preset)
        if preset.builder is not None:
            return BUILDERS[preset.builder](micro_batch=micro_batch, precision=batch.precision)
        return _checked({"name": spec.preset, **(preset.config or {})}, f"preset {spec.preset}", batch)
    if isinstance(spec, HfModel):
        path = (base_dir or Path()) / spec.hf
        config = read_config(path)
        name = path.stem if path.stem != "config" else path.resolve().parent.name
        return _checked({**config, "name": config.get("_name_or_path") or name}, str(spec.hf), batch)
    architecture = _from_sizes(spec)
    return transformer(architecture, _within(batch, architecture, "the model"))


def _checked(config: dict[str, object], where: str, batch: Batch) -> TrainingModel:
    architecture = architecture_from_config(config, where=where)
    return transformer(architecture, _within(batch, architecture, where))


def _within(batch: Batch, architecture: Architecture, where: str) -> Batch:
    """A learned position table has a last row. Raises ScenarioError when the sequence is longer."""
    if architecture.max_positions and batch.seq_len > architecture.max_positions:
        raise ScenarioError(
            f"train.seq_len: {batch.seq_len} is longer than"
            f" the {architecture.max_positions} learned positions of {where} (n_positions, max_position_embeddings)"
        )
    return batch


def _from_layers(spec: LayersModel, batch: Batch) -> TrainingModel:
    layers = tuple(
        MeasuredLayer(
            name=layer.name,
            params=(layer.params,) if isinstance(layer.params, int) else tuple(layer.params),
            forward_s=layer.forward,
            backward_s=layer.backward,
            activation_bytes=layer.activations,
            output_bytes=layer.output,
            exchanges=tuple(
                Exchange(
                    axis=e.axis,
                    op=e.op,
                    size_bytes=e.size,
                    when=e.when,
                    count=e.count,
                    pieces=e.pieces,
                    purpose=f"{layer.name} {e.when}",
                )
                for e in layer.exchanges
            ),
            repeat=layer.repeat,
        )
        for layer in spec.layers
    )
    return measured_model(layers, name="measured layers", seq_len=batch.seq_len, micro_batch=batch.micro_batch)


def _from_sizes(spec: ArchitectureModel) -> Architecture:
    """Family 'qwen' is Qwen 2 (biases on q, k, v); Qwen 3 is read from its config.json."""
    heads, hidden = spec.num_attention_heads, spec.hidden_size
    gpt2 = spec.family == "gpt2"
    return Architecture(
        name=f"{spec.family} of {spec.num_layers} layers x {hidden}",
        layout=GPT2 if gpt2 else QWEN2 if spec.num_experts else LLAMA,
        num_layers=spec.num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads if gpt2 else spec.num_key_value_heads or heads,
        head_dim=spec.head_dim or hidden // heads,
        intermediate_size=spec.intermediate_size or 4 * hidden,
        experts=_experts_from_sizes(spec),
        vocab_size=spec.vocab_size,
        max_positions=(spec.max_position_embeddings or 1024) if gpt2 else 0,
        tie_word_embeddings=gpt2 if spec.tie_word_embeddings is None else spec.tie_word_embeddings,
        qkv_bias=spec.family == "qwen",
        dropout=False,
    )


def _experts_from_sizes(spec: ArchitectureModel) -> Experts | None:
    if spec.num_experts is None:
        return None
    assert spec.num_experts_per_tok is not None, "checked with the scenario"
    assert spec.moe_intermediate_size is not None, "checked with the scenario"
    return Experts(
        count=spec.num_experts, top_k=spec.num_experts_per_tok, intermediate_size=spec.moe_intermediate_size,
        shared_size=spec.shared_expert_intermediate_size or 0,
        dense_layers=frozenset(range(spec.first_k_dense_replace or 0)),
    )  # fmt: skip

"""The four ways to write ``model`` in a scenario: a preset, a config.json, measured layers, or sizes.

The keys that are present choose the form, so only that form's errors are reported.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from simulator.fields import BytesOrZero, Frozen, Items, Text, Time, errors_at
from simulator.problems import nearest

MODEL_FORMS: Final = ("preset", "hf", "layers")
MAX_LAYERS: Final = 100_000


class PresetModel(Frozen):
    """A model that is shipped by name."""

    preset: Text = Field(description="name of a shipped model, such as gpt2 or llama-3-8b")


class HfModel(Frozen):
    """A model described by a Hugging Face ``config.json``."""

    hf: Text = Field(description="path to a Hugging Face config.json, relative to the scenario file")


When = Literal[
    "before forward", "beside forward", "after forward", "before backward", "beside input", "beside weights",
    "after backward",
]  # fmt: skip


class MeasuredExchange(Frozen):
    """What a measured layer sends between the ranks of a replica, once for each micro-batch."""

    axis: Literal["tp", "cp", "ep"] = Field(description="between which ranks")
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"] = Field(
        description="which collective"
    )
    size: BytesOrZero = Field(description="its size, counted as nccl-tests counts it")
    when: When = Field(
        description="before, after or beside the forward or backward; 'beside input' and 'beside weights' run beside "
        "the halves of the backward of a layer with params"
    )
    count: Annotated[int, Field(ge=1, le=1_000_000)] = Field(default=1, description="how many in a row")
    pieces: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=1, description="into how many pieces the forward is cut that it runs beside; the last has nothing "
        "beside it, as in ring attention, whose ranks are as many"
    )  # fmt: skip

    @model_validator(mode="after")
    def _pieces_are_of_a_forward(self) -> MeasuredExchange:
        if self.pieces > 1 and self.when != "beside forward":
            raise ValueError(f"pieces: needs 'when: beside forward'; got {self.when!r}")
        return self


class MeasuredLayer(Frozen):
    """One layer with measured times, per micro-batch. ``params`` are parameter tensors, by number of elements."""

    name: Text = Field(description="name of the layer")
    params: Annotated[int, Field(ge=0, le=10**13)] | Items[Annotated[int, Field(ge=0, le=10**13)]] = Field(
        description="elements of its parameter tensor, or a list with one number for each tensor in registration order"
    )
    forward: Time = Field(description="time of its forward pass of one micro-batch")
    backward: Time = Field(description="time of its backward pass of one micro-batch")
    activations: BytesOrZero = Field(
        default=0.0, description="bytes kept for the backward pass", json_schema_extra={"default": "0 B"}
    )
    output: BytesOrZero = Field(
        default=0.0, description="bytes that a pipeline sends to the next stage, where one ends after this layer",
        json_schema_extra={"default": "0 B"},
    )  # fmt: skip
    exchanges: Items[MeasuredExchange] = Field(
        default=(), description="what it sends between the ranks of a replica: [{axis: tp, op: all_reduce, size: 4 MB, "
        "when: after forward}]"
    )  # fmt: skip
    repeat: Annotated[int, Field(ge=1, le=MAX_LAYERS)] = Field(
        default=1, description="how often the layer follows itself"
    )


class LayersModel(Frozen):
    """A model described by measured times: a profile, or the lab's sleeping layers."""

    layers: Annotated[Items[MeasuredLayer], Field(min_length=1, max_length=MAX_LAYERS)] = Field(
        description="the layers in forward order"
    )
    dtype: Literal["bf16", "fp16", "fp32"] | None = Field(
        default=None, description="type of parameters and gradients; as train.precision says when left out"
    )

    @model_validator(mode="after")
    def _repeats_are_not_absurd(self) -> LayersModel:
        total = sum(layer.repeat for layer in self.layers)
        if total > MAX_LAYERS:
            raise errors_at("LayersModel", (("layers",), f"are {total:,} layers with repeats; at most {MAX_LAYERS:,}"))
        return self

    @model_validator(mode="after")
    def _names_tell_layers_apart(self) -> LayersModel:
        """Reports and plans know a layer by its name; one that is repeated is known as ``name.0``, ``name.1``, ..."""
        known: set[str] = set()
        for number, layer in enumerate(self.layers):
            given = [layer.name] if layer.repeat == 1 else [f"{layer.name}.{index}" for index in range(layer.repeat)]
            if not known.isdisjoint(given):
                told = f"{layer.name!r} is the name of another layer; give each its own, or one with 'repeat'"
                raise errors_at("LayersModel", (("layers", number, "name"), told))
            known.update(given)
        return self


_EXPERT_KEYS = (
    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "first_k_dense_replace"
)  # fmt: skip


class ArchitectureModel(Frozen):
    """A transformer by its sizes, with the names of Hugging Face's config.json."""

    family: Literal["llama", "qwen", "mistral", "gpt2"] = Field(default="llama", description="how a layer is built")
    num_layers: Annotated[int, Field(ge=1, le=100_000)] = Field(description="number of transformer layers")
    hidden_size: Annotated[int, Field(ge=1, le=10_000_000)] = Field(description="width of the residual stream")
    num_attention_heads: Annotated[int, Field(ge=1, le=100_000)] = Field(description="query heads")
    num_key_value_heads: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="key/value heads; as many as query heads when left out"
    )
    head_dim: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="width of a head; hidden_size / num_attention_heads when left out"
    )
    intermediate_size: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="width of the MLP; 4 x hidden_size for gpt2 when left out"
    )
    vocab_size: Annotated[int, Field(ge=1, le=100_000_000)] = Field(description="number of tokens in the vocabulary")
    num_experts: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="routed experts in each layer, in place of its MLP; none when left out"
    )
    num_experts_per_tok: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="experts that the router picks for each token"
    )
    moe_intermediate_size: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="width of one expert"
    )
    shared_expert_intermediate_size: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        default=None, description="width of the MLP that every token passes beside its experts; none when left out"
    )
    first_k_dense_replace: Annotated[int, Field(ge=0, le=100_000)] | None = Field(
        default=None, description="how many of the first layers have an MLP and no experts; 0 when left out"
    )
    max_position_embeddings: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None, description="longest sequence; gpt2 has a learned embedding for each position"
    )
    tie_word_embeddings: bool | None = Field(
        default=None, description="whether the output layer shares the embedding; true for gpt2, else false"
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> ArchitectureModel:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        problems: list[tuple[tuple[str | int, ...], str]] = []
        if self.head_dim is None and self.hidden_size % heads:
            message = f"must be a multiple of num_attention_heads ({heads}) unless head_dim is given"
            problems.append((("hidden_size",), f"{message}; got {self.hidden_size}"))
        if groups is not None and heads % groups:
            problems.append((("num_key_value_heads",), f"must divide num_attention_heads ({heads}); got {groups}"))
        if self.intermediate_size is None and self.family != "gpt2" and (not self.num_experts or self._dense_layers):
            problems.append((("intermediate_size",), ""))
        if self.max_position_embeddings is None and self.family == "gpt2":
            problems.append((("max_position_embeddings",), ""))
        problems += self._expert_problems()
        if problems:
            raise errors_at("ArchitectureModel", *problems)
        return self

    @property
    def _dense_layers(self) -> int:
        return self.first_k_dense_replace or 0

    def _expert_problems(self) -> list[tuple[tuple[str | int, ...], str]]:
        """Experts need to be counted, chosen and sized, in a family that can have them."""
        count, given = self.num_experts, [key for key in _EXPERT_KEYS if getattr(self, key) is not None]
        if count is None:
            return [((key,), "needs num_experts, the number of routed experts") for key in given[:1]]
        if self.family == "gpt2":
            return [(("num_experts",), "gpt2 has no experts; accepted families are llama, qwen and mistral")]
        if (self.num_experts_per_tok or 0) > count:
            told = f"must be at most num_experts ({count}); got {self.num_experts_per_tok}"
            return [(("num_experts_per_tok",), told)]
        if self._dense_layers > self.num_layers:
            told = f"must be at most num_layers ({self.num_layers}); got {self.first_k_dense_replace}"
            return [(("first_k_dense_replace",), told)]
        return [((key,), "") for key in ("num_experts_per_tok", "moe_intermediate_size") if getattr(self, key) is None]

    def hf_config(self) -> dict[str, Any]:
        """The same sizes as a Hugging Face config.json spells them; what was left out stays out."""
        sizes = self.model_dump(exclude={"family", "num_layers"}, exclude_none=True)
        model_type = {"qwen": "qwen2"}.get(self.family, self.family)
        return {"model_type": model_type, "num_hidden_layers": self.num_layers, **sizes}


_FORM_TAGS = {"preset": "<preset>", "hf": "<hf>", "layers": "<layers>"}
_ARCHITECTURE = "<architecture>"
_FORMS_TEXT = (
    "must be one of: {preset: NAME}, {hf: PATH of a config.json}, {layers: [...]} with measured times, "
    "or {num_layers, hidden_size, num_attention_heads, vocab_size, ...}"
)


def _form(value: Any) -> str | None:
    """Which form of ``model`` the keys mean, misspelt ones included; None when they mean none."""
    kinds = (
        (PresetModel, "<preset>"),
        (HfModel, "<hf>"),
        (LayersModel, "<layers>"),
        (ArchitectureModel, _ARCHITECTURE),
    )
    if not isinstance(value, dict):
        return next((tag for kind, tag in kinds if isinstance(value, kind)), None)
    for form, tag in _FORM_TAGS.items():
        if form in value:
            return tag
    if any(key in ArchitectureModel.model_fields for key in value):
        return _ARCHITECTURE
    for key in value:
        for form, tag in _FORM_TAGS.items():
            if nearest(str(key), [form]):
                return tag
        if nearest(str(key), ArchitectureModel.model_fields):
            return _ARCHITECTURE
    return None


def _one_form(value: Any) -> Any:
    given = [form for form in MODEL_FORMS if isinstance(value, dict) and form in value]
    if len(given) > 1:
        raise ValueError(f"holds both {' and '.join(repr(form) for form in given)}; keep one")
    if _form(value) is None:
        raise ValueError(_FORMS_TEXT)
    return value


Model = Annotated[
    Annotated[PresetModel, Tag("<preset>")]
    | Annotated[HfModel, Tag("<hf>")]
    | Annotated[LayersModel, Tag("<layers>")]
    | Annotated[ArchitectureModel, Tag(_ARCHITECTURE)],
    Discriminator(_form),
    BeforeValidator(_one_form),
]

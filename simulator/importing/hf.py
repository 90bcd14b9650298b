"""A Hugging Face ``config.json``: a model, and nothing of how it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simulator.errors import ScenarioError
from simulator.importing.batch import put_accumulation, put_micro_batch
from simulator.importing.cluster import Place, put_cluster
from simulator.importing.draft import Draft
from simulator.importing.model import DEFAULT_SEQ_LEN, POSITIONS, positions_of
from simulator.importing.recipes import put_optimizer, put_precision, put_usual_precision
from simulator.importing.sheet import CHANGE_ME, Sheet
from simulator.model_spec import ArchitectureModel
from simulator.training.architecture import Architecture
from simulator.training.hf_config import architecture_from_config

#: Longer sequences than this are seldom trained on, though many models allow them.
LONGEST_GUESS: Final = 8192
_DTYPES: Final = {"bfloat16": "bf16-mixed", "float16": "fp16-mixed", "float32": "fp32"}
_FAMILIES: Final = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen", "gpt2": "gpt2"}
_GENERATION: Final = "for generation, not for training"
_RULES: Final = "how it is computed, which costs no time worth modelling"
_ROUTER: Final = "how tokens choose experts; they are taken to be spread evenly"
REASONS: Final = {
    "architectures": "model_type says it", "transformers_version": "who wrote the file", 
    "auto_map": "code of the model",
    "bos_token_id": _GENERATION, "eos_token_id": _GENERATION, "pad_token_id": _GENERATION, "use_cache": _GENERATION,
    "do_sample": _GENERATION, "generation_config.*": _GENERATION, "task_specific_params.*": _GENERATION,
    "rope_theta": _RULES, "rope_scaling": _RULES, "rope_scaling.*": _RULES, "rope_parameters.*": _RULES,
    "rms_norm_eps": _RULES, "layer_norm_epsilon": _RULES, "hidden_act": _RULES, "activation_function": _RULES,
    "hidden_activation": _RULES, "initializer_range": "weights at the start", 
    "pretraining_tp": "for tensor parallelism",
    "attention_dropout": "dropout of 0 is no kernel, above it one that is not counted", "summary_*": "for another task",
    "n_ctx": "n_positions says it", "quantization_config.*": "the checkpoint's type; training does not use it",
    "max_window_layers": "the model uses no sliding window", "use_sliding_window": "the model uses no sliding window",
    "n_group": _ROUTER, "topk_group": _ROUTER, "topk_method": _ROUTER, "scoring_func": _ROUTER,
    "norm_topk_prob": _ROUTER, "routed_scaling_factor": _ROUTER, "seq_aux": _RULES, "aux_loss_alpha": _RULES,
    "num_nextn_predict_layers": "multi-token prediction is not modelled", "ep_size": "set parallel.ep",
    "name": "a name", "_name_or_path": "a name",
    "embd_pdrop": "dropout of embeddings is not counted", "router_aux_loss_coef": _RULES,
    "intermediate_size": "every layer's MLP consists of experts, which have a size of their own",
    "*": "sizes and shapes of this model do not follow from it", "output_router_logits": _RULES,
    "final_logit_softcapping": _RULES, "attn_logit_softcapping": _RULES,
}  # fmt: skip


class _Watched(Mapping[str, Any]):
    """A configuration that remembers which of its keys the model's reader asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config, self.asked = config, set[str]()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return self._config[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)


def import_hf(sheet: Sheet) -> Draft:
    """FSDP on the default cluster, sequences as long as the model allows up to 8,192, all marked as guesses."""
    if sheet.extras.model is not None:
        raise ScenarioError("--model: FILE is the model here; leave --model out")
    watched = _Watched(sheet.options)
    architecture = architecture_from_config(watched, where=sheet.file)
    sheet.read(watched.asked)
    place = put_cluster(sheet, None)
    if sheet.extras.inline:
        _put_sizes(sheet, architecture)
    else:
        sheet.put(
            "model.hf", sheet.file, "the file; relative to where the scenario is kept (--inline writes its sizes)"
        )
    sheet.guess("parallel.strategy", "fsdp")
    _put_length(sheet)
    put_micro_batch(sheet, None)
    put_accumulation(sheet)
    _put_type(sheet, place)
    put_optimizer(sheet, None)
    return sheet.finish(f"Imported from {sheet.file}, a Hugging Face config.json", REASONS)


def _put_length(sheet: Sheet) -> None:
    if sheet.extras.seq_len is not None:
        sheet.put("train.seq_len", sheet.extras.seq_len, "--seq-len")
        return
    longest = positions_of(sheet.options)
    sheet.read(POSITIONS)
    if longest is None:
        sheet.guess("train.seq_len", DEFAULT_SEQ_LEN, f"{CHANGE_ME} (--seq-len)")
    else:
        capped = f", at most {LONGEST_GUESS:,} taken" if longest > LONGEST_GUESS else ""
        sheet.guess("train.seq_len", min(longest, LONGEST_GUESS), f"the model's positions are {longest:,}{capped}"
                    " (--seq-len)")  # fmt: skip


def _put_type(sheet: Sheet, place: Place) -> None:
    """The type of the checkpoint tells more often than not how the model is trained."""
    option = sheet.take("torch_dtype", "dtype")
    if option is None or str(option.value) not in _DTYPES:
        put_usual_precision(sheet, place)
        return
    put_precision(sheet, place, _DTYPES[str(option.value)], f"the checkpoint has {option.said}", guess=True)


def _put_sizes(sheet: Sheet, architecture: Architecture) -> None:
    """The model by its sizes. Raises ScenarioError for one that a scenario's sizes cannot say."""
    model_type = str(sheet.options.get("model_type"))
    told = f"{sheet.file}: --inline: the sizes of a scenario cannot say all of model_type '{model_type}'; leave it out"
    if model_type not in _FAMILIES:
        raise ScenarioError(told)
    gpt2 = model_type == "gpt2"
    sizes: dict[str, Any] = {
        "family": _FAMILIES[model_type], "num_layers": architecture.num_layers, "hidden_size": architecture.hidden_size,
        "num_attention_heads": architecture.num_heads, "num_key_value_heads": architecture.num_kv_heads,
        "head_dim": architecture.head_dim, "intermediate_size": architecture.intermediate_size,
        "vocab_size": architecture.vocab_size, "tie_word_embeddings": architecture.tie_word_embeddings,
        **({"max_position_embeddings": architecture.max_positions} if gpt2 else {}),
    }  # fmt: skip
    again = architecture_from_config(ArchitectureModel(**sizes).hf_config(), where=sheet.file)
    if _shape(again) != _shape(architecture):
        raise ScenarioError(told)
    for key, value in sizes.items():
        sheet.put(f"model.{key}", value, "model_type" if key == "family" else "the file")


def _shape(architecture: Architecture) -> tuple[Any, ...]:
    """All that parameters follow from: everything but the name, and dropout, which sizes leave out."""
    fields = [name for name in architecture.__slots__ if name not in ("name", "dropout")]
    return tuple(getattr(architecture, name) for name in fields)

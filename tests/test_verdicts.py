"""Out of memory is an answer: its advice is what the simulator finds when one follows it. And what bounds a step."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from command_line import simulator

BIG = ("run", "llama-8b-does-not-fit")
#: DDP of a model whose states fit and whose activations do not.
SMALL = ("run", "llama-8b-does-not-fit", "model.preset=llama-3.2-1b")
BATCH = (*SMALL, "train.micro_batch=7")
#: So short that the peak comes when all gradients are there.
SHORT = (*BIG, "train.seq_len=64")


def answer(*arguments: str) -> dict[str, Any]:
    result = simulator(*arguments, "--json")
    assert result.code in (0, 1), result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def advice(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (memory,) = (v for v in found["verdicts"] if v["what"] == "memory")
    return {change["setting"]: change for change in memory["try"]}


def peak(*arguments: str) -> float:
    return float(answer(*arguments)["memory"]["peak_bytes"])


# ---------------------------------------------------------------------------------------------------- out of memory


def test_it_says_how_much_is_missing_when_and_because_of_what() -> None:
    result = simulator(*BIG)
    assert result.code == 1
    text = " ".join(result.out.split())
    assert "+94.1 GiB at backward of head (loss): optimizer states 59.8 GiB, weights 44.9 GiB, activations" in text
    assert "all weights and optimizer states are whole on every GPU" in text
    assert "Step time" in text  # the rest of the report is there


def test_what_fits_is_given_no_advice() -> None:
    assert advice(answer("run", "ddp-llama-1b-16xh100")) == {}


def test_the_advised_micro_batch_is_the_largest_that_fits() -> None:
    """Activations are linear in it, so the peak that is promised is the peak of that run."""
    found = answer(*BATCH)
    (setting,) = (name for name in advice(found) if name.startswith("train.micro_batch="))
    change, best = advice(found)[setting], int(setting.partition("=")[2])
    assert change["enough"] is True
    assert 1 < best < 7
    smaller = answer(*SMALL, setting)
    promised = found["memory"]["peak_bytes"] - change["saves_bytes"]
    assert smaller["memory"]["peak_bytes"] == pytest.approx(promised, rel=1e-9)
    assert smaller["memory"]["fits"] is True
    above = answer(*SMALL, f"train.micro_batch={best + 1}")
    assert above["memory"]["fits"] is False
    assert setting in advice(above)


@pytest.mark.slow
def test_bucket_views_save_the_gradients_that_are_alive_at_the_peak() -> None:
    """With short sequences the peak is at the end of backward, where gradients of 4 B a parameter have taken the place
    of 2 B cast by autocast; so 2 B a parameter are saved, less the fresh gradient of one operation. With long sequences
    nothing, as the peak comes before the first gradient."""
    setting = "parallel.gradient_as_bucket_view=true"
    found = answer(*SHORT)
    change, saved = advice(found)[setting], found["memory"]["peak_bytes"] - peak(*SHORT, setting)
    assert 0.8 * change["saves_bytes"] <= saved <= change["saves_bytes"]
    assert saved == pytest.approx(2 * found["num_parameters"], rel=0.15)
    assert setting not in advice(answer(*SHORT, setting))
    assert setting not in advice(answer(*BIG))
    assert peak(*BIG) == peak(*BIG, setting)


def test_zero1_saves_the_optimizer_states_that_are_said() -> None:
    found = answer(*BIG)
    sharded = answer(*BIG, "parallel.strategy=zero1", "parallel.implementation=textbook")
    saved = found["memory"]["by_kind_bytes"]["optimizer"] - sharded["memory"]["by_kind_bytes"]["optimizer"]
    assert advice(found)["parallel.strategy=zero1"]["saves_bytes"] == pytest.approx(saved, rel=1e-6)


@pytest.mark.parametrize("setting", ["parallel.strategy=fsdp", "train.recompute=full"])
def test_an_upper_end_is_not_exceeded(setting: str) -> None:
    found = answer(*BIG)
    change = advice(found)[setting]
    saved = found["memory"]["peak_bytes"] - peak(*BIG, setting)
    assert change["bound"] is True
    assert 0.5 * change["saves_bytes"] < saved <= change["saves_bytes"]


def test_accumulating_without_sync_is_told_to_keep_whole_gradients() -> None:
    """32 GB of fp32 gradients of 8 B parameters on each of 16 GPUs, where a sixteenth would do."""
    sharded = (*BIG, "parallel.strategy=fsdp", "train.grad_accumulation=4", "train.recompute=full")
    small, setting = "limits.memory=40%", "parallel.sync_each_micro_batch=true"
    found, reduced = answer(*sharded, small), answer(*sharded, small, setting)
    change = advice(found)[setting]
    saved = found["memory"]["peak_bytes"] - reduced["memory"]["peak_bytes"]
    assert change["enough"] is True
    assert reduced["memory"]["fits"] is True
    assert 0.9 * change["saves_bytes"] <= saved <= change["saves_bytes"] * (1 + 1e-9)
    assert setting not in advice(answer(*sharded, setting, "limits.memory=10%"))


def test_what_is_sharded_already_is_not_called_whole_and_no_strategy_is_blamed() -> None:
    found = answer(*BIG, "parallel.strategy=fsdp", "train.micro_batch=4")
    (memory,) = (v for v in found["verdicts"] if v["what"] == "memory")
    assert not memory["ok"]
    assert "whole" not in memory["why"]
    assert "DDP" not in memory["why"] + found["bound"]
    assert not any(name.startswith("parallel.strategy") for name in advice(found))


def test_what_megatron_keeps_whole_is_told_for_each_recipe() -> None:
    """16-bit weights and fp32 gradients, whatever ``train.precision`` is called."""
    (found,) = (v for v in answer(*BIG, "parallel={strategy: zero1, implementation: megatron}")["verdicts"]
                if v["what"] == "memory")  # fmt: skip
    assert "all weights and gradients are whole on every GPU" in found["why"]


def test_when_nothing_is_enough_that_is_said() -> None:
    text = simulator(*BIG, "limits.memory=1%").out
    assert "none of these is enough by itself" in text
    assert "none of these" not in simulator(*BATCH).out


def test_advice_is_sorted_by_what_is_enough_and_then_by_size() -> None:
    for arguments in (BIG, BATCH):
        changes = list(advice(answer(*arguments)).values())
        keys = [(not c["enough"], c["bound"], -c["saves_bytes"]) for c in changes]
        assert keys == sorted(keys)
        assert 1 <= len(changes) <= 4


# ------------------------------------------------------------------------------------------------ what bounds a step


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "ddp-llama-1b-16xh100"), "Compute bounds the step"),
        (("run", "mlp-naive"), "Communication bounds the step"),
        (("run", "measured-layers-400mbit"), "Communication is partly exposed"),
        (("run", "measured-layers-400mbit", "parallel.overlap=none"), "because parallel.overlap is 'none'"),
    ],
)
def test_one_sentence_says_what_bounds_the_step(arguments: tuple[str, ...], words: str) -> None:
    assert words in answer(*arguments)["bound"]


def test_what_is_exposed_is_not_said_to_be_part_of_what_hides() -> None:
    """Where no verdict on exposed communication says it already."""
    words = answer("run", "gpt2-8xa100")["bound"]
    hidden, _, rest = words.partition("hides behind it; of the rest, ")
    assert hidden.startswith("Compute bounds the step")
    assert re.fullmatch(r"[\d.]+ us is the all_reduce of gradients .+ \([\d.]+ MB\)\.", rest), words
    assert "of the rest" not in answer("run", "gpt2-8xa100", "limits.exposed=10%")["bound"]

"""FSDP units: which parameters a wrapped module owns, when its hooks run, and which wrappings are refused."""

from __future__ import annotations

import pytest
from zero_steps import inputs, layer, model_of

from simulator.errors import ScenarioError
from simulator.model_spec import ArchitectureModel, PresetModel
from simulator.strategies.sharding import backward_visits, forward_visits, sharding
from simulator.strategies.units import sharded_units
from simulator.training.presets import build_model

LLAMA = build_model(
    ArchitectureModel(
        family="llama", num_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100
    ),
    seq_len=8, micro_batch=1, precision="bf16-mixed", attention="flash",
)  # fmt: skip
GPT2 = build_model(PresetModel(preset="gpt2"), seq_len=8, micro_batch=1, precision="fp32", attention="flash")


def names(numbers: tuple[int, ...]) -> list[str]:
    return [LLAMA.operations[number].name.removeprefix("layers.") for number in numbers]


def test_the_root_owns_what_no_block_holds_and_the_loss_is_outside_of_all() -> None:
    """torch, fully_shard of each block and then of the model: embedding, last norm and head are the root's."""
    root, first, second = sharded_units(LLAMA, "block")
    assert names(root.owned) == ["embedding", "norm", "lm_head"]
    assert names(first.owned) == ["0.attn_norm", "0.attn.qkv", "0.attn.out", "0.mlp_norm", "0.mlp.up", "0.mlp.down"]
    assert (first.name, second.name, second.parent) == ("layers.0", "layers.1", 0)
    assert (root.first, LLAMA.operations[root.last].name) == (0, "lm_head")
    assert LLAMA.operations[-1].kind == "loss"
    assert sum(unit.num_elements for unit in (root, first, second)) == LLAMA.num_parameters


def test_a_module_inside_another_takes_its_parameters_from_it_and_comes_after_it() -> None:
    """Also where both begin with the same operation: the outer one's pre-forward hook runs first."""
    for wrap in (["layers.*", "layers.*.mlp"], ["layers.*.mlp", "layers.*"]):
        units = sharded_units(LLAMA, wrap)
        assert [(unit.name, unit.parent) for unit in units] == [
            ("root", None), ("layers.0", 0), ("layers.0.mlp", 1), ("layers.1", 0), ("layers.1.mlp", 3),
        ]  # fmt: skip
        assert names(units[1].owned) == ["0.attn_norm", "0.attn.qkv", "0.attn.out", "0.mlp_norm"]
        assert names(units[2].owned) == ["0.mlp.up", "0.mlp.down"]
    outer, inner = sharded_units(LLAMA, ["layers.*.attn_norm", "layers.*"])[1:3]
    assert (outer.name, inner.name) == ("layers.0", "layers.0.attn_norm")


def test_a_star_stands_for_one_part_of_a_name() -> None:
    assert [unit.name for unit in sharded_units(LLAMA, ["layers.*"])] == ["root", "layers.0", "layers.1"]
    assert [unit.name for unit in sharded_units(LLAMA, ["layers.1.*.up"])] == ["root", "layers.1.mlp.up"]
    with pytest.raises(ScenarioError, match=r"'layer\.\*' matches no module.*did you mean 'layers\.\*'"):
        sharded_units(LLAMA, ["layer.*"])


def test_a_number_wraps_so_many_blocks_together_and_root_only_the_model() -> None:
    blocks = build_model(
        ArchitectureModel(
            family="llama", num_layers=5, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100
        ),
        seq_len=8, micro_batch=1, precision="fp32", attention="flash",
    )  # fmt: skip
    assert [unit.name for unit in sharded_units(blocks, 2)] == [
        "root", "layers.0 .. layers.1", "layers.2 .. layers.3", "layers.4",
    ]  # fmt: skip
    (root,) = sharded_units(blocks, "root")
    assert root.num_elements == blocks.num_parameters


def test_a_tied_tensor_has_to_be_in_one_unit() -> None:
    """torch refuses to shard a shared parameter with one of its two modules only."""
    assert sharded_units(GPT2, "block")[0].is_root  # embedding and head are both the root's
    for wrap in (["lm_head"], ["embedding"]):
        with pytest.raises(ScenarioError, match=r"'lm_head' uses .*tied parameters have to be in one unit"):
            sharded_units(GPT2, wrap)


def test_operations_between_those_of_a_unit_are_refused() -> None:
    model = model_of(layer("a.x", 1), layer("b", 1), layer("a.y", 1))
    with pytest.raises(ScenarioError, match=r"'a' is no unit, as 'b' runs between its operations"):
        sharded_units(model, ["a"])


def test_hooks_run_outer_first_before_and_inner_first_after() -> None:
    sharded = sharding(inputs(LLAMA, "fsdp", "fsdp2", wrap=["layers.*", "layers.*.mlp"]), flat=False)
    said = [(what, sharded.units[number].name) for what, number in forward_visits(sharded) if what != "run"]
    block = [("enter", "layers.0"), ("enter", "layers.0.mlp"), ("leave", "layers.0.mlp"), ("leave", "layers.0")]
    assert said == [
        ("enter", "root"), *block, *[(what, name.replace("0", "1")) for what, name in block], ("leave", "root"),
    ]  # fmt: skip
    back = [sharded.units[number].name for what, number in backward_visits(sharded) if what == "enter"]
    assert back == ["root", "layers.1", "layers.1.mlp", "layers.0", "layers.0.mlp"]

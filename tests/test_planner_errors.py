"""What is wrong with a scenario only once its step is laid out is told with file, line, key and what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.answer import answer_step
from simulator.errors import ScenarioError
from simulator.load import load_scenario

TEXT = """\
cluster: {cluster}
model: {{preset: gpt2}}
train: {{micro_batch: 1, seq_len: 1024, precision: {precision}}}
parallel:
  implementation: {implementation}
  strategy: {strategy}
  {key}
"""
FSDP1 = ("fsdp", "fsdp1")
FSDP2 = ("fsdp", "fsdp2")


@pytest.mark.parametrize(
    ("strategy", "key", "told"),
    [
        (FSDP2, "wrap: [layers.*.mpl]", "'layers.*.mpl' matches no module; .* did you mean 'layers.*.mlp'?"),
        (FSDP2, "wrap: [lm_head]", "tied parameters have to be in one unit"),
        (FSDP2, "reshard_after_forward: 3", "3 does not divide the 8 ranks .*; accepted: true, false, 2, 4, 8$"),
        (FSDP2, "reshard_after_forward: [true]", "has 1 values; accepted is one for each of the 12 units"),
        (FSDP2, "backward_prefetch: pre", "'pre' is FSDP1's; accepted by fsdp2: how many units, 1 by default"),
        (FSDP1, "backward_prefetch: 2", "fsdp1 cannot gather 2 units ahead; accepted: pre, post, 0"),
        (FSDP1, "forward_prefetch: 2", "not 2; accepted: 0, 1"),
        (FSDP1, "reshard_after_forward: 2", "got 2; accepted: true, false, not-last, or a list"),
        (("hsdp", "fsdp2"), "shard_size: 3", "3 must be at least 2 and divide the 8 ranks; accepted: 2, 4, 8"),
        (("zero1", "megatron"), "{overlap_param_gather: true, overlap_grad_reduce: false}",
         "true needs overlap_grad_reduce: true"),
        (("zero3", "textbook"), "backward_prefetch: post", "'post' is FSDP1's; accepted by zero3"),
        (("zero3", "textbook"), "reshard_after_forward: 2", "2 is nothing that zero3"),
    ],
)  # fmt: skip
def test_a_setting_that_does_not_fit_is_told_with_its_line(
    strategy: tuple[str, str], key: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.yaml"
    several = key.strip("{}").split(", ") if key.startswith("{") else [key]
    text = TEXT.format(
        cluster="{topology: dgx-h100, nodes: 1}", precision="bf16-mixed", strategy=strategy[0],
        implementation=strategy[1], key="\n  ".join(several),
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
    name = several[0].partition(":")[0]
    with pytest.raises(ScenarioError, match=rf"s\.yaml:7: parallel\.{name}: .*{told}"):
        answer_step(load_scenario(path))


@pytest.mark.parametrize(
    ("precision", "key", "place"),
    [
        ("fp16-mixed", "wrap: block", "s.yaml:3: train.precision"),
        ("bf16", "param_dtype: fp16", "s.yaml:7: parallel.param_dtype"),
    ],
)  # fmt: skip
def test_a_type_that_the_device_lacks_is_told_at_the_key_that_asks_for_it(
    precision: str, key: str, place: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.yaml"
    text = TEXT.format(
        cluster="{topology: tpu-v5e}", precision=precision, strategy="fsdp", implementation="fsdp2", key=key
    )
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=f"{place}: tpu-v5e has no fp16 matrix units; it has bf16"):
        answer_step(load_scenario(path))

"""Steps that others measured with pipelines and tensor parallelism, in ``data/model_parallel_runs.yaml``, and ours.

Nothing is fitted to these rows. Where we miss, the test holds what we give and says by how much.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simulator.answer import answer_step
from simulator.load import load_topology
from simulator.scenario import Scenario

pytestmark = pytest.mark.slow
TABLE = yaml.safe_load((Path(__file__).parent / "data/model_parallel_runs.yaml").read_text())


def runs(source: str) -> list[dict[str, Any]]:
    """Rows of a source, by the names of the columns."""
    rows = next(s["runs"] for s in TABLE["sources"] if s["name"] == source)
    return [dict(zip(TABLE["columns"], row, strict=True)) for row in rows]


@cache
def ratios(source: str) -> dict[int, float]:
    """Simulated over measured seconds of each row, by its line."""
    topology = next(s["topology"] for s in TABLE["sources"] if s["name"] == source)
    return {run["line"]: step_s(topology, run) / run["step_s"] for run in runs(source)}


def step_s(name: str, run: dict[str, Any]) -> float:
    """Megatron-DeepSpeed of those years: ZeRO-1, no sequence parallelism, fused kernels, attention of scores."""
    topology = load_topology(name)
    parallel: dict[str, Any] = {"strategy": "zero1"}
    if run["tp"] > 1:
        parallel |= {"tp": run["tp"], "sequence_parallel": False}
    if run["pp"] > 1:
        parallel |= {"pp": run["pp"]}
    asked = {
        "cluster": {"topology": topology, "nodes": run["gpus"] // topology.gpus_per_node},
        "model": {"family": "gpt2", "num_layers": run["layers"], "hidden_size": run["hidden"], "vocab_size": 50304,
                  "num_attention_heads": run["heads"], "max_position_embeddings": 2048},
        "parallel": parallel,
        "train": {"seq_len": 2048, "micro_batch": run["micro_batch"], "grad_accumulation": run["accumulation"],
                  "precision": "fp16-mixed", "attention": "eager", "kernels": "fused", "recompute": run["recompute"]},
    }  # fmt: skip
    return answer_step(Scenario.model_validate(asked), with_startup=False).report.step_time_s


def test_pipelines_of_two_to_eight_stages_on_v100() -> None:
    """15 runs of 1.3B on 8 V100: all within 12 %, 6 to 12 % too slow, alike for every depth and micro-batch."""
    piped = [ratios("bigscience 1.3B")[run["line"]] for run in runs("bigscience 1.3B") if run["pp"] > 1]
    assert len(piped) == 15
    assert 1.04 < min(piped) < max(piped) < 1.125


def test_a_pipeline_costs_what_it_costs_in_reality() -> None:
    """Eight stages against two, micro-batch 4: 35 over 28 s, and 32.. 37 over 30 s at micro-batch 1; within 4 %."""
    found = ratios("bigscience 1.3B")
    for deep, shallow in ((103, 97), (102, 95), (99, 95), (47, 45)):
        assert found[deep] / found[shallow] == pytest.approx(1, abs=0.04)


def test_two_v100_that_share_each_layer_were_slower_than_ours() -> None:
    """Missed by 26 to 28 %: 53 and 39 s measured, 38 and 29 of ours; pipelines of the same page are 6 to 12 % slow.

    The excess is 100 ms a micro-batch. Its 144 all-reduces of 8.4 MB take 30 ms by NVLink: they would have to run at
    10 GB/s. What slowed them is not told; tensor parallelism on A100 (vTrain) is not too fast in ours.
    """
    for line in (32, 48):
        assert ratios("bigscience 1.3B")[line] == pytest.approx(0.73, abs=0.03)


def test_tensor_and_pipeline_parallelism_on_64_to_512_a100() -> None:
    """13 of 14 runs of 3.6B to 175B within 22 %, all too slow, 15 % at the median.

    Ours is alike on Megatron's own runs of 2022, 2 to 9 % slow (test_field_model_parallel). The other, 39B by TP 2 and
    16 stages in micro-batches of 3, is 29 % faster here; with TP 4 it took 15.0 s there, with TP 2 26.2 s.
    """
    found = ratios("vTrain")
    assert len(found) == 14
    assert found.pop(52) == pytest.approx(0.71, abs=0.03)
    assert 1.03 < min(found.values()) < max(found.values()) < 1.23
    assert float(np.median(list(found.values()))) == pytest.approx(1.15, abs=0.03)


def test_the_layouts_of_one_model_are_ranked_as_measured() -> None:
    """175B in 32 stages: micro-batches of 2, 4, 6 cost 53.9, 59.3, 66.6 s, since fewer of them fill the pipeline."""
    found = ratios("vTrain")
    for more, fewer in ((100, 92), (108, 92)):
        assert found[more] / found[fewer] == pytest.approx(1, abs=0.03)

"""Whole steps of published training runs: compute, every collective, what hides and what does not, misses included.

``data/accuracy.yaml`` holds the table that the documentation quotes, under ``steps``; it must be what the code says.
To renew it: ``python tests/test_accuracy.py > tests/data/accuracy.yaml``. Constants of compute were fitted on compute
alone and on llm-foundry's A100 only (see ``test_accuracy``), those of collectives on nccl-tests only: nothing on steps.
"""

from __future__ import annotations

import numpy as np
import pytest
import runs
import yaml
from test_accuracy import TABLE, WHOLE, step_table

pytestmark = pytest.mark.slow


def ratios(source: str, *, hidden: bool | None = None) -> np.ndarray:
    """Simulated over measured speed. hidden: only runs whose communication is small, or is not."""
    chosen = [run for run in WHOLE if run.source == source and hidden in {None, runs.hidden(run)}]
    return np.array([runs.step_ratio(run) for run in chosen])


def test_the_table_in_the_documentation_is_what_the_code_says() -> None:
    assert yaml.safe_load(TABLE.read_text())["steps"] == step_table()


@pytest.mark.parametrize(("source", "count"), [("llm-foundry A100", 78), ("llm-foundry H100", 70)])
def test_fsdp_steps_of_8_to_512_gpus_within_6_percent_at_the_median(source: str, count: int) -> None:
    """mosaicml/llm-foundry@8c8dd48f7216: 125M to 70B parameters, sequences of 512 to 65,536. H100 was held out."""
    found = ratios(source)
    assert len(found) == count
    assert np.median(np.abs(found - 1)) <= 0.06
    assert np.quantile(np.abs(found - 1), 0.9) <= 0.13


def test_where_communication_is_large_simulating_it_halves_the_error() -> None:
    """Runs whose communication would take over a tenth of the step: compute alone is far too fast."""
    chosen = [run for run in WHOLE if run.source == "llm-foundry H100" and not runs.hidden(run)]
    assert len(chosen) >= 10
    alone = np.median([abs(runs.ratio(run) - 1) for run in chosen])
    whole = np.median([abs(runs.step_ratio(run) - 1) for run in chosen])
    assert alone > 0.15
    assert whole <= 0.5 * alone

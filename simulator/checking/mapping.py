"""``parallel`` as an override that sets the whole block, and keeps what is said of the layout."""

from __future__ import annotations

from collections.abc import Collection

from simulator.job import Job
from simulator.model_parallel_spec import NEEDS, ModelParallel


def parallel_with(job: Job, without: Collection[str] = (), **changed: object) -> str:
    """``parallel={strategy: zero1, tp: 8, pp: 4}``: the block as it is, less ``without``, with what is changed.

    Another strategy or implementation drops the settings of the one before, which it may not read; keys of a dimension
    that is then 1 go too.
    """
    parallel = job.scenario.parallel
    now = {k: v for k, v in parallel.model_dump(exclude_unset=True, mode="json").items() if v is not None}
    strategy = changed.get("strategy", parallel.strategy)
    other = strategy != parallel.strategy or "implementation" in changed
    kept = {k: v for k, v in now.items() if k not in without and (k in ModelParallel.model_fields or not other)}
    block = {"strategy": strategy} | {k: v for k, v in kept.items() if k != "strategy"} | changed
    alive = {
        k: v for k, v in block.items()
        if k not in NEEDS or any(int(str(block.get(degree, 1))) > 1 for degree in NEEDS[k])
    }  # fmt: skip
    return f"parallel={{{', '.join(f'{key}: {_yaml(value)}' for key, value in alive.items())}}}"


def _yaml(value: object) -> str:
    """Plain values as YAML writes them in one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_yaml(v)}' for k, v in value.items())}}}"
    return str(value)

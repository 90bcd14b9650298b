"""``simulator lab`` as its user meets it: a real run beside its simulation, and nothing left however it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulator.lab.shaped import leftovers

pytestmark = [
    pytest.mark.lab, pytest.mark.slow, pytest.mark.usefixtures("lab_here"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'clustersim[real]'"),
]  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
#: Generous: the machine may be busy.
PATIENCE_S = 120.0
#: Two hosts, two layers with a bucket each.
SMALL = """
cluster: {topology: lab-flat, nodes: 2}
model:
  layers:
    - {name: layer, params: 300000, forward: 10 ms, backward: 30 ms, repeat: 2}
parallel: {bucket_cap: 1 MiB}
train: {micro_batch: 1, precision: fp32, optimizer: sgd}
"""


@contextmanager
def started(folder: Path, *arguments: str, scenario: str = SMALL) -> Iterator[subprocess.Popen[str]]:
    """``simulator lab`` as a process of its own; temporary files would go to ``folder``/tmp."""
    (folder / "small.yaml").write_text(scenario, encoding="utf-8")
    (folder / "tmp").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator", "lab", str(folder / "small.yaml"), *arguments], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tag(process: subprocess.Popen[str]) -> str:
    """Of the first lab that a process opens."""
    return f"{process.pid:x}00"


def found(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def nothing_is_left(process: subprocess.Popen[str], folder: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while leftovers(tag(process)) and time.monotonic() < until:
        time.sleep(0.05)
    assert leftovers(tag(process)) == ()
    assert list((folder / "tmp").iterdir()) == []


def told_in_text(process: subprocess.Popen[str]) -> None:
    """Both steps, and a picture of both."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert err.startswith("2 hosts are up; measuring")
    lines = out.splitlines()
    assert lines[0] == "ddp (torch) on 2 hosts, each on a link of 400 Mbit/s"
    lanes = {line.split("|")[0].strip(): line.split("|")[1] for line in lines if line.endswith("|")}
    assert list(lanes) == ["real compute", "real network", "simulated compute", "simulated network"]
    for source in ("real", "simulated"):
        assert set(lanes[f"{source} compute"]) == set("fb ")
        assert set(lanes[f"{source} network"]) == set("= ")
    assert any(line.startswith("step: real ") and ", simulated " in line for line in lines)
    assert sum(line.startswith("all-reduce bucket ") for line in lines) == 2


def test_a_real_step_is_shown_beside_its_simulation_span_by_span(tmp_path: Path) -> None:
    """Both layers forward and backward, both buckets; each real layer takes at least the time for which it sleeps."""
    with started(tmp_path, "--json", "--steps", "3") as process:
        answer = found(process)
        nothing_is_left(process, tmp_path)
    assert (answer["kind"], answer["hosts"], answer["unmatched"]) == ("lab", 2, None)
    spans = {span["name"]: span for span in answer["spans"]}
    assert set(spans) == {
        *(f"{way} 0: layer.{k}" for way in ("forward", "backward") for k in (0, 1)),
        "all-reduce bucket 0", "all-reduce bucket 1",
    }  # fmt: skip
    for span in answer["spans"]:
        least = {"forward": 0.010, "backward": 0.030}.get(span["kind"], 0.0)
        assert span["real_end_s"] - span["real_start_s"] >= least
        assert span["simulated_end_s"] - span["simulated_start_s"] >= least * (1 - 1e-9)
    step = answer["step"]
    assert len(step["real_s"]) == 3
    assert step["error"] == pytest.approx(step["simulated_s"] / sorted(step["real_s"])[1] - 1)
    if answer["real_time"]:
        assert abs(step["error"]) < 0.1
        assert answer["measured"]["near"]["bytes_per_s"] == pytest.approx(47.8e6, rel=0.02)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_stopped(how: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group, a kill the one process; both amid the real run."""
    with started(tmp_path, "--steps", "100") as process:
        until = time.monotonic() + PATIENCE_S
        while len(leftovers(tag(process))) < 4 and time.monotonic() < until:
            time.sleep(0.05)  # unshare, process 1 and both ranks
        assert len(leftovers(tag(process))) >= 4
        if how is signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.kill()
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (130 if how is signal.SIGINT else -how)
        assert out == ""
        assert "Traceback" not in err
        nothing_is_left(process, tmp_path)


def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    """One prints JSON, the other text."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    with started(folders[0], "--json", "--steps", "2") as one, started(folders[1], "--steps", "2") as other:
        assert len(found(one)["step"]["real_s"]) == 2
        told_in_text(other)
        nothing_is_left(one, folders[0])
        nothing_is_left(other, folders[1])


def test_what_a_rank_refuses_ends_in_one_line(tmp_path: Path) -> None:
    """More memory than there is, which only the real run notices."""
    huge = SMALL.replace("300000", "4000000000000")
    with started(tmp_path, scenario=huge) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        nothing_is_left(process, tmp_path)
    assert (process.returncode, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: lab: host ")
    assert "can't allocate memory" in err
    assert "Traceback" not in err

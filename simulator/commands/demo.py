"""``simulator demo``: the main job on a shipped scenario, with the commands to go on with."""

from __future__ import annotations

import time

from simulator.answer import answer_step
from simulator.commands.run import print_step
from simulator.load import load_scenario
from simulator.report.console import console
from simulator.shipped import scenario_file

SCENARIO = "ddp-llama-1b-16xh100"


def demo(as_json: bool) -> None:
    """Print the question, the answer, and commands to go on with; only the answer as JSON."""
    started = time.perf_counter()
    answer = answer_step(load_scenario(SCENARIO))
    if not as_json:
        out = console()
        out.print("The question, as YAML:\n")
        for line in scenario_file(SCENARIO).read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                out.print(f"  {line}")
        out.print("\nThe answer:\n")
    print_step(answer, as_json, time.perf_counter() - started)
    if not as_json:
        out.print(
            "\nTry next:\n"
            f"  simulator run {SCENARIO} cluster.nodes=8 train.micro_batch=1\n"
            f"  simulator run {SCENARIO} model.preset=llama-3-8b          # does not fit, and says why\n"
            f"  simulator run {SCENARIO} parallel.overlap=none            # what overlap is worth\n"
            "  simulator collective all_reduce -p 8,64,512 -b 1K -e 1G -f 4 --algo ring,tree\n"
            "  simulator topology dgx-h100 --svg dgx-h100.svg"
        )

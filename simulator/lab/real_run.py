# mypy: disable-error-code="import-not-found,misc"
"""One rank of a real training run: ``python -m simulator.lab.real_run RANK WORLD RENDEZVOUS JOBS``. Needs torch.

RENDEZVOUS is a file that all ranks share and none has made. JOBS is a file with a JSON list of jobs, whose answers are
printed as one JSON list at the end; or '-': jobs come one per line on standard input, and each is answered by one line.
Nothing else goes to standard output. Gloo talks over the device that GLOO_SOCKET_IFNAME names. Kinds of job: 'train'
(the default) and 'together', see ``real_train``; 'ping' and 'tiny', see ``real_measure``.

A job that is wrong is answered by ``{"error": reason}`` on every rank, and the next one goes on.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError as missing:
    if __name__ != "__main__":
        raise
    sys.stderr.write("error: a real run needs torch: pip install 'clustersim[real]'\n")
    raise SystemExit(2) from missing
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from simulator.lab.real_groups import Groups
from simulator.lab.real_measure import ping, tiny
from simulator.lab.real_train import together, train

#: Longest wait for another rank: 5 minutes, a sixth of torch's own. After it this one ends with an error.
PATIENCE = default_pg_timeout / 6
#: mallopt(3): M_MMAP_MAX none, M_TRIM_THRESHOLD 2 GiB (the largest int), M_ARENA_MAX one arena for all threads.
MALLOPT = {-4: 0, -1: 2**31 - 1, -8: 1}
KINDS = {"train": train, "together": together, "ping": ping, "tiny": tiny}


def answers(jobs: Iterable[dict[str, Any]], groups: Groups) -> Iterable[dict[str, Any]]:
    """What this rank found, job by job."""
    for job in jobs:
        kind = job.get("kind", "train")
        try:
            if kind not in KINDS:
                raise ValueError(f"job {kind!r}: expected one of {', '.join(KINDS)}")
            yield KINDS[kind](job, groups)
        except (ValueError, KeyError, TypeError) as error:
            yield {"error": f"{type(error).__name__}: {error}"}
        gc.collect()


def keep_memory() -> None:
    """Let glibc's malloc keep what is freed, as torch's allocator does on a GPU.

    By default large blocks go back to the kernel, which clears each page when it is next used: a step of fully_shard, 8
    layers of 4 MB on 4 hosts of 400 Mbit/s, took 3.31 s instead of 3.30. Does nothing with other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in MALLOPT.items():
            mallopt(option, value)


def main() -> None:
    """Join the others, do every job, print what this rank found."""
    if len(sys.argv) != 5 or not (sys.argv[1] + sys.argv[2]).isdigit():
        sys.stderr.write("error: expected RANK WORLD RENDEZVOUS JOBS, see simulator/lab/real_run.py\n")
        raise SystemExit(2)
    rank, world, rendezvous, told = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print (the profiler does) must not come between the answers
    keep_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=PATIENCE)
    groups = Groups(rank, world)
    if told == "-":
        for answer in answers(map(json.loads, sys.stdin), groups):
            print(json.dumps(answer), file=out, flush=True)
    else:
        jobs = json.loads(Path(told).read_text(encoding="utf-8"))
        print(json.dumps(list(answers(jobs, groups))), file=out, flush=True)
    dist.barrier()
    # All is said: end here, since gloo's threads may abort a process whose interpreter is taken down under them.
    os._exit(0)


if __name__ == "__main__":
    main()

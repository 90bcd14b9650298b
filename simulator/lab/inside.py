"""The process that holds a lab: started in namespaces of its own, it builds the hosts and runs programs on them.

It is process 1 of its process namespace, and the network and mount namespaces live only through it. So when it ends,
for whatever reason, the kernel ends every program of the lab and removes every namespace, bridge and cable. It ends
when its standard input does, which is when the process that opened the lab closes it, crashes or is killed.

Speaks JSON, one line each way: a fabric comes first, then requests to run programs, see ``shaped``.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from simulator.lab.fabric import RUN, ShapedFabric, build_commands, host_name, namespace

#: How often the programs and the standard input are looked at, s.
LOOK_S = 0.02
#: How long the others may go on once one program has failed, s.
GRACE_S = 2.0


def main() -> None:
    """Build what the first line asks for, answer each further line, end with the input."""
    told = json.loads(sys.stdin.readline())
    tag, fabric = told.pop("tag"), ShapedFabric(**{**told, "hosts_per_side": tuple(told["hosts_per_side"])})
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(RUN)], check=True)
    error = _build(fabric, tag)
    _say({"error": error, "real_time": _real_time()})
    for line in sys.stdin:
        _say(_run(json.loads(line), tag))


def _say(answer: dict[str, Any]) -> None:
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        os._exit(1)  # who opened the lab is gone, and with this process the lab is


def _real_time() -> bool:
    """Let the programs of the lab run before all others; whether that is allowed.

    A program that has just got a message then runs at once. Else it waits for what happens to run, 2.5 ms and more
    each time on two busy cores: a ring of a few bytes over 4 hosts took 14 ms instead of 1.7, one of 1 MiB 39 ms
    instead of 35 (Linux 6.18 without preemption).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def _build(fabric: ShapedFabric, tag: str) -> str:
    """Why the fabric could not be built; '' when it was."""
    for command in build_commands(fabric, tag):
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        if done.returncode:
            return f"'{' '.join(command)}': {done.stderr.strip() or f'exit {done.returncode}'}"
    return ""


def _run(request: dict[str, Any], tag: str) -> dict[str, Any]:
    """Write the files, then run one program per host, all started at once.

    Answers {"ended": [{"host", "code", "out", "err"}], "timed_out"}.
    """
    environment = {**os.environ, **request["environment"]}
    for name, text in request["files"].items():
        (RUN / name).write_text(text, encoding="utf-8")
    running: list[subprocess.Popen[bytes]] = []
    for host, program in zip(request["hosts"], request["programs"], strict=True):
        with _file(host, "out").open("wb") as out, _file(host, "err").open("wb") as err:
            command = ["nsenter", f"--net={namespace(host_name(tag, host))}", *program]
            running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment))
    timed_out = _wait(running, request["timeout_s"])
    for process in running:
        process.kill()
        process.wait()
    ended = [
        {"host": host, "code": process.returncode, "out": _text(host, "out"),
         "err": _text(host, "err")}
        for host, process in zip(request["hosts"], running, strict=True)
    ]  # fmt: skip
    return {"ended": ended, "timed_out": timed_out}


def _file(host: int, stream: str) -> Path:
    return RUN / f"output-{host}.{stream}"


def _text(host: int, stream: str) -> str:
    return _file(host, stream).read_text(encoding="utf-8", errors="replace")


def _wait(running: list[subprocess.Popen[bytes]], timeout_s: float) -> bool:
    """Until all have ended, or one has failed and the others had their grace. True when time ran out."""
    until = time.monotonic() + timeout_s
    failed = False
    while any(process.poll() is None for process in running):
        if not failed and any(process.poll() for process in running):
            failed, until = True, min(until, time.monotonic() + GRACE_S)
        if time.monotonic() > until:
            return not failed
        if select.select([sys.stdin], [], [], LOOK_S)[0]:
            os._exit(1)  # nobody speaks during a run: the input has ended, and with this process all others do
    return False


if __name__ == "__main__":
    main()

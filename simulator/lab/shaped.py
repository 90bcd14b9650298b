"""Opens a lab, runs programs on its hosts, and leaves nothing behind. As root, or in a user namespace without root.

Everything lives in private namespaces of one process (``inside``): the machine's own namespaces never see a bridge or
a host, and the kernel removes all of them when that process ends, even after a crash, a kill or Ctrl-C here.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError
from simulator.lab.fabric import ShapedFabric, flat

#: Every program of a lab carries this variable, the lab's tag, by which it can be found.
MARK = "CLUSTERSIM_LAB"
TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
#: Namespaces of a lab: process 1 in it dies with ``unshare``, and all others with process 1.
PRIVATE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
AS_ROOT_THERE = ("--user", "--map-root-user")
#: Longest wait for namespaces to be built and for them to be gone, s. Generous: the machine may be busy.
PATIENCE_S = 60.0

_LONGEST_LINE = 400

_NUMBERS = itertools.count()


class LabError(ScenarioError):
    """The lab cannot be built here, or a program in it failed. Exit code 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the program on one host ended."""

    host: int
    code: int
    out: str
    err: str


class Lab:
    """An open lab; see ``open_lab``. real_time: whether its programs run before all others, as exact times need."""

    def __init__(self, fabric: ShapedFabric, tag: str, real_time: bool, process: subprocess.Popen[str]) -> None:
        self.fabric, self.tag, self.real_time, self._process = fabric, tag, real_time, process

    def run(
        self, programs: Sequence[Sequence[str]], *, hosts: Sequence[int] | None = None,
        environment: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None, timeout_s: float = 120.0,
    ) -> tuple[Ended, ...]:  # fmt: skip
        """Run ``programs[i]`` on ``hosts[i]`` (by default hosts 0, 1, ...), all at once, and wait for all.

        Each host's only interface besides ``lo`` is ``eth0``, address ``fabric.address(host)``; files are shared.
        files: texts by name, which the programs find in the folder ``fabric.RUN``; that one only the lab sees.
        Raises LabError when a program fails, with the last line that it said, or when time runs out.
        """
        chosen = list(range(len(programs)) if hosts is None else hosts)
        assert len(set(chosen)) == len(programs), "one host each"
        assert set(chosen) <= set(range(self.fabric.num_hosts)), "hosts of this fabric"
        request = {"hosts": chosen, "programs": [list(p) for p in programs], "environment": dict(environment or {}),
                   "files": dict(files or {}), "timeout_s": timeout_s}  # fmt: skip
        answer = _ask(self._process, request)
        ended = tuple(Ended(**entry) for entry in answer["ended"])
        bad = [e for e in ended if e.code]
        if bad:
            worst = max(bad, key=lambda e: (e.code > 0, len(e.err)))
            why = f"not done after {timeout_s:g} s" if answer["timed_out"] else f"exit {worst.code}"
            raise LabError(f"lab: host {worst.host}: {why}: {_last_line(worst.err)}")
        return ended


def _last_line(said: str) -> str:
    """Of Python's tracebacks the one that tells."""
    return next((line.strip()[:_LONGEST_LINE] for line in reversed(said.splitlines()) if line.strip()), "")


@contextmanager
def open_lab(fabric: ShapedFabric) -> Iterator[Lab]:
    """Build the fabric, yield it as a ``Lab``, and remove it. Raises LabError, with the reason, where it cannot be."""
    prefix = _prefix()
    tag = f"{os.getpid():x}{next(_NUMBERS) % 256:02x}"
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "simulator.lab.inside"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        encoding="utf-8", env={**os.environ, MARK: tag, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for this process, which then closes the lab in order
    )  # fmt: skip
    try:
        wanted = {"tag": tag, "hosts_per_side": fabric.hosts_per_side, "host_bit_per_s": fabric.host_bit_per_s,
                  "uplink_bit_per_s": fabric.uplink_bit_per_s}  # fmt: skip
        built = _ask(process, wanted)
        if built["error"]:
            raise LabError(f"lab: {built['error']}")
        yield Lab(fabric, tag, built["real_time"], process)
    finally:
        _end(process)


def _ask(process: subprocess.Popen[str], request: Mapping[str, Any]) -> dict[str, Any]:
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise LabError("lab: the process that holds it has ended; see what it said above")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _end(process: subprocess.Popen[str]) -> None:
    """Close the input, on which process 1 ends and everything with it; kill if that takes too long."""
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.close()
        process.wait(PATIENCE_S)
    except (BrokenPipeError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
    finally:
        process.stdout.close()


def _prefix() -> tuple[str, ...]:
    """The command that makes private namespaces here. Raises LabError with the reason where none can be made."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise LabError(f"lab: needs {', '.join(missing)} (packages iproute2 and util-linux)")
    said = []
    for more in ([()] if os.geteuid() == 0 else []) + [AS_ROOT_THERE]:
        prefix = (*PRIVATE, *more)
        tried = subprocess.run([*prefix, "true"], capture_output=True, encoding="utf-8", check=False)
        if not tried.returncode:
            return prefix
        said.append(tried.stderr.strip())
    raise LabError(f"lab: needs root or user namespaces: {'; '.join(dict.fromkeys(said))}")


def unavailable() -> str:
    """Why no lab can be opened on this machine; '' where one can. Builds the smallest one to find out."""
    try:
        with open_lab(flat(1, 100e6)):
            return ""
    except (LabError, OSError) as error:
        return str(error)


def leftovers(tag: str) -> tuple[str, ...]:
    """What this machine still holds of the lab with this tag: programs, namespaces, cables and bridges. () is right."""
    found = [f"process {pid}" for pid in _marked(tag)]
    for listing in (("ip", "netns", "list"), ("ip", "-o", "link")):
        said = subprocess.run(listing, capture_output=True, encoding="utf-8", check=False).stdout
        found += [f"{listing[-1]}: {line.strip()}" for line in said.splitlines() if f"cs{tag}" in line]
    return tuple(found)


def _marked(tag: str) -> list[int]:
    wanted = f"{MARK}={tag}".encode()
    marked = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                marked.append(int(folder.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return sorted(marked)

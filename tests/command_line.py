"""Runs the command line as a user would: inside this process, which is fast, or as a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from simulator.cli import main

ROOT = Path(__file__).resolve().parent.parent
#: Settings of the surrounding shell that change what is printed.
SHELL = (
    "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "SIMULATOR_DEBUG",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What a command printed on stdout and stderr, and its exit code."""

    code: int
    out: str
    err: str


def plain_environment() -> dict[str, str]:
    """This process's environment without what would change the output."""
    return {key: value for key, value in os.environ.items() if key not in SHELL}


def simulator(*arguments: str, environment: Mapping[str, str] | None = None) -> Result:
    """``simulator ARGUMENTS`` in this process, with no terminal."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    chosen = plain_environment() | dict(environment or {})
    with patch.dict(os.environ, chosen, clear=True), redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Result(code, out.getvalue(), err.getvalue())


def python(*arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> Result:
    """``python ARGUMENTS`` in a process of its own that finds this checkout's package first."""
    chosen = plain_environment() | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"} | dict(environment or {})
    run = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=chosen, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    return Result(run.returncode, run.stdout, run.stderr)

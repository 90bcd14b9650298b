"""The one door from what a command accepts to what it does, opened when the command is called.

``simulator.commands`` imports numpy, pydantic, networkx, simpy and rich: half a second that ``--help``, a usage
error and the shell's completion do without.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable


def implementation(command: str) -> Callable[..., object]:
    """``simulator.commands.<command>.<command>``, which takes the options by name and may return an exit code."""
    found: Callable[..., object] = getattr(importlib.import_module(f"simulator.commands.{command}"), command)
    return found

"""The one door from what a command accepts to what it does, opened when the command is called.

``simulator.commands`` imports numpy, pydantic, networkx, simpy and rich: half a second that ``--help``, a usage
error and the shell's completion do without.
"""

from __future__ import annotations

import importlib
import keyword
from collections.abc import Callable


def implementation(command: str) -> Callable[..., object]:
    """``simulator.commands.<command>.<command>``, which takes the options by name and may return an exit code.

    A command that is a word of Python has an underscore behind its name there (``import_``), as PEP 8 has it.
    """
    name = f"{command}_" if keyword.iskeyword(command) else command
    found: Callable[..., object] = getattr(importlib.import_module(f"simulator.commands.{name}"), name)
    return found

"""One import under way: options are taken from the file, entries of the scenario are put down, the rest is ignored.

What is taken is remembered, so that ``finish`` can list every option that nothing came of: with the reason where the
kind of file has one (``reasons``: an option, or the beginning of several and a star), else as unknown, with the nearest
name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from simulator.budget_spec import Goal
from simulator.errors import ScenarioError
from simulator.importing.draft import Draft, Entry, Extras, Ignored
from simulator.model_spec import ArchitectureModel, HfModel, PresetModel
from simulator.parallel_spec import Parallel
from simulator.problems import nearest, show
from simulator.scenario import Cluster, Train

#: Asked of a number in a file unless said otherwise; as ``fields.Count``.
MOST: Final = 1_000_000
AUTO: Final = "auto"
#: Stands in a value for a variable that a script does not set.
UNSET: Final = "$UNSET"
CHANGE_ME: Final = "not in the file: change me"
_UNKNOWN: Final = "unknown option"
_BLOCKS: Final = {"cluster": (Cluster,), "model": (PresetModel, HfModel, ArchitectureModel), "parallel": (Parallel,),
                  "train": (Train,), "goal": (Goal,)}  # fmt: skip
#: Keys in the order that a scenario is written in.
_ORDER: Final = [f"{block}.{key}" for block, kinds in _BLOCKS.items() for kind in kinds for key in kind.model_fields]
#: Unknown options that the nearest known name is looked up for.
_LOOKED_UP: Final = 50


@dataclass(frozen=True, slots=True)
class Option:
    """An option as the file spells it, and its value."""

    name: str
    value: Any

    @property
    def said(self) -> str:
        """``name: value``, or ``--name value``, short, on one line."""
        if not self.name.startswith("--"):
            return f"{self.name}: {show(self.value)}"
        return self.name if self.value is True else f"{self.name} {show(self.value).strip(chr(39))}"

    @property
    def auto(self) -> bool:
        """Whether the file leaves the value to the program that reads it."""
        return bool(self.value == AUTO)


class Sheet:
    """Options of a file on one side, entries of a scenario on the other. ``file`` is its name in errors."""

    def __init__(self, file: str, options: Mapping[str, Any], extras: Extras) -> None:
        self.file, self.options, self.extras = file, options, extras
        self._asked: set[str] = set()
        self._used: set[str] = set()
        self._entries: dict[str, Entry] = {}
        self._ignored: dict[str, str] = {}
        self._warnings: list[str] = []

    def take(self, *spellings: str) -> Option | None:
        """The first of the spellings that the file has with a value; it counts as read, the others as ignored."""
        self._asked.update(spellings)
        found = [name for name in spellings if self.options.get(name) is not None]
        for name in found[:1]:
            self._ignored.pop(name, None)
        for other in found[1:]:
            self.ignore(other, f"another spelling of {found[0]}, which stands in the file too")
        if found and isinstance(self.options[found[0]], str) and UNSET in self.options[found[0]]:
            self.warn(f"{found[0]} is given by a variable that the script does not set", found[0])
            return None
        return Option(found[0], self.options[found[0]]) if found else None

    def value(self, place: str) -> Any:
        """What is put down for a key already, None when nothing is."""
        return self._entries[place].value if place in self._entries else None

    def takes(self, name: str) -> bool:
        """Whether an option of that name was asked for, in the file or not."""
        return name in self._asked

    def read(self, names: Iterable[str]) -> None:
        """Options that something else has read, and that an entry stands for."""
        self._asked.update(names)
        self._used.update(names)

    def whole(self, option: Option, least: int = 1, most: int = MOST) -> int:
        """A whole number; 5e8 and "16" are whole too. Raises ScenarioError with what is accepted."""
        value = option.value
        if isinstance(value, str) and value.strip().isascii() and value.strip().lstrip("-").isdigit():
            value = int(value) if len(value) < 20 else math.inf
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(option, f"expected a whole number from {least:,} to {most:,}")
        return value

    def flag(self, option: Option) -> bool:
        """true or false, also as the text that launchers write. Raises ScenarioError."""
        known = {True: True, False: False, "true": True, "false": False, "yes": True, "no": False, "on": True,
                 "off": False, "1": True, "0": False}  # fmt: skip
        value = option.value.lower() if isinstance(option.value, str) else option.value
        if not isinstance(value, bool | str) or value not in known:
            raise self.error(option, "expected true or false")
        return known[value]

    def number(self, option: Option) -> float:
        """A finite number. Raises ScenarioError."""
        try:
            value = math.nan if isinstance(option.value, bool) else float(option.value)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise self.error(option, "expected a number")
        return value

    def one_of(self, option: Option, accepted: Iterable[str]) -> str:
        """One of some words, upper or lower case. Raises ScenarioError with the nearest."""
        words = list(accepted)
        text = str(option.value).lower() if isinstance(option.value, str | int) else ""
        for word in words:
            if word.lower() == text:
                return word
        raise self.error(option, f"accepted: {', '.join(words)}{nearest(text, words)}")

    def error(self, option: Option, expected: str) -> ScenarioError:
        """What is wrong with an option: file, name, value, and what is accepted."""
        return ScenarioError(f"{self.file}: {option.name} = {show(option.value)}: {expected}")

    @contextmanager
    def blaming(self, option: Option) -> Iterator[None]:
        """What a ValueError inside says is wrong with the option."""
        try:
            yield
        except ValueError as error:
            raise self.error(option, str(error)) from None

    def put(self, place: str, value: Any, said: str) -> None:
        """An entry that comes from the file or the command line."""
        self._entries[place] = Entry(place, value, said)

    def guess(self, place: str, value: Any, why: str = CHANGE_ME) -> None:
        """An entry that the file does not have."""
        self.put(place, value, f"guess: {why}")

    def put_extra(self, place: str, value: Any, flag: str, option: Option | None) -> None:
        """An entry from the command line, beside what the file says."""
        self.put(place, value, flag + (f" (the file says {option.said})" if option else ""))

    def ignore(self, name: str, reason: str) -> None:
        """An option that was looked at and has no place in a scenario."""
        self._ignored[name] = reason

    def warn(self, text: str, *names: str) -> None:
        """What the scenario does otherwise than the file; the options ``names`` are listed as ignored for it."""
        if text not in self._warnings:  # an option may be asked for twice
            self._warnings.append(text)
        for name in names:
            self.ignore(name, text.removeprefix(f"{Option(name, self.options.get(name)).said}: "))

    def finish(self, title: str, reasons: Mapping[str, str]) -> Draft:
        """All that came of it, in the order of a scenario. Raises ScenarioError when no option is known."""
        entries = sorted(self._entries.values(), key=lambda entry: _ORDER.index(entry.place))
        known = sorted({*self._asked, *(name for name in reasons if not name.endswith("*"))})
        told = " ".join(entry.comment for entry in entries)
        for name in (self._asked - self._used) & self.options.keys() - self._ignored.keys():
            if name not in told:
                self.ignore(name, "not set" if self.options[name] is None else "read: nothing more follows from it")
        left = [name for name in self.options if name in self._ignored or name not in self._asked]
        unknown = [name for name in left if name not in self._ignored and _reason(name, reasons) is None]
        ignored = [
            Ignored(name, self.options[name], self._ignored.get(name) or _reason(name, reasons)
                    or _unknown(name, known if name in unknown[:_LOOKED_UP] else ()))
            for name in left
        ]  # fmt: skip
        if len(ignored) == len(self.options) and all(item.reason.startswith(_UNKNOWN) for item in ignored):
            raise ScenarioError(f"{self.file}: holds no option that is known; is it of another kind?")
        misspelt = [f"{item.option}: {item.reason}" for item in ignored if item.reason.startswith(f"{_UNKNOWN};")]
        return Draft(title=title, entries=tuple(entries), ignored=tuple(ignored), warnings=(*self._warnings, *misspelt))


def _reason(name: str, reasons: Mapping[str, str]) -> str | None:
    """The reason of the option itself, else of the longest known beginning of its name."""
    if name in reasons:
        return reasons[name]
    begun = [start for start in reasons if start.endswith("*") and name.startswith(start[:-1])]
    return reasons[max(begun, key=len)] if begun else None


def _unknown(name: str, known: Sequence[str]) -> str:
    return _UNKNOWN + nearest(name, known)

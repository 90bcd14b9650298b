"""``outputs.yaml`` -> one Explanation for every key of every command's JSON output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator.fields import Frozen, Text
from simulator.yaml_source import read

_FILE = Path(__file__).resolve().parent / "outputs.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One key of the output of command ``of``. ``key``: its path, ``[]`` behind a list, ``<name>`` for any key.

    shown: what the text output calls it, '' where it has no name of its own. how: where it comes from, may be ''.
    """

    of: str
    key: str
    unit: str
    means: str
    how: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one command prints with ``--json``."""

    name: str
    command: str
    title: str
    keys: tuple[Explanation, ...]


class _Entry(Frozen):
    same_as: Text | None = None
    unit: Text | None = None
    means: Text | None = None
    how: str | None = None
    shown: Text | None = None


class _Output(Frozen):
    command: Text
    title: Text
    keys: dict[str, _Entry]


@cache
def outputs() -> tuple[Output, ...]:
    """All outputs, in the order of the file; entries that take over another one are written out."""
    source = read(_FILE)
    if source.problems:
        raise source.error(*source.problems)
    written = {name: _Output.model_validate(block) for name, block in source.value.items()}
    known: dict[str, dict[str, Explanation]] = {}
    for name, output in written.items():
        known[name] = {}
        for key, entry in output.keys.items():
            for made in _explanations(name, key, entry, known):
                known[name].setdefault(made.key, made)
                if made.key == key:  # written out after an entry that took over its parent
                    known[name][key] = made
    return tuple(
        Output(name=name, command=output.command, title=output.title, keys=tuple(known[name].values()))
        for name, output in written.items()
    )


def _explanations(
    name: str, key: str, entry: _Entry, known: Mapping[str, Mapping[str, Explanation]]
) -> Iterator[Explanation]:
    """The entry, and what lies below the one that it takes over."""
    if entry.same_as is None:
        assert entry.unit, f"outputs.yaml: {name}: {key}: needs 'unit', or 'same_as'"
        assert entry.means, f"outputs.yaml: {name}: {key}: needs 'means', or 'same_as'"
        yield Explanation(
            of=name, key=key, unit=entry.unit, means=entry.means, how=entry.how or "", shown=entry.shown or ""
        )
        return
    of, _, path = entry.same_as.partition(".")
    assert path in known.get(of, {}), f"outputs.yaml: {name}: {key}: same_as: no entry '{entry.same_as}' above it"
    same = known[of][path]
    yield Explanation(
        of=name, key=key, unit=entry.unit or same.unit, means=entry.means or same.means,
        how=same.how if entry.how is None else entry.how, shown=entry.shown or same.shown,
    )  # fmt: skip
    for other in tuple(known[of].values()):
        rest = other.key.removeprefix(path)
        if rest != other.key and rest.startswith((".", "[]")):
            yield Explanation(
                of=name, key=key + rest, unit=other.unit, means=other.means, how=other.how, shown=other.shown
            )

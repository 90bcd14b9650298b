"""The flags of a shell script: ``--name value``, with variables that the script itself sets put in.

Enough of the shell to read launch scripts: comments, quotes, continued lines, arrays, ``NAME=value``,
``${NAME:-default}``, whole-number arithmetic, and ``if`` whose condition compares what is known. Nothing is run. A
branch whose condition depends on anything else is not taken; its flags are told apart (``undecided``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from simulator.importing.shell_words import END, words_of

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?=)(.*)", re.DOTALL)
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
_BRACED = re.compile(r"([A-Za-z_]\w*|\d+)(?::?([-=])(.*))?\Z", re.DOTALL)
_PROGRAM = re.compile(r"(?:-m|.*(?:\.py|\.sh|torchrun|python3?))\Z")
#: What the shell itself reads: where output goes, and what the next command is.
_PLUMBING = re.compile(r"\d?>>?(?:&\d)?.*|&>>?.*|[|&]{1,2}")
#: A value that depends on what the script does not set.
UNKNOWN: Final = "\0"
_LONGEST_VALUE = 1_000
_COMPARISONS: Final = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flags:
    """``values``: name without dashes -> text, True for a flag alone. ``undecided``: in open branches."""

    values: Mapping[str, str | bool]
    undecided: Mapping[str, str | bool]


@dataclass(slots=True)
class _Script:
    """What is known at one place of a script. ``taken``: of each ``if`` around, whether its branch runs; None: open."""

    variables: dict[str, str] = field(default_factory=dict)
    values: dict[str, str | bool] = field(default_factory=dict)
    undecided: dict[str, str | bool] = field(default_factory=dict)
    taken: list[bool | None] = field(default_factory=list)
    passed: list[bool | None] = field(default_factory=list)

    @property
    def runs(self) -> bool | None:
        """Whether the present line runs."""
        return False if False in self.taken else None if None in self.taken else True


def flags_of(text: str) -> Flags:
    """All flags of a script or of a plain list of flags. Never raises."""
    script = _Script()
    for command in _commands(text):
        if not _control(script, command):
            _plain(script, command)
    return Flags(script.values, script.undecided)


def _commands(text: str) -> Iterator[list[str]]:
    command: list[str] = []
    for word in (*words_of(text), END):
        if word != END:
            command.append(word)
        elif command:
            yield command
            command = []


def _control(script: _Script, command: list[str]) -> bool:
    """Follows ``if``; returns whether the command was part of one."""
    word, rest = command[0], command[1:]
    if word == "if":
        script.taken.append(_holds(script, rest))
        script.passed.append(script.taken[-1])
    elif word == "elif" and script.taken:
        _next_branch(script, _holds(script, rest))
    elif word == "else" and script.taken:
        _next_branch(script, True)
        return _control(script, rest) if rest else True
    elif word == "fi" and script.taken:
        script.taken.pop()
        script.passed.pop()
    elif word in ("then", "do"):
        if rest and not _control(script, rest):
            _plain(script, rest)
    else:
        return False
    return True


def _next_branch(script: _Script, holds: bool | None) -> None:
    """A later branch runs when it holds and none before it did."""
    passed = script.passed[-1]
    script.taken[-1] = False if passed or holds is False else None if passed is None else holds
    script.passed[-1] = True if passed or holds else None if None in (passed, holds) else False


def _holds(script: _Script, words: list[str]) -> bool | None:
    """``[ A = B ]``, ``[[ A == B ]]``, ``[ A -gt B ]``; ``||`` and ``&&`` from left to right. None: unknown."""
    result: bool | None = None
    join, test = "", list[str]()
    for word in (*words, "&&"):
        if word not in ("&&", "||"):
            test.append(word)
            continue
        one = _test(script, [w for w in test if w not in ("[", "]", "[[", "]]")])
        result = one if not join else _joined(join, result, one)
        join, test = word, []
    return result


def _joined(join: str, left: bool | None, right: bool | None) -> bool | None:
    strong = join == "||"
    if strong in (left, right):
        return strong
    return None if None in (left, right) else not strong


def _test(script: _Script, words: list[str]) -> bool | None:
    if words[:1] == ["!"]:
        inner = _test(script, words[1:])
        return None if inner is None else not inner
    if len(words) != 3:
        return None
    left, operator, right = expand(words[0], script.variables), words[1], expand(words[2], script.variables)
    if UNKNOWN in left + right:
        return None
    if operator in ("=", "==", "!="):
        return (left == right) == (operator != "!=")
    numbers = [_integer(left), _integer(right)]
    return None if None in numbers or operator not in _COMPARISONS else _COMPARISONS[operator](*numbers)


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def _plain(script: _Script, command: list[str]) -> None:
    """Assignments are kept, flags are collected."""
    if script.runs is False or command[0] in ("echo", "printf"):
        return
    words: list[str] = []
    for word in command:
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            words += expand(word, script.variables).split()
            continue
        value = expand(found[4], script.variables)
        words += value.split() if "--" in value else []
        if "--" not in value and not found[2] and found[3] == "=" and script.runs:
            script.variables[found[1]] = value[:_LONGEST_VALUE]
        elif "--" in value and not found[2]:
            script.variables[found[1]] = ""  # its flags are read where it is set
    home = script.values if script.runs else script.undecided
    home.update(_flags(words))


def _flags(words: list[str]) -> Iterator[tuple[str, str | bool]]:
    name, values = "", list[str]()
    for word in (*words, "--end"):
        found = _FLAG.match(word)
        if found is None:
            values.append(word)
            continue
        if name:
            ends = (i for i, value in enumerate(values) if _PROGRAM.match(value) or _PLUMBING.fullmatch(value))
            yield name, " ".join(values[: next(ends, len(values))]) or True
        name, values = found[1], []
        if found[2] is not None:
            yield name, found[2] or True
            name = ""


def expand(word: str, variables: Mapping[str, str]) -> str:
    """A word without its quotes, with variables put in; UNKNOWN where one is not known."""
    out, index = list[str](), 0
    while index < len(word):
        character = word[index]
        if character == "'":
            end = _find(word, "'", index + 1)
            out.append(word[index + 1 : end])
            index = end + 1
        elif character == "\\" and index + 1 < len(word):
            out.append(" " if word[index + 1] == "\n" else word[index + 1])
            index += 2
        elif character == "$":
            text, index = _variable(word, index, variables)
            out.append(text)
        elif character == "`":
            out.append(UNKNOWN)
            index = _find(word, "`", index + 1) + 1
        else:
            out.append("" if character == '"' else character)
            index += 1
    return "".join(out)


def _find(text: str, character: str, start: int) -> int:
    end = text.find(character, start)
    return len(text) if end < 0 else end


def _variable(word: str, index: int, variables: Mapping[str, str]) -> tuple[str, int]:
    """What the ``$`` at ``index`` stands for, and where the word goes on."""
    if word.startswith("$((", index):
        end = word.find("))", index)
        end = len(word) if end < 0 else end
        return _arithmetic(word[index + 3 : end], variables), end + 2
    if word.startswith("$(", index):
        return UNKNOWN, _find(word, ")", index) + 1
    if word.startswith("${", index):
        end = _closing(word, index + 2)
        return _braced(word[index + 2 : end], variables), end + 1
    found = re.compile(r"[A-Za-z_]\w*|[\d@*#?]").match(word, index + 1)
    if found is None:
        return "$", index + 1
    return variables.get(found[0], UNKNOWN), found.end()


def _closing(word: str, index: int) -> int:
    depth = 1
    for place in range(index, len(word)):
        depth += (word[place] == "{") - (word[place] == "}")
        if depth == 0:
            return place
    return len(word)


def _braced(inside: str, variables: Mapping[str, str]) -> str:
    if inside.endswith(("[@]", "[*]")):
        return ""  # an array: its flags are read where it is set
    found = _BRACED.match(inside)
    if found is None:
        return UNKNOWN
    if found[1] in variables:
        return variables[found[1]]
    return UNKNOWN if found[2] is None or len(inside) > _LONGEST_VALUE else expand(found[3], variables)


def _arithmetic(inside: str, variables: Mapping[str, str]) -> str:
    """Whole numbers multiplied, divided, added and subtracted, without brackets."""
    put = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: variables.get(found[1], UNKNOWN), inside)
    if not re.fullmatch(r"\s*\d{1,9}(\s*[-+*/]\s*\d{1,9}){0,20}\s*", put):
        return UNKNOWN
    total, term, sign = 0, 0, 1
    for operator, digits in re.findall(r"([-+*/]|^)\s*(\d+)", put.strip()):
        number = int(digits)
        if operator == "*":
            term *= number
        elif operator == "/":
            if not number:
                return UNKNOWN
            term //= number
        else:
            total, term, sign = total + sign * term, number, -1 if operator == "-" else 1
    return str(total + sign * term)

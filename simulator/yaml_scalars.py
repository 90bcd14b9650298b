"""What an unquoted YAML scalar means here: text, whole number, number, true/false or nothing.

PyYAML follows YAML 1.1, most editors follow 1.2, and people follow neither: ``1e9`` is text to PyYAML,
``on`` is true, ``12:30:45`` is 45045 and ``010`` is 8. Every spelling that readers disagree about is
refused with the spelling to use instead; nothing is guessed.
"""

from __future__ import annotations

import math
import re

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LOOSE_BOOL = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?\Z")
_EXPONENT_WITHOUT_POINT = re.compile(r"([-+]?[0-9][0-9_]*)[eE]([-+]?[0-9]+)\Z")
_NOT_FINITE = re.compile(r"[-+]?\.?(?:inf|nan|infinity)\Z", re.IGNORECASE)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+\Z")
_OTHER_BASE = re.compile(r"[-+]?0(?:x[0-9a-fA-F_]+|o[0-7_]+|b[01_]+)\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?\Z")
_MAX_DIGITS = 30

Scalar = str | int | float | bool | None


def read_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises ValueError, saying what to write, where readers disagree."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text[0] not in "+-.0123456789":
        return _word(text)
    if len(text) > _MAX_DIGITS and _INT.match(text):
        raise ValueError(f"a whole number of {len(text)} digits is too large")
    if _INT.match(text):
        return int(text.replace("_", ""))
    if _FLOAT.match(text):
        return _finite(text)
    _refuse_ambiguous_number(text)
    return text


def _word(text: str) -> str:
    if text.lower() in _LOOSE_BOOL:
        meant = _LOOSE_BOOL[text.lower()]
        raise ValueError(f'not a clear value in YAML; write {meant}, or "{text}" in quotes if it is text')
    if _NOT_FINITE.match(text):
        raise ValueError("must be a finite number; put it in quotes if it is text")
    return text


def _finite(text: str) -> float:
    value = float(text.replace("_", ""))
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _refuse_ambiguous_number(text: str) -> None:
    exponent = _EXPONENT_WITHOUT_POINT.match(text)
    if exponent:
        raise ValueError(f"a number with an exponent needs a decimal point; write {_with_point(*exponent.groups())}")
    if _NOT_FINITE.match(text):
        raise ValueError("must be a finite number")
    if _SEXAGESIMAL.match(text):
        raise ValueError(f"YAML 1.1 reads this in base 60; write a time with a unit ('5 s') or quote it (\"{text}\")")
    if _LEADING_ZERO.match(text):
        raise ValueError("a leading zero means octal to some readers; write the number without it")
    if _OTHER_BASE.match(text):
        raise ValueError("write the number in decimal")
    if _DATE.match(text):
        raise ValueError(f'YAML reads this as a date; put it in quotes ("{text}")')


def _with_point(digits: str, exponent: str) -> str:
    sign = exponent if exponent[0] in "+-" else f"+{exponent}"
    spelled = f"{digits}.0e{sign}"
    power = int(exponent) if len(exponent) < 4 else 99
    return f"{spelled} or {int(digits.replace('_', '')) * 10**power}" if 0 <= power <= 18 else spelled

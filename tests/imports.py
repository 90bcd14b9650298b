"""Files under data/imports: of which kind each is, what is imported of one, and ways to damage one."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from simulator.importing.draft import Draft, Extras
from simulator.importing.kinds import checked_text, import_file

FOLDER = Path(__file__).resolve().parent / "data" / "imports"
#: By how the names of files begin and end.
_KINDS = (
    ("torchtitan", "", "torchtitan"),
    ("megatron", "", "megatron"),
    ("", ".yaml", "accelerate"),
    ("", ".json", "deepspeed"),
)
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".json", ".yaml", ".toml", ".sh"))
CONFIGS = sorted((FOLDER.parent / "hf_configs").rglob("*.json"))
#: What people and programs write in the place of a value.
VALUES = (
    "-1", "0", "1", "2", "3", "7", "1000000007", "1e9", "1e400", "-0.5", "nan", "null", "true", "false", '"auto"',
    '"x"', '""', "[]", "{}", "[1, 2]", '{"a": 1}', "no", "2024-01-01", "$X", "99999999999999999999999",
)  # fmt: skip


def kind_of(path: Path) -> str:
    """The kind that a file of FOLDER is imported as."""
    return next(kind for start, end, kind in _KINDS if path.name.startswith(start) and path.name.endswith(end))


_imported_once = cache(import_file)


def imported(kind: str, path: Path, **extras: Any) -> Draft:
    ours = path.parent == FOLDER  # these stay as they are, and many tests read the same ones
    return (_imported_once if ours else import_file)(kind, str(path), Extras(**extras))


def written(tmp_path: Path, draft: Draft) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(checked_text(draft, "the file"), encoding="utf-8")
    return path


def from_text(tmp_path: Path, kind: str, text: str, **extras: Any) -> Draft:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    return imported(kind, path, **extras)


def values(draft: Draft, *places: str) -> list[Any]:
    return [draft.value(place) for place in places]


def damaged(text: str, draw: random.Random) -> str:
    """The text with one line dropped, doubled or cut, a value replaced, or characters changed."""
    lines = text.splitlines()
    spot, how = draw.randrange(len(lines)), draw.randrange(7)
    line = lines[spot]
    if how == 0:
        del lines[spot]
    elif how == 1:
        lines.insert(spot, line)
    elif how == 2:
        lines[spot] = line[: draw.randrange(len(line) + 1)]
    elif how in (3, 4, 5):
        lines[spot] = _other_value(line, draw)
    else:
        place = draw.randrange(len(line) + 1)
        lines[spot] = line[:place] + draw.choice("{}[]\"':,#=\\$()\x00\x07é\ud800 -9") + line[place + 1 :]
    return "\n".join(lines)


def _other_value(line: str, draw: random.Random) -> str:
    """A value behind ``:``, ``=`` or a flag, another one."""
    for separator in (": ", " = ", "=", " "):
        head, found, tail = line.rstrip().rpartition(separator)
        if found and head.strip():
            comma = "," if tail.endswith(",") else ""
            return f"{head}{separator}{draw.choice(VALUES)}{comma}"
    return line + draw.choice(VALUES)

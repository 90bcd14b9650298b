"""Commands on a page of Markdown, and how to run them as its reader would.

A ``yaml`` block whose first line is ``# name.yaml`` is a file of the reader's folder, and the commands run there. A
``console`` block holds commands behind ``$ `` and what they print; ``...`` stands for lines left out; a trailing
backslash continues a command. Commands in ``sh`` blocks must work; what they print is not shown. What cannot run in a
test (a cluster, a package to install) stands in a ``text`` or ``bash`` block.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from command_line import ROOT, Result, simulator


@dataclass(frozen=True, slots=True)
class Page:
    """A page of Markdown."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def _blocks(self) -> list[tuple[str, str]]:
        """(language, text) of all blocks of code."""
        return re.findall(r"^```(\w+)\n(.*?)^```$", self.text, flags=re.MULTILINE | re.DOTALL)

    @property
    def files(self) -> dict[str, str]:
        """Files that the page shows: name -> text."""
        texts = [text for kind, text in self._blocks() if kind == "yaml" and re.match(r"# \S+\.ya?ml\n", text)]
        return {text.split("\n", 1)[0].removeprefix("# "): text for text in texts}

    @property
    def steps(self) -> list[tuple[str, str | None]]:
        """(command, output as printed, or None where it is not shown) of console and sh blocks, in their order."""
        found: list[tuple[str, str | None]] = []
        for language, text in self._blocks():
            if language == "console":
                found += [_command_and_output(part) for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
            if language == "sh":
                lines = text.replace("\\\n", " ").splitlines()
                found += [(line, None) for line in lines if line.startswith("simulator ")]
        return found

    @property
    def shown(self) -> list[tuple[str, str]]:
        """(command, output as printed) of all console blocks."""
        return [(command, output) for command, output in self.steps if output is not None]

    @property
    def commands(self) -> list[str]:
        """Commands of sh blocks that call the simulator."""
        return [command for command, output in self.steps if output is None]

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures, without anchors."""
        named = re.findall(r"\]\(([^)#\s]+)", self.text) + re.findall(r'(?:src|href)="([^"#]+)"', self.text)
        return [target for target in named if "://" not in target]

    def put_files(self, folder: Path) -> None:
        """The working folder of a reader who has saved the page's files and has the checkout's scenarios."""
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        for name in ("scenarios", "topologies", "tests"):
            (folder / name).symlink_to(ROOT / name)

    def checks(self, command: str, output: str) -> None:
        """Runs a command of a console block, in the current folder, and compares what it prints.

        With UPDATE_GOLDENS set, an output that differs is written anew; where lines are left out, numbers in those that
        are shown.
        """
        result = call(command)
        assert result.code in (0, 1), result.err
        if os.environ.get("UPDATE_GOLDENS") and not matches(output, result.out + result.err):
            whole = "..." not in output.split()
            old, output = output, stripped(result.out) if whole else renewed(output, result.out + result.err)
            text = self.text.replace(f"$ {command}\n{old}", f"$ {command}\n{output}")
            self.path.write_text(text, encoding="utf-8")
        assert matches(output, result.out + result.err), result.out + result.err


def _command_and_output(part: str) -> tuple[str, str]:
    """What stands behind one ``$ ``; a trailing backslash continues the command."""
    lines = part.splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if not line.endswith("\\\n"))
    return "".join(lines[: last + 1]).rstrip("\n"), "".join(lines[last + 1 :])


def call(command: str) -> Result:
    """Runs the command; what a shell would write to a file behind ``>`` is not looked at."""
    program, *arguments = shlex.split(command.replace("\\\n", " ").partition(" > ")[0], comments=True)
    assert program == "simulator", f"only the simulator runs in a console block; put this into a text block: {command}"
    return simulator(*arguments)


def stripped(printed: str) -> str:
    """Without the blanks that fill the last column of a table."""
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def renewed(output: str, printed: str) -> str:
    """The lines of ``output`` with the numbers that ``printed`` has in the same words; as it is where one lacks."""
    left, found = iter(stripped(printed).splitlines()), []
    for line in output.splitlines():
        same = line if line.strip() == "..." else next((new for new in left if _words(new) == _words(line)), None)
        if same is None:
            return output
        found.append(same)
    return "".join(f"{line}\n" for line in found)


def _words(line: str) -> list[str]:
    """What stays of a line when its numbers change."""
    return re.sub(r"[-+]?\d[\d.,]*|[█*]", "#", line).replace("#", " ").split()


def matches(output: str, printed: str) -> bool:
    """Whether ``output`` is ``printed`` with runs of lines replaced by ``...``; blanks at line ends do not count."""
    wanted = output.strip("\n").splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in wanted)
    return re.fullmatch(pattern, stripped(printed)) is not None

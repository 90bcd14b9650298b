"""The command line: finds the command, runs it, turns errors into one message and an exit code.

Exit codes: 0 fine, 1 the answer is "infeasible", 2 bad input, 3 internal error. Commands are imported when they
are called, so that ``--help`` stays fast.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from difflib import get_close_matches
from typing import NoReturn

import click

from simulator import __version__
from simulator.errors import ScenarioError, SimulatorError

#: name -> one line for ``--help``. The command itself is ``simulator.commands.<name>.<name>``.
COMMANDS: dict[str, str] = {
    "run": "Simulate a scenario: how long a step takes and why, what is exposed, whether it fits.",
    "collective": "Time one collective over ranks and sizes, as nccl-tests would print it.",
    "sweep": "Run a scenario for every combination of some settings.",
    "topology": "Describe a cluster's network in numbers and as a picture.",
    "demo": "Show the main job on a shipped scenario; needs no file.",
    "schema": "Print the JSON Schema of the YAML files, for editors.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported only when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"simulator.commands.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:  # fmt: skip
        if args and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'; commands are {', '.join(COMMANDS)}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="simulator")
def simulator() -> None:
    """Simulate distributed training steps on GPU and TPU clusters before renting them."""


def _exit_code(error: SimulatorError) -> int:
    """Bad input is the user's to mend; anything else that we name is a fault of ours."""
    return 2 if isinstance(error, ScenarioError) else 3


def _usage(error: click.ClickException) -> str:
    """One line: what is wrong, and where the help is."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "simulator"
    return f"{error.format_message().replace(chr(10), ' ')} (see '{command} --help')"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``simulator`` command and of ``python -m simulator``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets the rest
    try:
        code = simulator.main(args=arguments, prog_name="simulator", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:
        # click silences stdout and ends with 1 when the reader of a pipe leaves; here 1 would say "infeasible".
        if not type(sys.stdout).__module__.startswith("click"):
            raise
        sys.exit(0)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        _fail(_usage(error), 2)
    except SimulatorError as error:
        _fail(str(error), _exit_code(error))
    except OSError as error:
        _output_failed(error)
    except Exception as error:
        _bug(error)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    for line in message.splitlines():
        click.echo(f"error: {line}", err=True)
    sys.exit(code)


def _output_failed(error: OSError) -> NoReturn:
    """A reader that has left wants silence; a full disk is worth a word. Nothing more may be flushed to either."""
    if error.errno not in {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO}:
        _bug(error)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it takes stdout's place until the process ends
    if error.errno == errno.EPIPE:
        sys.exit(0)
    _fail(f"cannot write the output: {error.strerror}", 2)


def _bug(error: Exception) -> NoReturn:
    if os.environ.get("SIMULATOR_DEBUG"):
        raise error
    click.echo(
        f"internal error: {type(error).__name__}: {error}\nThis is a bug in the simulator; run again with "
        "SIMULATOR_DEBUG=1 for the traceback and please report it.",
        err=True,
    )
    sys.exit(3)

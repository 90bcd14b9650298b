"""The command line: finds the command, runs it, turns errors into one message and an exit code.

Exit codes: 0 fine, 1 the answer is "infeasible", 2 bad input, 3 internal error.

Here is what each command accepts, which needs nothing but click; ``simulator.commands`` has what it does and is
imported when a command is called, so that help, usage errors and the shell's completion stay fast.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from difflib import get_close_matches
from typing import NoReturn

import click

from simulator import __version__
from simulator.cli import (
    calibrate,
    check,
    collective,
    compare,
    demo,
    explain,
    import_,
    lab,
    pipeline,
    run,
    schema,
    sweep,
    topology,
    tornado,
    validate,
)
from simulator.errors import ScenarioError, SimulatorError

#: name -> what it accepts, in the order of ``--help``. What it does is ``simulator.commands.<name>.<name>``.
COMMANDS: dict[str, click.Command] = {
    "run": run.run,
    "check": check.check,
    "compare": compare.compare,
    "collective": collective.collective,
    "pipeline": pipeline.pipeline,
    "sweep": sweep.sweep,
    "tornado": tornado.tornado,
    "topology": topology.topology,
    "validate": validate.validate,
    "import": import_.import_,
    "calibrate": calibrate.calibrate,
    "lab": lab.lab,
    "demo": demo.demo,
    "schema": schema.schema,
    "explain": explain.explain,
}


class OrderedGroup(click.Group):
    """A group that lists its commands in the order given, and names the nearest to a misspelt one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:  # fmt: skip
        if args and args[0] not in self.commands:
            near = get_close_matches(args[0], self.commands, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'; commands are {', '.join(self.commands)}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=OrderedGroup,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="simulator")
def simulator() -> None:
    """Simulate distributed training steps on GPU and TPU clusters before renting them."""


#: What a shell reports of a program whose reader left the pipe (128 + SIGPIPE): neither "fine" nor "infeasible".
READER_LEFT = 141


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
    if sys.stdout is None:  # closed by the caller: there is nobody to tell
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it takes stdout's place until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets the rest
    try:
        code = simulator.main(args=arguments, prog_name="simulator", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:
        # click silences stdout and ends with 1 when the reader of a pipe leaves; here 1 would say "infeasible".
        if not type(sys.stdout).__module__.startswith("click"):
            raise
        sys.exit(READER_LEFT)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as help_asked:
        click.echo(help_asked.format_message())
        sys.exit(0)
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
        sys.exit(READER_LEFT)
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

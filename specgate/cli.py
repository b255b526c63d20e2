"""The command line: parse it, call the command, and end with an exit code.

The modules of the commands import nothing heavy. A command imports what it needs when it runs, so --help stays fast.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Final

import click

from specgate import __version__
from specgate.commands.ab import ab
from specgate.commands.demo import demo
from specgate.commands.diagnose import diagnose
from specgate.commands.door import Group
from specgate.commands.engine import engine
from specgate.commands.machine import machine
from specgate.commands.policy import policy
from specgate.commands.run import full, load, micro
from specgate.commands.runs import runs
from specgate.commands.scenarios import scenarios
from specgate.commands.smoke import smoke
from specgate.errors import ExitCode, SpecgateError
from specgate.terminal import echo

HEADINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "Measure": ("demo", "smoke", "micro", "full", "load", "ab"),
    "Stored runs": ("runs",),
    "Diagnose": ("diagnose",),
    "Set up": ("machine", "scenarios", "policy"),
    "Engine": ("engine",),
}


class CommandLine(Group):
    """The first page: commands under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands alone: each has its options."""
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below their headings."""
        width = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="specgate")
def cli() -> None:
    """Measure speculative decoding, and judge it.

    \b
    Example: specgate demo

    Exit codes: 0 pass, 1 fail, 2 usage, 3 inconclusive; all: docs/reference.md
    """


for _command in (demo, smoke, micro, full, load, ab, runs, diagnose, machine, scenarios, policy, engine):
    cli.add_command(_command)


def main() -> None:
    """Run the command line, and turn every way in which it can end into one of the `ExitCode`s."""
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    debug = len(arguments) < len(sys.argv[1:])
    for name in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) is not signal.SIG_IGN:  # ignored on purpose, as under nohup
            signal.signal(name, signal.default_int_handler)  # a cancelled job saves its blocks, as after Ctrl-C
    try:
        # `cli.main` is not used: it ends with 1, our code for FAIL, if the reader of a pipe has gone.
        with cli.make_context("specgate", arguments) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except SpecgateError as error:
        _fail(str(error), error.exit_code, debug)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("interrupted", ExitCode.INTERRUPTED, debug)
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        echo(message.getvalue(), err=True, nl=False)
        sys.exit(ExitCode.USAGE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter's last flush fails too
        sys.exit(ExitCode.BROKEN_PIPE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _fail(f"{str(error.filename)[:80]}…: {error.strerror}", ExitCode.USAGE, debug)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as where a pipe's reader has gone
            where = error.filename or "standard output"
            _fail(f"{where}: cannot be written: {error.strerror}", ExitCode.ENV_REJECTED, debug)
        hint = "" if debug else "\n  run again with --debug for the traceback"
        _fail(f"internal error: {type(error).__name__}: {error}{hint}", ExitCode.INTERNAL, debug)


def _fail(message: str, code: ExitCode, debug: bool) -> None:
    if debug:
        echo(traceback.format_exc(), err=True, nl=False)
    echo(f"error: {message}", err=True)
    sys.exit(code)

"""The first page of the command line: what is shown under which heading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from specgate.commands.door import Group

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

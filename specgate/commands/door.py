"""Groups of commands that plug-ins can join: entry points of the group `specgate.commands`.

An entry point called `NAME` is a command of `specgate engine`, one called `GROUP.NAME` a command of that group. Each
names a click command. It is imported only when it is run or its help is shown.
"""

from __future__ import annotations

from typing import Any

import click

from specgate import plugins
from specgate.errors import UsageError


class OpenGroup(click.Group):
    """A group that lists its own commands and those of plug-ins. Its own win where names are equal.

    `above`: the beginning of the names of entry points that join it, such as `pairs.`; empty for `engine`.
    """

    def __init__(self, *arguments: Any, above: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.above = above

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in alphabetical order."""
        return sorted({*super().list_commands(ctx), *plugins.command_names(self.above)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name; None where there is none."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        if cmd_name not in plugins.command_names(self.above):
            return None
        try:
            return plugins.command(self.above + cmd_name)
        except UsageError as error:
            return out_of_order(cmd_name, error)


def out_of_order(name: str, error: UsageError) -> click.Command:
    """Return a command that stands for one that cannot be loaded: help still works, and running it says why."""

    def refuse() -> None:
        raise error

    return click.Command(name, callback=refuse, help=error.message, short_help="(cannot be loaded)")

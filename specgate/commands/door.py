"""Commands with a short help page, and groups that commands of plug-ins can join: entry points of the group
`specgate.commands`.

An entry point called `NAME` is a command of `specgate engine`, one called `GROUP.NAME` a command of that group. Each
names a click command. It is imported only when it is run or its help is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import click

from specgate import plugins
from specgate.errors import UsageError
from specgate.terminal import echo

LINES: Final = 30
"""Lines of a help page."""
WIDTH: Final = 80
EXAMPLE: Final = "Example:"


class Command(click.Command):
    """A command whose --help is short: what it does, an example, and a line for each option as far as there is room.
    --help-all has the rest.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        all_of_it = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=show_all
        )
        self.params.append(all_of_it)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the short page."""
        self.format_usage(ctx, formatter)
        paragraphs = [" ".join(part.split()) for part in (self.help or "").replace("\b", "").split("\n\n")]
        example = next((part for part in paragraphs if part.startswith(EXAMPLE)), None)
        formatter.width = min(formatter.width, WIDTH)
        for text in (paragraphs[0], example):
            if text:
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write(f"  {text}\n") if text == example else formatter.write_text(text)
        rows = [row for param in self.params if (row := param.get_help_record(ctx)) and row[1]]
        room = LINES - formatter.getvalue().count("\n") - 3
        more = f"  {len(rows) - room + 1} more: {ctx.command_path} --help-all\n"
        formatter.write("\nOptions:\n")
        fitting = rows if len(rows) <= room else rows[: room - 1]
        for line in option_lines(fitting):
            formatter.write(f"{line}\n")
        if len(rows) > room or len(paragraphs) > 2:
            formatter.write(more if len(rows) > room else f"  more: {ctx.command_path} --help-all\n")


command = partial(click.command, cls=Command)
"""A decorator as `click.command`, of a `Command`."""


def show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the whole help page, and end."""
    if value and not ctx.resilient_parsing:
        formatter = ctx.make_formatter()
        click.Command.format_help(ctx.command, ctx, formatter)
        echo(formatter.getvalue().rstrip("\n"))
        ctx.exit()


def option_lines(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield one line for each option. Long ones lose what no longer fits at the end."""
    left = min(max((len(usage) for usage, _ in rows), default=0), 26)
    for usage, text in rows:
        text, _, limits = text.rstrip("]").partition("  [")
        usual = next((f" ({part})" for part in limits.split("; ") if part.startswith("default: ")), "")
        line = f"  {usage:<{left}}  {text.removesuffix('.')}{usual}"
        yield line if len(line) <= WIDTH else f"{line[: WIDTH - 1].rsplit(' ', 1)[0]} …"


class Group(click.Group):
    """A group of such commands. A word that names none of them is told which there are."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, and say where a command of that name is, or which there are."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            elsewhere = " or ".join(paths_of(args[0], ctx.find_root()))
            there = f"did you mean {elsewhere}?" if elsewhere else f"there are {', '.join(self.list_commands(ctx))}"
            ctx.fail(f"No such command '{args[0]}': {there}")
        return super().resolve_command(ctx, args)


def paths_of(name: str, root: click.Context) -> Iterator[str]:
    """Yield the commands `name` of the groups on the first page, each as it is typed."""
    assert isinstance(root.command, click.Group)
    for word in root.command.list_commands(root):
        group = root.command.get_command(root, word)
        if isinstance(group, click.Group) and name in group.list_commands(root):
            yield f"{root.command_path} {word} {name}"


class OpenGroup(Group):
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

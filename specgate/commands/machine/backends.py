"""`specgate machine backends`: list the engines that can be measured, and check that they keep the protocol."""

from __future__ import annotations

import click

from specgate.commands.door import Group
from specgate.errors import UsageError
from specgate.terminal import echo


@click.group(cls=Group, short_help="List the engines, and whether they run here.", invoke_without_command=True)
@click.pass_context
def backends(context: click.Context) -> None:
    """List the engines that can be measured, and whether they run here.

    \b
    Example: specgate machine backends
    """
    if context.invoked_subcommand is None:
        show()


@backends.command("list", short_help="List the engines; --validate checks each.")
@click.option(
    "--validate", is_flag=True, help="Load each back end and check that it keeps the protocol; exit 2 if one does not."
)
def list_backends(validate: bool) -> None:
    """List the engines that can be measured, and whether they run here.

    \b
    Example: specgate machine backends list --validate
    """
    if not validate:
        show()
        return
    from specgate import plugins

    broken = []
    for name, entry in plugins.registered("specgate.backends").items():
        problems = plugins.problems_of_backend(name)
        echo(f"{name:17} {'; '.join(problems) or 'fine'} ({entry.value})")
        broken += [name] if problems else []
    if broken:
        raise UsageError(f"{len(broken)} back ends do not keep the protocol: {', '.join(broken)}")


def show() -> None:
    from specgate import plugins

    for name, (backend, availability) in plugins.backends_available().items():
        state = "usable" if availability.usable else f"not usable: {availability.reason}"
        echo(f"{name:17} {state:10} {backend.description}")

"""`specgate machine backends`: list the engines that can be measured, and check that they keep the protocol."""

from __future__ import annotations

import click

from specgate.commands.door import command
from specgate.errors import UsageError
from specgate.terminal import echo


@command(short_help="List the engines, and whether they run here; --validate checks each.")
@click.option(
    "--validate", is_flag=True, help="Load each back end and check that it keeps the protocol; exit 2 if one does not."
)
def backends(validate: bool) -> None:
    """List the engines that can be measured, and whether they run here.

    \b
    Example: specgate machine backends --validate
    """
    from specgate import plugins

    if not validate:
        for name, (backend, availability) in plugins.backends_available().items():
            state = "usable" if availability.usable else f"not usable: {availability.reason}"
            echo(f"{name:17} {state:10} {backend.description}")
        return
    broken = []
    for name, entry in plugins.registered("specgate.backends").items():
        problems = plugins.problems_of_backend(name)
        echo(f"{name:17} {'; '.join(problems) or 'fine'} ({entry.value})")
        broken += [name] if problems else []
    if broken:
        raise UsageError(f"{len(broken)} back ends do not keep the protocol: {', '.join(broken)}")

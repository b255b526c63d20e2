"""`specgate engine train` and `specgate diagnose acceptance`: train a draft, and measure its acceptance."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.door import command
from specgate.commands.numbers import BATCHES, CONTEXT, SEEDS, Real, above_zero, count
from specgate.contract.types import FACTOR, POSITIONS
from specgate.terminal import echo

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
CORPUS_HELP = (
    "Texts: python (the standard library), a pinned or installed package, or a folder. NAME=SHARE gives it a weight."
)


@command("train", short_help="Train an EAGLE-3 draft of a target.")
@click.option("--target", type=FOLDER, required=True, help="Hugging Face folder of the target.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the draft.")
@click.option("--corpus", "corpora", multiple=True, default=("python",), show_default=True, help=CORPUS_HELP)
@click.option("--from", "start", type=FOLDER, help="Continue training this draft, with its sizes and vocabulary.")
@click.option("--steps", type=count(most=1 << 30), help="Optimiser steps.")
@click.option("--minutes", type=above_zero(1e6), help="Train as many steps as fit in this time.")
@click.option(
    "--draft-vocab",
    type=CONTEXT,
    default=10_240,
    show_default=True,
    help="Tokens of the draft's vocabulary.",
)
@click.option(
    "--window",
    type=count(0, POSITIONS),
    default=512,
    show_default=True,
    help="Attention window of the draft; 0: full attention.",
)
@click.option("--intermediate", type=CONTEXT, default=2_048, show_default=True, help="Width of the MLP.")
@click.option("--long/--short", default=False, help="Also train on 8K tokens, and on 16K with YaRN 4.")
@click.option(
    "--label-temperature",
    type=above_zero(1e6),
    default=1.0,
    show_default=True,
    help="Labels are softmax(target's logits / this).",
)
@click.option(
    "--matrix-rate",
    type=above_zero(1e6),
    default=8e-3,
    show_default=True,
    help="Peak learning rate of Muon, for matrices.",
)
@click.option(
    "--other-rate",
    type=above_zero(1e6),
    default=2e-3,
    show_default=True,
    help="Peak learning rate of AdamW, for head and norms.",
)
@click.option("--seed", type=SEEDS, default=0, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
def train_draft(
    target: Path,
    out: Path,
    corpora: tuple[str, ...],
    start: Path | None,
    steps: int | None,
    minutes: float | None,
    draft_vocab: int,
    window: int,
    intermediate: int,
    long: bool,
    label_temperature: float,
    matrix_rate: float,
    other_rate: float,
    seed: int,
    device: str,
) -> None:
    """Train an EAGLE-3 draft of a target on the `train` share of the corpora. More than a trial needs a GPU.

    \b
    Example: specgate engine train --target TARGET --out DRAFT --minutes 60

    Files that scenarios measure on are never trained on: which share a file belongs to depends on its package and path
    alone.
    """
    from specgate.backends.eagle3.pair_tools.train.command import train_draft as run
    from specgate.backends.eagle3.pair_tools.train.data import parse_corpus
    from specgate.backends.eagle3.pair_tools.train.recipe import LONG, SHORT, Recipe
    from specgate.backends.eagle3.reference.open import pick_device

    recipe = Recipe(
        draft_vocab=draft_vocab,
        window=window or None,
        intermediate=intermediate,
        steps=steps,
        minutes=minutes,
        strands=SHORT + LONG if long else SHORT,
        label_temperature=label_temperature,
        matrix_rate=matrix_rate,
        other_rate=other_rate,
        seed=seed,
    )
    run(target, out, [parse_corpus(c) for c in corpora], recipe, pick_device(device), echo, start)
    echo(f"draft: {out}")


@command("acceptance", short_help="Measure the acceptance lengths of a pair, without timing.")
@click.option("--target", type=FOLDER, required=True, help="Hugging Face folder of the target.")
@click.option("--draft", type=FOLDER, required=True, help="Hugging Face folder of its EAGLE-3 draft.")
@click.option("--corpus", "corpora", multiple=True, default=("python",), show_default=True, help=CORPUS_HELP)
@click.option("--context", "contexts", type=count(2, POSITIONS), multiple=True, default=(1024,), show_default=True)
@click.option("--prompts", type=BATCHES, default=16, show_default=True, help="Most prompts per context.")
@click.option("--new-tokens", type=count(9), default=160, show_default=True)
@click.option("--yarn", type=Real(1, FACTOR, min_open=True), help="Stretch the target's RoPE by this factor.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
def acceptance(
    target: Path,
    draft: Path,
    corpora: tuple[str, ...],
    contexts: tuple[int, ...],
    prompts: int,
    new_tokens: int,
    yarn: float | None,
    device: str,
) -> None:
    """Measure the acceptance lengths of spec-1 to spec-5 for one pair, on the `measure` share of the corpora.

    \b
    Example: specgate diagnose acceptance --target TARGET --draft DRAFT

    Nothing is timed.
    """
    from specgate.backends.eagle3.pair_tools.train.data import parse_corpus
    from specgate.backends.eagle3.pair_tools.train.evaluate import acceptance_table
    from specgate.backends.eagle3.reference.open import pick_device

    chosen = [parse_corpus(c) for c in corpora]
    for row in acceptance_table(target, draft, chosen, contexts, prompts, new_tokens, yarn, pick_device(device)):
        echo(str(row))

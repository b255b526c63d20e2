"""The command line of `python -m bench.stress`; see the package."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from bench.stress.episodes import Sizes
from bench.stress.handles.open import open_handle
from bench.stress.rounds import Stressed, as_data, stress
from bench.stress.tiny_pair import TINY, write_tiny_pair
from specgate.errors import ExitCode, SpecgateError, UsageError
from specgate.files.writing import write_text
from specgate.pairs.resolve import resolve_pair


@click.command()
@click.option("--backend", default="cupy", show_default=True, help="cupy or reference.")
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True, help="A pair by name, or tiny.")
@click.option("--target", type=click.Path(path_type=Path), help="A target's folder, with --draft.")
@click.option("--draft", type=click.Path(path_type=Path), help="A draft's folder.")
@click.option("--slots", type=click.IntRange(1, 64), default=4, show_default=True, help="Requests at a time.")
@click.option(
    "--positions", type=click.IntRange(1), default=66_048, show_default=True, help="Cached positions of each."
)
@click.option(
    "--context", default="32773,65536", show_default=True, help="Prompt lengths that are asked by themselves."
)
@click.option("--spec", default="2,3,4,5", show_default=True, help="Draft lengths.")
@click.option("--new-tokens", type=click.IntRange(8), default=128, show_default=True, help="Tokens of a request.")
@click.option("--singles", type=click.IntRange(1), default=6, show_default=True, help="Prompts one after the other.")
@click.option("--cycles", type=click.IntRange(1), default=10_000, show_default=True, help="Speculative steps at least.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("-o", "options", multiple=True, metavar="NAME=VALUE", help="An option of the back end.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for stress.json.")
def main(
    backend: str,
    pair: str,
    target: Path | None,
    draft: Path | None,
    slots: int,
    positions: int,
    context: str,
    spec: str,
    new_tokens: int,
    singles: int,
    cycles: int,
    seed: int,
    options: tuple[str, ...],
    out: Path,
) -> None:
    """Stress an engine. Exit code 0 if all was right, 1 if anything was wrong, 2 for what cannot be meant."""
    try:
        sizes = Sizes(slots, positions, numbers("--spec", spec), numbers("--context", context), new_tokens, singles)
        sizes.check()
        if pair == TINY and target is None and draft is None:
            found_pair = write_tiny_pair(out / "pair")
        else:
            found_pair = resolve_pair(None if target or draft else pair, target, draft)
        handle = open_handle(backend, found_pair, sizes, pairs_in(options))
        facts = handle.engine.facts()
        about = {"engine": asdict(facts), "pair": found_pair.name, "sizes": asdict(sizes), "seed": seed}
        outcome = stress(handle, sizes, cycles, seed, click.echo)
        write_text(out / "stress.json", json.dumps(as_data(outcome, about), indent=1, default=str) + "\n")
    except SpecgateError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo("\n".join(ending(outcome)))
    sys.exit(ExitCode.PASS if outcome.passed else ExitCode.FAIL)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """`2,3` as numbers. Raises UsageError for anything else, and for numbers below 1."""
    values = tuple(int(part) if part.strip().isdigit() else 0 for part in text.split(","))
    if min(values) < 1:
        raise UsageError(f"{option} {text!r}: not whole numbers above 0", hint="separate them by commas: 2,3")
    return tuple(dict.fromkeys(values))


def pairs_in(options: tuple[str, ...]) -> dict[str, str]:
    """Raises UsageError for an option without a value."""
    for option in options:
        if "=" not in option:
            raise UsageError(f"-o {option}: no value", hint="-o NAME=VALUE")
    return dict(option.split("=", 1) for option in options)


def ending(outcome: Stressed) -> list[str]:
    """Return the last lines of the output."""
    faults = [
        f"  {name}: met {len(at)} times, after {', '.join(map(str, at))} steps" for name, at in outcome.faults.items()
    ]
    return [
        f"{outcome.cycles:,} cycles in {outcome.rounds} rounds, {outcome.tokens:,} tokens held to plain decoding, "
        f"{outcome.accepted:,} of {outcome.drafts:,} drafts accepted",
        *faults,
        *(f"WRONG: {sentence}" for sentence in outcome.wrong),
        "PASS: all as it must be" if outcome.passed else f"FAIL: {len(outcome.wrong)} wrong",
    ]


if __name__ == "__main__":
    main()

"""`diagnose configs A B`: two engines' speculative configs side by side, each difference with its consequence."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.checkpoints.spec_config.alignment import Alignment, Difference

WIDTH = 80
BREAKS = {
    "acceptance": "acceptance and speed cannot be compared",
    "speed": "speed cannot be compared",
    "nothing": "no matter at temperature 0",
}


@command(short_help="Compare two engines' speculative configs.", context_settings={"ignore_unknown_options": True})
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def configs(first: str, second: str, as_json: bool) -> None:
    """Lay the speculative configs A and B side by side, and say what follows from every difference.

    \b
    Example: specgate diagnose configs vllm:FILE sglang:FILE

    A config is one of

    \b
      a draft folder of TurboMind (config.yaml)
      a file: JSON, YAML, or the command line of a server
      JSON such as '{"method": "eagle3", "num_speculative_tokens": 3}'
      flags such as '--speculative-num-steps 3 --speculative-eagle-topk 1'

    of vLLM, SGLang, TensorRT-LLM, LMDeploy, TurboMind, llama.cpp or specgate. Whose it is, its keys tell; ENGINE:
    before it settles it, as in lmdeploy:FILE.

    What is not in what was read is "not known", as are keys about speculation that are in no table, and other flags in
    which two sides of one engine differ. Drafts and targets are compared by content where both folders are here,
    otherwise by name.

    Exit code 0 if the figures of the two can be compared, 1 if they cannot, 2 if one cannot be read, 8 if nothing
    differs but something that matters is not known.
    """
    from specgate.checkpoints.spec_config.alignment import align
    from specgate.checkpoints.spec_config.sources import read_source

    alignment = align(read_source(first), read_source(second))
    if as_json:
        echo_json(as_data(alignment))
    else:
        echo("\n".join(lines(alignment)))
    sys.exit(alignment.exit_code)


def as_data(alignment: Alignment) -> dict[str, object]:
    """The alignment as stored: schema `specgate.alignment/v1`."""
    from dataclasses import asdict

    def side(name: str) -> dict[str, object]:
        config = getattr(alignment, name)
        return {
            "engine": config.engine,
            "where": config.where,
            "boundaries": config.boundaries,
            "terms": {term: asdict(term_config) for term, term_config in config.terms.items()},
        }

    return {
        "schema": "specgate.alignment/v1",
        "aligned": alignment.aligned,
        "a": side("first"),
        "b": side("second"),
        "differences": [asdict(difference) for difference in alignment.differences],
        "undecided": list(alignment.undecided),
        "one_sided": list(alignment.one_sided),
        "same": dict(alignment.same),
        "broken": list(alignment.broken),
        "notes": list(alignment.notes),
    }


def names(alignment: Alignment) -> tuple[str, str]:
    from specgate.checkpoints.spec_config.alignment import labels

    return labels(alignment.first, alignment.second)


def several(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def verdict(alignment: Alignment) -> str:
    agree = several(alignment.same, "term")
    worst = [d for d in alignment.differences if d.breaks != "nothing"]
    if alignment.broken:
        return f"NOT aligned: {several(alignment.broken, 'broken rule')}, {several(worst, 'difference')} that matter"
    if worst:
        return f"NOT aligned: {len(worst)} of {len(alignment.differences)} differences matter"
    if alignment.undecided:
        return f"not known: {several(alignment.undecided, 'thing')} that matter; {agree} agree"
    return f"aligned: {agree} agree" + (
        f", {len(alignment.differences)} differ without consequence at temperature 0" if alignment.differences else ""
    )


def by_weight(alignment: Alignment) -> list[Difference]:
    """The differences, those that matter most first."""
    order = list(BREAKS)
    return sorted(alignment.differences, key=lambda d: order.index(d.breaks))


def lines(alignment: Alignment) -> Iterator[str]:
    """The alignment for a terminal."""
    a, b = names(alignment)
    yield f"A  {a}: {alignment.first.where}"
    yield f"B  {b}: {alignment.second.where}"
    yield verdict(alignment)
    for d in by_weight(alignment):
        yield ""
        yield f"{d.title}: {a} {d.values[0]} | {b} {d.values[1]}"
        text = d.consequence + (f" ({BREAKS[d.breaks]})" if d.breaks == "speed" else "")
        yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    for heading, texts in sections(alignment):
        yield ""
        yield heading
        for text in texts:
            yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def sections(alignment: Alignment) -> Iterator[tuple[str, list[str]]]:
    """(heading, sentences) of what is not a difference, where there is any."""
    for heading, texts in (
        ("rules broken", list(alignment.broken)),
        ("not known, and may matter", list(alignment.undecided)),
        ("said by one alone", list(alignment.one_sided)),
        ("notes", list(alignment.notes)),
        ("the same", list(same(alignment))),
    ):
        if texts:
            yield heading, texts


def same(alignment: Alignment) -> Iterator[str]:
    """A sentence for each term that both state alike, and one for all that neither states."""
    unstated = [(title, value) for title, value in alignment.same if value.endswith((" (default)", " (always)"))]
    yield from (f"{title}: {value}" for title, value in alignment.same if (title, value) not in unstated)
    if unstated:
        yield f"not stated: {'; '.join(f'{title}: {value}' for title, value in unstated)}"

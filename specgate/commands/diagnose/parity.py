"""`specgate diagnose parity A B`: at which stage does an engine's EAGLE-3 first depart from another's?"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specgate.commands.door import command
from specgate.commands.numbers import Real, count
from specgate.commands.options import take
from specgate.errors import ExitCode, UsageError
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.analysis.parity.comparison import Parity

WIDTH = 80


@command(short_help="At which stage does an engine's EAGLE-3 depart from another's?")
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", required=False)
@take("--pair", "--target", "--draft", "--option", "--dtype", "--prompt", "--prompt-ids", "--prompts", "--length")
@click.option(
    "--rows", default=64, show_default=True, type=count(1, 4096), help="Last positions whose tensors are compared."
)
@click.option(
    "--tolerance", default=1.0, show_default=True, type=Real(1e-3, 1e3), help="Factor on every stage's tolerance."
)
@click.option(
    "--dump", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write A's tensors to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, with every distance.")
def parity(first: str, second: str | None, dump: Path | None, as_json: bool, **wish: Any) -> None:
    """Hold two engines against each other, stage by stage, for one prompt: target, draft, and a step of the draft.

    \b
    Example: specgate diagnose parity reference reference,draft=DIR

    A and B are each one of

    \b
      an engine that shows its stages: reference, transformers, cupy
      with what differs for it: reference,dtype=bfloat16  reference,draft=DIR
      a safetensors file with another engine's tensors (names: docs/engine.md)

    The prompt is that of the file, where one side is a file. With --dump alone, B may be left out.

    Exit code 0 if every stage agrees to within rounding, 1 if one departs, 2 if a side cannot be read or is of another
    prompt or model, 6 if the sides have no stage in common, 7 if an engine failed.
    """
    from specgate.analysis.parity.comparison import compare
    from specgate.checkpoints.stages.file import write_dump
    from specgate.run.diagnose.parity import Wish, dumps_of, read_side
    from specgate.run.smoke.prompt import PromptWish

    if second is None and dump is None:
        raise UsageError("parity needs two sides", hint="name B too, or give --dump FILE to write A's tensors")
    prompt = PromptWish(*(wish.pop(key) for key in ("text", "ids", "context", "prompts")))
    if sum(part is not None for part in (prompt.text, prompt.ids, prompt.context, prompt.prompts)) > 1:
        raise UsageError("--prompt, --prompt-ids, --prompts and --context together", hint="give one of them")
    factor = wish.pop("tolerance")
    settings = Wish(prompt=prompt, **wish)
    sides = [read_side(text) for text in (first, second) if text is not None]
    dumps = dumps_of(sides, settings, lambda text: echo(f"warning: {text}", err=True))
    if dump is not None:
        write_dump(dump, dumps[0])
        echo(f"wrote {dump}: {len(dumps[0].prompt_ids)} prompt tokens, {', '.join(dumps[0].parts)}", err=True)
    if second is None:
        return
    comparison = compare(dumps[0], dumps[1], factor)
    if as_json:
        echo_json(as_data(comparison))
    else:
        echo("\n".join(lines(comparison)))
    sys.exit(ExitCode.PASS if comparison.agrees else ExitCode.FAIL)


def as_data(comparison: Parity) -> dict[str, object]:
    """The comparison as stored: schema `specgate.parity/v1`."""
    from dataclasses import asdict

    from specgate.analysis.parity.causes import usual_causes

    first = comparison.first
    return {
        "schema": "specgate.parity/v1",
        "agrees": comparison.agrees,
        "a": comparison.a,
        "b": comparison.b,
        "dtype": comparison.dtype,
        "prompt_tokens": comparison.prompt_tokens,
        "first_departing_stage": first.stage if first else None,
        "usual_causes": list(usual_causes(first.stage)) if first else [],
        "stages": [{**asdict(stage), "departs": stage.departs} for stage in comparison.stages],
        "target_ids_compared": comparison.ids_compared,
        "target_ids": asdict(comparison.ids) if comparison.ids else None,
        "notes": list(comparison.notes),
    }


def lines(comparison: Parity) -> Iterator[str]:
    """The comparison for a terminal of 80 columns."""
    from specgate.analysis.parity.phrases import advice, leading_words, verdict

    yield f"A  {comparison.a}"
    yield f"B  {comparison.b}"
    yield " ".join(verdict(comparison))
    yield ""
    yield f"{'stage':21} {'mean abs':>8} {'max abs':>8} {'cosine':>8} {'error':>8} {'allowed':>8} {'at':>5}"
    for stage in comparison.stages:
        d = stage.distance
        yield (
            f"{stage.stage:21} {d.mean_abs:8.1e} {d.max_abs:8.1e} {d.worst_cosine:8.5f} {d.error:8.1e} "
            f"{stage.tolerance:8.1e} {stage.worst_position:5}" + (" departs" if stage.departs else "")
        )
    yield from wrapped(
        "cosine: of the worst row. error: |a − b| / max(|a|, |b|), root mean square over the rows. at: the prompt "
        "position of the row that is furthest off.",
        "",
    )
    for text in (*(leading_words(stage) for stage in comparison.stages if stage.leading), *advice(comparison)):
        yield from wrapped(text, "  ")


def wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent)

"""`specgate diagnose cache`: does speculation keep a server's prefix cache of use?"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specgate.commands.door import command
from specgate.commands.numbers import NEW_TOKENS, count
from specgate.commands.options import request_for_engine, take
from specgate.commands.servers import take_servers, urls_argument
from specgate.contract.types import BATCH, DRAFT_TOKENS, POSITIONS, REPEATS
from specgate.errors import UsageError
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.run.diagnose.prefix_cache import Pair

WIDTH = 80


@command(short_help="Does speculation keep a server's prefix cache of use?")
@urls_argument
@click.option("--backend", metavar="NAME", help="An engine whose cache is switched, as vllm or lmdeploy-pipeline.")
@take("--option", "--pair", "--target", "--draft", "--tokenizer", "--prompts", "--format")
@click.option("--spec", "k", type=count(1, DRAFT_TOKENS), help="Draft tokens per step (default: the server's, or 3).")
@click.option("--context", type=count(2, POSITIONS), metavar="N", help="Tokens of every prompt (default: 1024).")
@click.option(
    "--shared-prefix",
    "prefix",
    type=count(1, POSITIONS),
    metavar="N",
    help="Tokens that prompts of a group share (default: three quarters of the context; in FILE, what they share).",
)
@click.option("--groups", default=4, show_default=True, type=count(2, REPEATS), help="Groups.")
@click.option(
    "--prompts-per-group", "in_group", default=3, show_default=True, type=count(2, BATCH), help="Prompts of a group."
)
@click.option("--new-tokens", default=64, show_default=True, type=NEW_TOKENS, help="Tokens of every answer.")
@click.option(
    "--max-lost-tokens",
    default=64,
    show_default=True,
    type=count(0, POSITIONS),
    help="Prompt tokens that a request may reuse less with speculation; the engine's cache block is a good choice.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cache(as_json: bool, **options: Any) -> None:
    """Ask a server the same requests with its prefix cache on and off, with and without speculation.

    \b
    Example: specgate diagnose cache http://localhost:8000,http://localhost:8003

    Three things are judged: that the pair is one, that as much is reused with speculation, and that the cache changes
    no text. Times to first token are shown.

    The requests of a group share a prefix, and some go on from an earlier answer, as the next turn of a chat does.
    Servers that are started here (--backend, --pair) are started twice. Those that run already have to have their
    cache on; requests that are not to use it carry a name of their own.

    Exit code 0 if all holds, 1 if something does not, 3 if no answer was reused, 6 if the pair is
    none (the server does not say what it reuses, or its cache is not on, or was not empty), 7 if the engine failed.
    """
    from specgate.planning.ad_hoc import Question
    from specgate.run.diagnose.prefix_cache import Wish, ask_both

    context, prefix = options["context"], options["prefix"]
    if context is not None and options["prompts"] is not None:
        raise UsageError("--context and --prompts together", hint="prompts of FILE keep their lengths")
    if options["prompts"] is None:
        context = context or 1024
        prefix = prefix or max(1, context * 3 // 4)
    take_two(options)
    folder = Path(tempfile.mkdtemp(prefix="specgate-cache-"))
    prompts = options["prompts"]
    if prompts is not None and context is not None:
        prompts = lengthened(prompts, context, folder / "prompts.jsonl")
    question = Question(
        context=None if context is None or prompts is not None else (context,),
        prompts=prompts,
        format=options["format_"],
        batch=(options["in_group"],),
        spec=(options["k"],),
        prompt_sets=options["groups"],
        shared_prefix=prefix,
        steps=options["new_tokens"],
    )
    wish = Wish(request_for_engine(options, folder), question, options["new_tokens"], options["max_lost_tokens"])
    done = ask_both(wish, folder, lambda line: echo(line, err=True))
    shutil.rmtree(folder, ignore_errors=True)  # where an engine failed, its logs stay
    if as_json:
        echo_json(as_data(done))
    else:
        echo("\n".join(lines(done)))
    sys.exit(done.exit_code)


def take_two(options: dict[str, Any]) -> None:
    """Find out what serves at the URLs of a command line, and put that into its `options`: as `take_servers`, for one
    server that speculates and one that does not.
    """
    named = options["options"].get("prefix_cache")
    length = None if options["k"] is None else (options["k"],)
    options |= {"spec": length, "baseline": None, "context": None}
    take_servers(options, smoke=True)
    if options["backend"] is None:
        raise UsageError("nothing to ask", hint="specgate diagnose cache URL,URL; or --backend NAME --pair DIR")
    urls = {key: url for key, url in options["options"].items() if key.startswith("url.")}
    if urls and ("url.baseline" not in urls or len(urls) != 2):
        raise UsageError(
            f"{','.join(urls.values())}: reuse with speculation is compared with reuse without",
            hint="URL,URL: a server that speculates, and one of its model that does not",
        )
    options["k"] = options["spec"][0] if options["spec"] else 3
    if named is None:
        options["options"].pop("prefix_cache", None)


def lengthened(file: Path, tokens: int, to: Path) -> Path:
    """Write prompts of so many tokens to the file `to`: each is one of `file`, gone on with by those after it."""
    prompts = [json.loads(line)["ids"] for line in file.read_text(encoding="utf-8").splitlines()]
    longer = (list(chain.from_iterable((*prompts[at:], *prompts[:at]))) for at in range(len(prompts)))
    to.write_text("".join(f"{json.dumps({'ids': list(islice(cycle(ids), tokens))})}\n" for ids in longer))
    return to


def as_data(done: Pair) -> dict[str, object]:
    """The result: schema `specgate.cache/v1`."""
    from dataclasses import asdict

    return {
        "schema": "specgate.cache/v1",
        "state": done.state.value,
        "exit_code": int(done.exit_code),
        "backend": done.backend,
        "engine_version": done.facts.engine_version,
        "role": done.role.name,
        "shared_prefix": done.prefix,
        "limits": asdict(done.limits),
        "checks": [{**asdict(check), "state": check.state.value} for check in done.checks],
        "partings": [{**asdict(p), "gap": finite(p.gap), "unit": finite(p.unit)} for p in done.divergences],
        "samples": [asdict(sample) for sample in done.samples],
    }


def finite(number: float | None) -> float | None:
    """JSON has no infinity: what is not shown, or lies beyond what is shown, is null."""
    return number if number is not None and math.isfinite(number) else None


def lines(done: Pair) -> Iterator[str]:
    """The result for readers: the answer, a table, and what each check found."""
    from specgate.analysis.prefix_cache import BASELINE_NAME, rows

    version = f" {done.facts.engine_version}" if done.facts.engine_version else ""
    yield f"{done.state.value}: prefix cache of {done.backend}{version} with {done.role}"
    yield ""
    form = "{:<14} {:<9} {:>8} {:>12} {:>14} {:>14}"
    yield form.format("request", "role", "requests", "from cache", "TTFT on, ms", "TTFT off, ms")
    for turn, role, requests, share, on, off in rows(done.samples, (BASELINE_NAME, done.role.name)):
        yield form.format(turn, role, requests, f"{100 * share:.1f} %", f"{on:.1f}", f"{off:.1f}")
    yield ""
    for check in done.checks:
        yield from textwrap.wrap(f"{check.state.value} {check.name}: {check.message}", WIDTH, subsequent_indent="  ")

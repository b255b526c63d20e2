"""`specgate smoke`: is multi-token speculation really active on this engine, and if not, why not?"""

from __future__ import annotations

import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.commands.door import command
from specgate.commands.numbers import TIME, count
from specgate.commands.options import SIBLINGS, request_for_engine, take
from specgate.commands.servers import take_servers, urls_argument
from specgate.errors import UsageError
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.analysis.speculation.drafting import Drafting
    from specgate.run.smoke.short_run import Smoke

WIDTH = 80
FOLDER = click.Path(path_type=Path, file_okay=False)
REFUSED: Final = {
    "--batch": "smoke decodes one prompt: specgate micro --batch N measures batches",
    "--policy": "smoke judges nothing: specgate micro --policy NAME does",
}


@command(short_help="Is speculation active? If not, which known cause is it?")
@urls_argument
@take(
    *("--backend", *(name for name in SIBLINGS if name not in REFUSED)),
    *("--prompt", "--prompt-ids", "--dtype", "--isolate"),
    refused=REFUSED,
)
@click.option("--tokens", default=64, show_default=True, type=count(2, 1 << 16), help="Tokens to decode.")
@click.option("--ignore-eos", is_flag=True, help="Decode on past the end of the answer.")
@click.option("--baseline", is_flag=True, help="Also decode without speculation, and compare the texts.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, type=TIME, help="Seconds of one call.")
@click.option("--logs", type=FOLDER, metavar="DIR", help="Keep the engine's logs in this new folder.")
@click.option("--all", "every", is_flag=True, help="Print the checks that found nothing, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def smoke(logs: Path | None, every: bool, as_json: bool, **wish: Any) -> None:
    """Decode one prompt with speculation, and say whether several draft tokens per step are proposed and accepted.

    \b
    Example: specgate smoke http://localhost:8000

    If they are not, the known causes are checked one by one: what was looked at, what was there, and what would be
    right. The engine runs in a process of its own, as in a measurement. Nothing is judged, and no run folder is made:
    the speed that is shown is no measurement.

    Exit code 0 if multi-token speculation is active; 1 if it is not, or if the engine failed of a known cause; 7 if it
    failed of another.
    """
    from specgate.files.writing import disk
    from specgate.run.smoke.prompt import PromptWish
    from specgate.run.smoke.short_run import Wish
    from specgate.run.smoke.short_run import smoke as carry_out
    from specgate.sandbox.isolation import isolated

    context = one("--context", wish["context"], None)
    if wish["text"] == "":
        raise UsageError("--prompt '': empty", hint="a text of one character or more")
    if sum(part is not None for part in (wish["text"], wish["ids"], wish["prompts"] or context)) > 1:
        raise UsageError("--prompt, --prompt-ids, --prompts and --context together", hint="give one of them")
    if wish["format_"] is not None and wish["prompts"] is None:
        raise UsageError("--format without --prompts", hint="it says how the file of prompts is read")
    take_servers(wish, smoke=True)
    text, ids, _, prompts, format = (wish.pop(key) for key in ("text", "ids", "context", "prompts", "format_"))
    prompt = PromptWish(text, ids, context, prompts, format)
    request, isolate = request_for_engine(wish), wish.pop("isolate")
    settings = Wish(request, prompt=prompt, k=one("--spec", wish.pop("spec"), None), **wish)
    if logs is not None and logs.exists() and any(logs.iterdir()):
        raise UsageError(f"--logs {logs}: is not empty", hint="a new folder")
    with disk(logs or Path(tempfile.gettempdir()), "choose another --logs"):
        folder = logs or Path(tempfile.mkdtemp(prefix="specgate-smoke-"))
        folder.mkdir(parents=True, exist_ok=True)
    done = None
    try:
        with isolated(isolate, folder):
            done = carry_out(settings, folder, lambda line: echo(line, err=True))
    finally:
        if logs is None and (done is None or done.active):
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        echo_json(as_data(done, folder if folder.exists() else None))
    else:
        echo("\n".join(lines(done, every=every)))
        if folder.exists() and any(folder.iterdir()):
            echo(f"logs {folder}")
    sys.exit(done.exit_code)


def one(name: str, values: tuple[int, ...] | str | None, usual: int | None) -> int | None:
    """Return the only number of an option, or `usual` without it. Raises UsageError for several, and for `own`."""
    if values is None:
        return usual
    if isinstance(values, str) or len(values) > 1:
        text = values if isinstance(values, str) else ",".join(map(str, values))
        raise UsageError(f"{name} {text}: smoke decodes one prompt", hint="one number, or specgate micro for several")
    return values[0]


def as_data(done: Smoke, logs: Path | None) -> dict[str, object]:
    """The result as stored: schema `specgate.smoke/v1`."""
    from dataclasses import asdict

    e, facts = done.evidence, done.evidence.facts
    return {
        "schema": "specgate.smoke/v1",
        "active": done.active,
        "exit_code": int(done.exit_code),
        "state": e.drafting.state if e.drafting else "engine error" if done.failed else "no drafts",
        "backend": e.backend,
        "role": e.role.name,
        "device": facts.device if facts else None,
        "engine_version": facts.engine_version if facts else None,
        "prompt_tokens": e.prompt_tokens,
        "tokens": len(e.block.tokens[0]) if e.block else None,
        "finish": e.block.finish[0].value if e.block else None,
        "figures": asdict(e.drafting) if e.drafting else None,
        "figures_are": "of one cold request: not a measurement",
        "counters": dict(e.block.counters) if e.block else {},
        "causes": [f.cause for f in done.causes],
        "findings": [asdict(f) for f in done.findings],
        "error": e.error,
        "warnings": list(e.warnings),
        "unreadable": list(e.pair.unreadable),
        "logs": str(logs) if logs else None,
    }


def lines(done: Smoke, *, every: bool) -> Iterator[str]:
    """Yield the answer, the figures, and the causes that were found; with `every`, the checks that found nothing."""
    e = done.evidence
    yield headline(done)
    if e.drafting is not None:
        yield from figures(e.drafting)
    what, _, remedy = (e.error or "").partition("\n")
    if e.error and not any(f.seen == what and remedy.strip() == f.todo for f in done.causes):  # a cause says it all
        for line in f"error: {e.error}".splitlines():
            yield from textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    for warning in e.warnings:
        yield from textwrap.wrap(f"warning: {warning}", WIDTH, subsequent_indent="  ")
    from specgate.analysis.speculation.causes import CAUSES

    for finding in done.causes:
        yield f"cause: {CAUSES[finding.cause].title} ({finding.cause})"
        for name, text in (("checked", finding.checked), ("seen", finding.seen), ("do", finding.todo)):
            if every or name != "checked":
                yield from textwrap.wrap(f"{name}: {text}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    if not done.active and not done.causes:
        yield "none of the known causes was found: the engine's log is the next place to look"
    quiet = [f for f in done.findings if f.state != "found"]
    if every:
        for f in quiet:
            text = f"{f.state}: {f.cause}: {f.seen}"
            yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    elif not done.active:
        unchecked = sum(f.state == "not checked" for f in quiet)
        yield f"{len(quiet) - unchecked} causes ruled out, {unchecked} not checked: --all lists them"


def headline(done: Smoke) -> str:
    e = done.evidence
    what = f"{e.backend}, {e.role}"
    if done.failed:
        return f"engine error: {what}: nothing was decoded"
    if done.active:
        return f"active: {what}: several draft tokens per step are proposed and accepted"
    state = e.drafting.state if e.drafting else "no drafts"
    return f"NOT active: {what}: {state}"


def figures(d: Drafting) -> Iterator[str]:
    def shown(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    undrafted = "not told" if d.undrafted is None else str(d.undrafted)
    yield f"  num_drafts              {d.num_drafts} request-steps with a draft, {undrafted} without"
    yield f"  draft tokens            {d.drafted}, accepted {d.accepted}"
    yield f"  acceptance length       {shown(d.acceptance_length, '.3f')} tokens per step, bonus token included"
    yield f"  steps that accepted     ≥ 1: {shown(d.steps_with_1, '.0%')}   ≥ 2: {shown(d.steps_with_2, '.0%')}"
    if d.accepted_at_pos:
        yield "  accepted, by position   " + "  ".join(f"{i}: {s:.2f}" for i, s in enumerate(d.accepted_at_pos, 1))
    yield f"  tokens/s                {shown(d.tok_s, '.1f')}, of one cold request: not a measurement"

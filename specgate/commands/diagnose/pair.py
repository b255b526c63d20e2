"""`specgate diagnose pair`: check the files of any pair, without an engine."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import click

from specgate.commands.door import command
from specgate.commands.numbers import CONTEXT, DRAFTED
from specgate.commands.options import take
from specgate.errors import CheckpointError, ExitCode
from specgate.terminal import echo, echo_json

WIDTH = 80
INDENT = " " * 29


@command(short_help="Do the files of a pair fit each other? No engine is loaded.")
@click.argument("name", metavar="[PAIR]", required=False)
@take("--target", "--draft")
@click.option("--context", type=CONTEXT, default=1024, show_default=True, metavar="N", help="Tokens of a prompt.")
@click.option("--spec", "k", type=DRAFTED, default=3, show_default=True, metavar="K", help="Draft tokens per step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pair(name: str | None, target: Path | None, draft: Path | None, **options: Any) -> None:
    """Check configs, vocabulary, tokenizer and weights of a pair: a name, a folder, or --target and --draft.

    \b
    Example: specgate diagnose pair --target TARGET --draft DRAFT

    Whatever is wrong is named with what would be right. Exit code 0 if nothing is, 1 if something is, 8 if the head
    could not be read here. `specgate smoke` goes on from here with an engine; `specgate diagnose parity` finds faults
    that no file shows.
    """
    from dataclasses import asdict

    from specgate.analysis.speculation.causes import CAUSES
    from specgate.pairs.resolve import refuse_two_names, resolve_pair
    from specgate.run.smoke.pair_check import check_pair

    refuse_two_names(name, target, draft)
    try:
        named = resolve_pair(name, target, draft)
    except CheckpointError as error:  # of a draft whose config nobody can read
        if options["as_json"]:
            none: dict[str, list[str]] = {"findings": [], "warnings": [], "unreadable": [str(error)]}
            echo_json({"schema": "specgate.pair/v1", "pair": name or str(draft), **none})
        else:
            echo(f"not readable: {error}")
        sys.exit(ExitCode.FAIL)
    findings, unreadable, warnings = result = check_pair(named, options["context"], options["k"])
    wrong = [finding for finding in findings if finding.state == "found"]
    if options["as_json"]:
        record = {"findings": [asdict(finding) for finding in findings], "warnings": [*warnings]}
        echo_json({"schema": "specgate.pair/v1", "pair": named.name, **record, "unreadable": [*unreadable]})
        sys.exit(result.exit_code)
    for text in unreadable:
        echo(f"not readable: {text}")
    for text in warnings:
        echo("\n".join(textwrap.wrap(f"warning: {text}", WIDTH, subsequent_indent="  ")))
    for finding in findings:
        state = {"found": "WRONG", "ruled out": "fine", "not checked": "not checked"}[finding.state]
        title = f"{CAUSES[finding.cause].title}: " if finding in wrong else ""
        text = f"{state:<12}{finding.cause:<17}{title}{finding.seen}"
        echo("\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=INDENT)))
        if finding.todo:
            echo(
                "\n".join(textwrap.wrap(f"do: {finding.todo}", WIDTH, initial_indent=INDENT, subsequent_indent=INDENT))
            )
    files = (
        f", and {len(unreadable)} {'file' if len(unreadable) == 1 else 'files'} could not be read" if unreadable else ""
    )
    echo(f"pair {named.name}: {len(wrong)} of {len(findings)} checks found a fault{files}")
    if named.acceptance == "planted":
        echo(f"planted: specgate engine pairs check {name or 'PAIR'} measures its acceptance")
    sys.exit(result.exit_code)

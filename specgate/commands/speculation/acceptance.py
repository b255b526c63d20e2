"""`specgate acceptance RUN...`: acceptance over all requests of stored runs, by engine, prompt class and more."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.compare import RUN, rendered
from specgate.commands.output import OUT_OPTION, PLAIN_OPTION, is_plain, write_files
from specgate.errors import UsageError
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.analysis.speculation.summary import AcceptanceSummary
    from specgate.analysis.speculation.summary_layout import Acceptance, Key, Layout


@click.command(short_help="Sum up acceptance over all requests of stored runs.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option(
    "--by",
    "asked",
    multiple=True,
    metavar="KEY[,KEY...]",
    help="A table by these keys: engine, class, context, position, spec, batch, scenario, run. May be repeated.",
)
@click.option("--html", is_flag=True, help="Write acceptance.html.")
@click.option("--md", is_flag=True, help="Write acceptance.md.")
@click.option("--csv", is_flag=True, help="Write acceptance.csv, a row per row of a table and draft position.")
@click.option("--json", "as_json", is_flag=True, help="Write acceptance.json.")
@OUT_OPTION
@PLAIN_OPTION
def acceptance(
    runs: tuple[Path, ...],
    asked: tuple[str, ...],
    html: bool,
    md: bool,
    csv: bool,
    as_json: bool,
    out: Path,
    plain: bool,
) -> None:
    """Sum up the acceptance of the run folders RUN... over all their requests.

    The whole comes first, then a table per --by; without it, tables by engine, class of prompts and context, where
    there are several, and by draft position. Counts are pooled over cycles; intervals are over prompts. Both means are
    shown: the token-weighted acceptance length, as everywhere else, and the mean over requests. Texts that loop are
    said, and so is the length without them.

    Other pairs, draft lengths and sources of acceptance are never pooled. Cells whose records contradict themselves are
    left out. Nothing is judged.
    """
    from specgate import plugins
    from specgate.archive.acceptance.requests import acceptance_of
    from specgate.archive.stored import load_runs

    layouts = [keys_in(text) for text in asked]
    found = acceptance_of(load_runs(runs), layouts)
    view = plugins.view("acceptance")
    echo(view.render(found, "plain" if is_plain(plain) else "console"), coloured=True)
    files = list(rendered(view, found, html=html, md=md, csv=csv))
    if as_json:
        files.append(("acceptance.json", json.dumps(as_data(found), indent=1) + "\n"))
    write_files(out, files)


def keys_in(text: str) -> tuple[Key, ...]:
    """The keys of one --by. Raises UsageError for an unknown one, and for one that is there twice."""
    from specgate.analysis.speculation.summary_layout import KEYS

    found: list[Key] = []
    for name in (part.strip() for part in text.split(",")):
        key = next((key for key in KEYS if key == name), None)
        if key is None:
            close = difflib.get_close_matches(name, KEYS, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"--by {text}: {name!r} is not a key", hint=f"{guess}keys: {', '.join(KEYS)}")
        if key in found:
            raise UsageError(f"--by {text}: {name!r} is there twice", hint="give each key once")
        found.append(key)
    return tuple(found)


def as_data(found: Acceptance) -> dict[str, object]:
    """The tables as stored: schema `specgate.acceptance/v2`."""
    from dataclasses import asdict

    return {
        "schema": "specgate.acceptance/v2",
        "runs": [asdict(run) for run in found.runs],
        "tables": [
            {"by": layout.by, "unlike_prompts": layout.unlike, "rows": [row_of(layout, s) for s in layout.rows]}
            for layout in found.layouts
        ],
    }


def row_of(layout: Layout, s: AcceptanceSummary) -> dict[str, object]:
    """One row, its group's fields beside its own; drafts by position whatever the keys of its table are."""
    from dataclasses import asdict

    fields = asdict(s)
    group, values, without = fields.pop("group"), fields.pop("values"), fields.pop("without_loops")
    length = values.get("acceptance_length") or {}
    return {
        **dict(s.group.values),
        "pair": group["pair"],
        "acceptance": group["acceptance"],
        "k": group["k"],
        "decoding": group["decoding"],
        **fields,
        "mean_acceptance_length": length.get("value"),
        "ci_low": length.get("ci_low"),
        "ci_high": length.get("ci_high"),
        "mean_acceptance_rate": s.value("draft_acceptance_rate"),
        "without_loops": without,
        "values": values,
    }

"""`specgate acceptance RUN...`: acceptance over all requests of stored runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.compare import RUN
from specgate.commands.output import OUT_OPTION, write_files
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.analysis.speculation.summary import AcceptanceSummary, FromRun
    from specgate.archive.stored import StoredRun
    from specgate.core import AcceptanceSource, Block

ALL = "all runs"
Rows = Sequence[tuple[str, "AcceptanceSummary"]]
"""(which runs, summary)."""


@click.command(short_help="Sum up acceptance over all requests of stored runs.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--csv", "as_csv", is_flag=True, help="Write acceptance.csv.")
@click.option("--json", "as_json", is_flag=True, help="Write acceptance.json.")
@OUT_OPTION
def acceptance(runs: tuple[Path, ...], as_csv: bool, as_json: bool, out: Path) -> None:
    """Sum up the acceptance of the run folders RUN... over all their requests, by draft length.

    Both means are shown: the token-weighted acceptance length, as everywhere else, and the mean over requests. Requests
    of other pairs, and forced acceptance, are summed up apart. Cells whose records contradict themselves are left out.
    """
    from specgate.analysis.speculation.summary import grouped, summaries
    from specgate.archive.stored import load_runs

    sources = {stored.run.id: source_of(stored) for stored in load_runs(runs)}
    rows = [(run, found) for run, source in sources.items() for found in summaries(grouped([source]))]
    if len(sources) > 1:
        rows += [(ALL, found) for found in summaries(grouped(sources.values()))]
    if not rows:
        echo("no spec block was measured in these runs")
    else:
        echo("\n".join(line for row in rows for line in lines(*row)))
    files = [("acceptance.csv", as_table(rows))] if as_csv else []
    if as_json:
        files.append(("acceptance.json", json.dumps(as_data(rows), indent=1) + "\n"))
    write_files(out, files)


def source_of(stored: StoredRun) -> tuple[str, AcceptanceSource, list[FromRun]]:
    """(pair, where acceptance comes from, measured blocks) of a stored run, without cells that have failed."""
    from specgate.analysis.speculation.summary import FromRun

    run = stored.run
    broken = {result.cell.key for result in run.cells if result.status == "failed"}

    def prompts_of(block: Block) -> str:
        hashes = run.prompts.get(block.point.key, {}).get("set_sha256")
        if isinstance(hashes, list) and block.prompt_set < len(hashes):
            return str(hashes[block.prompt_set])
        return f"{run.id} {block.point.key} {block.prompt_set}"

    blocks = [block for block in stored.blocks() if block.cell.key not in broken]
    return run.pair.name, run.acceptance, [FromRun(run.id, prompts_of(block), block) for block in blocks]


def flat(which: str, summary: AcceptanceSummary) -> dict[str, object]:
    """A summary as one row, with the group's fields beside its own."""
    from dataclasses import asdict

    values = asdict(summary)
    return {"run": which, **values.pop("group"), **values}


def as_data(rows: Rows) -> dict[str, object]:
    """The summaries as stored: schema `specgate.acceptance/v1`."""
    return {"schema": "specgate.acceptance/v1", "summaries": [flat(*row) for row in rows]}


def as_table(rows: Rows) -> str:
    """The summaries as CSV, one row each; positions are separated by spaces."""
    text = io.StringIO()
    plain = [flat(*row) for row in rows]
    if plain:
        writer = csv.DictWriter(text, list(plain[0]), lineterminator="\n")
        writer.writeheader()
        for row in plain:
            shares = row["accepted_at_pos"]
            assert isinstance(shares, tuple)
            writer.writerow({**row, "accepted_at_pos": " ".join(f"{share:.6f}" for share in shares)})
    return text.getvalue()


def lines(which: str, s: AcceptanceSummary) -> Iterator[str]:
    """A summary for a terminal."""
    requests = "requests of a server, counted together" if s.requests is None else f"{s.requests} requests"
    yield f"{which}: spec-{s.group.k} of {s.group.pair}, {s.group.acceptance} acceptance"
    yield f"  {requests} on {s.prompts} prompts in {s.cells} cells; {s.num_drafts} steps with a draft"
    interval = "" if s.ci_low is None or s.ci_high is None else f" (95 %: {s.ci_low:.3f}–{s.ci_high:.3f})"
    yield f"  acceptance length, token-weighted     {number(s.mean_acceptance_length)}{interval}"
    spread = "" if s.request_stdev is None else f" ± {s.request_stdev:.3f} (standard deviation)"
    yield f"  acceptance length, mean over requests {number(s.request_mean_acceptance_length)}{spread}"
    yield f"  accepted / draft tokens               {number(s.mean_acceptance_rate)}"
    if s.accepted_at_pos:
        shares = "  ".join(f"{i}: {share:.3f}" for i, share in enumerate(s.accepted_at_pos, 1))
        yield f"  accepted, by position                 {shares}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"

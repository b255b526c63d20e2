"""report.html: one file that opens anywhere, offline, light or dark, on paper too; the verdict comes first."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from specgate.core import Policy, Run
from specgate.environment import flat
from specgate.errors import ExitCode
from specgate.reports import points, summary, tables

TEMPLATES = Path(__file__).parent / "templates"
ARTIFACTS = {
    "run.json": "the whole result",
    "gates.json": "policy and verdicts",
    "summary.csv": "one row per cell",
    "metrics.csv": "one row per value",
    "config.resolved.yaml": "what was asked, resolved",
    "env.json": "the machine",
    "samples/blocks.jsonl": "every block: tokens, accept counts, times",
    "samples/environment.jsonl": "what the machine did meanwhile",
    "MANIFEST.sha256": "hashes of all files",
}


class HtmlReport:
    """An `api.Report`: no script, no external request, everything escaped."""

    name = "html"
    filename = "report.html"

    def render(self, run: Run, policy: Policy) -> str:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("report.html").render(context(run, policy)) + "\n"


def context(run: Run, policy: Policy) -> dict[str, object]:
    """Everything the template shows, by name."""
    return {
        "run": run,
        "policy": policy,
        "headline": summary.headline(run),
        "out_of_order": summary.out_of_order(run),
        "marks": {state.value: mark for state, mark in summary.MARKS.items()} | {ExitCode.BACKEND_ERROR.name: "!"},
        "reproduction": summary.reproduction(run),
        "tally": {required: summary.tally(run, required=required) for required in (True, False)},
        "facts": facts(run),
        "cell_head": tables.CELL_HEAD,
        "groups": tables.cell_groups(run),
        "matrix": tables.matrix(run, policy),
        "concerns": tables.judgements(run, quiet=False),
        "quiet": tables.judgements(run, quiet=True),
        "certificates": tables.certificates(run),
        "certificate_evidence": tables.certificate_evidence(run),
        "sections": list(points.sections(run, policy)),
        "divergences": tables.divergences(run),
        "divergence_count": sum(len(c.tokens.divergences) for c in run.comparisons),
        "compared_tokens": sum(c.tokens.compared_tokens for c in run.comparisons),
        "loops": tables.loops(run),
        "grounds": grounds(run),
        "artifacts": ARTIFACTS,
    }


def facts(run: Run) -> list[tuple[str, str]]:
    """The line below the verdict: what ran where, and when."""
    engine = next(iter(run.engines.values()), None)
    rows = [("run", run.id), ("pair", run.pair.name)]
    if engine is not None:
        rows += [("back end", engine.backend), ("device", engine.device), ("dtype", engine.dtype)]
    rows += [("started", run.started.replace("T", " ").replace("+00:00", " UTC")), ("status", run.status)]
    if took := summary.duration(run):
        rows.append(("took", took))
    return [*rows, ("specgate", run.tool_version)]


def grounds(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """What the result rests on, in folded lists: title, rows. Points with the same engine share one list."""
    engines: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for key, engine in run.engines.items():
        stated = {name: value for name, value in asdict(engine).items() if value is not None}
        engines.setdefault(tuple(flat(stated)), []).append(summary.short(key))
    return [
        ("Fingerprint", list(flat(run.fingerprint))),
        *((f"Engine of {', '.join(names)}", list(rows)) for rows, names in engines.items()),
        *((f"Prompts of {summary.short(key)}", list(flat(about))) for key, about in run.prompts.items()),
        ("Environment", list(flat(run.environment))),
    ]


REPORT = HtmlReport()

"""The report `html`: report.html, one file that needs no network, with light, dark and print styles. The verdict comes
first.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specgate.api import visible
from specgate.core import Policy, Run
from specgate.errors import ExitCode
from specgate.reports.common import summary, tables, token_checks
from specgate.reports.common.parts import Picture
from specgate.reports.page import grounds, points
from specgate.reports.pictures import forest, speed_map

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parents[1] / "templates"


class HtmlReport:
    """An `api.Report`. The page fetches nothing, all text in it is escaped, and only its own script may run."""

    name = "html"
    filename = "report.html"

    def render(self, run: Run, policy: Policy) -> str:
        from markupsafe import Markup

        script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
        values = {**context(run, policy), "script": Markup(script), "script_hash": script_hash(script)}
        return environment().get_template("report.html").render(values) + "\n"


@cache  # it keeps the compiled templates
def environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def shown(value: object) -> object:
    """A value of the template, text with control characters as escapes: some turn the direction of the text around
    them. What is markup already stays.
    """
    return visible(value) if type(value) is str else value


def script_hash(script: str) -> str:
    """The hash by which the Content-Security-Policy allows the page's own script. The browser refuses any other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def context(run: Run, policy: Policy) -> dict[str, object]:
    """Everything the template shows, by name."""
    judgements = list(tables.judgements(run))
    return {
        "run": run,
        "policy": policy,
        "headline": summary.headline(run),
        "out_of_order": summary.out_of_order(run),
        "not_judged": summary.not_judged(run),
        "marks": {state.value: mark for state, mark in summary.MARKS.items()} | {ExitCode.BACKEND_ERROR.name: "!"},
        "reproduction": summary.reproduction(run),
        "tally": {required: summary.tally(run, required=required) for required in (True, False)},
        "facts": facts(run),
        "cell_head": tables.CELL_HEAD,
        "groups": tables.cell_groups(run),
        "matrix": tables.matrix(run, policy),
        "concerns": [j for j in judgements if j.verdict.required and not j.quiet],
        "advice": [j for j in judgements if not j.verdict.required and not j.quiet],
        "quiet": [j for j in judgements if j.quiet],
        "micro_gates": tables.micro_gates(run),
        "speed_pictures": speed_pictures(run, policy),
        "certificates": tables.certificates(run),
        "certificate_evidence": tables.certificate_evidence(run),
        "sections": list(points.sections(run, policy)),
        "divergences": tables.divergences(run),
        "divergence_count": sum(len(c.tokens.divergences) for c in run.comparisons),
        "compared_tokens": sum(c.tokens.compared_tokens for c in run.comparisons),
        "token_checks": token_checks.table(run),
        "token_words": [said for tell in TOKEN_WORDS if (said := tell(run))],
        "loops": tables.loops(run),
        "changes": grounds.changes(run),
        "grounds": grounds.grounds(run),
        "files": grounds.files(run),
    }


TOKEN_WORDS = (token_checks.own_word, token_checks.sampled, token_checks.cost)


def facts(run: Run) -> list[tuple[str, str]]:
    """(name, value) of the facts below the verdict: what ran, where and when."""
    engine = next(iter(run.engines.values()), None)
    rows = [("run", run.id), ("pair", run.pair.name)]
    if engine is not None:
        rows += [("back end", engine.backend), ("device", engine.device), ("dtype", engine.dtype)]
    rows += [("started", run.started.replace("T", " ").replace("+00:00", " UTC")), ("status", run.status)]
    if took := summary.duration(run):
        rows.append(("took", took))
    return [*rows, ("specgate", run.tool_version)]


def speed_pictures(run: Run, policy: Policy) -> Sequence[Picture]:
    """The pictures that show the speed-ups of all points together."""
    return [forest.forest(run, policy), *speed_map.maps(run)]


REPORT = HtmlReport()

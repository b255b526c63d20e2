"""The report `html`: report.html, one file that needs no network, with light, dark and print styles. The verdict comes
first.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.analysis.intervals.other_prompts import LIKE_THESE, THESE
from specgate.contract import Policy, Run
from specgate.contract.protocols import visible
from specgate.errors import ExitCode
from specgate.reports.common import answer, latencies, machine, memory, summary, tables, token_checks, variants
from specgate.reports.common.parts import Picture, dense
from specgate.reports.page import details, head, points
from specgate.reports.pictures import forest, load

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_HASH: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
"""A SHA-256."""
NAMED = 4
"""Most points that the table of contents names one by one."""
TEMPLATES = Path(__file__).parents[1] / "templates"


class HtmlReport:
    """An `protocols.Report`. The page fetches nothing, all text in it is escaped, and only its own script may run."""

    name = "html"
    filename = "report.html"

    def render(self, run: Run, policy: Policy) -> str:
        from markupsafe import Markup

        script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
        values = {**context(run, policy), "script": Markup(script), "script_hash": script_hash(script)}
        return environment().get_template("report.html").render(values) + "\n"


@cache  # it keeps the compiled templates
def environment() -> Environment:
    """The templates of all pages. `marks`: state → its mark, for all of them."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["shortened"] = shortened
    made.globals["marks"] = {state.value: mark for state, mark in summary.MARKS.items()} | {
        ExitCode.BACKEND_ERROR.name: "!"
    }
    return made


def shortened(text: str) -> Markup:
    """Return `text` with the first digits of every hash; the whole one shows above the pointer."""
    from markupsafe import Markup, escape

    return Markup(_HASH.sub(r'<abbr title="\g<0>">\1…</abbr>', str(escape(visible(text)))))


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
    unreached = [j for j in judgements if summary.repeats_the_end(run, j.verdict)]
    open_ = sorted((j for j in judgements if not j.quiet), key=lambda j: summary.gravity([j.verdict]))
    open_ = [j for j in open_ if j not in unreached]
    sections, together = list(points.sections(run)), speed_pictures(run)
    trouble = "What went wrong" if run.failures else "Warnings" if run.warnings else ""
    empty = details.empty_sections(run, together)
    return {
        "run": run,
        "policy": policy,
        "headline": summary.headline(run),
        "next_step": head.next_step(run),
        "answer": answer.answer(run) or "",
        "decided_by": answer.decided_by(run),
        "which_counts": list(answer.which_counts(run)),
        "break_evens": summary.break_evens(run) if any(c.tokens.defects for c in run.comparisons) else [],
        "latencies": latencies.table(run, list(dict.fromkeys(r.cell.point.key for r in head.chosen(run)))),
        "out_of_order": summary.out_of_order(run),
        "tally": {required: summary.tally(run, required=required) for required in (True, False)},
        "key_figures": head.key_figures(run),
        "spec_cells": sum(r.cell.role.speculative for r in run.cells),
        "not_judged": summary.not_judged(run),
        "advised": head.advice(run),
        "shown_facts": head.facts(run, policy),
        "command": summary.quoted_words(run),
        "trouble": trouble,
        "failures": [(summary.place_of(point, run), why) for point, why in run.failures.items()],
        "contents": [(id_, name) for id_, name in contents(run, trouble, sections) if id_ not in empty],
        "empty": empty,
        "gaps": details.gaps(empty, together, sections),
        "cell_head": tables.CELL_HEAD,
        "groups": tables.cell_groups(run),
        "intervals": {"speed-up": THESE, "acceptance length": LIKE_THESE},
        "variants": variants.table(run),
        "variants_beside": variants.BESIDE,
        "matrix": tables.matrix(run, policy),
        "concerns": [j for j in open_ if j.verdict.required],
        "advice": [j for j in open_ if not j.verdict.required],
        "unreached": unreached,
        "quiet": [j for j in judgements if j.quiet],
        "micro_gates": tables.micro_gates(run),
        "speed_pictures": together,
        "certificates": tables.certificates(run),
        "certificate_evidence": tables.certificate_evidence(run),
        "sections": sections,
        "divergences": tables.divergences(run),
        "divergence_count": sum(len(c.tokens.divergences) for c in run.comparisons),
        "compared_tokens": sum(c.tokens.compared_tokens for c in run.comparisons),
        "token_checks": dense(token_checks.table(run)),
        "token_words": [sentence for tell in TOKEN_WORDS if (sentence := tell(run))],
        "loops": tables.loops(run),
        "machine_words": [*machine.sentences(run), *([machine.BY_COUNTERS] if machine.has_set_aside(run) else [])],
        "memory_words": memory.READ,
        "memory": dense(memory.table(run)),
        "clocks": dense(machine.clocks(run)),
        "clocks_scaled": machine.SCALED,
        "changes": details.changes(run),
        "details": details.details(run),
        "files": details.files(run),
    }


def contents(run: Run, trouble: str, sections: Sequence[points.Section]) -> list[tuple[str, str]]:
    """(id, name) of the sections of the page, in its order. Many points have one entry together."""
    speed = ("speed", "Speed")
    if len(sections) > NAMED:
        of_points = [("point-0", f"{len(sections)} points")]
    else:
        of_points = [(f"point-{n}", section.name) for n, section in enumerate(sections)]
    return [
        *([speed] if run.kind == "load" else []),
        *([("trouble", trouble)] if trouble else []),
        *(("gates", "Gates"), ("cells", "Cells"), ("machine", "The machine")),
        *([speed] if run.kind != "load" else []),
        *of_points,
        *(("tokens", "Tokens"), ("loops", "Loops"), ("perf-mode", "PERF_MODE"), ("order", "Micro gates")),
        *(("changes", "Since the last green run"), ("details", "Details"), ("files", "Files")),
    ]


TOKEN_WORDS = (token_checks.own_word, token_checks.sampled, token_checks.cost)


def speed_pictures(run: Run) -> Sequence[Picture]:
    """The pictures that show the speed-ups of all points together."""
    return [*load.of_load(run), forest.forest(run)]


REPORT = HtmlReport()

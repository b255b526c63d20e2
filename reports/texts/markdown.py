"""The report `markdown`: summary.md, the run in at most 60 lines, for a CI comment or step summary. The verdict comes
first.
"""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.cell_names import cell_name
from specgate.contract import CellResult, Policy, Run, State, Verdict
from specgate.contract.protocols import visible
from specgate.reports.common import figures, machine, memory, own_prompts, provenance, token_checks, variants
from specgate.reports.common.markup import markdown, markdown_table
from specgate.reports.common.summary import (
    MARKS,
    acceptance_label,
    break_evens,
    cell_note,
    headline,
    not_judged,
    out_of_order,
    reproduction,
    tally,
)
from specgate.reports.common.tables import tokens_entry

LINES = 60
CELLS, VERDICTS, WARNINGS, MACHINE, PROMPTS, VARIANTS = 18, 12, 3, 3, 2, 2
"""Most rows of each kind. The worst come first, and a last line says how many are left out."""
_WORST_FIRST = (State.INVALID, State.ENV_REJECTED, State.FAIL, State.INCONCLUSIVE)
CELL_HEAD = ("cell", "acceptance length", "tok/s", "ms/token", "speed-up", "tokens")


class MarkdownReport:
    """An `protocols.Report`."""

    name = "markdown"
    filename = "summary.md"

    def render(self, run: Run, policy: Policy) -> str:
        return "\n".join(lines(run, policy)) + "\n"


def lines(run: Run, policy: Policy) -> Iterator[str]:
    head = headline(run)
    mark = next((mark for state, mark in MARKS.items() if state.value == head.state), "!")
    if warning := out_of_order(run):
        yield from (f"**{markdown(warning)}**", "")
    pair = provenance.pair(run) if run.pair.weights == "server" else f"{run.pair.name} pair"
    yield f"## {mark} {markdown(head.state)}: specgate {run.kind}, {markdown(pair)}"
    yield ""
    yield markdown(head.reason)
    if head.advice:
        yield from ("", markdown(head.advice))
    for found in break_evens(run):
        yield from ("", markdown(found))
    yield ""
    counted = ((word, tally(run, required=required)) for word, required in (("required", True), ("advisory", False)))
    said = "; ".join(f"{word}: {found}" for word, found in counted if found)
    yield f"Exit code {head.code.value}. Policy {markdown(policy.name)}{f'; {said}' if said else ''}."
    yield f"Run {markdown(run.id)}, {markdown(acceptance_label(run) or 'real acceptance')}."
    if told := ", ".join(f"{name} {value}" for name, value in provenance.engine(run)):
        yield f"{markdown(told[:1].upper() + told[1:])}."
    if gaps := not_judged(run):
        yield f"**{markdown(' '.join(gaps))}**"
    for said in filter(None, (token_checks.own_word(run), token_checks.sampled(run))):
        yield from ("", markdown(said[:1].upper() + said[1:]) + ".")
    yield from cells(run)
    for said in list(own_prompts.sentences(run))[:PROMPTS]:
        yield from ("", markdown(said))
    for said in list(memory.sentences(run))[:PROMPTS]:
        yield from ("", markdown(said))
    for said in list(variants.sentences(run))[:VARIANTS]:
        yield from ("", markdown(said))
    yield from concerns(run)
    yield from warnings(run)
    yield from machine_lines(run)
    yield from ("", "```sh", fenced(reproduction(run)), "```")


def cells(run: Run) -> Iterator[str]:
    if not run.cells:
        yield from ("", "No cell was planned.")
        return
    concerned = {v.cell for v in run.verdicts if v.state in _WORST_FIRST}
    ordered = sorted(run.cells, key=lambda r: r.cell.key not in concerned) if len(run.cells) > CELLS else run.cells
    yield ""
    yield from markdown_table(CELL_HEAD, [cell_row(run, r) for r in ordered[:CELLS]])
    if len(run.cells) > CELLS:
        yield from ("", f"{len(run.cells) - CELLS} more cells are in summary.csv.")


def cell_row(run: Run, result: CellResult) -> list[str]:
    comparison = run.comparison(result.cell.key)
    speedup = comparison.speedup if comparison else None
    note, span = cell_note(run, result), figures.reason(speedup) or figures.span(speedup)
    tokens = tokens_entry(run, comparison)
    return [
        cell_name(result.cell.key, run.scenarios) + (f" ({note})" if note else ""),
        *(figures.of(result, *names) for names in (("acceptance_length",), figures.SPEED, figures.PER_TOKEN)),
        figures.figure(speedup) + (f" ({span})" if span else ""),
        tokens.text,
    ]


def concerns(run: Run) -> Iterator[str]:
    """The verdicts that are not green: required ones before advisory ones, and each of these worst first."""
    found = [v for v in run.verdicts if v.state in _WORST_FIRST]
    found.sort(key=lambda v: (not v.required, _WORST_FIRST.index(v.state)))
    if not found:
        return
    yield ""
    yield from markdown_table(
        ("verdict", "gate", "cell", "because"), [concern(run, v) for v in found[:VERDICTS]], texts=4
    )
    if len(found) > VERDICTS:
        yield from ("", f"{len(found) - VERDICTS} more verdicts are in report.html.")


def concern(run: Run, verdict: Verdict) -> list[str]:
    state = verdict.state.value if verdict.required else f"{verdict.state.value} (advisory)"
    step = f" Next: {verdict.next_step}" if verdict.next_step else ""
    return [state, verdict.rule, cell_name(verdict.cell, run.scenarios) if verdict.cell else "", verdict.message + step]


def warnings(run: Run) -> Iterator[str]:
    if not run.warnings:
        return
    yield ""
    yield from (f"- {markdown(warning)}" for warning in run.warnings[:WARNINGS])
    if len(run.warnings) > WARNINGS:
        yield f"- and {len(run.warnings) - WARNINGS} more in report.html"


def machine_lines(run: Run) -> Iterator[str]:
    """What the machine did to the times."""
    said = machine.sentences(run)
    if said:
        yield ""
        yield from (f"- The machine: {markdown(sentence)}" for sentence in said[:MACHINE])
    if len(said) > MACHINE:
        yield f"- and {len(said) - MACHINE} more in report.html"


def fenced(command: str) -> str:
    """`command` in one line that cannot end a fenced code block."""
    return visible(command).replace("\n", " ").replace("```", "` ` `")


REPORT = MarkdownReport()

"""The report `markdown`: summary.md, the run in at most 60 lines, for a CI comment or step summary. The verdict comes
first.
"""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.cell_names import cell_name
from specgate.contract import CellResult, Policy, Run, State, Verdict
from specgate.contract.protocols import visible
from specgate.reports.common import figures, machine, memory, own_prompts, provenance, token_checks, variants
from specgate.reports.common.answer import answer, decided_by, which_counts
from specgate.reports.common.parts import markdown, markdown_table
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
CELLS, VERDICTS, WARNINGS, MACHINE, PROMPTS, VARIANTS = 16, 12, 3, 3, 2, 2
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
    advice = f"Next: {head.advice}" if head.code.value and head.advice else head.advice
    sweeps = break_evens(run) if any(c.tokens.defects for c in run.comparisons) else []
    for sentence in filter(None, (answer(run), decided_by(run), *which_counts(run), advice, *sweeps)):
        yield from (markdown(sentence), "")
    tallies = {word: tally(run, required=word == "required") for word in ("required", "advisory")}
    counts = "; ".join(f"{word}: {count}" for word, count in tallies.items() if count)
    yield f"Exit code {head.code.value}. Policy {markdown(policy.name)}{f'; {counts}' if counts else ''}."
    yield f"Run {markdown(run.id)}, {markdown(acceptance_label(run) or 'real acceptance')}."
    facts = [", ".join(f"{name} {value}" for name, value in provenance.engine(run))]
    for fact in filter(None, (*facts, token_checks.own_word(run), token_checks.sampled(run))):
        yield f"{markdown(fact[:1].upper() + fact[1:])}."
    if gaps := not_judged(run):
        yield f"**{markdown(' '.join(gaps))}**"
    yield from cells(run)
    for sentences, most in (
        (own_prompts.sentences(run), PROMPTS),
        (memory.sentences(run), PROMPTS),
        (variants.sentences(run), VARIANTS),
    ):
        for sentence in list(sentences)[:most]:
            yield from ("", markdown(sentence))
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
    tokens, others = tokens_entry(run, comparison), figures.others(run, comparison)
    return [
        cell_name(result.cell.key, run.scenarios) + (f" ({note})" if note else ""),
        *(figures.of(result, *names) for names in (("acceptance_length",), figures.SPEED, figures.PER_TOKEN)),
        figures.figure(speedup) + (f" ({span})" if span else "") + (f"; {others}" if others else ""),
        tokens.text,
    ]


def concerns(run: Run) -> Iterator[str]:
    """The verdicts that are not green: required ones before advisory ones, and each of these worst first."""
    verdicts = [v for v in run.verdicts if v.state in _WORST_FIRST]
    verdicts.sort(key=lambda v: (not v.required, _WORST_FIRST.index(v.state)))
    if not verdicts:
        return
    yield ""
    yield from markdown_table(
        ("verdict", "gate", "cell", "because"), [concern(run, v) for v in verdicts[:VERDICTS]], texts=4
    )
    if len(verdicts) > VERDICTS:
        yield from ("", f"{len(verdicts) - VERDICTS} more verdicts are in report.html.")


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
    """Yield the disturbances of the times."""
    sentences = machine.sentences(run)
    if sentences:
        yield ""
        yield from (f"- The machine: {markdown(sentence)}" for sentence in sentences[:MACHINE])
    if len(sentences) > MACHINE:
        yield f"- and {len(sentences) - MACHINE} more in report.html"


def fenced(command: str) -> str:
    """`command` in one line that cannot end a fenced code block."""
    return visible(command).replace("\n", " ").replace("```", "` ` `")


REPORT = MarkdownReport()

"""The head of every report: the state, the reason in one sentence, and the command that repeats the run."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.load.figures import best_in_words, in_words, most_in_words
from specgate.analysis.paired_blocks import other_speedups
from specgate.analysis.variation import variation
from specgate.analysis.verdict import overall
from specgate.contract import EXPLORED, CellResult, Gap, Held, Role, Run, Scenario, State, Verdict
from specgate.contract.metrics import BATCH_SPEEDUPS, metric
from specgate.errors import ExitCode
from specgate.files.writing import without_home
from specgate.reports.common import figures

MARKS = {
    State.PASS: "✓",
    State.IMPROVED: "✓",
    State.FAIL: "✗",
    State.INCONCLUSIVE: "?",
    State.INVALID: "!",
    State.SKIPPED: "–",
    State.ENV_REJECTED: "!",
    State.NOT_JUDGED: "?",
}
QUIET: Final = (State.PASS, State.IMPROVED, State.SKIPPED)
"""States of verdicts that ask for nothing."""
CUT_SHORT: Final = ("not_measured", "incomplete")
"""Reasons of verdicts on cells that a run which was cut short has not come to."""
_BAD_FIRST = (State.INVALID, State.ENV_REJECTED, State.FAIL, State.INCONCLUSIVE, State.NOT_JUDGED)


def repeats_the_end(run: Run, verdict: Verdict) -> bool:
    """Return whether a verdict says of a cell again what the headline says of the run: that it was cut short."""
    return bool(run.failures) and verdict.reason_code in CUT_SHORT and verdict.state not in QUIET


@dataclass(frozen=True, slots=True)
class Headline:
    """The first sentence of a report.

    `state`: a value of `State`, or BACKEND_ERROR if the engine failed. `advice`: what to do next, or None.
    """

    state: str
    code: ExitCode
    reason: str
    advice: str | None


def headline(run: Run) -> Headline:
    """The headline of a run: its first failure if it was cut short, else its worst required verdict."""
    state, code = overall(run)
    if run.failures:
        point, why = next(iter(run.failures.items()))
        first, _, rest = why.partition("\n")
        where = place_of(point, run)
        return Headline(code.name, code, f"{where} was cut short: {first}", rest.strip() or None)
    culprit = worst(run.verdicts)
    if lacks_rules(run):
        return Headline(state.value, code, _unjudged(run), _to_be_judged(run))
    if culprit is None:
        return Headline(state.value, code, _all_green(run), _advisory(run))
    return Headline(state.value, code, f"{about(culprit, run.scenarios)}: {culprit.message}", culprit.next_step)


def place_of(point: str, run: Run) -> str:
    """Return the name of a point that failed, which may stand for the whole run."""
    return "the run" if point == "run" else cell_name(point, run.scenarios)


_ALONE = "No baseline was measured: no speed-up is claimed, and no tokens are compared."
_TO_BE_ALONE = (
    "A server without speculation beside it (URL,URL) gives the speed-up. A run without one is green where "
    "the policy asks for neither, and says why under `not_judged`."
)
_OF_A_POLICY = (
    "The policy needs a required rule for it (one with `otherwise: true` speaks of every cell that no other does), or "
    "an entry under `not_judged` that says why it is not judged."
)


def _to_be_judged(run: Run) -> str:
    """Return what makes a NOT_JUDGED run one that is judged."""
    if run.promotion is not None and run.promotion.override == EXPLORED:
        return f"For a verdict, without --explore: {run.promotion.needed} green micro runs, by {run.promotion.command}"
    return _TO_BE_ALONE if alone(run) else _OF_A_POLICY


def lacks_rules(run: Run) -> bool:
    """Return whether the run is NOT_JUDGED because its policy asks for too little, and not because a rule says so."""
    silent = worst(run.verdicts) is None or any(gap.why is None for gap in run.not_judged)
    return silent and overall(run)[0] is State.NOT_JUDGED


def _unjudged(run: Run) -> str:
    """Return the judgements that a NOT_JUDGED run lacks."""
    if alone(run) and {gap.kind for gap in run.not_judged if gap.why is None} <= {"tokens", "speed"}:
        return _ALONE
    kinds: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for gap in run.not_judged:
        if gap.why is None:
            kinds[gap.cells].append(gap.kind)
    silent = [f"{' or '.join(of)} of {cells_in_words(cells, run.scenarios)}" for cells, of in kinds.items()]
    lacking = f"No required rule judges {', '.join(silent)}." if silent else ""
    return (f"{_ALONE} " if alone(run) else "") + (lacking or "No required rule judged a cell of this run.")


def alone(run: Run) -> bool:
    """Return whether roles with a draft were measured without a baseline."""
    return not all(scenario.baseline for scenario in run.scenarios.values())


def not_judged(run: Run) -> list[str]:
    """Return the judgements that the run lacks, one sentence per reason, and the broken invariants that are accepted.

    If the run is NOT_JUDGED, its headline has those without a reason.
    """
    headlined = overall(run)[0] is State.NOT_JUDGED
    gaps = [gap for gap in run.not_judged if gap.why or not headlined]
    return [
        *(
            f"Not judged: {gap_in_words(gap, run.scenarios)}: {gap.why or 'no required rule asks for it'}."
            for gap in gaps
        ),
        *accepted_breaks(run),
    ]


def accepted_breaks(run: Run) -> list[str]:
    """Return a sentence for each broken invariant that the policy accepts, with its cells and the first reason."""
    broken: dict[tuple[str, str], list[str]] = {}
    for verdict in run.verdicts:
        if (verdict.state, verdict.reason_code) == (State.PASS, "all_held"):
            for invariant in run.certificates.get(verdict.cell, ()):
                if invariant.held is Held.BROKEN:
                    broken.setdefault((invariant.id, invariant.reason_code), []).append(invariant.message)
    return [
        f"The policy accepts that {name} is broken in {figures.counted(len(messages), 'cell')}: {messages[0]}."
        for (name, _), messages in broken.items()
    ]


def gap_in_words(gap: Gap, scenarios: Mapping[str, Scenario]) -> str:
    """Return `speed of 1K · batch 1 · spec-3`, or the number of cells if there are more than two."""
    return f"{gap.kind} of {cells_in_words(gap.cells, scenarios)}"


def cells_in_words(keys: Sequence[str], scenarios: Mapping[str, Scenario]) -> str:
    """Return the names of cells, or their number if there are more than two."""
    return f"{len(keys)} cells" if len(keys) > 2 else " and ".join(cell_name(key, scenarios) for key in keys)


def break_evens(run: Run) -> list[str]:
    """Up to which level of load speculation pays, one sentence per sweep of a load run; none for any other run."""
    several = len({(b.scenario, b.context) for b in run.break_even}) > 1
    return [
        f"{Role(b.k)}" + (f", {b.scenario} c{b.context}" if several else "") + f": {in_words(b)}."
        for b in run.break_even
    ]


def beside_break_evens(run: Run) -> Iterator[str]:
    """Yield the greatest load within the latency limits and the best draft lengths of a load run; none of any other."""
    for (name, _), roles in groupby(run.max_goodput, key=lambda most: (most.scenario, most.context)):
        if (limits := run.scenarios[name].goodput) is not None:
            yield f"W{most_in_words(list(roles), limits)[1:]}."
    for _, levels in groupby(run.best_drafts, key=lambda best: (best.scenario, best.context)):
        yield f"B{best_in_words(list(levels))[1:]}."


def out_of_order(run: Run) -> str | None:
    """The first line of every report of a full run that began before its micro gates were green, else None."""
    promotion = run.promotion
    if promotion is None or promotion.override is None:
        return None
    green = f"micro gates green {promotion.streak} of {promotion.needed} times"
    if promotion.override == EXPLORED:
        return f"EXPLORATION ({green}): records and tokens are judged, and nothing else; no run is promoted by it"
    return f"ORDER OVERRIDDEN ({green}): {promotion.override}"


def advances(run: Run) -> bool:
    """Return whether the policy counts green micro runs for this run: it is one of them, or a full run."""
    gates = run.promotion.gates if run.promotion else {}
    return bool(gates) and (run.kind == "full" or not gates.keys().isdisjoint(run.scenarios))


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The first required verdict of the worst state; None if all required verdicts are green."""
    required = [v for v in verdicts if v.required]
    return next((v for state in _BAD_FIRST for v in required if v.state is state), None)


def gravity(verdicts: Iterable[Verdict]) -> int:
    """Return the rank of the gravest of `verdicts`, to sort by: the lower, the graver; 0 if none asks for anything.

    Any required verdict that is not green is graver than all that only advise.
    """
    ranks = (
        _BAD_FIRST.index(v.state) - (2 if v.required else 1) * len(_BAD_FIRST)
        for v in verdicts
        if v.state in _BAD_FIRST
    )
    return min(ranks, default=0)


def about(verdict: Verdict, scenarios: Mapping[str, Scenario]) -> str:
    """Return the rule with the name of its cell in a run of these scenarios."""
    return f"{verdict.rule} on {cell_name(verdict.cell, scenarios)}" if verdict.cell else verdict.rule


def acceptance_label(run: Run) -> str | None:
    """The label of figures whose acceptance is not a trained pair's, for example `forced acceptance`; None if it is."""
    return None if run.acceptance == "real" else f"{run.acceptance} acceptance"


def cell_note(run: Run, result: CellResult) -> str | None:
    """The note on a cell: what varies in a variant, missing blocks, times that were set aside, an unusable draft, the
    other speed-ups of a batch, if one of them is another number, and figures whose metric has a note; None where there
    is nothing of these.
    """
    comparison = run.comparison(result.cell.key)
    others = other_speedups(comparison) if comparison is not None else {}
    ratios = {name: figures.ratio(value) for name, value in others.items()}
    if comparison is not None and set(ratios.values()) == {figures.figure(comparison.speedup)}:
        ratios = {}
    joint = comparison is not None and comparison.speedup.metric == "joint_decode_speedup_ratio"
    trouble = run.draft_trouble(result)
    aside = f"times of {result.set_aside} of {result.blocks} blocks set aside: the host was disturbed"
    notes = (
        variation(run, result.cell),
        result.reason,
        aside if result.set_aside else None,
        f"draft unusable: {trouble}" if trouble else None,
        "judged while all requests decode" if ratios and joint else None,
        ", ".join(f"{BATCH_SPEEDUPS[name]} {ratio}" for name, ratio in ratios.items()),
        *(f"{note} {figures.figure(v)}" for v in result.values.values() if v.value and (note := metric(v.metric).note)),
    )
    return "; ".join(text for text in notes if text) or None


def tally(run: Run, *, required: bool) -> str:
    """Return the number of verdicts in each state, such as `5 PASS, 1 FAIL`; empty if there are none. Rules that judge
    nothing in this run are not counted.

    `required`: required verdicts are counted, else advisory ones.
    """
    states: Counter[State] = Counter(
        v.state for v in run.verdicts if v.required is required and v.state is not State.SKIPPED
    )
    return ", ".join(f"{states[state]} {state.value}" for state in State if states[state])


def _all_green(run: Run) -> str:
    green = sum(v.required and v.state in (State.PASS, State.IMPROVED) for v in run.verdicts)
    return f"All {green} required verdicts are green." if green else "No required gate judged a cell of this run."


def _advisory(run: Run) -> str | None:
    wanting = next((v for s in _BAD_FIRST for v in run.verdicts if v.state is s), None)
    return f"Advisory: {about(wanting, run.scenarios)}: {wanting.message}" if wanting else None


def reproduction(run: Run) -> str:
    """The command line that made the run, quoted for a POSIX shell."""
    return " ".join(quoted_words(run))


def quoted_words(run: Run) -> list[str]:
    """Its words. The home folder is `~`, as in stored files, and stays outside the quotes: a shell expands it there."""
    words = map(without_home, run.argv)
    return [f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word) for word in words]


def seconds(run: Run) -> float | None:
    """Return the seconds that the run took; None if it has not ended."""
    if run.ended is None:
        return None
    return (datetime.fromisoformat(run.ended) - datetime.fromisoformat(run.started)).total_seconds()


def duration(run: Run) -> str | None:
    """Return the duration of the run, as in `4 min 30 s`; None if it has not ended."""
    took = seconds(run)
    return None if took is None else figures.in_minutes(took)

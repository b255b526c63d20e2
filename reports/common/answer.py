"""The answer of a run in words, and whether an advisory verdict that denies it counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgate.analysis.cell_names import cell_name
from specgate.analysis.intervals.other_prompts import THESE
from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.load.figures import counted, in_words, unit_of
from specgate.analysis.verdict import overall
from specgate.contract import Comparison, Run, State, Value, Verdict
from specgate.contract.token_check import NO_TOKEN
from specgate.contract.verdict import SPEEDUP
from specgate.reports.common import figures, summary


def answer(run: Run) -> str | None:
    """Return one sentence: tokens differ, speculation pays or costs, or nothing is known yet. None if the run was cut
    short, since its headline says more.
    """
    if run.failures or not run.cells:
        return None
    if wrong := _wrong(run):
        return _difference(run, wrong)
    if run.break_even:
        if invalid := [v for v in run.verdicts if v.required and v.state is State.INVALID]:
            return _nothing_holds(run, invalid[0])
        of_one = in_words(run.break_even[0])
        alone = [f"{of_one[0].upper()}{of_one[1:]}."] if len(run.break_even) == 1 else summary.break_evens(run)
        return " ".join((*alone, *summary.beside_break_evens(run)))
    if not any(result.cell.role.speculative for result in run.cells):
        return "No cell with speculation was measured."
    if not run.comparisons:
        return "No baseline was measured, so no speed-up is known."
    known = [c.speedup for c in run.comparisons if c.speedup.value is not None]
    if not known:
        reasons = sorted({c.speedup.reason_code or "" for c in run.comparisons} - {""})
        return "Not enough data for a speed-up" + (f": {', '.join(reasons).replace('_', ' ')}." if reasons else ".")
    open_ = {v.cell for v in run.verdicts if v.required and v.state is State.INCONCLUSIVE and asks_to_pay(v)}
    if len(run.comparisons) > 1:
        return _several(run, [c.speedup for c in run.comparisons if c.cell.key not in open_])
    others = figures.others(run, run.comparisons[0])
    return _one(known[0], f"; {others}" if others else "", _missed(run), bool(open_))


def asks_to_pay(verdict: Verdict) -> bool:
    """Return whether a rule asks for a speed-up of no more than 1, so that it asks whether speculation pays."""
    return verdict.floor is not None and verdict.floor.figure == SPEEDUP and verdict.floor.least <= 1


def _wrong(run: Run) -> list[Comparison]:
    """Return the comparisons with wrong tokens, by the records or by a rule, which may allow less rounding."""
    red = {v.cell for v in run.verdicts if "tokens" in v.judges and v.state is State.INVALID}
    return [c for c in run.comparisons if c.tokens.defects or (c.tokens.mismatches and c.cell.key in red)]


def _difference(run: Run, wrong: Sequence[Comparison]) -> str:
    tokens = wrong[0].tokens
    first = min(tokens.defects or tokens.mismatches, key=lambda d: (d.prompt_set, d.round, d.slot, d.position))
    alone = wrong[0].cell.point.batch == 1
    prompt = f"prompt {first.prompt_set}" if alone else f"prompt set {first.prompt_set}, slot {first.slot}"
    got, expected = ("the end" if token == NO_TOKEN else token for token in (first.got, first.expected))
    where = "" if len(run.comparisons) == 1 else f" with {cell_name(wrong[0].cell.key, run.scenarios)}"
    return f"Tokens differ{where}: {prompt}, token {first.position}: {got} instead of {expected}."


def _nothing_holds(run: Run, first: Verdict) -> str:
    """Return why a sweep that is INVALID answers nothing: the levels that refused requests, or its first rule."""
    points = sorted((r.cell.point for r in run.cells if r.refused), key=lambda point: point.level)
    levels = dict.fromkeys(counted(point.level, unit_of(point.rate is not None)) for point in points)
    why = f"requests were refused at {', '.join(levels)}" if levels else f"{first.rule} is {first.state.value}"
    return f"No answer: {why}."


def _missed(run: Run) -> str:
    """Return the speed-up that a required rule asks for and the run does not reach, in words; "" if there is none."""
    red = (v.floor for v in run.verdicts if v.required and v.state is State.FAIL and v.floor is not None)
    return next((f", but less than asked ({floor.text})" for floor in red if floor.figure == SPEEDUP), "")


def _one(speedup: Value, others: str, missed: str, undecided: bool) -> str:
    assert speedup.value is not None
    ratio, low, high = figures.ratio(speedup.value), speedup.ci_low, speedup.ci_high
    if low is None or high is None:
        return f"Not enough data to say whether speculation pays: {ratio} so far, without an interval."
    ends = " to ".join(told_from(1.0, end, 2) for end in (low, high))
    span = f"{ratio}, 95 % {ends}, {THESE}{others}"
    if undecided or low <= 1 <= high:
        return f"Not enough data to say whether speculation pays: {span}."
    return f"Speculation {f'pays{missed}' if low > 1 else 'costs'}: {span}."


def _several(run: Run, known: Sequence[Value]) -> str:
    pays = [v.value for v in known if v.value is not None and v.ci_low is not None and v.ci_low > 1]
    costs = [v.value for v in known if v.value is not None and v.ci_high is not None and v.ci_high < 1]
    parts = [_counted(verb, of, len(run.comparisons)) for verb, of in (("pays", pays), ("costs", costs)) if of]
    unclear = len(run.comparisons) - len(pays) - len(costs)
    if not parts:
        return f"Not enough data to say whether speculation pays in any of {unclear} cells."
    return f"Speculation {'; '.join(parts)}{f'; {unclear} cells: not enough data' if unclear else ''}."


def _counted(verb: str, ratios: Sequence[float], cells: int) -> str:
    spread = " to ".join(dict.fromkeys(map(figures.ratio, (min(ratios), max(ratios)))))
    return f"{verb} in {'all' if len(ratios) == cells else f'{len(ratios)} of'} {cells} cells: {spread}"


def decided_by(run: Run) -> str:
    """Return what decided the verdict: the reason of the headline, and of a green run its rules with their demands."""
    state, _ = overall(run)
    reason = summary.headline(run).reason
    if run.failures or state not in (State.PASS, State.IMPROVED):
        return reason
    green = [v for v in run.verdicts if v.required and v.state in (State.PASS, State.IMPROVED)]
    rules = dict.fromkeys(f"{v.rule} {v.floor.text}" if v.floor else v.rule for v in green)
    return f"{reason.removesuffix('.')}: {', '.join(rules)}." if rules else reason


def which_counts(run: Run) -> Iterator[str]:
    """Yield one sentence if an advisory verdict denies the run's: which of them counts. Else nothing."""
    denying = [v for v in run.verdicts if not v.required and v.state not in summary.QUIET]
    state = overall(run)[0]
    if not denying or run.failures or state in (State.INVALID, State.ENV_REJECTED):
        return
    rules = list(dict.fromkeys(v.rule for v in denying))
    verb = "advises" if len(rules) == 1 else "advise"
    only = f"{state.value.replace('_', ' ')} counts: {', '.join(rules)} only {verb}"
    disturbed = any(v.state is State.ENV_REJECTED for v in denying)
    yield only + ("; before you quote a time, measure again on a quiet machine." if disturbed else ".")

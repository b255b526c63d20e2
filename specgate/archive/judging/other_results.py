"""A result of another tool, judged by a policy.

It holds means that were measured at another time than their baseline's. A speed gate judges their ratio only if both
were repeated; else it shows it and is INCONCLUSIVE. Gates that need tokens, texts or steps cannot be judged from such a
result at all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate import plugins
from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.verdict import not_judged
from specgate.archive.comparing.two_samples import of_repetitions
from specgate.archive.other_tools.cells import label, merged, run_of, with_scenarios
from specgate.archive.other_tools.reading import Result, results_at
from specgate.contract import ACCEPTANCE_LENGTH, SPEEDUP, Floor, Policy, Role, Rule, Run, State, Verdict
from specgate.contract.protocols import StatesNeeds
from specgate.errors import UsageError
from specgate.files.run_folder import RUN
from specgate.planning.gates import floor_of, kinds_of, marked
from specgate.planning.rule_names import nowhere, with_elsewhere
from specgate.run.recompute import meant_nothing


def judged_results(
    path: Path, policy: Policy, *, baseline: Path | None = None, scenario: str | None = None, role: str | None = None
) -> Run:
    """Return the results in a file or folder as a run with the policy's verdicts.

    A folder's files are repetitions. `baseline`: the file or folder without speculation. `scenario`, `role`: what was
    measured, if the results do not say so themselves. Raises UsageError if nothing can be read, or it is not known what
    was measured, InvalidResult if a result contradicts itself.
    """
    if path.name == RUN:
        raise UsageError(f"{path}: a run is judged by its samples", hint="name its folder")
    results = results_at(path)
    others = results_at(baseline) if baseline else results
    spec = speculative(path, results, policy, scenario, role)
    run = run_of(path.name, spec)
    single = baseline is not None
    dead = nowhere(with_elsewhere(policy, ()), (result.cell for result in run.cells))
    verdicts = [
        verdict
        for rule in policy.rules
        for verdict in (
            [meant_nothing(rule, dead[rule.id])]
            if rule.id in dead
            else marked(rule, judged_rule(rule, run, spec, others, single=single))
        )
    ]
    judged = replace(run, verdicts=tuple(verdicts))
    gaps = not_judged(judged, policy, kinds_of(policy))
    # Its records are counts, which the reader has held against each other.
    return replace(judged, not_judged=tuple(gap for gap in gaps if gap.kind != "validity"))


def speculative(
    where: Path, results: Sequence[Result], policy: Policy, scenario: str | None, role: str | None
) -> list[Result]:
    """The results with speculation, completed by what the command line says; all of them if none tells and a role is
    given.

    Raises UsageError if there are none, if scenario or draft length is still unknown, or if `role` contradicts one.
    """
    chosen = [r for r in results if r.speculates] or (list(results) if role else [])
    if not chosen:
        tools = ", ".join(dict.fromkeys(r.tool.name for r in results))
        hint = "add --role spec-N if it was measured with speculation"
        message = f"{where}: no result in it tells of speculation ({tools}): there is nothing to judge"
        raise UsageError(message, hint=hint)
    named = scenario is None and any(rule.scenario != "*" for rule in policy.rules)
    for result in chosen:
        if named and result.scenario is None:
            raise UsageError(f"{where}: {result.name}: scenario unknown", hint="add --scenario NAME")
    (labelled,) = with_scenarios(chosen)
    questions = list(dict.fromkeys(str(r.scenario) for r in labelled))
    if scenario and len(questions) > 1:
        message = f"{where}: --scenario {scenario}, but it holds {len(questions)} questions: {'; '.join(questions)}"
        raise UsageError(message, hint="judge a file of each")
    return merged(with_answers(r, scenario, role, where) for r in labelled)


def with_answers(result: Result, scenario: str | None, role: str | None, where: Path) -> Result:
    """The result with its scenario and its draft length. Raises UsageError, as `speculative` does."""
    try:
        k = Role.parse(role).k if role else result.k
    except ValueError as error:
        raise UsageError(f"--role: {error}") from error
    if role and k and result.k and k != result.k and not (result.least_k and k > result.k):
        message = f"--role {role}, but {result.name or 'the result'} is of spec-{result.k}"
        raise UsageError(f"{where}: {message}", hint=f"--role spec-{result.k}, or no --role")
    if not k:
        raise UsageError(f"{where}: {result.name or 'the result'}: draft length unknown", hint="add --role spec-N")
    return replace(result, k=k, scenario=scenario or result.scenario, speculates=True)


def judged_rule(
    rule: Rule, run: Run, results: Sequence[Result], baselines: Sequence[Result], *, single: bool
) -> Iterator[Verdict]:
    gate: object = plugins.gate(rule.gate)
    floor = floor_of(rule)
    matching = [(c.cell, r) for c, r in zip(run.cells, results, strict=True) if rule.matches(c.cell)]
    if floor is not None and floor.figure == ACCEPTANCE_LENGTH and all(lengths_of(r) for _, r in matching):
        yield from plugins.gate(rule.gate).judge(rule, run.view)
        return
    if not matching:
        what = f"no cell of this file matches scenario {rule.scenario!r} and role {rule.role!r}"
        yield Verdict(rule.id, rule.gate, "", State.SKIPPED, rule.required, "no_cell", what)
    for cell, result in matching:
        if floor is not None and floor.figure == SPEEDUP:
            yield judged_speed(rule, floor, cell.key, result, baseline_of(result, baselines, single=single))
        else:
            lacks = gate.needs if isinstance(gate, StatesNeeds) else "what this gate looks at"
            lacks = "counts of speculation" if floor is not None else lacks
            yield inconclusive(rule, cell.key, "not_in_file", f"cannot be judged from {run.id}: it lacks {lacks}")


def lengths_of(result: Result) -> bool:
    """True if the result tells its acceptance length, or that nothing was drafted."""
    return result.drafting is not None or result.length is not None


def baseline_of(result: Result, candidates: Sequence[Result], *, single: bool) -> Result | None:
    """The result without speculation to compare `result` with; None if there is none.

    It is the one for the same scenario or question. If the candidates come from a file that was named as the baseline
    (`single`) and only one of them is without speculation, it is that one, whatever it measured.
    """
    plain = merged(c for c in candidates if c.speculates is False or (single and c.speculates is None))
    if single and len(plain) == 1:
        return plain[0]
    same = [c for c in plain if c.scenario is not None and c.scenario == result.scenario]
    return next((c for c in [*same, *plain] if c in same or (c.asked and c.asked == result.asked)), None)


def judged_speed(rule: Rule, floor: Floor, cell: str, result: Result, baseline: Result | None) -> Verdict:
    """The verdict on the ratio of two speeds: by an interval where both were repeated, else INCONCLUSIVE."""
    if baseline is None:
        return inconclusive(
            rule, cell, "baseline_missing", "no result without speculation to compare with: --baseline FILE"
        )
    if differing := [name for name, value in result.asked.items() if baseline.asked.get(name, value) != value]:
        message = f"the baseline was asked otherwise: {label(baseline, differing)} for {label(result, differing)}"
        return inconclusive(rule, cell, "questions_differ", message)
    if failed := [
        f"{one.failed} of {name}" for name, one in (("its", result), ("the baseline's", baseline)) if one.failed
    ]:
        message = f"{' and '.join(failed)} requests failed: the speeds are of other work"
        return inconclusive(rule, cell, "requests_failed", message, next_step="a load that the server answers")
    tok_s, base = statistics.fmean(result.tok_s), statistics.fmean(baseline.tok_s)
    least = floor.least
    evidence = {"speedup_vs_ar_ratio": tok_s / base, "min": least, "baseline_tok_s": base, "tok_s": tok_s}
    estimate = of_repetitions(baseline.tok_s, result.tok_s)
    if estimate is None:
        side = "above" if tok_s / base >= least else "below"
        ratio_text = f"{told_from(least, tok_s / base, 3)}x, {side} {least:g}x"
        message = f"{ratio_text}, but two means taken at different times prove neither"
        return inconclusive(rule, cell, "unpaired_in_time", message, evidence, WOULD_DECIDE)
    low, high = map(math.exp, estimate.interval(between=(OF_TIME, OF_TIME)))
    ratio = math.exp(estimate.mean)
    evidence |= {"speedup_vs_ar_ratio": ratio, "ci_low": low, "ci_high": high}
    counted = f"{len(result.tok_s)} and {len(baseline.tok_s)} repetitions, apart in time"
    ratio_text, *ends = (told_from(least, value, 3) for value in (ratio, low, high))
    message = f"{ratio_text}x, 95 % interval {'–'.join(ends)}, {counted}"
    if low <= least <= high:
        message = f"{message}: {least:g}x lies inside"
        return inconclusive(rule, cell, "floor_not_excluded", message, evidence, WOULD_DECIDE)
    state, code, side = (State.PASS, "at_least_min", "at least") if low > least else (State.FAIL, "below_min", "below")
    return Verdict(rule.id, rule.gate, cell, state, rule.required, code, f"{message}: {side} {least:g}x", evidence)


WOULD_DECIDE: Final = "three results of each side (a folder of files), or measured in turns: specgate micro URL,URL"


def inconclusive(
    rule: Rule,
    cell: str,
    reason_code: str,
    message: str,
    evidence: Mapping[str, float] | None = None,
    next_step: str | None = None,
) -> Verdict:
    state = State.INCONCLUSIVE
    return Verdict(rule.id, rule.gate, cell, state, rule.required, reason_code, message, evidence or {}, next_step)

"""A result of this tool or of another one, told by its content, to be judged.

A benchmark holds means over whole requests that were measured at another time than their baseline, which proves no
speed-up. A speed gate therefore shows their ratio as evidence and is INCONCLUSIVE. Gates that need tokens, texts or
steps cannot be judged from a benchmark at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate import plugins
from specgate.analysis.tokens.checking import rejudged
from specgate.analysis.verdict import not_judged
from specgate.archive.judging.benchmark_json import Benchmark, acceptance_length, benchmarks, read, with_answers
from specgate.archive.verification import unended, verify
from specgate.contract import (
    ACCEPTANCE_LENGTH,
    SPEEDUP,
    Cell,
    CellResult,
    Comparison,
    Floor,
    NearTies,
    PairRef,
    Point,
    Policy,
    Role,
    Rule,
    Run,
    State,
    Value,
    Verdict,
)
from specgate.contract.protocols import StatesNeeds
from specgate.errors import InvalidResult, NotEnded, UsageError
from specgate.files.json_text import from_plain
from specgate.files.run_folder import RunFolder
from specgate.files.run_schema import FAMILY, check_schema
from specgate.planning.gates import floor_of, kinds_of, marked, near_ties
from specgate.planning.plan import build_plan
from specgate.planning.rule_names import nowhere, with_elsewhere
from specgate.run.ending import stored_run
from specgate.run.recompute import judge, meant_nothing, with_figures


def judged_anew(path: Path, policy: Policy) -> Run:
    """The run in the folder `path` with figures and verdicts by the rules of `policy`, computed from its samples.

    What was measured stays as the run's own policy had it: where its points stopped, and how far tokens were checked
    (`checks`). Figures that another version of specgate computed otherwise are computed anew, too. Raises NotEnded for
    a run that has not ended, InvalidResult where the folder does not hold (`runs verify`), or where the policy asks
    how near a tie was and the run did not; and what opening the folder raises.
    """
    if why := unended(path):
        raise NotEnded(f"{path} has not ended: {why}")
    check = verify(path)
    if wrong := check.differences:
        hint = f"first: {wrong[0]}; `specgate runs verify {path}` has all"
        raise InvalidResult(f"{path}: the run does not hold, so that nothing follows from its samples", hint=hint)
    folder = RunFolder.open(path)
    config = folder.read_config()
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    judging = replace(with_elsewhere(policy, config.scenarios.values()), checks=config.policy.checks)
    stored = stored_run(folder, config)
    run = judge(with_figures(stored, plan, judging, folder.journal(), stopped_by=config.policy), judging)
    parted = [c.cell.key for c in run.comparisons if c.tokens.divergences]
    if near_ties(judging).by_law and not near_ties(config.policy).by_law and parted:
        raise InvalidResult(
            f"{path}: texts part in {parted[0]}, and policy {config.policy.name}, which the run was made with, has no "
            "max_sigma: nobody asked for the log-probabilities there",
            hint=f"measure under {policy.name}, or judge by a policy without max_sigma",
        )
    return run


ELSEWHERE: Final = "elsewhere"
"""The name that stands for the back end in the keys of a benchmark's cells."""


def judged_file(
    file: Path, policy: Policy, *, baseline: Path | None = None, scenario: str | None = None, role: str | None = None
) -> Run:
    """The result in `file` as a run with the policy's verdicts.

    For a benchmark JSON, `baseline` is the file with the result without speculation; `scenario` and `role` say what the
    benchmark measured, if it does not say so itself. Raises UsageError if the file cannot be read, holds no result,
    or it is not known what it measured, InvalidResult if it contradicts itself, and OtherVersion for a run.json of
    another version.
    """
    data = read(file)
    if isinstance(data, dict) and str(data.get("schema")).startswith(FAMILY):
        check_schema(file, data)
        if baseline or scenario or role:
            raise UsageError(f"{file} is a run.json", hint="it says itself what it measured: leave the options out")
        run = with_near_ties(from_plain(Run, data, file), near_ties(policy))
        try:
            return judge(run, with_elsewhere(policy, run.scenarios.values()))
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            raise InvalidResult(
                f"{file}: its figures contradict each other: {type(error).__name__}: {error}"
            ) from error
    results = list(benchmarks(file, data))
    others = list(benchmarks(baseline, read(baseline))) if baseline else results
    spec = [with_answers(r, scenario, role, file) for r in results if r.speculation is not None]
    if not spec:
        lacking = " or ".join(sorted({f"{r.names.block}: {r.names.drafts}" for r in results}))
        raise UsageError(f"{file}: no result in it has counts of speculation ({lacking}): there is nothing to judge")
    run = as_run(file, spec)
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
    return replace(judged, not_judged=not_judged(judged, policy, kinds_of(policy)))


# ── run.json ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_near_ties(run: Run, ties: NearTies) -> Run:
    """`run` with its divergences judged by other near ties.

    A speed-up that was withheld when the run was made stays withheld.
    """
    return replace(run, comparisons=tuple(_with_near_ties(c, ties) for c in run.comparisons))


def _with_near_ties(comparison: Comparison, ties: NearTies) -> Comparison:
    tokens = rejudged(comparison.tokens, ties)
    speedup = comparison.speedup
    if tokens.defects and speedup.value is not None:
        speedup = Value(speedup.metric, None, n=speedup.n, reason_code="token_mismatch")
    return replace(comparison, tokens=tokens, speedup=speedup)


# ── benchmarks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def as_run(file: Path, results: Sequence[Benchmark]) -> Run:
    """The results as cells without blocks, intervals or tokens."""
    return Run(
        id=file.name,
        kind="micro" if all(result.micro for result in results) else "full",
        status="complete",
        started="",
        ended=None,
        argv=(),
        tool_version="",
        fingerprint={},
        environment={},
        scenarios={},
        pair=PairRef(ELSEWHERE, Path(), None),
        engines={},
        prompts={},
        cells=tuple(cell_of(file, r) for r in results),
        comparisons=(),
        failures={},
    )


def cell_of(file: Path, result: Benchmark) -> CellResult:
    assert result.k and result.scenario
    cell = Cell(Point(result.scenario, ELSEWHERE, 0, 0), Role(result.k))
    speed = Value("output_tok_s", result.tok_s, "mean", reason_code="unpaired_in_time")
    length = Value("acceptance_length", acceptance_length(file, result), "tok_weighted", reason_code="no_interval")
    return CellResult(cell, "ok", None, 0, None, {v.metric: v for v in (speed, length)}, ())


def judged_rule(
    rule: Rule, run: Run, results: Sequence[Benchmark], baselines: Sequence[Benchmark], *, single: bool
) -> Iterator[Verdict]:
    gate: object = plugins.gate(rule.gate)
    floor = floor_of(rule)
    if floor is not None and floor.figure == ACCEPTANCE_LENGTH:
        yield from plugins.gate(rule.gate).judge(rule, run.view)
        return
    matching = [(c.cell, r) for c, r in zip(run.cells, results, strict=True) if rule.matches(c.cell)]
    if not matching:
        what = f"no cell of this file matches scenario {rule.scenario!r} and role {rule.role!r}"
        yield Verdict(rule.id, rule.gate, "", State.SKIPPED, rule.required, "no_cell", what)
    for cell, result in matching:
        if floor is not None and floor.figure == SPEEDUP:
            yield judged_speed(rule, floor, cell.key, result, baseline_of(result, baselines, single=single))
        else:
            lacks = gate.needs if isinstance(gate, StatesNeeds) else "what this gate looks at"
            yield inconclusive(rule, cell.key, "not_in_file", f"cannot be judged from {run.id}: it lacks {lacks}")


def baseline_of(result: Benchmark, candidates: Sequence[Benchmark], *, single: bool) -> Benchmark | None:
    """The result without speculation to compare `result` with; None if there is none.

    It is the one for the same scenario. If the candidates come from a file that was named as the baseline (`single`)
    and only one of them is without speculation, it is that one, whatever its scenario.
    """
    plain = [c for c in candidates if c.speculation is None]
    if single and len(plain) == 1:
        return plain[0]
    return next((c for c in plain if c.scenario is not None and c.scenario == result.scenario), None)


def judged_speed(rule: Rule, floor: Floor, cell: str, result: Benchmark, baseline: Benchmark | None) -> Verdict:
    if baseline is None:
        return inconclusive(
            rule, cell, "baseline_missing", "no result without speculation to compare with: --baseline FILE"
        )
    ratio, least = result.tok_s / baseline.tok_s, floor.least
    evidence = {"speedup_vs_ar_ratio": ratio, "min": least, "baseline_tok_s": baseline.tok_s, "tok_s": result.tok_s}
    side = "above" if ratio >= least else "below"
    message = f"{ratio:.3f}x, {side} {least:g}x, but two means taken at different times prove neither"
    return inconclusive(rule, cell, "unpaired_in_time", message, evidence, "measure both in pairs: specgate full")


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

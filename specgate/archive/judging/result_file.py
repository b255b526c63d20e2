"""A run folder, a run.json or a result of another tool, told by its content, to be judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specgate.analysis.tokens.checking import rejudged
from specgate.archive.judging.other_results import judged_results
from specgate.archive.other_tools.reading import contents
from specgate.archive.verification import unended, verify
from specgate.contract import (
    Comparison,
    NearTies,
    Policy,
    Run,
    Value,
)
from specgate.errors import InvalidResult, NotEnded, UsageError
from specgate.files.json_text import from_plain, read_json
from specgate.files.run_folder import RunFolder
from specgate.files.run_schema import FAMILY, check_schema
from specgate.planning.gates import near_ties
from specgate.planning.plan import build_plan
from specgate.planning.rule_names import with_elsewhere
from specgate.run.ending import stored_run
from specgate.run.recompute import judge, with_figures


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


def judged_file(
    file: Path, policy: Policy, *, baseline: Path | None = None, scenario: str | None = None, role: str | None = None
) -> Run:
    """The result in `file` as a run with the policy's verdicts.

    A result of another tool may be a folder of files, which are its repetitions. `baseline` is the file or folder
    without speculation; `scenario` and `role` say what was measured, if it does not say so itself. Raises UsageError if
    the file cannot be read, holds no result, or it is not known what it measured, InvalidResult if it contradicts
    itself, and OtherVersion for a run.json of another version.
    """
    data = None if file.is_dir() else contents(file)
    if isinstance(data, dict) and str(data.get("schema")).startswith(FAMILY):
        check_schema(file, data)
        if baseline or scenario or role:
            raise UsageError(f"{file} is a run.json", hint="it says itself what it measured: leave the options out")
        try:
            data = read_json(file)
        except ValueError as error:  # what other tools may write, a run.json may not
            raise UsageError(f"{file}: not JSON: {error}") from error
        run = with_near_ties(from_plain(Run, data, file), near_ties(policy))
        try:
            return judge(run, with_elsewhere(policy, run.scenarios.values()))
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            raise InvalidResult(
                f"{file}: its figures contradict each other: {type(error).__name__}: {error}"
            ) from error
    return judged_results(file, policy, baseline=baseline, scenario=scenario, role=role)


# ── run.json ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_near_ties(run: Run, ties: NearTies) -> Run:
    """`run` with its divergences judged by other near ties.

    A speed-up that was withheld when the run was made stays withheld.
    """
    caches = {key: facts.kv_cache for key, facts in run.engines.items()}
    judged = (_with_near_ties(c, ties.in_cache(caches.get(c.cell.point.key, ""))) for c in run.comparisons)
    return replace(run, comparisons=tuple(judged))


def _with_near_ties(comparison: Comparison, ties: NearTies) -> Comparison:
    tokens = rejudged(comparison.tokens, ties)
    speedup = comparison.speedup
    if tokens.defects and speedup.value is not None:
        speedup = Value(speedup.metric, None, n=speedup.n, reason_code="token_mismatch")
    return replace(comparison, tokens=tokens, speedup=speedup)

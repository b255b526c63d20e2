"""A run folder judged by another policy, with figures computed anew from its samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specgate.archive.verification import unended, verify
from specgate.contract import Policy, Run
from specgate.errors import InvalidResult, NotEnded
from specgate.files.run_folder import RunFolder
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

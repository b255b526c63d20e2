"""A policy from results of other tools (`specgate policy init FILE`): floors of acceptance that the same results pass.

Speed has none: the results of one side prove no speed-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specgate.analysis.grouping import grouped
from specgate.archive.other_tools.cells import merged, with_scenarios
from specgate.archive.other_tools.reading import Result, results_at
from specgate.archive.policy_from_runs import rounded_down, rule_line
from specgate.contract import Role, Rule
from specgate.errors import UsageError

NOT_JUDGED = {
    "tokens": "another tool's result holds no tokens",
    "speed": "runs check --baseline FILE shows the ratio; measured in turns, specgate micro proves it",
}
"""Kind of judgement → the reason for which the policy gives it up."""


def policy_of_results(paths: Sequence[Path], margin_pct: float) -> str:
    """Return a policy file for the results in `paths`. `margin_pct`: how far floors lie below what was measured.

    Raises UsageError if none tells an acceptance length, and what reading the files raises.
    """
    (results,) = with_scenarios([result for path in paths for result in results_at(path)])
    drafted = [result for result in merged(results) if result.length is not None]
    known = all(result.k for result in drafted)
    floors = grouped(drafted, lambda result: Role(result.k).name if known and result.k else "spec-*")
    if not floors:
        tools = ", ".join(dict.fromkeys(result.tool.name for result in results))
        message = f"no result of {', '.join(map(str, paths))} tells an acceptance length ({tools}): no floor follows"
        raise UsageError(message, hint="let the server count its drafts, or measure with specgate micro URL")
    return "\n".join(lines(paths, floors, margin_pct)) + "\n"


def lines(paths: Sequence[Path], floors: dict[str, list[Result]], margin_pct: float) -> Iterator[str]:
    """Yield the lines of the file."""
    yield f"# What must be kept, at least {margin_pct:g} % below what was measured by"
    yield from (f"#   {path.name}" for path in paths)
    yield "schema: specgate.policy/v1"
    yield "not_judged:"
    yield from (f'  - {{kind: {kind}, why: "{why}"}}' for kind, why in NOT_JUDGED.items())
    yield "rules:"
    for role, results in floors.items():
        lengths = [result.length for result in results if result.length is not None]
        floor = max(1.0, rounded_down(min(lengths) * (1 - margin_pct / 100)))
        yield f"  # {role}: acceptance length {min(lengths):.2f} of {len(lengths)} results."
        name = f"{role.replace('*', 'n')}-acceptance"
        yield from rule_line(Rule(name, "acceptance", True, "*", role, {"min": floor}))

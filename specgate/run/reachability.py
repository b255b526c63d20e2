"""Find floors of a policy that no run can reach, before anything is measured: a cycle of K drafts emits at most K + 1
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from specgate.contract import ACCEPTANCE_LENGTH, SPEEDUP, Plan, Policy
from specgate.contract.types import DRAFT_TOKENS
from specgate.errors import UsageError
from specgate.planning.gates import floors_of

NAMES: Final = {ACCEPTANCE_LENGTH: "an acceptance length", SPEEDUP: "a speed-up"}
"""Figures that cannot exceed the tokens of a cycle → their names."""


def check_reachable(policy: Policy, plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each required floor of the policy that a run of `plan` cannot reach.

    Raises UsageError that lists them where the policy says `unreachable: refuse`.
    """
    unreachable = tuple(dict.fromkeys(out_of_reach(policy, plan)))
    if unreachable and policy.unreachable == "refuse":
        where = policy.source_file or policy.name
        hint = "correct the floor or the scenario; with `unreachable: warn` the policy would only say so"
        raise UsageError("\n  ".join((f"{where}: floors that cannot be reached", *unreachable)), hint=hint)
    return unreachable


def out_of_reach(policy: Policy, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each required floor, cell by cell, that no run of `plan` can reach."""
    for rule, floor in floors_of(policy):
        if not rule.required or floor.figure not in NAMES:
            continue
        longer = math.ceil(floor.least) - 1
        remedy = f"it takes spec-{longer} or more" if longer <= DRAFT_TOKENS else f"not even spec-{DRAFT_TOKENS} does"
        for cell in plan.cells:
            k = cell.role.k
            if cell.role.speculative and rule.matches(cell) and floor.least > k + 1:
                yield (
                    f"rule {rule.id} asks for {NAMES[floor.figure]} of {floor.least:g} of {cell.key}: {k} drafts "
                    f"per cycle give at most {k + 1}; {remedy}"
                )

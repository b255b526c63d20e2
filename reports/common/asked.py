"""The least speed-up that a policy asks of a cell."""

from __future__ import annotations

from specgate.contract import Cell, Point, Policy, Role


def floor_of(policy: Policy, cell: Cell) -> float | None:
    """The highest `min` of the required speed rules that select the cell, or of those that advise where none is
    required; None if there is no such rule.
    """
    rules = [rule for rule in policy.rules if rule.gate == "speed" and "min" in rule.params and rule.matches(cell)]
    decisive = [rule for rule in rules if rule.required] or rules
    return max((float(rule.params["min"]) for rule in decisive), default=None)


def floors(policy: Policy, point: Point, roles: tuple[Role, ...]) -> dict[Role, float]:
    """Role → the least speed-up that the policy asks of it at `point`, for the roles of which it asks one."""
    found = {role: floor_of(policy, Cell(point, role)) for role in roles}
    return {role: floor for role, floor in found.items() if floor is not None}

"""The gates of a policy, asked for what they declare (`specgate.contract.protocols.judges`). No other file asks for a
gate's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from specgate import plugins
from specgate.contract import Cell, Floor, Kind, NearTies, Policy, Rule, Run, Verdict
from specgate.contract.conditions import MachineLimits
from specgate.contract.draws import Allowance
from specgate.contract.protocols import (
    Gate,
    GrantsNearTies,
    GrantsRounding,
    LimitsMachine,
    MarksLossy,
    NeedsBuilds,
    NeedsEarlierRun,
    SetsFloor,
)

T = TypeVar("T")


def rules_with(policy: Policy, declaration: type[T]) -> Iterator[tuple[Rule, T]]:
    """Yield each rule of `policy` whose gate makes the declaration, with its gate."""
    for rule in policy.rules:
        gate: object = plugins.gate(rule.gate)
        if isinstance(gate, declaration):
            yield rule, gate


def verdicts_of(rule: Rule, run: Run) -> Iterator[Verdict]:
    """Return the verdicts of `rule` on `run`, marked. The gate sees the run's view alone."""
    return marked(rule, plugins.gate(rule.gate).judge(rule, run.view))


def marked(rule: Rule, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Return `verdicts` with the kinds and the floor that the gate of `rule` declares."""
    kinds, floor = plugins.gate(rule.gate).judges(rule), floor_of(rule)
    return (replace(verdict, judges=kinds, floor=floor) for verdict in verdicts)


def floor_of(rule: Rule) -> Floor | None:
    """Return the floor that `rule` sets; None if its gate sets none."""
    gate: object = plugins.gate(rule.gate)
    return gate.floor(rule) if isinstance(gate, SetsFloor) else None


def lossy_cells(policy: Policy, cells: Iterable[Cell]) -> frozenset[str]:
    """Return the keys of the spec cells that `policy` takes for lossy."""
    rules = [rule for rule, gate in rules_with(policy, MarksLossy) if gate.lossy(rule)]
    return frozenset(c.key for c in cells if c.role.speculative and any(rule.matches(c) for rule in rules))


def floors_of(policy: Policy) -> list[tuple[Rule, Floor]]:
    """Return the rules of `policy` that set a floor, each with it."""
    return [(rule, gate.floor(rule)) for rule, gate in rules_with(policy, SetsFloor)]


def kinds_of(policy: Policy) -> Mapping[str, tuple[Kind, ...]]:
    """Return rule id → the kinds of judgement that its verdicts are."""
    return {rule.id: gate.judges(rule) for rule, gate in rules_with(policy, Gate)}


RIGHT: Final[frozenset[Kind]] = frozenset(("validity", "tokens"))
"""Judgements that a run is wrong without, whatever it is for."""


def explored(policy: Policy) -> Policy:
    """Return `policy` as an exploration is judged: records and tokens must be right, and nothing else is decided."""
    kinds = kinds_of(policy)
    rules = [replace(r, required=r.required and bool(kinds[r.id]) and {*kinds[r.id]} <= RIGHT) for r in policy.rules]
    return replace(policy, rules=tuple(rules), not_judged=())


def near_ties(policy: Policy) -> NearTies:
    """Return the gaps that the policy takes for near ties; none if no rule grants any. Of several rules the strictest
    counts.
    """
    granted = [gate.near_ties(rule) for rule, gate in rules_with(policy, GrantsNearTies)]
    margin, caches = (
        min((ties.margin for ties in granted), default=0.0),
        {c for of in granted for c, _ in of.cache_sigma},
    )
    if not granted or not all(ties.by_law for ties in granted):
        return NearTies(margin)

    def least(cache: str) -> float:
        return min(ties.in_cache(cache).max_sigma or 0.0 for ties in granted)

    return NearTies(margin, least(""), tuple((cache, least(cache)) for cache in sorted(caches)))


def draw_allowance(policy: Policy) -> Allowance:
    """Return the rounding that the policy allows for in drawn texts; none if no rule does. Of several rules the
    strictest counts.
    """
    granted = [gate.allowance(rule) for rule, gate in rules_with(policy, GrantsRounding)]
    return Allowance(*(min((getattr(a, name) for a in granted), default=0.0) for name in ("another", "own")))


def machine_limits(policy: Policy) -> list[tuple[Rule, MachineLimits]]:
    """Return the rules of `policy` that limit the machine, each with its limits."""
    return [(rule, gate.machine_limits(rule)) for rule, gate in rules_with(policy, LimitsMachine)]


def needs_earlier_run(policy: Policy) -> bool:
    """Return whether a rule of `policy` holds a run against an earlier one."""
    return any(True for _ in rules_with(policy, NeedsEarlierRun))


def bases_of(policy: Policy) -> list[str]:
    """Return the git revisions that a build must have been compared with."""
    return list(dict.fromkeys(gate.base(rule) for rule, gate in rules_with(policy, NeedsBuilds)))

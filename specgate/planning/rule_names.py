"""Rules that select nothing: because this run measured a part of what there is, or because nothing has such a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path

from specgate.contract import BASELINE, VARIANT_MARK, Cell, Policy, Rule, Scenario
from specgate.contract.policy import selects
from specgate.contract.reading import near
from specgate.errors import UsageError
from specgate.planning.plan import points_of
from specgate.planning.policy import SHIPPED, micro_scenarios
from specgate.planning.scenario import load_scenarios, shipped, with_variants


def with_elsewhere(policy: Policy, measured: Iterable[Scenario]) -> Policy:
    """`policy` with the ids of the rules that select nothing of the scenarios `measured`, but cells of another one.

    Those are the scenarios that come with specgate, those of the policy's `micro`, and the files beside the measured
    ones and beside the policy.
    """
    measured = tuple(measured)
    silent = [rule for rule in policy.rules if not any(rule_selects(rule, cell) for cell in cells_of(measured))]
    known = tuple(chain.from_iterable(known_scenarios(policy, measured))) if silent else ()
    others = tuple(cells_of(known))
    return replace(
        policy, elsewhere=tuple(rule.id for rule in silent if any(rule_selects(rule, cell) for cell in others))
    )


def known_scenarios(policy: Policy, measured: Iterable[Scenario]) -> Iterator[Iterable[Scenario]]:
    """Yield the scenarios that a rule may mean besides the measured ones, variants included."""
    yield chain.from_iterable(map(with_variants, shipped()))
    yield micro_scenarios(policy)
    files = [scenario.source_file for scenario in measured]
    folders = {file.parent for file in (*files, policy.source_file) if file is not None and file.parent != SHIPPED}
    yield from map(beside, sorted(folders))


@cache
def beside(folder: Path) -> tuple[Scenario, ...]:
    """The scenarios in the files of a folder, with their variants. A file that holds none is passed over."""
    scenarios: list[Scenario] = []
    for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            scenarios += chain.from_iterable(map(with_variants, load_scenarios(file)))
        except (UsageError, OSError):
            continue
    return tuple(scenarios)


def cells_of(scenarios: Iterable[Scenario]) -> Iterator[Cell]:
    """Yield a cell of every role of the scenarios, the baseline's too where this run leaves it out."""
    for scenario in scenarios:
        point = next(points_of(scenario, ""))
        yield from (Cell(point, role) for role in dict.fromkeys((BASELINE, *scenario.roles)))


def rule_selects(rule: Rule, cell: Cell) -> bool:
    """True if the rule's patterns select the cell, whichever other rule it is left to."""
    return selects(rule.scenario, rule.role, cell)


def nowhere(policy: Policy, cells: Iterable[Cell]) -> dict[str, str]:
    """Id of a required rule that selects nothing here and nowhere else → the reason, with the nearest name.

    `cells`: those of the run. Empty where nobody has looked elsewhere (`Policy.elsewhere` is None).
    """
    cells = tuple(cells)
    if policy.elsewhere is None:
        return {}
    return {
        rule.id: reason(rule, cells)
        for rule in policy.rules
        if rule.required and rule.id not in policy.elsewhere and not any(rule_selects(rule, cell) for cell in cells)
    }


def reason(rule: Rule, cells: Iterable[Cell]) -> str:
    """Reason that nothing has the names of `rule`, with the nearest that there is."""
    every = (*cells, *cells_of(chain.from_iterable(map(with_variants, shipped()))))
    here = [cell for cell in every if fnmatchcase(cell.point.unvaried, rule.scenario)]
    if here:
        roles = {cell.role_name for cell in here}
        of = "" if rule.scenario == "*" else f" of scenario {rule.scenario}"
        return f"there is no role {rule.role!r}{of}{near(rule.role, roles)}"
    plain, mark, variant = rule.scenario.partition(VARIANT_MARK)
    if mark:
        return f"there is no scenario {rule.scenario!r}: a variant is a role's (scenario: {plain}, role: '*+{variant}')"
    return f"there is no scenario {rule.scenario!r}{near(rule.scenario, {cell.point.unvaried for cell in every})}"

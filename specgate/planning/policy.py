"""Policy YAML → `contract.Policy`: which gate judges which cells, with which numbers.

`micro` names the micro scenarios that must be green before a full run, by name or by file. A policy without it means
all micro scenarios that the machine runs by default. `checks` says how far an engine's tokens are checked outside the
timed blocks (`contract.TokenChecks`); a policy without it has the defaults. A rule has `id`, `gate` and `required`, the
globs `scenario` and `role` (default: all), and the gate's own parameters beside them. Each gate says which parameters
it takes, so that those of a plug-in are checked like the built-in ones.

The more specific rule wins where a policy says so: a rule with `otherwise: true` judges the cells that no other rule
of its gate selects. A required one gives way to required rules only, since advice replaces no requirement. It also
gives way to `not_judged`, which lists what the policy leaves unjudged, each with the reason `why`. What neither a
required rule judges nor `not_judged` gives up makes a run NOT_JUDGED (`analysis.verdict`). `unreachable` says what
becomes of a required floor that cannot be reached: `warn` (the default), or `refuse` before anything is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os.path import isfile
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, get_args

from specgate.analysis.verdict import kind_of
from specgate.contract import VARIANT_MARK, NearTies, Policy, Rule, Scenario, TokenChecks
from specgate.contract.draws import Allowance
from specgate.contract.reading import Problem, keys_at, nearest
from specgate.contract.types import PARAMETER
from specgate.errors import UsageError
from specgate.files.yaml_schema import parse, refusal
from specgate.files.yamlfile import Document, load
from specgate.planning.scenario import find_all

SHIPPED = Path(__file__).parents[1] / "gates" / "policies"
FOR_CONTRASTS = SHIPPED / "contrast"
"""Policies that judge one run against another (`specgate compare`). They use contrast gates."""
GateParams = Mapping[str, Mapping[str, type | UnionType]]
"""Gate name → the parameters that a rule may set, with their types (`protocols.Gate.params`)."""

FOLLOWED: Final = 8
SCHEMA: Final = "specgate.policy/v1"


def load_policy(path: Path, gates: GateParams) -> Policy:
    """Read and check one policy file. Raises UsageError that lists every problem.

    `gates`: the known gates and their parameters.
    """
    return parse_policy(load(path), gates)


def parse_policy(document: Document, gates: GateParams) -> Policy:
    """As `load_policy`, of a document that was read already."""
    bare, params = _without_parameters(document)
    policy = parse(Policy, bare, SCHEMA, filled_in={"name": document.path.stem})
    policy = replace(policy, source_file=document.path)
    problems = [*_problems(policy.rules, params, gates), *_micro_problems(policy)]
    if document.data.get("micro") == []:
        problems.append(
            Problem(("micro",), "must not be empty: leave it out for those that the machine runs by default")
        )
    if problems:
        raise refusal(document, problems)
    checks = policy.checks or TokenChecks()
    policy = replace(
        policy,
        rules=tuple(
            _complete(rule, values, gates[rule.gate], policy) for rule, values in zip(policy.rules, params, strict=True)
        ),
        checks=replace(checks, followed=FOLLOWED if checks.followed is None else checks.followed),
        not_judged=policy.not_judged or (),
        unreachable=policy.unreachable or "warn",
    )
    if problems := list(_contradictions(policy)):
        raise refusal(document, problems)
    return policy


Parameters = Mapping[str, object]
"""The parameters of a rule's gate, as the file has them."""


def _without_parameters(document: Document) -> tuple[Document, list[Parameters]]:
    """The document without the parameters of gates, which stand beside a rule's own keys; and those of every rule."""
    rules, own = document.data.get("rules"), keys_at(Rule, ())
    if not isinstance(rules, list):
        return document, []
    bare = [{k: v for k, v in r.items() if k in own} if isinstance(r, Mapping) else r for r in rules]
    params: list[Parameters] = [
        {k: v for k, v in r.items() if k not in own} if isinstance(r, Mapping) else {} for r in rules
    ]
    return replace(document, data={**document.data, "rules": bare}), params


def micro_scenarios(policy: Policy) -> list[Scenario]:
    """The scenarios that `policy.micro` names, with their variants. File names are relative to the policy's folder."""
    return [s for name in policy.micro for s in _beside(name, policy.source_file)]


def _beside(name: str, policy_file: Path | None) -> list[Scenario]:
    folder = policy_file.parent if policy_file else Path()
    return find_all(str(folder / name) if name.endswith((".yaml", ".yml")) else name)


def find_policy(name_or_path: str, gates: GateParams, folder: Path = SHIPPED) -> Policy:
    """The policy of `folder` with this name, or the one in this file. Raises UsageError with the nearest name."""
    shipped = {p.stem: p for p in sorted(folder.glob("*.yaml"))}
    path = shipped.get(name_or_path, Path(name_or_path))
    if name_or_path not in shipped and not (path.suffix in (".yaml", ".yml") or isfile(path)):
        hint = f"{nearest(name_or_path, shipped)}; or give a .yaml file"
        raise UsageError(f"no such policy: {name_or_path!r}", hint=hint)
    return load_policy(path, gates)


def near_ties(policy: Policy) -> NearTies:
    """Which top-2 gaps the policy's `tokens` rules take for near ties; none where it has no such rule.

    Of several rules the strictest counts.
    """
    rules = [rule.params for rule in policy.rules if rule.gate == "tokens"]
    keys = ("near_tie_margin", "near_tie_ulps", "rare_tie_ulps")
    return NearTies(*(min((float(params.get(key, 0.0)) for params in rules), default=0.0) for key in keys))


def draw_allowance(policy: Policy) -> Allowance:
    """How much rounding the policy's `distribution` rules allow for; none where it has no such rule.

    Of several rules the strictest counts.
    """
    rules = [rule.params for rule in policy.rules if rule.gate == "distribution"]
    return Allowance(*(min((float(p.get(k, 0.0)) for p in rules), default=0.0) for k in ("law_ulps", "own_ulps")))


def _complete(rule: Rule, values: Parameters, params: Mapping[str, type | UnionType], policy: Policy) -> Rule:
    """The rule with its gate's parameters, and with what it leaves to other rules."""
    unless = tuple(_left_to_others(rule, policy)) if rule.otherwise else ()
    return replace(rule, params={key: _set_type(params[key])(value) for key, value in values.items()}, unless=unless)


def _left_to_others(rule: Rule, policy: Policy) -> Iterator[tuple[str, str]]:
    """Patterns of the cells that the `otherwise` rule leaves to rules which bind as much, and to `not_judged`."""
    for other in policy.rules:
        if other.gate == rule.gate and not other.otherwise and other.required >= rule.required:
            yield other.scenario, other.role
    yield from ((e.scenario, e.role) for e in policy.not_judged or () if e.kind == rule.gate)


def _contradictions(policy: Policy) -> Iterator[Problem]:
    """Entries of `not_judged` that speak of every cell of a required rule, which are judged nevertheless."""
    required = [rule for rule in policy.rules if rule.required and not rule.unless]
    for i, e in enumerate(policy.not_judged or ()):
        for rule in required:
            alike = fnmatchcase(rule.scenario, e.scenario) and fnmatchcase(rule.role, e.role)
            if kind_of(rule) == e.kind and alike:
                yield Problem(("not_judged", i, "kind"), f"the rule {rule.id} requires it, so it is judged")
                break


def _problems(rules: Sequence[Rule], values: Sequence[Parameters], gates: GateParams) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for i, (rule, given) in enumerate(zip(rules, values, strict=True)):
        if rule.id in seen:
            yield Problem(("rules", i, "id"), f"rule {seen[rule.id] + 1} of this file has this id already")
        seen.setdefault(rule.id, i)
        if rule.gate not in gates:
            yield Problem(("rules", i, "gate"), f"no such gate; {nearest(rule.gate, gates)}")
            continue
        params = gates[rule.gate]
        reasons = ((key, _param_problem(key, value, rule.gate, params)) for key, value in given.items())
        wrong = [Problem(("rules", i, key), why) for key, why in reasons if why]
        yield from wrong
        if not wrong:
            yield from (Problem(("rules", i, key), why) for key, why in _tie_problems(given))
        if not wrong and (missing := [k for k, kind in params.items() if k not in given and isinstance(kind, type)]):
            yield Problem(("rules", i, "gate"), f"{rule.gate} needs {', '.join(missing)}")


def _tie_problems(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of settings of near ties that contradict each other."""
    near, rare = (given.get(key) for key in ("near_tie_ulps", "rare_tie_ulps"))
    if rare and not (near and rare > near):
        why = f"no more than near_tie_ulps = {near:g}" if near else "near_tie_ulps is missing"
        yield "rare_tie_ulps", f"{why}: it says how far beyond that a few near ties may lie"
    if (mean := given.get("mean_tie_ulps")) and not (near and mean < near):
        why = f"no less than near_tie_ulps = {near:g}" if near else "near_tie_ulps is missing"
        yield "mean_tie_ulps", f"{why}: it says how far near ties may lie in the mean"


def _micro_problems(policy: Policy) -> Iterator[Problem]:
    required = [rule.scenario for rule in policy.rules if rule.required]
    for i, name in enumerate(policy.micro):
        try:
            scenario = _beside(name, policy.source_file)[0]
        except UsageError as error:
            yield Problem(("micro", i), str(error))
            continue
        if scenario.kind != "micro":
            yield Problem(("micro", i), f"a {scenario.kind} scenario; only micro ones can come before a full run")
        elif not any(fnmatchcase(scenario.name.partition(VARIANT_MARK)[0], pattern) for pattern in required):
            yield Problem(("micro", i), "no required rule judges this scenario, so it could never be green")


def _set_type(kind: type | UnionType) -> type:
    """The type of a parameter where it is set: `T` of `T | None`."""
    if isinstance(kind, type):
        return kind
    found: type = next(arg for arg in get_args(kind) if arg is not NoneType)
    return found


def _param_problem(key: str, value: object, gate: str, params: Mapping[str, type | UnionType]) -> str | None:
    if key not in params:
        return f"neither a rule's own key nor a parameter of {gate}; {nearest(key, [*keys_at(Rule, ()), *params])}"
    kind = _set_type(params[key])
    accepts = (int, float) if kind is float else kind
    if not isinstance(value, accepts) or (isinstance(value, bool) and kind is not bool):
        return f"{gate} takes a {kind.__name__} here"
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        return f"{gate} takes a finite number, 0 or more, here"
    if isinstance(value, int | float) and value > PARAMETER:
        return f"{gate} takes at most {PARAMETER:g} here"
    return None

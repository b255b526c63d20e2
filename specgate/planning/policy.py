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
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from os.path import isfile
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field

from specgate.analysis.verdict import kind_of
from specgate.contract import VARIANT_MARK, Exemption, NearTies, Policy, Rule, Scenario, TokenChecks
from specgate.contract.draws import Allowance
from specgate.errors import UsageError
from specgate.files.yaml_schema import Form, Problem, nearest, parse, refusal
from specgate.files.yamlfile import Document, load
from specgate.planning.bounds import PARAMETER
from specgate.planning.scenario import find_all

SHIPPED = Path(__file__).parents[1] / "gates" / "policies"
FOR_CONTRASTS = SHIPPED / "contrast"
"""Policies that judge one run against another (`specgate compare`). They use contrast gates."""
GateParams = Mapping[str, Mapping[str, type | UnionType]]
"""Gate name → the parameters that a rule may set, with their types (`protocols.Gate.params`)."""

Text = Annotated[str, Field(min_length=1)]


class RuleForm(Form):
    """A rule of a policy file."""

    model_config = ConfigDict(extra="allow")  # the gate's own parameters; `_problems` checks them against the gate

    id: Text
    gate: Text
    required: bool
    scenario: Text = "*"
    role: Text = "*"
    otherwise: bool = False


class ExemptionForm(Form):
    """An entry of `not_judged`. `validity` is no kind of it: a cell that may not be judged at all cannot be green."""

    kind: Literal["tokens", "acceptance", "speed"]
    why: Text
    scenario: Text = "*"
    role: Text = "*"


USUAL: Final = TokenChecks()


class ChecksForm(Form):
    """`checks` of a policy file: the fields of `contract.TokenChecks`. `rescored_by: none` names no engine."""

    text: Literal["whole", "sampled"] = USUAL.text
    rescored_by: Text = USUAL.rescored_by
    positions: Annotated[int, Field(ge=1, le=65_536)] = USUAL.positions
    within_s: Annotated[float, Field(gt=0, le=86_400)] = USUAL.within_s
    max_gap: Annotated[float, Field(ge=0, le=100)] = USUAL.max_gap
    max_near_ties: Annotated[float, Field(ge=0, le=1)] = USUAL.max_near_ties
    followed: Annotated[int, Field(ge=0, le=4096)] = 8
    followed_tokens: Annotated[int, Field(ge=1, le=65_536)] = USUAL.followed_tokens
    second_look: Literal["none", "float32"] = USUAL.second_look


class PolicyForm(Form):
    """A policy file."""

    schema_: Literal["specgate.policy/v1"] = Field(alias="schema")
    micro: Annotated[list[Text], Field(min_length=1)] | None = None
    checks: ChecksForm = Field(default_factory=ChecksForm)
    not_judged: list[ExemptionForm] = Field(default_factory=list)
    unreachable: Literal["warn", "refuse"] = "warn"
    rules: Annotated[list[RuleForm], Field(min_length=1)]


def load_policy(path: Path, gates: GateParams) -> Policy:
    """Read and check one policy file. Raises UsageError that lists every problem.

    `gates`: the known gates and their parameters.
    """
    return parse_policy(load(path), gates)


def parse_policy(document: Document, gates: GateParams) -> Policy:
    """As `load_policy`, of a document that was read already."""
    path = document.path
    form = parse(PolicyForm, document)
    if problems := [*_problems(form, gates), *_micro_problems(form, path)]:
        raise refusal(document, problems)
    rules = tuple(_rule(r, gates[r.gate], form) for r in form.rules)
    exemptions = tuple(Exemption(**e.model_dump()) for e in form.not_judged)
    if problems := list(_contradictions(exemptions, rules)):
        raise refusal(document, problems)
    micro = tuple(form.micro or ())
    return Policy(path.stem, rules, path, micro, _checks(form.checks), exemptions, form.unreachable)


def _checks(form: ChecksForm) -> TokenChecks:
    values = form.model_dump()
    return TokenChecks(**{**values, "rescored_by": "" if form.rescored_by == "none" else form.rescored_by})


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


def _rule(form: RuleForm, params: Mapping[str, type | UnionType], policy: PolicyForm) -> Rule:
    values = {key: _set_type(params[key])(value) for key, value in (form.model_extra or {}).items()}
    unless = tuple(_left_to_others(form, policy)) if form.otherwise else ()
    return Rule(form.id, form.gate, form.required, form.scenario, form.role, values, unless)


def _left_to_others(rule: RuleForm, policy: PolicyForm) -> Iterator[tuple[str, str]]:
    """Patterns of the cells that the `otherwise` rule leaves to rules which bind as much, and to `not_judged`."""
    for other in policy.rules:
        if other.gate == rule.gate and not other.otherwise and other.required >= rule.required:
            yield other.scenario, other.role
    yield from ((e.scenario, e.role) for e in policy.not_judged if e.kind == rule.gate)


def _contradictions(exemptions: Iterable[Exemption], rules: Iterable[Rule]) -> Iterator[Problem]:
    """Entries of `not_judged` that speak of every cell of a required rule, which are judged nevertheless."""
    required = [rule for rule in rules if rule.required and not rule.unless]
    for i, e in enumerate(exemptions):
        for rule in required:
            alike = fnmatchcase(rule.scenario, e.scenario) and fnmatchcase(rule.role, e.role)
            if kind_of(rule) == e.kind and alike:
                yield Problem(("not_judged", i, "kind"), f"the rule {rule.id} requires it, so it is judged")
                break


def _problems(form: PolicyForm, gates: GateParams) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for i, rule in enumerate(form.rules):
        if rule.id in seen:
            yield Problem(("rules", i, "id"), f"rule {seen[rule.id] + 1} of this file has this id already")
        seen.setdefault(rule.id, i)
        if rule.gate not in gates:
            yield Problem(("rules", i, "gate"), f"no such gate; {nearest(rule.gate, gates)}")
            continue
        given, params = rule.model_extra or {}, gates[rule.gate]
        found = ((key, _param_problem(key, value, rule.gate, params)) for key, value in given.items())
        wrong = [Problem(("rules", i, key), why) for key, why in found if why]
        yield from wrong
        near, rare = (given.get(key) for key in ("near_tie_ulps", "rare_tie_ulps"))
        if not wrong and rare and not (near and rare > near):
            why = f"no more than near_tie_ulps = {near:g}" if near else "near_tie_ulps is missing"
            yield Problem(("rules", i, "rare_tie_ulps"), f"{why}: it says how far beyond that a few near ties may lie")
        if not wrong and (mean := given.get("mean_tie_ulps")) and not (near and mean < near):
            why = f"no less than near_tie_ulps = {near:g}" if near else "near_tie_ulps is missing"
            yield Problem(("rules", i, "mean_tie_ulps"), f"{why}: it says how far near ties may lie in the mean")
        if not wrong and (missing := [k for k, kind in params.items() if k not in given and isinstance(kind, type)]):
            yield Problem(("rules", i, "gate"), f"{rule.gate} needs {', '.join(missing)}")


def _micro_problems(form: PolicyForm, path: Path) -> Iterator[Problem]:
    required = [rule.scenario for rule in form.rules if rule.required]
    for i, name in enumerate(form.micro or ()):
        try:
            scenario = _beside(name, path)[0]
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
        return f"neither a rule's own key nor a parameter of {gate}; {nearest(key, [*RuleForm.model_fields, *params])}"
    kind = _set_type(params[key])
    accepts = (int, float) if kind is float else kind
    if not isinstance(value, accepts) or (isinstance(value, bool) and kind is not bool):
        return f"{gate} takes a {kind.__name__} here"
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        return f"{gate} takes a finite number, 0 or more, here"
    if isinstance(value, int | float) and value > PARAMETER:
        return f"{gate} takes at most {PARAMETER:g} here"
    return None

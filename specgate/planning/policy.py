"""Policy YAML → `contract.Policy`: which gate judges which cells, with which numbers.

`micro` names the micro scenarios that must be green before a full run, by name or by file. A policy without it means
all micro scenarios that the machine runs by default. `checks` says how far an engine's tokens are checked outside the
timed blocks (`contract.TokenChecks`); a policy without it has the defaults. A rule has `id`, `gate` and `required`, the
globs `scenario` and `role` (default: all), and the gate's own parameters beside them. Each gate says which parameters
it takes, so that those of a plug-in are checked like the built-in ones.

`base` names the policies that a file is merged over (`planning.policy_bases`).

The more specific rule wins where a policy says so: a rule with `otherwise: true` judges the cells that no other rule
of its gate selects. A required one gives way to required rules only, since advice replaces no requirement. It also
gives way to `not_judged`, which lists what the policy leaves unjudged, each with the reason `why`. What neither a
required rule judges nor `not_judged` gives up makes a run NOT_JUDGED (`analysis.verdict`). `unreachable` says what
becomes of a required floor that cannot be reached: `warn` (the default), or `refuse` before anything is measured.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from os.path import isfile
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field

from specgate.contract import KINDS, VARIANT_MARK, Exemption, Kind, Policy, Rule, Scenario, TokenChecks
from specgate.contract.protocols import ChecksRules, ContrastGate, Gate
from specgate.errors import UsageError
from specgate.files.yaml_schema import Form, Problem, nearest, parse, refusal
from specgate.files.yamlfile import Document, dump_yaml, load
from specgate.planning.bounds import PARAMETER
from specgate.planning.policy_bases import POLICIES, SHIPPED
from specgate.planning.scenario import find_all

FOR_CONTRASTS = SHIPPED / "contrast"
"""Policies that judge one run against another (`specgate compare`). They use contrast gates."""
Gates = Mapping[str, Gate | ContrastGate]
"""Gate name → gate, for all that a policy may name."""

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
    replaces: None = None  # as `base` of the file


class ExemptionForm(Form):
    """An entry of `not_judged`."""

    kind: Text
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
    base: None = None  # these two are resolved before the form is checked; listed here so that they count as known keys
    without: None = None
    micro: Annotated[list[Text], Field(min_length=1)] | None = None
    checks: ChecksForm = Field(default_factory=ChecksForm)
    not_judged: list[ExemptionForm] = Field(default_factory=list)
    unreachable: Literal["warn", "refuse"] = "warn"
    rules: Annotated[list[RuleForm], Field(min_length=1)]


def load_policy(path: Path, gates: Gates) -> Policy:
    """Read and check one policy file together with its bases. Raises UsageError that lists every problem.

    `gates`: the known gates.
    """
    return parse_policy(load(path), gates)


def parse_policy(document: Document, gates: Gates) -> Policy:
    """As `load_policy`, of a document that was read already."""
    document = POLICIES.whole(document)
    path = document.path
    form = parse(PolicyForm, document)
    micro = tuple(_micro_names(form, document))
    if problems := [*_problems(form, gates), *_micro_problems(form, micro, path)]:
        raise refusal(document, problems)
    rules = [_rule(rule, gates[rule.gate]) for rule in form.rules]
    kinds = [_kinds(rule, gates[rule.gate]) for rule in rules]
    if problems := [*_rule_problems(rules, gates), *_exemption_problems(form, kinds)]:
        raise refusal(document, problems)
    rules = [
        replace(rule, unless=tuple(_left_to_others(of, judges, form))) if of.otherwise else rule
        for rule, of, judges in zip(rules, form.rules, kinds, strict=True)
    ]
    exemptions = tuple(Exemption(**e.model_dump()) for e in form.not_judged)
    if problems := list(_contradictions(exemptions, rules, kinds)):
        raise refusal(document, problems)
    return Policy(path.stem, tuple(rules), path, micro, _checks(form.checks), exemptions, form.unreachable)


def whole_text(name_or_path: str, gates: Gates, folder: Path = SHIPPED) -> str:
    """The policy as one complete YAML file that inherits nothing. Raises what `find_policy` raises."""
    document = POLICIES.whole(load(_file_of(name_or_path, folder)))
    policy = parse_policy(document, gates)
    data = {**document.data, **({"micro": list(policy.micro)} if policy.micro else {})}
    head = f"# {document.head}\n" if document.head else ""
    return head + dump_yaml(data, flow=None, width=10_000)


def _checks(form: ChecksForm) -> TokenChecks:
    values = form.model_dump()
    return TokenChecks(**{**values, "rescored_by": "" if form.rescored_by == "none" else form.rescored_by})


def micro_scenarios(policy: Policy) -> list[Scenario]:
    """The scenarios that `policy.micro` names, with their variants. File names are relative to the policy's folder."""
    return [s for name in policy.micro for s in _beside(name, policy.source_file)]


def _beside(name: str, policy_file: Path | None) -> list[Scenario]:
    folder = policy_file.parent if policy_file else Path()
    return find_all(str(folder / name) if name.endswith((".yaml", ".yml")) else name)


def find_policy(name_or_path: str, gates: Gates, folder: Path = SHIPPED) -> Policy:
    """The policy of `folder` with this name, or the one in this file. Raises UsageError with the nearest name."""
    return load_policy(_file_of(name_or_path, folder), gates)


def _file_of(name_or_path: str, folder: Path) -> Path:
    shipped = {p.stem: p for p in sorted(folder.glob("*.yaml"))}
    path = shipped.get(name_or_path, Path(name_or_path))
    if name_or_path not in shipped and not (path.suffix in (".yaml", ".yml") or isfile(path)):
        hint = f"{nearest(name_or_path, shipped)}; or give a .yaml file"
        raise UsageError(f"no such policy: {name_or_path!r}", hint=hint)
    return path


def _rule(form: RuleForm, gate: Gate | ContrastGate) -> Rule:
    values = {key: _set_type(gate.params[key])(value) for key, value in (form.model_extra or {}).items()}
    return Rule(form.id, form.gate, form.required, form.scenario, form.role, values)


def _kinds(rule: Rule, gate: Gate | ContrastGate) -> tuple[Kind, ...]:
    """The kinds of judgement that verdicts of `rule` are; of two runs none is needed."""
    return gate.judges(rule) if isinstance(gate, Gate) else ()


def _rule_problems(rules: Iterable[Rule], gates: Gates) -> Iterator[Problem]:
    """What the gates themselves say of parameters that cannot be meant."""
    for i, rule in enumerate(rules):
        gate: object = gates[rule.gate]
        if isinstance(gate, ChecksRules):
            yield from (Problem(("rules", i, key), why) for key, why in gate.problems(rule))


def _left_to_others(rule: RuleForm, kinds: Collection[Kind], policy: PolicyForm) -> Iterator[tuple[str, str]]:
    """Patterns of the cells that the `otherwise` rule leaves to rules which bind as much, and to `not_judged`."""
    for other in policy.rules:
        if other.gate == rule.gate and not other.otherwise and other.required >= rule.required:
            yield other.scenario, other.role
    yield from ((e.scenario, e.role) for e in policy.not_judged if e.kind in kinds)


def _exemption_problems(form: PolicyForm, kinds: Iterable[Collection[Kind]]) -> Iterator[Problem]:
    """Entries of `not_judged` whose kind no run needs and no rule is for. `validity` is none of them: a cell that may
    not be judged at all cannot be green.
    """
    known = [kind for kind in dict.fromkeys((*KINDS, *(kind for of in kinds for kind in of))) if kind != "validity"]
    for i, e in enumerate(form.not_judged):
        if e.kind not in known:
            *most, last = map(repr, known)
            yield Problem(("not_judged", i, "kind"), f"not one of {', '.join(most)} or {last}")


def _contradictions(
    exemptions: Iterable[Exemption], rules: Iterable[Rule], kinds: Iterable[Collection[Kind]]
) -> Iterator[Problem]:
    """Entries of `not_judged` that speak of every cell of a required rule, which are judged nevertheless."""
    required = [(rule, of) for rule, of in zip(rules, kinds, strict=True) if rule.required and not rule.unless]
    for i, e in enumerate(exemptions):
        for rule, of in required:
            alike = fnmatchcase(rule.scenario, e.scenario) and fnmatchcase(rule.role, e.role)
            if e.kind in of and alike:
                yield Problem(("not_judged", i, "kind"), f"the rule {rule.id} requires it, so it is judged")
                break


def _problems(form: PolicyForm, gates: Gates) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for i, rule in enumerate(form.rules):
        if rule.id in seen:
            yield Problem(("rules", i, "id"), f"rule {seen[rule.id] + 1} of this file has this id already")
        seen.setdefault(rule.id, i)
        if rule.gate not in gates:
            yield Problem(("rules", i, "gate"), f"no such gate; {nearest(rule.gate, gates)}")
            continue
        given, params = rule.model_extra or {}, gates[rule.gate].params
        found = ((key, _param_problem(key, value, rule.gate, params)) for key, value in given.items())
        wrong = [Problem(("rules", i, key), why) for key, why in found if why]
        yield from wrong
        if not wrong and (missing := [k for k, kind in params.items() if k not in given and isinstance(kind, type)]):
            yield Problem(("rules", i, "gate"), f"{rule.gate} needs {', '.join(missing)}")


def _micro_names(form: PolicyForm, document: Document) -> Iterator[str]:
    """The names of `micro`. A file is named relative to the policy, whichever base has the name."""
    for i, name in enumerate(form.micro or ()):
        folder, own = document.where(("micro", i)).file.parent, document.path.parent
        is_file = name.endswith((".yaml", ".yml"))
        yield os.path.relpath(folder / name, own) if is_file and folder != own else name


def _micro_problems(form: PolicyForm, micro: Iterable[str], path: Path) -> Iterator[Problem]:
    required = [rule.scenario for rule in form.rules if rule.required]
    for i, name in enumerate(micro):
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

"""Policy YAML → `contract.Policy`: which gate judges which cells, with which numbers.

- A rule with the id of an inherited one changes the keys that it states; if it states a `gate`, it replaces the
  inherited rule as a whole. Either way it stays in the inherited rule's place.
- `replaces: ID` puts a rule of another id into the place of an inherited one, of which nothing stays.
- `without: [ID, …]` leaves inherited rules out.
- A rule with an id of its own is new. It stands after the rule above it in its file. Those at the top of the file stand
  before the inherited rules marked `otherwise`, and at the end if there are none.

Of other keys, mappings (`checks`) are merged and lists (`micro`, `not_judged`) replaced.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os.path import exists
from pathlib import Path
from types import NoneType, UnionType
from typing import Final, get_args

from specgate.contract import KINDS, VARIANT_MARK, Kind, Policy, Rule, Scenario
from specgate.contract.protocols import ChecksRules, ContrastGate, Gate
from specgate.contract.reading import Problem, keys_at, nearest
from specgate.contract.types import PARAMETER
from specgate.errors import UsageError
from specgate.files.yaml_schema import parse, refusal
from specgate.files.yamlfile import Document, dump_yaml, load
from specgate.planning.inheritance import Inheritance, Item, items_of, with_items
from specgate.planning.scenario import find_all

SHIPPED = Path(__file__).parents[1] / "gates" / "policies"


def merged(own: Document, base: Document | None) -> Document:
    """Return the policy `own` over the policy `base`. Raises UsageError for rules that cannot be merged so."""
    if base is None:
        if problems := list(_speaking_of_a_base(own)):
            raise refusal(own, problems)
        return own
    mine, inherited, whole = items_of(own, "rules"), items_of(base, "rules"), own.over(base)
    if mine is None or inherited is None:  # the form of the file says what is wrong
        return whole
    if problems := list(_problems_of_bases(own, mine, [item.data.get("id") for item in inherited])):
        raise refusal(own, problems)
    left_out = own.data.get("without", [])
    assert isinstance(left_out, list)
    rules = _merged_rules(mine, [item for item in inherited if item.data.get("id") not in left_out])
    whole = with_items(whole, "rules", rules)
    return replace(whole, data={k: v for k, v in whole.data.items() if k != "without"})


def _speaking_of_a_base(document: Document) -> Iterator[Problem]:
    why = "it speaks of inherited rules, and there is no `base`"
    if "without" in document.data:
        yield Problem(("without",), why)
    for i, item in enumerate(items_of(document, "rules") or ()):
        if "replaces" in item.data:
            yield Problem(("rules", i, "replaces"), why)


def _merged_rules(mine: list[Item], inherited: list[Item]) -> list[Item]:
    rules, above = list(inherited), None
    for item in mine:
        target = item.data.get("replaces", item.data.get("id"))
        place = next((i for i, rule in enumerate(rules) if rule.data.get("id") == target), None)
        if place is None:
            general = (i for i, rule in enumerate(rules) if rule.data.get("otherwise") is True)
            place = next(general, len(rules)) if above is None else above + 1
            rules.insert(place, item)
        elif "gate" in item.data or "replaces" in item.data:
            rules[place] = replace(item, data={k: v for k, v in item.data.items() if k != "replaces"})
        else:
            rules[place] = item.over(rules[place])
        above = place
    return rules


def _problems_of_bases(own: Document, mine: list[Item], inherited: list[object]) -> Iterator[Problem]:
    known = [rule for rule in inherited if isinstance(rule, str)]
    left_out = own.data.get("without", [])
    if not isinstance(left_out, list):
        yield Problem(("without",), "a list of ids of inherited rules was expected")
        left_out = []
    for i, rule in enumerate(left_out):
        if rule not in known:
            yield Problem(("without", i), f"no inherited rule has this id; {nearest(str(rule), known)}")
    remaining = [rule for rule in known if rule not in left_out]
    targets: dict[str, int] = {}
    for i, item in enumerate(mine):
        rule, replaced = item.data.get("id"), item.data.get("replaces")
        if isinstance(rule, str) and rule in targets:
            yield Problem(("rules", i, "id"), f"rule {targets[rule] + 1} of this file has this id already")
        elif replaced is not None and replaced not in remaining:
            yield Problem(
                ("rules", i, "replaces"), f"no inherited rule has this id; {nearest(str(replaced), remaining)}"
            )
        elif replaced not in (None, rule) and rule in remaining:
            yield Problem(("rules", i, "id"), "an inherited rule has this id: leave `replaces` out to change that one")
        elif replaced is None and isinstance(rule, str) and rule not in remaining and "gate" not in item.data:
            why = f"no inherited rule has this id, and a new one needs a gate; {nearest(rule, remaining)}"
            yield Problem(("rules", i, "id"), why)
        if isinstance(rule, str):
            targets.setdefault(rule, i)


POLICIES = Inheritance("policy", "base", SHIPPED, merged)


FOR_CONTRASTS = SHIPPED / "contrast"
"""Policies that judge one run against another (`specgate runs compare`). They use contrast gates."""
Gates = Mapping[str, Gate | ContrastGate]
"""Gate name → gate, for all that a policy may name."""

SCHEMA: Final = "specgate.policy/v1"
Parameters = Mapping[str, object]
"""The parameters of a rule's gate, as the file has them."""


def load_policy(path: Path, gates: Gates) -> Policy:
    """Read and check one policy file together with its bases. Raises UsageError that lists every problem.

    `gates`: the known gates.
    """
    return parse_policy(load(path), gates)


def parse_policy(document: Document, gates: Gates) -> Policy:
    """As `load_policy`, of a document that was read already."""
    document = POLICIES.whole(document)
    bare, parameters = _without_parameters(document)
    policy = parse(Policy, bare, SCHEMA, filled_in={"name": document.path.stem}, other_keys=("base", "without"))
    policy = replace(policy, source_file=document.path, micro=tuple(_micro_names(policy, document)))
    if problems := [*_problems(policy.rules, parameters, gates), *_micro_problems(policy, document)]:
        raise refusal(document, problems)
    rules = [_with(rule, params, gates[rule.gate]) for rule, params in zip(policy.rules, parameters, strict=True)]
    kinds = [_kinds(rule, gates[rule.gate]) for rule in rules]
    if problems := [*_rule_problems(rules, gates), *_exemption_problems(policy, kinds)]:
        raise refusal(document, problems)
    rules = [
        replace(rule, unless=tuple(_left_to_others(rule, judges, policy))) if rule.otherwise else rule
        for rule, judges in zip(rules, kinds, strict=True)
    ]
    policy = replace(policy, rules=tuple(rules))
    if problems := list(_contradictions(policy, kinds)):
        raise refusal(document, problems)
    return policy


def _without_parameters(document: Document) -> tuple[Document, list[Parameters]]:
    """The document without the parameters of gates, which stand beside a rule's own keys; and those of every rule."""
    rules, own = document.data.get("rules"), keys_at(Rule, ())
    if not isinstance(rules, list):
        return document, []
    bare = [{k: v for k, v in r.items() if k in own} if isinstance(r, Mapping) else r for r in rules]
    parameters: list[Parameters] = [
        {k: v for k, v in r.items() if k not in own} if isinstance(r, Mapping) else {} for r in rules
    ]
    return replace(document, data={**document.data, "rules": bare}), parameters


def whole_text(name_or_path: str, gates: Gates) -> str:
    """The policy as one complete YAML file that inherits nothing. Raises what `find_policy` raises."""
    document = POLICIES.whole(load(_file_of(name_or_path, SHIPPED)))
    policy = parse_policy(document, gates)
    data = {**document.data, **({"micro": list(policy.micro)} if policy.micro else {})}
    head = f"# {document.head}\n" if document.head else ""
    return head + dump_yaml(data, flow=None, width=10_000)


def micro_scenarios(policy: Policy) -> list[Scenario]:
    """The scenarios that `policy.micro` names, with their variants."""
    return [scenario for name in micro_names(policy) for scenario in find_all(name, "micro")]


def micro_names(policy: Policy) -> tuple[str, ...]:
    """Return the entries of `policy.micro` as a command line would have them: names, and files, which the policy has
    relative to itself.
    """
    folder = policy.source_file.parent if policy.source_file else Path()
    return tuple(str(folder / name) if name.endswith((".yaml", ".yml")) else name for name in policy.micro)


def find_policy(name_or_path: str, gates: Gates, folder: Path = SHIPPED) -> Policy:
    """The policy of `folder` with this name, or the one in this file. Raises UsageError with the nearest name."""
    return load_policy(_file_of(name_or_path, folder), gates)


def _file_of(name_or_path: str, folder: Path) -> Path:
    shipped = {p.stem: p for p in sorted(folder.glob("*.yaml"))}
    path = shipped.get(name_or_path, Path(name_or_path))
    if name_or_path not in shipped and not (path.suffix in (".yaml", ".yml") or exists(path)):
        hint = f"{nearest(name_or_path, shipped)}; or give a .yaml file"
        raise UsageError(f"no such policy: {name_or_path!r}", hint=hint)
    return path


def _with(rule: Rule, parameters: Parameters, gate: Gate | ContrastGate) -> Rule:
    """The rule with its gate's parameters."""
    return replace(rule, params={key: _set_type(gate.params[key])(value) for key, value in parameters.items()})


def _kinds(rule: Rule, gate: Gate | ContrastGate) -> tuple[Kind, ...]:
    """The kinds of judgement that verdicts of `rule` are; of two runs none is needed."""
    return gate.judges(rule) if isinstance(gate, Gate) else ()


def _rule_problems(rules: Iterable[Rule], gates: Gates) -> Iterator[Problem]:
    """Yield the problems that the gates themselves see in their parameters."""
    for i, rule in enumerate(rules):
        gate: object = gates[rule.gate]
        if isinstance(gate, ChecksRules):
            yield from (Problem(("rules", i, key), why) for key, why in gate.problems(rule))


def _left_to_others(rule: Rule, kinds: Collection[Kind], policy: Policy) -> Iterator[tuple[str, str]]:
    """Patterns of the cells that the `otherwise` rule leaves to rules which bind as much, and to `not_judged`."""
    for other in policy.rules:
        if other.gate == rule.gate and not other.otherwise and other.required >= rule.required:
            yield other.scenario, other.role
    yield from ((e.scenario, e.role) for e in policy.not_judged or () if e.kind in kinds)


def _exemption_problems(policy: Policy, kinds: Iterable[Collection[Kind]]) -> Iterator[Problem]:
    """Entries of `not_judged` whose kind no run needs and no rule is for. `validity` is none of them: a cell that may
    not be judged at all cannot be green.
    """
    known = [kind for kind in dict.fromkeys((*KINDS, *(kind for of in kinds for kind in of))) if kind != "validity"]
    for i, e in enumerate(policy.not_judged or ()):
        if e.kind not in known:
            *most, last = map(repr, known)
            yield Problem(("not_judged", i, "kind"), f"not one of {', '.join(most)} or {last}")


def _contradictions(policy: Policy, kinds: Iterable[Collection[Kind]]) -> Iterator[Problem]:
    """Entries of `not_judged` that speak of every cell of a required rule, which are judged nevertheless."""
    required = [(rule, of) for rule, of in zip(policy.rules, kinds, strict=True) if rule.required and not rule.unless]
    for i, e in enumerate(policy.not_judged or ()):
        for rule, of in required:
            alike = fnmatchcase(rule.scenario, e.scenario) and fnmatchcase(rule.role, e.role)
            if e.kind in of and alike:
                yield Problem(("not_judged", i, "kind"), f"the rule {rule.id} requires it, so it is judged")
                break


def _problems(rules: Sequence[Rule], parameters: Sequence[Parameters], gates: Gates) -> Iterator[Problem]:
    positions: dict[str, int] = {}
    for i, (rule, own) in enumerate(zip(rules, parameters, strict=True)):
        if rule.id in positions:
            yield Problem(("rules", i, "id"), f"rule {positions[rule.id] + 1} of this file has this id already")
        positions.setdefault(rule.id, i)
        if rule.gate not in gates:
            yield Problem(("rules", i, "gate"), f"no such gate; {nearest(rule.gate, gates)}")
            continue
        params = gates[rule.gate].params
        reasons = ((key, _param_problem(key, value, rule.gate, params)) for key, value in own.items())
        wrong = [Problem(("rules", i, key), why) for key, why in reasons if why]
        yield from wrong
        if not wrong and (missing := [k for k, kind in params.items() if k not in own and isinstance(kind, type)]):
            yield Problem(("rules", i, "gate"), f"{rule.gate} needs {', '.join(missing)}")


def _micro_names(policy: Policy, document: Document) -> Iterator[str]:
    """The names of `micro`. A file is named relative to the policy, whichever base has the name."""
    for i, name in enumerate(policy.micro):
        folder, own = document.where(("micro", i)).file.parent, document.path.parent
        is_file = name.endswith((".yaml", ".yml"))
        yield os.path.relpath(folder / name, own) if is_file and folder != own else name


def _micro_problems(policy: Policy, document: Document) -> Iterator[Problem]:
    if document.data.get("micro") == []:
        yield Problem(("micro",), "must not be empty: leave it out for those that the machine runs by default")
    required = [rule.scenario for rule in policy.rules if rule.required]
    for i, name in enumerate(micro_names(policy)):
        try:
            scenario = find_all(name, "micro")[0]
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
    argument: type = next(arg for arg in get_args(kind) if arg is not NoneType)
    return argument


def _param_problem(key: str, value: object, gate: str, params: Mapping[str, type | UnionType]) -> str | None:
    if key not in params:
        return f"neither a rule's own key nor a parameter of {gate}; {nearest(key, [*keys_at(Rule, ()), *params])}"
    kind = _set_type(params[key])
    accepts = (int, float) if kind is float else kind
    if not isinstance(value, accepts) or (isinstance(value, bool) and kind is not bool):
        form = ": 2.0, without quotes, comma or unit" if kind is float and isinstance(value, str) else ""
        return f"{gate} takes a {kind.__name__} here{form}"
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        return f"{gate} takes a finite number, 0 or more, here"
    if isinstance(value, int | float) and value > PARAMETER:
        return f"{gate} takes at most {PARAMETER:g} here"
    return None

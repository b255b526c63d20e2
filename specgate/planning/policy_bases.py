"""Policies over their bases (`base`): rules are merged by `id`.

- A rule with the id of an inherited one changes the keys that it states; if it states a `gate`, it replaces the
  inherited rule as a whole. Either way it stays in the inherited rule's place.
- `replaces: ID` puts a rule of another id into the place of an inherited one, of which nothing stays.
- `without: [ID, …]` leaves inherited rules out.
- A rule with an id of its own is new. It stands after the rule above it in its file. Those at the top of the file stand
  before the inherited rules marked `otherwise`, and at the end if there are none.

Of other keys, mappings (`checks`) are merged and lists (`micro`, `not_judged`) replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from specgate.contract.reading import Problem, nearest
from specgate.files.yaml_schema import refusal
from specgate.files.yamlfile import Document
from specgate.planning.inheritance import Inheritance, Item, items_of, with_items

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
    if problems := list(_problems(own, mine, [item.data.get("id") for item in inherited])):
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


def _problems(own: Document, mine: list[Item], inherited: list[object]) -> Iterator[Problem]:
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

"""Tables of keys and JSON schemas, written from the nouns themselves."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter

from specgate.contract import Exemption, Policy, Rule, Run, Scenario, TokenChecks
from specgate.contract.reading import field_types, is_filled_in, noun_in
from specgate.contract.types import LARGEST, Constraint, Range

NOUNS: tuple[type, ...] = (Scenario, Policy, Rule, Exemption, TokenChecks)
OWN_TABLE = (Rule, Exemption, TokenChecks)
"""Nouns inside others that have tables of their own."""
SCHEMAS: Mapping[str, type] = {"scenario": Scenario, "policy": Policy, "run": Run}
"""Name of a file in `docs/schemas` → the noun of the files that it describes."""
MORE_KEYS: Mapping[str, tuple[str, ...]] = {
    "Scenario": ("schema", "extends", "kinds"),
    "Policy": ("schema", "base", "without"),
    "Run": ("schema", "schema_version"),
}
"""Keys of a file that are no fields of its noun."""


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(noun: type) -> str:
    """Return the keys that a file has for `noun`, as a table of Markdown."""
    cells = ((f"`{key}`", value, default, first_sentence(text)) for key, value, default, text in rows(noun))
    return markdown(("key", "value", "default", "meaning"), cells)


def rows(noun: type, prefix: str = "", seen: set[type] | None = None) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, value, default and meaning. The keys of a noun inside come once, where it is first."""
    seen = set() if seen is None else seen
    defaults = {field.name: default_of(field) for field in fields(noun)}
    for name, annotation in field_types(noun).items():
        if is_filled_in(annotation):
            continue
        inner = noun_in(annotation)
        many = "[]" if "tuple" in str(annotation) else ".NAME" if "Mapping" in str(annotation) else ""
        key, text = f"{prefix}{name}", docs_of(noun).get(name, "")
        if inner is None:
            yield key, value_of(annotation), defaults[name], text
            continue
        known = inner in seen or inner in OWN_TABLE
        values = "a table of its own" if inner in OWN_TABLE else "as above" if known else "keys below"
        yield key, f"list, {values}" if many == "[]" else values, defaults[name], text
        if not known:
            seen.add(inner)
            yield from rows(inner, f"{key}{many}.", seen)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return "".join(f"|{'|'.join(row)}|\n" for row in (head, ("---",) * len(head), *rows))


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    return re.split(r"(?<=[\w)`])\.\s", " ".join(text.split()))[0].removesuffix(".").replace("|", "\\|")


def default_of(field: Any) -> str:
    """Return the default of a dataclass's field, as YAML has it."""
    if field.default_factory is not MISSING:
        return ""
    if field.default is MISSING:
        return "required"
    return "" if field.default in (None, ()) else f"`{json.dumps(field.default)}`".replace('"', "")


def value_of(annotation: Any) -> str:
    """Return what a key with this annotation may hold."""
    if get_origin(annotation) is Annotated:
        inner, *constraints = get_args(annotation)
        limits = {key: limit for c in constraints if isinstance(c, Constraint) for key, limit in c.keys.items()}
        return with_limits(value_of(inner), limits, any(isinstance(c, Range) for c in constraints))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(value_of(part) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        return "/".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        item, *rest = get_args(annotation)
        return (
            f"list of {value_of(item)}"
            if rest == [Ellipsis]
            else "pair of " + " and ".join(map(value_of, (item, *rest)))
        )
    if get_args(annotation):
        return "mapping of " + " to ".join(map(value_of, get_args(annotation)))
    names = {int: "integer", float: "number", bool: "`true`/`false`", str: "text", Path: "path"}
    return names[annotation]


def with_limits(value: str, limits: Mapping[str, Any], of_number: bool) -> str:
    """Return `value` with the limits of its constraints."""
    if not of_number:
        return value
    most = shown(limits["le"]) if "le" in limits else ""
    if "gt" in limits:
        return f"{value} >{shown(limits['gt'])}" + (f" ≤{most}" if most else "")
    if "ge" in limits:
        return f"{value} {shown(limits['ge'])}–{most}" if most else f"{value} ≥{shown(limits['ge'])}"
    return value


def shown(limit: float) -> str:
    if limit in (LARGEST, 2 * LARGEST + 1):
        return "2⁶³ − 1" if limit == LARGEST else "2⁶⁴ − 1"
    return f"{int(limit):,}" if float(limit).is_integer() else f"{limit:f}".rstrip("0")


@cache
def docs_of(noun: type) -> Mapping[str, str]:
    """Return field → the docstring below it."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(noun)).body if isinstance(node, ast.ClassDef))
    docs = dict[str, str]()
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = re.sub(r"\bNone\b", "null", " ".join(doc.split()))
    return docs


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of one kind of file, as its noun declares it.

    A file that a user writes may inherit every key, so none is required there, and has none that specgate fills in.
    """
    noun = SCHEMAS[name]
    whole: dict[str, Any] = TypeAdapter(noun).json_schema()
    for each, definition in {noun.__name__: whole, **whole.get("$defs", {})}.items():
        described(definition, nouns_in(noun).get(each), by_user=noun is not Run)
        definition.setdefault("properties", {}).update({key: {} for key in MORE_KEYS.get(each, ())})
    return whole


def described(definition: dict[str, Any], noun: type | None, *, by_user: bool) -> None:
    """Add descriptions of keys. With `by_user`, take out what a user's file cannot have or need not have."""
    if noun is None or "properties" not in definition:
        return
    definition.pop("description", None)
    keys = definition["properties"]
    for name, annotation in field_types(noun).items():
        if by_user and is_filled_in(annotation):
            del keys[name]
        elif name in keys and name in docs_of(noun):
            keys[name]["description"] = docs_of(noun)[name]
    if by_user:
        definition.pop("required", None)
        definition["additionalProperties"] = noun is Rule  # which has its gate's parameters


@cache
def nouns_in(outer: type) -> Mapping[str, type]:
    """Return name → noun, for `outer` and all nouns inside it."""
    nouns, left = dict[str, type](), [outer]
    while left:
        if (noun := left.pop()).__name__ not in nouns:
            nouns[noun.__name__] = noun
            left += [inner for kind in field_types(noun).values() for inner in every_noun_in(kind)]
    return nouns


def every_noun_in(annotation: Any) -> Iterator[type]:
    """Yield the nouns that stand in an annotation."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from every_noun_in(part)

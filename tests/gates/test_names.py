"""A gate speaks for itself: nothing outside the gates decides by a gate's name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from specgate.contract import Policy, Rule
from specgate.planning.gates import floors_of, kinds_of, machine_limits, near_ties, needs_earlier_run
from tests.support.imports import modules


def by_name(tree: ast.Module) -> Iterator[int]:
    """The lines on which a gate's name is compared with text, or looked up among texts."""
    texts = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and holds_text(node.value, set())
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                if any(map(is_gate, sides)) and any(holds_text(side, texts) for side in sides):
                    yield node.lineno
            case ast.Match() if is_gate(node.subject):
                yield node.lineno
            case ast.Subscript() if is_gate(node.slice) and holds_text(node.value, texts):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="get", value=value), args=[key, *_]):
                if is_gate(key) and holds_text(value, texts):
                    yield node.lineno


def is_gate(node: ast.expr) -> bool:
    return "gate" in (getattr(node, "attr", None), getattr(node, "id", None))


def holds_text(node: ast.expr, texts: set[str]) -> bool:
    match node:
        case ast.Constant():
            return isinstance(node.value, str)
        case ast.Name():
            return node.id in texts
        case ast.Tuple() | ast.List() | ast.Set():
            return any(holds_text(item, texts) for item in node.elts)
        case ast.Dict():
            return any(key is not None and holds_text(key, texts) for key in node.keys)
        case ast.Call():
            return any(holds_text(argument, texts) for argument in node.args)
    return False


def test_no_name_of_a_gate_is_compared_outside_the_gates() -> None:
    elsewhere = (file for module, file in modules().items() if not module.startswith("specgate.gates"))
    texts = ((file, file.read_text(encoding="utf-8")) for file in elsewhere)
    result = [f"{file}:{line}" for file, text in texts if "gate" in text for line in by_name(ast.parse(text))]
    assert not result, "ask the gate (specgate.planning.gates):\n" + "\n".join(result)


def test_a_policy_knows_what_its_gates_declare() -> None:
    rules = (
        Rule("tokens", "tokens", True, params={"near_tie_margin": 0.5, "max_sigma": 0.6}),
        Rule("strict", "tokens", True, role="spec-1", params={"near_tie_margin": 0.0, "max_sigma": 0.15}),
        Rule("fast", "speed", True, params={"min": 2.0}),
        Rule("pays", "load", True, params={"min_break_even": 8.0}),
        Rule("quiet", "environment", True, params={"gpu": True, "max_other_cpu_share": 0.5, "max_set_aside": 0.25}),
    )
    policy = Policy("p", rules)
    kinds = kinds_of(policy)
    assert [kinds[rule.id] for rule in rules] == [("tokens",), ("tokens",), ("speed",), ("speed",), ()]
    assert [(rule.id, floor.figure, floor.text) for rule, floor in floors_of(policy)] == [
        ("fast", "speedup", "≥ 2×"),
        ("pays", "break_even", "pays up to 8"),
    ]
    ties = near_ties(policy)
    assert (ties.margin, ties.max_sigma) == (0.0, 0.15)
    ((_, limits),) = machine_limits(policy)
    assert limits.gpu and limits.host is not None and limits.host.max_cpu_wait == 0.05
    assert not needs_earlier_run(policy)

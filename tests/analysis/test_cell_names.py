"""Names of cells, as every report says them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.analysis.cell_names import cell_name
from specgate.contract import Workload
from tests.support.factories import scenario


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("demo/fake/c32768/b1/spec-3", "32K · batch 1 · spec-3"),
        ("demo/fake/c1000/b4/baseline", "1,000 tokens · batch 4 · baseline"),
        ("demo/c1000/b4/baseline", "1,000 tokens · batch 4 · baseline"),
        ("demo/fake/c1024/b8/q2.5/spec-3+kv", "1K · 2.5 requests/s · spec-3+kv"),
        ("demo/fake/c1024/b2", "1K · batch 2"),
        ("no key", "no key"),
    ],
)
def test_a_cell_is_named_by_length_batch_and_role(key: str, name: str) -> None:
    assert cell_name(key, {"demo": scenario("demo")}) == name


def test_a_scenario_is_named_where_its_run_has_others_or_is_not_known() -> None:
    key, one = "demo/fake/c1024/b1/spec-3", scenario("demo")
    assert cell_name(key) == "demo · 1K · batch 1 · spec-3"
    assert cell_name(key, {"demo": one, "other": one}) == "demo · 1K · batch 1 · spec-3"
    assert cell_name(key, {"demo": one, "demo+kv": one}) == "1K · batch 1 · spec-3"


def test_own_prompts_are_named_by_their_file_and_the_longest() -> None:
    own = replace(scenario("own"), workload=Workload(1, 8, 1, file=Path("/home/me/prompts.jsonl")))
    name = cell_name("own/fake/c27/b1/spec-3", {"own": own})
    assert name == "prompts.jsonl, up to 27 tokens · batch 1 · spec-3"

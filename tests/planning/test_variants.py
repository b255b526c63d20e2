"""Variants of a role: what a scenario file says of them, the scenarios that they become, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.contract import BASELINE, Cell, Draws, Point, Role, Sampling, Variant
from specgate.contract.policy import selects
from specgate.errors import UsageError
from specgate.planning.ad_hoc import Question, changed
from specgate.planning.plan import build_plan
from specgate.planning.scenario import dump, find, find_all, load_scenario, refuse_double_options, select, with_variants
from specgate.promotion.claim import digests

GOOD = """# What does each way of decoding give?
extends: cpu-1k-single
variants:
  kv-fp8: {options: {kv: fp8}}
  tree: {options: {tree: dynamic:8}}
  t1: {sampling: {temperature: 1.0}, draws: {texts: 100}}
"""


def written(folder: Path, text: str = GOOD) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        find_all(str(path))
    return str(caught.value)


def test_each_variant_is_a_scenario_that_differs_in_what_the_variant_says(tmp_path: Path) -> None:
    plain, fp8, tree, t1 = find_all(str(written(tmp_path)))
    assert [s.name for s in (plain, fp8, tree, t1)] == ["mine", "mine+kv-fp8", "mine+tree", "mine+t1"]
    assert fp8 == replace(plain, name="mine+kv-fp8", options={"kv": "fp8"})
    assert tree == replace(plain, name="mine+tree", options={"tree": "dynamic:8"})
    drawn = Sampling(temperature=1.0), Draws(100)
    assert t1 == replace(plain, name="mine+t1", sampling=drawn[0], draws=drawn[1])
    assert not any(s.variants for s in (plain, fp8, tree, t1))


def test_options_of_the_scenario_go_to_its_variants_which_may_change_them(tmp_path: Path) -> None:
    text = GOOD + "options: {kv: bf16, tree_width: 4}\n"
    plain, fp8, tree, _ = find_all(str(written(tmp_path, text)))
    assert plain.options == {"kv": "bf16", "tree_width": "4"}
    assert fp8.options == {"kv": "fp8", "tree_width": "4"}
    assert tree.options == {"kv": "bf16", "tree_width": "4", "tree": "dynamic:8"}


def test_cells_are_roles_with_their_variant_each_beside_a_baseline_of_its_own(tmp_path: Path) -> None:
    plan = build_plan(find_all(str(written(tmp_path))), "reference")
    names = ["", "+kv-fp8", "+tree", "+t1"]
    assert [c.role_name for c in plan.cells] == [f"{role}{name}" for name in names for role in ("baseline", "spec-3")]
    keys = [c.key for c in plan.cells]
    assert keys[2:4] == [f"mine/reference/c1024/b1/{role}+kv-fp8" for role in ("baseline", "spec-3")]
    assert [c.baseline.key for c in plan.cells if c.role.speculative] == keys[::2]
    assert len(set(keys)) == len(keys)
    assert len({p.key for p in plan.points}) == 4


def test_a_rule_for_a_plain_role_leaves_its_variants_alone() -> None:
    plain = Cell(Point("mine", "reference", 64, 1), Role(3))
    fp8 = Cell(Point("mine+kv-fp8", "reference", 64, 1), Role(3))
    assert [selects("mine", "spec-3", c) for c in (plain, fp8)] == [True, False]
    assert [selects("mine", "spec-*", c) for c in (plain, fp8)] == [True, True]
    assert [selects("*", "*+kv-fp8", c) for c in (plain, fp8)] == [False, True]
    assert selects("mine", "baseline+kv-fp8", Cell(fp8.point, BASELINE))


def test_a_name_with_a_mark_but_without_a_scenario_or_variant_is_no_variant() -> None:
    for name in ("+1", "mine+", "+", "mine"):
        assert (Point(name, "fake", 1, 1).unvaried, Point(name, "fake", 1, 1).variant) == (name, "")


def test_only_narrows_to_a_variant_and_a_name_can_ask_for_one(tmp_path: Path) -> None:
    path = str(written(tmp_path))
    assert [s.name for s in select([path], "*+t1", "micro", "cpu")] == ["mine+t1"]
    assert [s.name for s in select([path], None, "micro", "cpu")] == ["mine", "mine+kv-fp8", "mine+tree", "mine+t1"]
    assert find(f"{path}+tree").name == "mine+tree"
    with pytest.raises(UsageError, match=r"(?s)mine has no variant 'kv-fp4'.*mine\+kv-fp8, mine\+tree, mine\+t1"):
        find(f"{path}+kv-fp4")


def test_a_scenario_with_variants_survives_being_dumped_and_so_does_each_variant(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path))
    assert set(scenario.variants) == {"kv-fp8", "tree", "t1"}
    for one in (scenario, *with_variants(scenario)[1:]):
        again = load_scenario(written(tmp_path, dump(one)))
        assert replace(again, source_file=None, name=one.name) == replace(one, source_file=None)


def test_a_question_on_the_command_line_keeps_the_variant_in_the_name(tmp_path: Path) -> None:
    fp8 = find(f"{written(tmp_path)}+kv-fp8")
    result = changed(fp8, Question(context=(512,)), fp8.name)
    assert (result.name, result.options, result.grid.context) == ("own-mine.c512+kv-fp8", {"kv": "fp8"}, (512,))


def test_green_runs_of_a_scenario_do_not_know_its_variants_and_each_variant_has_its_own(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path))
    alone = replace(scenario, variants={})
    assert digests([scenario]) == digests([alone])
    of = digests(with_variants(scenario))
    assert len(set(of.values())) == 4
    changed_ = replace(scenario, variants={"kv-fp8": Variant({"kv": "nvfp4"})})
    assert digests(with_variants(changed_))["mine+kv-fp8"] != of["mine+kv-fp8"]


def test_an_option_that_the_command_line_sets_too_is_refused_with_both_values(tmp_path: Path) -> None:
    scenarios = find_all(str(written(tmp_path)))
    with pytest.raises(UsageError, match=r"-o kv=nvfp4: scenario mine\+kv-fp8 sets options.kv: 'fp8'"):
        refuse_double_options(scenarios, {"kv": "nvfp4"})
    refuse_double_options(scenarios, {"device": "cpu"})


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ("x: {}", "variants.x: {}: say what it varies"),
        ("x: {draws: {texts: 9}}", "variants.x: {'draws': {'texts': 9}}: say what it varies"),
        ("X: {options: {kv: fp8}}", "variants.X"),
        ("a+b: {options: {kv: fp8}}", "variants.a+b"),
        ("x: {options: {kv: true}}", "variants.x.options.kv: True"),
        ("x: {options: {'k v': fp8}}", "variants.x.options.k v"),
        ("x: {sampling: {temperature: -1}}", "variants.x.sampling.temperature: -1"),
        ("x: {options: {kv: fp8}, draws: {texts: 9}}", "variants.x.draws: {'texts': 9}: greedy decoding draws nothing"),
        ("x: {spec: [2]}", "variants.x.spec"),
    ],
)
def test_a_wrong_variant_is_refused_by_its_key(variants: str, message: str, tmp_path: Path) -> None:
    text = f"# A?\nextends: cpu-1k-single\nvariants:\n  {variants}\n"
    assert message in refused(written(tmp_path, text))


def test_a_number_may_be_the_value_of_an_option(tmp_path: Path) -> None:
    text = "# A?\nextends: cpu-1k-single\nvariants: {deep: {options: {tree_width: 4, confidence: 0.5}}}\n"
    assert find_all(str(written(tmp_path, text)))[1].options == {"tree_width": "4", "confidence": "0.5"}

"""Policies over their bases: what stays, what changes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from specgate import plugins
from specgate.cli import cli
from specgate.contract import Policy, Rule
from specgate.errors import UsageError
from specgate.planning.policy import SHIPPED, find_policy, load_policy, micro_scenarios, whole_text

GATES = plugins.gates()
BASE = """\
# A base.
schema: specgate.policy/v1
micro: [cpu-1k-single]
checks: {positions: 32, within_s: 5}
not_judged: [{kind: speed, why: a shared clock}]
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, near_tie_margin: 0.5}
  - {id: rest, gate: acceptance, required: true, otherwise: true, min: 1.1}
  - {id: loops, gate: degeneracy, required: true, max_repeated_share: 0.3}
"""


def over(folder: Path, text: str, base: str = BASE) -> Policy:
    """The policy of `text` over the base, which lies in a folder beside it."""
    (folder / "below").mkdir(exist_ok=True)
    (folder / "below" / "base.yaml").write_text(base)
    (folder / "mine.yaml").write_text(f"# Mine.\nschema: specgate.policy/v1\nbase: below/base.yaml\n{text}")
    return load_policy(folder / "mine.yaml", GATES)


def ids(policy: Policy) -> list[str]:
    return [rule.id for rule in policy.rules]


def test_a_policy_that_changes_nothing_is_its_base(tmp_path: Path) -> None:
    whole = over(tmp_path, "")
    base = load_policy(tmp_path / "below" / "base.yaml", GATES)
    assert (whole.rules, whole.checks, whole.not_judged, whole.micro) == (
        base.rules,
        base.checks,
        base.not_judged,
        base.micro,
    )
    assert (whole.name, whole.source_file) == ("mine", tmp_path / "mine.yaml")


def test_a_rule_with_an_inherited_id_changes_the_keys_that_it_states_in_place(tmp_path: Path) -> None:
    figures = over(tmp_path, "rules: [{id: tokens, near_tie_margin: 0.25}, {id: loops, required: false}]\n")
    assert ids(figures) == ["records", "tokens", "rest", "loops"]
    assert figures.rules[1] == Rule("tokens", "tokens", True, params={"near_tie_margin": 0.25})
    assert figures.rules[3] == Rule("loops", "degeneracy", False, params={"max_repeated_share": 0.3})


def test_a_rule_that_names_a_gate_replaces_the_inherited_one_as_a_whole(tmp_path: Path) -> None:
    figures = over(
        tmp_path, "rules: [{id: tokens, gate: tokens, required: false, near_tie_margin: 0, max_sigma: 0.1}]\n"
    )
    assert figures.rules[1] == Rule("tokens", "tokens", False, params={"near_tie_margin": 0.0, "max_sigma": 0.1})


def test_a_rule_of_another_id_may_take_the_place_of_an_inherited_one(tmp_path: Path) -> None:
    rule = "{id: overlap, replaces: loops, gate: acceptance, required: true, role: spec-3, min: 2}"
    figures = over(tmp_path, f"rules: [{rule}]\n")
    assert ids(figures) == ["records", "tokens", "rest", "overlap"]
    assert figures.rules[2].unless == (("*", "spec-3"),)  # what is left to others follows from the whole policy


def test_new_rules_stand_before_the_general_ones_or_after_the_rule_above_them(tmp_path: Path) -> None:
    first = "{id: first, gate: validity, required: false}"
    second = "{id: second, gate: validity, required: false}"
    assert ids(over(tmp_path, f"rules: [{first}, {second}]\n")) == [
        *("records", "tokens", "first", "second", "rest", "loops")
    ]
    below = f"rules: [{{id: records, required: false}}, {first}, {second}]\n"
    assert ids(over(tmp_path, below)) == ["records", "first", "second", "tokens", "rest", "loops"]
    assert ids(over(tmp_path, f"without: [rest]\nrules: [{first}]\n")) == ["records", "tokens", "loops", "first"]


def test_lists_are_replaced_and_mappings_merged(tmp_path: Path) -> None:
    figures = over(tmp_path, "checks: {positions: 64}\nnot_judged: []\nmicro: [cpu-512-batch4]\n")
    assert figures.checks is not None and (figures.checks.positions, figures.checks.within_s) == (64, 5.0)
    assert (figures.not_judged, figures.micro) == ((), ("cpu-512-batch4",))


def test_a_scenario_file_that_a_base_names_lies_beside_the_base(tmp_path: Path) -> None:
    shipped = (SHIPPED.parents[1] / "scenarios" / "cpu-1k-single.yaml").read_text()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "own.yaml").write_text(shipped)
    figures = over(tmp_path, "", BASE.replace("cpu-1k-single", "own.yaml"))
    assert figures.micro == ("below/own.yaml",) and micro_scenarios(figures)[0].name == "own"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("without: [token]", 4, "without[0]: 'token': no inherited rule has this id; did you mean 'tokens'?"),
        ("without: tokens", 4, "without: 'tokens': a list of ids of inherited rules was expected"),
        ("rules: [{id: tokns, near_tie_margin: 0}]", 4, "rules[0].id: 'tokns': no inherited rule has this id, and"),
        ("rules: [{id: tokns, near_tie_margin: 0}]", 4, "did you mean 'tokens'?"),
        ("rules: [{id: a, replaces: loop, gate: validity}]", 4, "rules[0].replaces: 'loop': no inherited rule"),
        ("rules: [{id: rest, replaces: loops, gate: validity}]", 4, "rules[0].id: 'rest': an inherited rule"),
        ("rules: [{id: loops}, {id: loops}]", 4, "rules[1].id: 'loops': rule 1 of this file has this id already"),
        ("rules: [{id: tokens, near_tie_margin: -1}]", 4, "tokens takes a finite number, 0 or more, here"),
        ("rules: [{id: loops, share: 1}]", 4, "neither a rule's own key nor a parameter of degeneracy"),
        ("rules: 5", 4, "rules: 5: "),
        ("rules: [{near_tie_margin: 0}]", 4, "this key is required"),
        ("rules: [{id: [tokens], near_tie_margin: 0}]", 4, "rules[2].id: ['tokens']: "),
        ("without: [[tokens]]", 4, "without[0]: ['tokens']: no inherited rule has this id"),
        ("withuot: [tokens]", 4, "withuot: ['tokens']: no such key; did you mean 'without'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused_with_file_and_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        over(tmp_path, f"{text}\n")
    assert f"mine.yaml:{line}: " in str(caught.value) and says in str(caught.value)


def test_a_problem_of_the_base_is_named_with_the_bases_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        over(
            tmp_path,
            "rules: [{id: loops, required: false}]\n",
            BASE.replace("near_tie_margin: 0.5", "near_tie_margin: x"),
        )
    assert "base.yaml:8: rules[1].near_tie_margin: 'x': tokens takes a float here" in str(caught.value)


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("sed", "base: 'sed': no such base; did you mean 'seed'?"),
        ("gone.yaml", "base: 'gone.yaml': no such base"),
        ("[seed, sed]", "base[1]: 'sed': no such base; did you mean 'seed'?"),
        ("[1]", "a name, a file, or a list of them was expected"),
        ("mine.yaml", "a policy cannot extend itself: mine.yaml → mine.yaml"),
    ],
)
def test_a_base_that_is_none_is_refused(tmp_path: Path, base: str, says: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"schema: specgate.policy/v1\nbase: {base}\n")
    with pytest.raises(UsageError) as caught:
        load_policy(tmp_path / "mine.yaml", GATES)
    assert "mine.yaml:2: base" in str(caught.value) and says in str(caught.value)


def test_what_speaks_of_a_base_is_refused_without_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    rule = "{id: b, replaces: a, gate: validity, required: true}"
    file.write_text(f"schema: specgate.policy/v1\nwithout: [a]\nrules: [{rule}]\n")
    with pytest.raises(UsageError) as caught:
        load_policy(file, GATES)
    for place in ("mine.yaml:2: without: ", "mine.yaml:3: rules[0].replaces: 'a': "):
        assert place in str(caught.value)
    assert str(caught.value).count("it speaks of inherited rules, and there is no `base`") == 2


@pytest.mark.parametrize("name", sorted(file.stem for file in SHIPPED.glob("*.yaml")))
def test_a_policy_is_shown_as_one_file_that_means_the_same(tmp_path: Path, name: str) -> None:
    (file := tmp_path / f"{name}.yaml").write_text(text := whole_text(name, GATES))
    shown, shipped = load_policy(file, GATES), find_policy(name, GATES)
    assert shown.rules == shipped.rules and "\nbase:" not in text and "\nwithout:" not in text
    assert (shown.checks, shown.not_judged, shown.micro) == (shipped.checks, shipped.not_judged, shipped.micro)


def test_the_command_shows_the_whole() -> None:
    shown = CliRunner().invoke(cli, ["policy", "show", "mlperf-gpt-oss"])
    assert (shown.exit_code, shown.output) == (0, whole_text("mlperf-gpt-oss", GATES))
    assert "records-valid" in shown.output and "pays-under-load" not in shown.output


def test_the_policies_for_a_gpu_state_what_they_share_once() -> None:
    texts = {file.stem: file.read_text() for file in SHIPPED.glob("*.yaml")}
    shared = [rule.id for rule in load_policy(SHIPPED / "base" / "gpu.yaml", GATES).rules]
    assert len(shared) == 8
    for rule in ("records-valid", "machine-quiet", "perf-mode"):
        stating = [name for name, text in texts.items() if f"{{id: {rule}, gate:" in text]
        assert stating == (["sampled"] if rule == "records-valid" else [])

"""Policy files: the numbers that ship, and what is refused."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import UnionType

import pytest
import torch

from specgate import plugins
from specgate.analysis.experts import solved
from specgate.analysis.verdict import foreseeable
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.pair_tools.plant.check import predictions
from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, RopeSpec, TargetGeometry
from specgate.contract import Cell, Exemption, Kind, Point, Policy, Role, Rule, RunView, TokenChecks, Traffic, Verdict
from specgate.contract.protocols import Gate
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes
from specgate.errors import UsageError
from specgate.pairs.resolve import resolve_pair
from specgate.planning.gates import kinds_of
from specgate.planning.plan import build_plan
from specgate.planning.policy import SHIPPED as POLICIES
from specgate.planning.policy import find_policy, load_policy, micro_scenarios
from specgate.planning.scenario import find, shipped

TIES = "id: b, gate: tokens, required: true, near_tie_margin: 0, "


class Other:
    """A gate from outside, with a kind of its own."""

    name = "other"
    params: Mapping[str, type | UnionType] = {"mode": str, "strict": bool, "looks": int}

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        return ("latency",)

    def judge(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        yield from ()


GATES: dict[str, Gate] = {**plugins.gates(), "other": Other()}

SHIPPED = ("cpu", "seed", "merge", "merge-reduced", "planted-8b", "gpt-oss-120b")
ENGINES = ("engine-gpt-oss-120b", "merge-gpt-oss-120b")


def written(folder: Path, *rules: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text("# Mine.\nschema: specgate.policy/v1\nrules:\n" + "".join(f"  - {{{r}}}\n" for r in rules))
    return path


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_policy(path, GATES)
    return str(caught.value)


def test_the_planted_policy_asks_for_most_of_the_acceptance_that_its_pairs_have() -> None:
    floors = {
        r.scenario: float(r.params["min"])
        for r in find_policy("planted-8b", GATES).rules
        if r.gate == "acceptance" and not r.unless
    }
    for pattern, floor in floors.items():
        pairs = {scenario.pair for scenario in shipped() if fnmatch(scenario.name, pattern)}
        assert len(pairs) == 1
        predicted = predictions(resolve_pair(pairs.pop(), None, None))[3]
        assert 0.94 * predicted <= floor <= 0.96 * predicted


def test_the_seed_policy_holds_the_required_numbers() -> None:
    rules = find_policy("seed", GATES).rules
    numbers = {(r.gate, r.scenario, r.role): r.params["min"] for r in rules if "min" in r.params}
    required = {
        ("speed", "micro-", "16k-b4"): 1.0,
        ("acceptance", "micro-", "16k-b4"): 2.2,
        ("speed", "micro-", "32k-single"): 2.0,
        ("acceptance", "micro-", "32k-single"): 3.0,
        ("speed", "full-", "16k-b4"): 1.0,
        ("speed", "full-", "32k-single"): 2.0,
    }
    assert numbers == {
        **{(gate, kind + name, "spec-3"): least for (gate, kind, name), least in required.items()},
        **{(gate, f"{kind}120b-{name}", "spec-3"): least for (gate, kind, name), least in required.items()},
        ("acceptance", "*", "spec-*"): 1.1,
        ("speed", "*", "spec-*"): 1.0,
    }
    assert all(r.required for r in rules)


def gpt_oss_120b(draft_vocab: int) -> Traffic:
    """gpt-oss-120b in bfloat16 with experts in MXFP4, and a draft of the published sizes."""
    rope = RopeSpec("yarn", 150000.0, 64, factor=32.0, original_positions=4096, truncate=False)
    target = TargetGeometry(
        36, 2880, 2880, 64, 8, 64, 201088, 1e-5, rope, 131072, False, (200002,), None,
        experts=ExpertGeometry(128, 4, True), windows=tuple(None if layer % 2 else 128 for layer in range(36)),
        biases=True, sinks=True,
    )  # fmt: skip
    draft = DraftGeometry(2880, 2880, 3, 17280, 64, 8, 64, 201088, draft_vocab, 1e-5, rope, 131072)
    return pair_traffic(target, draft, torch.bfloat16)


def cycle_cost(traffic: Traffic, context: int, batch: int, k: int, overlap: float) -> float:
    """Bytes of a cycle of `k` drafts over those of a step, where the tokens of a slot have that overlap of experts."""
    experts = traffic.target.experts
    assert traffic.draft is not None and experts is not None
    touched = experts.layers * experts.distinct_of_slots([k + 1] * batch, overlap)
    step = pass_bytes(traffic.target, [Slot(context, 1)] * batch)
    cycle = pass_bytes(traffic.target, [Slot(context, k + 1)] * batch, touched=touched)
    cycle += draft_bytes(traffic.draft, [Slot(context - 1, 1)] * batch, [k] * batch)
    return cycle.total / step.total


def test_the_gpt_oss_policy_asks_for_what_bytes_allow_without_any_overlap() -> None:
    rules = find_policy("gpt-oss-120b", GATES).rules
    floors = {(r.gate, r.scenario): float(r.params["min"]) for r in rules if r.required and "min" in r.params}
    traffic = gpt_oss_120b(32000)
    for name, pattern in (
        ("16k-b4", "*-120b-16k-b4"),
        ("32k-single", "*-120b-*-single"),
        ("1k-single", "*-120b-*-single"),
    ):
        grid, length = find(f"micro-120b-{name}").grid, floors["acceptance", pattern]
        cost = cycle_cost(traffic, grid.context[0], grid.batch[0], 3, 0.0)
        assert floors["speed", f"micro-120b-{name}"] == pytest.approx(0.96 * length / cost, abs=0.01)
        assert floors["speed", f"full-120b-{name}"] <= floors["speed", f"micro-120b-{name}"]


def test_the_seeds_numbers_take_the_overlaps_that_the_gpt_oss_policy_names() -> None:
    text = (POLICIES / "gpt-oss-120b.yaml").read_text()
    for context, batch, length, floor in ((32768, 1, 3.0, 2.0), (16384, 4, 2.2, 1.0)):
        costs = partial(cycle_cost, gpt_oss_120b(32000), context, batch, 3)
        needed = solved(lambda overlap, c=costs, most=length / floor: c(overlap) - most, 0.0, 1.0)  # type: ignore[misc]
        assert f"{floor:.1f} takes {'an overlap of ' if batch == 1 else ''}{needed:.2f} at AL {length:.1f}" in text
    assert cycle_cost(gpt_oss_120b(201088), 32768, 1, 3, 1.0) > 3.0 / 2.0  # at no overlap


@pytest.mark.parametrize("name", ["seed", "planted-8b", "merge-reduced", "gpt-oss-120b"])
def test_on_a_gpu_every_cell_is_held_against_the_last_green_run(name: str) -> None:
    (rule,) = (r for r in find_policy(name, GATES).rules if r.gate == "since-green")
    assert (rule.required, rule.scenario, rule.role, rule.unless) == (True, "*", "*", ())
    assert rule.params == {
        "time_margin_pct": 3.0,
        "prefill_margin_pct": 5.0,
        "acceptance_margin_pct": 2.0,
        "anchor_margin_pct": 5.0,
    }


def test_a_branch_that_merges_has_its_build_compared_on_the_micro_gates() -> None:
    policy = find_policy("merge", GATES)
    (rule,) = (r for r in policy.rules if r.gate == "builds")
    assert (rule.required, rule.scenario, rule.role, rule.params) == (True, "*", "*", {"base": "main"})
    assert not [r for r in policy.rules if r.gate == "since-green"]
    others = [r for r in policy.rules if r.gate != "builds"]
    assert others == [r for r in find_policy("planted-8b", GATES).rules if r.gate != "since-green"]


def test_the_branch_that_was_merged_into_asks_for_no_floor_of_speed_above_plain_decoding() -> None:
    floors = {r.id: r.params["min"] for r in find_policy("merge-reduced", GATES).rules if r.gate == "speed"}
    assert len(floors) == 5 and set(floors.values()) == {1.0}


def test_another_engine_with_gpt_oss_is_held_to_the_seeds_numbers_and_to_what_can_be_seen_of_it() -> None:
    rules = find_policy("engine-gpt-oss-120b", GATES).rules
    of = {
        (scenario, role, gate): [r.params["min"] for r in rules if r.gate == gate and r.required and r.matches(cell)]
        for scenario in ("micro-32k-single", "micro-16k-b4", "full-120b-32k-single", "full-16k-b4", "baseline")
        for role in (3, 5)
        for gate in ("speed", "acceptance")
        for cell in [Cell(Point(scenario, "lmdeploy-pipeline", 64, 1), Role(role))]
    }
    assert {key: floors for key, floors in of.items() if key[1] == 3} == {
        ("micro-32k-single", 3, "speed"): [2.0],
        ("micro-32k-single", 3, "acceptance"): [3.0],
        ("micro-16k-b4", 3, "speed"): [1.0],
        ("micro-16k-b4", 3, "acceptance"): [2.2],
        ("full-120b-32k-single", 3, "speed"): [2.0],
        ("full-120b-32k-single", 3, "acceptance"): [1.1],
        ("full-16k-b4", 3, "speed"): [1.0],
        ("full-16k-b4", 3, "acceptance"): [1.1],
        ("baseline", 3, "speed"): [1.0],
        ("baseline", 3, "acceptance"): [1.1],
    }
    assert {gate: floors for (_, role, gate), floors in of.items() if role == 5} == {"speed": [], "acceptance": [1.1]}
    same = {r.id: r for r in find_policy("engine-gpu", GATES).rules}
    kept = ("records-valid", "machine-quiet", "tokens-but-near-ties", "perf-mode", "no-loss-since-green", "no-loops")
    assert [r for r in rules if r.id in kept] == [same[r.id] for r in same.values() if r.id in kept]


@pytest.mark.parametrize(("name", "most"), [("seed", 0.3), ("merge", 0.1), ("engine-gpt-oss-120b", 0.3)])
def test_text_that_loops_is_red_and_not_advice(name: str, most: float) -> None:
    (loops,) = (r for r in find_policy(name, GATES).rules if r.gate == "degeneracy")
    assert loops == Rule("no-loops", "degeneracy", True, params={"max_repeated_share": most})


def test_every_policy_that_ships_can_be_read() -> None:
    names = {file.stem for file in POLICIES.glob("*.yaml")}
    others = "cpu-pair engine engine-gpu engine-planted-8b engine-sampled load load-forced lossy mlperf-gpt-oss sampled"
    assert names == {*SHIPPED, *ENGINES, *others.split(), "speed-only"}
    params = plugins.gates()
    assert all(find_policy(name, params).rules for name in names)


@pytest.mark.parametrize("name", SHIPPED)
def test_an_own_scenario_is_held_to_plain_decoding_and_the_shipped_ones_to_their_own_floors(name: str) -> None:
    policy = find_policy(name, GATES)
    for k in (1, 3, 5):
        own = Cell(Point("mine", "fake", 64, 8), Role(k))
        floors = [r.params["min"] for r in policy.rules if r.gate == "speed" and r.required and r.matches(own)]
        assert floors == [1.0]
    for scenario in shipped():
        for k in scenario.grid.spec:
            cell = Cell(Point(scenario.name, "fake", 64, 1), Role(k))
            for gate in ("speed", "acceptance"):
                result = [r for r in policy.rules if r.gate == gate and r.required and r.matches(cell)]
                assert len(result) == (0 if any(e.covers(gate, cell) for e in policy.not_judged or ()) else 1)


@pytest.mark.parametrize("name", [*SHIPPED, *ENGINES])
def test_a_shipped_policy_judges_every_cell_of_every_scenario_or_says_why_not(name: str) -> None:
    plans = [build_plan([s], "fake") for s in shipped()]
    policy = find_policy(name, GATES)
    result = [gap for plan in plans for gap in foreseeable(plan.cells, policy, kinds_of(policy))]
    assert all(gap.why for gap in result)
    spoken_of = {key.partition("/")[0] for gap in result for key in gap.cells}
    # A load scenario has a policy of its own; under another one, its speed is judged as everywhere.
    shared = {s.name for s in shipped() if s.needs == "cpu" and s.kind != "load"}
    others = {s.name for s in shipped() if s.grid.spec != (3,)}
    assert spoken_of == (shared if name == "cpu" else others if name in ENGINES else set())


@pytest.mark.parametrize("name", ["cpu", "seed"])
def test_records_and_tokens_are_required_everywhere(name: str) -> None:
    rules = find_policy(name, GATES).rules
    assert Rule("records-valid", "validity", True) in rules
    assert (True, "*", "*") in {(r.required, r.scenario, r.role) for r in rules if r.gate == "tokens"}


def test_on_a_cpu_acceptance_is_required_and_speed_only_advises() -> None:
    rules = find_policy("cpu", GATES).rules
    assert Rule("acceptance", "acceptance", True, "*", "spec-3", {"min": 2.2}) in rules
    speed = [r for r in rules if r.gate == "speed"]
    assert [r.id for r in speed if r.required] == ["other-speed"]
    assert {e.kind for e in find_policy("cpu", GATES).not_judged or ()} == {"speed"}


@pytest.mark.parametrize("name", ["seed", "planted-8b", "gpt-oss-120b"])
def test_on_a_gpu_the_machine_is_judged_and_what_nvml_does_not_tell_rejects(name: str) -> None:
    (rule,) = (r for r in find_policy(name, GATES).rules if r.gate == "environment")
    assert rule.required and rule.params["gpu"] is True


def test_on_a_cpu_no_gpu_is_looked_at_and_a_loaded_host_only_advises() -> None:
    (rule,) = (r for r in find_policy("cpu", GATES).rules if r.gate == "environment")
    assert not rule.required and rule.params["gpu"] is False


def test_a_good_file_becomes_a_policy(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "id: a, gate: speed, required: true, scenario: 'x-*', min: 2",
        "id: b, gate: other, required: false, mode: fast, strict: true, looks: 3",
    )
    assert load_policy(path, GATES) == Policy(
        "mine",
        (
            Rule("a", "speed", True, "x-*", "*", {"min": 2}),
            Rule("b", "other", False, "*", "*", {"mode": "fast", "strict": True, "looks": 3}),
        ),
        path,
        checks=TokenChecks(followed=8),
        not_judged=(),
        unreachable="warn",
    )


def test_a_rule_that_speaks_of_the_rest_gives_way_to_rules_that_bind_as_much_and_to_what_is_not_judged(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        "id: mine, gate: speed, required: true, scenario: mine, min: 2",
        "id: hint, gate: speed, required: false, scenario: hinted, min: 3",
        "id: length, gate: acceptance, required: true, scenario: far, min: 3",
        "id: rest, gate: speed, required: true, otherwise: true, role: spec-*, min: 1",
        "id: advice, gate: speed, required: false, otherwise: true, min: 4",
    )
    path.write_text(path.read_text() + 'not_judged: [{kind: speed, scenario: "cpu-*", why: a shared clock}]\n')
    policy = load_policy(path, GATES)
    assert policy.not_judged == (Exemption("speed", "a shared clock", "cpu-*"),)

    def selected_by(scenario: str) -> list[str]:
        cell = Cell(Point(scenario, "fake", 64, 1), Role(3))
        return [r.id for r in policy.rules if r.gate == "speed" and r.matches(cell)]

    assert selected_by("mine") == ["mine"]
    assert selected_by("hinted") == ["hint", "rest"]  # advice replaces no requirement
    assert selected_by("far") == ["rest", "advice"]
    assert selected_by("cpu-1") == []


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{kind: speed, why: ''}", "not_judged[0].why: '': must not be empty"),
        ("{kind: speed}", "not_judged[0].why: this key is required"),
        ("{kind: validity, why: x}", "not_judged[0].kind: 'validity': not one of 'tokens', 'acceptance' or 'speed'"),
        ("{kind: speed, why: x, cell: y}", "not_judged[0].cell: 'y': "),
        ("{kind: speed, why: x}", "not_judged[0].kind: 'speed': the rule a requires it, so it is judged"),
        ('{kind: speed, why: x, role: "spec-*"}', "the rule a requires it, so it is judged"),
    ],
)
def test_what_is_left_unjudged_needs_a_reason_and_must_not_be_required(tmp_path: Path, entry: str, says: str) -> None:
    path = written(tmp_path, "id: a, gate: speed, required: true, role: spec-3, min: 1")
    path.write_text(path.read_text() + f"not_judged:\n  - {entry}\n")
    message = refused(path)
    assert message.startswith(f"{path}:6: ") and says in message


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("id: b, gate: sped, required: true", "rules[1].gate: 'sped': no such gate; did you mean 'speed'?"),
        ("id: b, gate: speed, required: true, mni: 2", "rules[1].mni: 2: neither a rule's own key nor a parameter of"),
        ("id: b, gate: speed, required: true, mni: 2", "speed; did you mean 'min'?"),
        ("id: b, gate: speed, required: true, min: '2'", "rules[1].min: '2': speed takes a float here"),
        ("id: b, gate: speed, required: true, min: true", "rules[1].min: True: speed takes a float here"),
        ("id: b, gate: other, required: true, looks: 2.5", "rules[1].looks: 2.5: other takes a int here"),
        ("id: b, gate: speed, required: 1", "rules[1].required: 1: must be true or false"),
        ("id: b, gate: speed", "rules[1].required: this key is required"),
        ("id: a, gate: speed, required: true, min: 1.0", "rules[1].id: 'a': rule 1 of this file has this id already"),
        ("id: b, gate: speed, required: true", "rules[1].gate: 'speed': speed needs min"),
        ("id: b, gate: speed, required: true, min: .nan", "speed takes a finite number, 0 or more, here"),
        ("id: b, gate: tokens, required: true, near_tie_margin: -1", "tokens takes a finite number, 0 or more, here"),
        (TIES + "max_sigma: 0", "rules[1].max_sigma: 0: a standard deviation in logits, above 0 and at most 10"),
        (TIES + "cache_sigma: nvfp4", "rules[1].cache_sigma: 'nvfp4': a format and a standard deviation up to 10 each"),
        ("id: '', gate: speed, required: true", "rules[1].id: '': must not be empty"),
    ],
)  # fmt: skip
def test_a_bad_rule_is_named_with_file_and_line(tmp_path: Path, rule: str, says: str) -> None:
    path = written(tmp_path, "id: a, gate: validity, required: true", rule)
    message = refused(path)
    assert message.startswith(f"{path}:5: ")
    assert says in message


def test_all_problems_come_in_one_message(tmp_path: Path) -> None:
    path = written(tmp_path, "id: a, gate: sped, required: true", "id: b, gate: speed, required: true, mix: 1")
    first, *problems = refused(path).splitlines()
    assert first == f"{path}: 2 problems"
    assert [p.strip().startswith(f"{path}:{line}: ") for p, line in zip(problems, (4, 5), strict=True)] == [True, True]


def test_a_policy_without_rules_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("schema: specgate.policy/v1\nrules: []\n")
    assert "rules: []: must not be empty" in refused(path)


def test_an_unknown_policy_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'seed'"):
        find_policy("sead", GATES)


def with_micro(folder: Path, names: str) -> Path:
    path = written(
        folder, 'id: a, gate: validity, required: true, scenario: "*-1*"', "id: b, gate: validity, required: false"
    )
    path.write_text(path.read_text().replace("rules:", f"micro: {names}\nrules:"))
    return path


def test_micro_scenarios_are_named_or_files_beside_the_policy(tmp_path: Path) -> None:
    shipped_file = next(s.source_file for s in shipped() if s.name == "cpu-512-batch4")
    assert shipped_file is not None
    (tmp_path / "own-1.yaml").write_text(shipped_file.read_text())
    policy = load_policy(with_micro(tmp_path, "[cpu-1k-single, own-1.yaml]"), GATES)
    assert [s.name for s in micro_scenarios(policy)] == ["cpu-1k-single", "own-1"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[cpu-1k-singel]", "micro[0]: 'cpu-1k-singel': no such scenario: 'cpu-1k-singel'"),
        ("[cpu-1k-single, cpu-full-512]", "micro[1]: 'cpu-full-512': a full scenario"),
        ("[cpu-512-batch4]", "micro[0]: 'cpu-512-batch4': no required rule judges this scenario"),
        ("[]", "micro: "),
    ],
)
def test_micro_scenarios_that_could_never_be_green_are_refused(tmp_path: Path, names: str, message: str) -> None:
    assert message in refused(with_micro(tmp_path, names))


def test_checks_of_tokens_have_defaults_and_take_what_a_policy_says(tmp_path: Path) -> None:
    rule = "id: a, gate: other, required: true, mode: fast, strict: true, looks: 3"
    path = written(tmp_path, rule)
    assert load_policy(path, GATES).checks == TokenChecks(followed=8)
    path.write_text(path.read_text() + "checks: {text: sampled, rescored_by: none, positions: 128}\n")
    assert load_policy(path, GATES).checks == TokenChecks("sampled", "", 128, followed=8)


@pytest.mark.parametrize("wrong", ["text: some", "positions: 0", "within_s: 0", "max_gap: 0.5"])
def test_checks_that_make_no_sense_are_refused_with_their_line(tmp_path: Path, wrong: str) -> None:
    path = written(tmp_path, "id: a, gate: other, required: true, mode: fast, strict: true, looks: 3")
    path.write_text(path.read_text() + f"checks: {{{wrong}}}\n")
    with pytest.raises(UsageError, match=rf"{path}:\d+: checks\.{wrong.partition(':')[0]}"):
        load_policy(path, GATES)

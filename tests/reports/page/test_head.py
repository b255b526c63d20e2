"""The head of the page: figures with what is asked of them, what was not judged, and what the verdict rests on."""

from __future__ import annotations

from dataclasses import replace

from specgate.analysis.references import cell_times
from specgate.contract import EngineIdentity, Floor, Policy, Rule, Run, ServedModel, State, Verdict
from specgate.contract.references import Earlier, EarlierRun
from specgate.reports.common import provenance
from specgate.reports.common.parts import Entry
from specgate.reports.common.summary import quoted_words
from specgate.reports.page import head
from tests.support.factories import POLICY, blocks_of, corrupt, judged, plan_of, policy_of, run_of, scenario

PLAN = plan_of(scenario("cpu-one", spec=(2, 3)), scenario("cpu-two", spec=(3,)))
BLOCKS = blocks_of(PLAN)
RUN = run_of(PLAN, BLOCKS)


def run_under(*rules: Rule) -> Run:
    return judged(RUN, policy_of(*rules))


def text(entry: str | Entry) -> str:
    return entry if isinstance(entry, str) else entry.text


def speed(scenario: str, least: float, *, required: bool = True) -> Rule:
    return Rule(f"speed-{scenario}", "speed", required, scenario=scenario, role="spec-3", params={"min": least})


def test_the_cell_that_fails_comes_first_with_what_was_asked() -> None:
    table = head.key_figures(run_under(speed("cpu-one", 1.0), speed("cpu-two", 9.0)))
    assert [text(row[0]) for row in table.rows] == [
        "cpu-two · 64 tokens · batch 1 · spec-3",
        "cpu-one · 64 tokens · batch 1 · spec-3",
    ]
    cell_text = table.rows[0][2]
    assert isinstance(cell_text, Entry) and (cell_text.text, cell_text.mark, cell_text.advisory) == (
        "≥ 9×",
        "FAIL",
        False,
    )


def test_cells_that_no_rule_asks_about_are_shown_where_no_rule_asks_about_any() -> None:
    assert len(head.key_figures(run_under(speed("cpu-two", 1.0))).rows) == 1
    assert len(head.key_figures(run_under(Rule("tokens", "tokens", True, params={"near_tie_margin": 0.0}))).rows) == 3
    many = plan_of(scenario(spec=tuple(range(1, 9))))
    assert len(head.key_figures(run_of(many, blocks_of(many))).rows) == head.SHOWN


def test_a_rule_that_advises_is_marked_so_and_a_required_one_goes_before_it() -> None:
    advised = head.key_figures(run_under(speed("cpu-one", 9.0, required=False))).rows[0][2]
    assert isinstance(advised, Entry) and (advised.mark, advised.advisory, advised.note) == ("FAIL", True, "advises")
    both = run_under(speed("cpu-one", 9.0, required=False), replace(speed("cpu-one", 1.0), id="r"))
    cell_text = head.key_figures(both).rows[0][2]
    assert isinstance(cell_text, Entry) and (cell_text.text, cell_text.mark) == ("≥ 1×", "PASS")


def test_what_advises_is_counted_by_rule_and_never_hidden_behind_a_pass() -> None:
    advice = head.advice(run_under(Rule("no-loops", "degeneracy", False, params={"max_repeated_share": -1.0})))
    assert [(a.rule, a.state, a.cells) for a in advice] == [("no-loops", "FAIL", len(RUN.cells))]
    assert head.advice(judged(RUN, POLICY)) == []


def test_the_next_step_is_that_of_the_reason_and_a_green_run_has_none() -> None:
    assert head.next_step(judged(RUN, POLICY)) is None
    broken = judged(run_of(PLAN, blocks_of(PLAN, change=corrupt)), POLICY)
    assert head.next_step(broken) == next(v.next_step for v in broken.verdicts if v.state is State.INVALID)


def test_the_facts_name_policy_commit_device_and_driver() -> None:
    environment = {
        **RUN.environment,
        "source": {"commit": "0123456789abcdef", "dirty": True},
        "gpus": [{"name": "NVIDIA H200", "uuid": f"GPU-{letter}", "driver": "580.1"} for letter in "ab"],
    }
    facts = dict(head.facts(replace(RUN, environment=environment), Policy("seed", ())))
    assert facts["policy"] == "seed"
    assert facts["commit"] == "0123456789ab + uncommitted changes"
    assert facts["machine"] == "2 × NVIDIA H200"
    for allowed, device in (("1", "NVIDIA H200"), ("GPU-b,0", "2 × NVIDIA H200"), ("", "A CPU")):
        one = replace(RUN, environment={**environment, "variables": {"CUDA_VISIBLE_DEVICES": allowed}})
        assert provenance.device(one) == device
    assert (provenance.device(RUN), provenance.driver(RUN)) == ("A CPU", None)
    assert provenance.commit(RUN) == "tree 1a2b3c4d1a2b"


def test_the_commit_is_that_of_the_code_under_test_and_the_machine_that_of_the_server() -> None:
    [first] = {engine.backend for engine in RUN.engines.values()}
    plugin = {f"plugin:backend:{first}": {"repository": "mine", "commit": "f" * 40, "dirty": False}}
    assert provenance.commit(replace(RUN, environment={**RUN.environment, "plugins": plugin})) == f"mine {'f' * 12}"
    served = EngineIdentity("vllm", "0.25.1", served={"baseline": ServedModel("m")})
    run = replace(RUN, engines={key: replace(engine, identity=served) for key, engine in RUN.engines.items()})
    facts = dict(head.facts(run, POLICY))
    assert "commit" not in facts and "machine" not in facts
    assert (facts["server"], facts["client"]) == ("machine not visible, says vllm 0.25.1", "A CPU")
    here = {key: replace(e, details={"baseline listens as": "python3"}) for key, e in run.engines.items()}
    assert dict(head.facts(replace(run, engines=here), POLICY))["machine"] == "A CPU"


def test_a_sweep_is_judged_once_and_levels_beyond_it_are_not_asked() -> None:
    low, high = (
        replace(c, cell=replace(c.cell, point=replace(c.cell.point, batch=n)))
        for c, n in zip(RUN.cells[1:], (8, 16), strict=False)
    )
    verdict_of_load = Verdict("pays", "load", low.cell.key, State.PASS, True, "pays_up_to_min", "it pays")
    verdict_of_load = replace(verdict_of_load, floor=Floor("break_even", 8.0, "pays up to 8"), covers=(high.cell.key,))
    assert (head.demand(low, [verdict_of_load]).mark, head.demand(high, [verdict_of_load])) == (
        "PASS",
        Entry("not asked"),
    )


def test_the_step_time_is_held_against_the_earlier_run() -> None:
    [name] = {result.cell.point.scenario for result in RUN.cells[:1]}
    times = cell_times(PLAN, RUN.cells, BLOCKS, {})
    earlier = EarlierRun("then", "2026-11-26", "", None, RUN.scenarios[name], None, None, None, {}, times)
    run = replace(RUN, times=times, earlier=Earlier({name: earlier}))
    change = str(head.since(run))
    assert change.startswith("spec-2 step time: no change seen, +0.00 % (95 % −") and "against then" in change


def test_the_command_breaks_between_words_only() -> None:
    run = replace(RUN, argv=("specgate", "micro", "--scenario", "a file.yaml"))
    assert quoted_words(run) == ["specgate", "micro", "--scenario", "'a file.yaml'"]


def test_an_asked_figure_without_a_least_names_its_rule() -> None:
    cell = RUN.cells[1].cell.key
    unmeasured = Verdict("quick", "speed", cell, State.INVALID, True, "not_measured", "no figures")
    entry = head.demand(RUN.cells[1], [unmeasured])
    assert (entry.text, entry.mark) == ("quick", "INVALID")

"""Shipped policies for a GPU on whole scripted runs: green without a fault, and each rule red for its own reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from specgate import plugins
from specgate.analysis.machine.conditions import conditions_of
from specgate.analysis.references import cell_times
from specgate.analysis.verdict import not_judged, overall
from specgate.contract import Block, Held, Invariant, Policy, Run, State
from specgate.contract.references import Builds, ComparedBuild, Earlier, EarlierRun, Revision
from specgate.planning.gates import kinds_of
from specgate.planning.policy import find_policy
from specgate.planning.rule_names import with_elsewhere
from tests.support.factories import blocks_of, corrupt, earlier_of, judged, plan_of, run_of, scenario
from tests.support.surroundings import PAUSE_NS, SECOND, gpu, watched

MAIN = "a" * 40
STEP_NS = 30_000_000
ALL = ("I1", "I2", "I3", "I4", "I5", "I6", "I7")
BEHIND_A_DOOR = ("I1", "I2", "I4", "I6")


@dataclass(frozen=True)
class Script:
    """A run of one micro scenario. `accept`: accepted drafts per cycle. `cycle`: its time over that of a plain step.

    `unseen`, `broken`: invariants. `change`: of every block. `power`: mW. `before`: the time of the last green run's
    steps over this one's; None without such a run. `word`: of the comparison of builds; None without one.
    """

    accept: Sequence[int] = (3, 3, 2, 3)
    cycle: float = 1.3
    unseen: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    change: Callable[[Block], Block] = lambda block: block
    power: int = 420_000
    before: float | None = 1.0
    word: str | None = "SAME"

    def run(self, name: str) -> Run:
        made = self.measured(name)
        if self.before is not None:
            made = replace(made, earlier=Earlier({name: self.earlier(name)}))
        compared = (
            ComparedBuild("c", "2026-11-20T02:15:00+00:00", "d" * 64, MAIN, self.word, "", (name,), made.fingerprint),
        )
        return replace(made, builds=Builds({"main": Revision(MAIN, MAIN, "main")}, compared if self.word else ()))

    def measured(self, name: str) -> Run:
        plan = plan_of(replace(scenario(name, prompt_sets=8, rounds=2, steps=24), perf_mode=True))
        made = blocks_of(plan, steps=24, accept=self.accept, base_ns=STEP_NS, cycle_ns=round(STEP_NS * self.cycle))
        blocks = one_after_another([self.change(block) for block in made])
        states = {i: Held.BROKEN if i in self.broken else Held.UNSEEN if i in self.unseen else Held.HELD for i in ALL}
        certificate = tuple(Invariant(i, state, "fallback_kernel", f"of {i}") for i, state in states.items())
        run = run_of(
            plan,
            blocks,
            conditions=conditions_of(plan, blocks, [gpu(s, power_mw=self.power) for s in watched(blocks)]),
            certificates={cell.key: certificate for cell in plan.cells},
        )
        return replace(run, times=cell_times(plan, run.cells, blocks, {}))

    def earlier(self, name: str) -> EarlierRun:
        assert self.before is not None
        before = replace(self, before=None)
        if self.before != 1.0:
            before = replace(before, change=faster(self.before))
        return earlier_of(before.measured(name), name)


def one_after_another(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with their times, each 5 ms longer than its steps."""
    made, at = [], 100 * SECOND
    for block in blocks:
        end = at + block.elapsed_ns + 5_000_000
        made.append(replace(block, span_ns=(at, end)))
        at = end + PAUSE_NS
    return made


def faster(factor: float) -> Callable[[Block], Block]:
    """A change of every block: its steps take `factor` of their time."""

    def change(block: Block) -> Block:
        steps = tuple(round(ns * factor) for ns in block.step_ns)
        return replace(block, step_ns=steps, elapsed_ns=sum(steps))

    return change


def looping(block: Block) -> Block:
    return replace(block, tokens=tuple(tuple(100 + i % 7 for i in range(len(row))) for row in block.tokens))


def cached(block: Block) -> Block:
    return replace(block, counters={**block.counters, "cache_hit_tokens": 32})


def policy(name: str, run: Run) -> Policy:
    return with_elsewhere(find_policy(name, plugins.gates()), run.scenarios.values())


def outcome(run: Run, name: str) -> tuple[State, Mapping[str, set[State]]]:
    """The state of the whole run, and the states of each required rule."""
    judging = policy(name, run)
    run = judged(run, judging)
    run = replace(run, not_judged=not_judged(run, judging, kinds_of(judging)))
    states: dict[str, set[State]] = {}
    for verdict in run.verdicts:
        if verdict.required:
            states.setdefault(verdict.rule, set()).add(verdict.state)
    return overall(run)[0], states


HONEST = Script()
OTHERS_ENGINE = Script(unseen=BEHIND_A_DOOR)
RUNS = {
    "merge": ("micro-8b-32k-single", HONEST),
    "merge-reduced": ("micro-8b-32k-single", HONEST),
    "engine-gpt-oss-120b": ("micro-32k-single", OTHERS_ENGINE),
    "merge-gpt-oss-120b": ("micro-120b-32k-single", OTHERS_ENGINE),
}
FLOORS = {
    "merge": ("planted-3.3", "micro-8b-32k-single-speed"),
    "merge-reduced": ("planted-3.3", "micro-8b-32k-single-speed"),
    "engine-gpt-oss-120b": ("acceptance-32k-single", "speed-32k-single"),
    "merge-gpt-oss-120b": ("acceptance-32k-single", "speed-32k-single"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_without_a_fault_is_green_and_every_required_rule_that_selects_it_has_a_word(name: str) -> None:
    scenario_name, script = RUNS[name]
    state, states = outcome(script.run(scenario_name), name)
    assert state is State.PASS, states
    here = {rule for rule, of in states.items() if of != {State.SKIPPED}}
    acceptance, speed = FLOORS[name]
    ours = {"records-valid", "machine-quiet", "perf-mode", "no-loops", acceptance, speed}
    ours |= {"tokens-but-near-ties" if "gpt-oss" in name else "tokens-equal"}
    assert here == ours | {
        "no-loss-since-green" if name in ("merge-reduced", "engine-gpt-oss-120b") else "no-slower-build"
    }


@pytest.mark.parametrize("name", ["merge", "engine-gpt-oss-120b"])
@pytest.mark.parametrize(
    ("changes", "rule", "state"),
    [
        ({"accept": (2, 1, 2, 2)}, 0, State.FAIL),
        ({"cycle": 4.2}, 1, State.FAIL),
        ({"change": corrupt}, "tokens-", State.INVALID),
        ({"change": looping}, "no-loops", State.FAIL),
        ({"change": cached}, "records-valid", State.INVALID),
        ({"broken": ("I1",)}, "perf-mode", State.INVALID),
        ({"unseen": ALL}, "perf-mode", State.INVALID),
        ({"power": 0}, "machine-quiet", State.ENV_REJECTED),
    ],
    ids=["acceptance", "speed", "token", "loop", "cached", "broken", "unseen", "machine"],
)
def test_each_rule_sees_its_own_fault(name: str, changes: dict[str, object], rule: int | str, state: State) -> None:
    scenario_name, script = RUNS[name]
    whole, states = outcome(replace(script, **changes).run(scenario_name), name)  # type: ignore[arg-type]
    wanted = FLOORS[name][rule] if isinstance(rule, int) else rule
    (own,) = (of for id_, of in states.items() if id_.startswith(wanted))
    assert state in own, states
    assert whole is not State.PASS


def test_a_cell_between_plain_decoding_and_the_floor_is_red_before_the_merge_alone() -> None:
    """1.6 times as fast: the seeds' 2.0 is missed, and nothing is lost by speculation."""
    states = {name: outcome(replace(script, cycle=2.34).run(cell), name)[0] for name, (cell, script) in RUNS.items()}
    assert states == {
        "merge": State.FAIL,
        "merge-reduced": State.PASS,
        "engine-gpt-oss-120b": State.FAIL,
        "merge-gpt-oss-120b": State.FAIL,
    }


def test_four_requests_of_another_engine_need_only_be_as_fast_as_plain_decoding() -> None:
    slow = replace(OTHERS_ENGINE, accept=(3, 1, 2, 0, 1, 1), cycle=2.0)
    state, states = outcome(slow.run("micro-16k-b4"), "engine-gpt-oss-120b")
    assert state is State.PASS, states
    assert outcome(replace(slow, cycle=2.5).run("micro-16k-b4"), "engine-gpt-oss-120b")[0] is State.FAIL
    assert outcome(replace(slow, accept=(2, 1, 2, 0, 1, 0)).run("micro-16k-b4"), "engine-gpt-oss-120b")[0] is State.FAIL


@pytest.mark.parametrize("name", ["merge", "merge-gpt-oss-120b"])
def test_a_merge_needs_a_comparison_of_its_build_that_is_not_slower(name: str) -> None:
    cell, script = RUNS[name]
    words = {"SLOWER": State.FAIL, "FASTER": State.PASS, "CANNOT TELL": State.INCONCLUSIVE, None: State.NOT_JUDGED}
    assert {word: outcome(replace(script, word=word).run(cell), name)[0] for word in words} == words


@pytest.mark.parametrize("name", ["merge-reduced", "engine-gpt-oss-120b"])
def test_a_loss_since_the_last_green_run_is_red_above_every_floor(name: str) -> None:
    cell, script = RUNS[name]
    state, states = outcome(replace(script, before=0.8).run(cell), name)
    assert (state, states["no-loss-since-green"]) == (State.FAIL, {State.FAIL})

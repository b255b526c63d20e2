"""Cycle budgets: the parts sum up, the factors multiply, the bytes are those of what an engine really looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgate.analysis.cycle_accounting import (
    DRAFT_NOT_TOLD,
    NOT_MEASURED,
    NOT_SPLIT,
    NOT_TOLD,
    cycle_budgets,
    moved_by,
    steps_of,
)
from specgate.analysis.paired_blocks import speed
from specgate.analysis.reduce import measure
from specgate.analysis.speedup_limits import with_ceilings
from specgate.backends.eagle3.lib.weights import LayerWeights
from specgate.backends.eagle3.reference import target
from specgate.backends.eagle3.reference.draft import EagleDrafter
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.kv_planes import plain
from specgate.backends.eagle3.reference.open import open_engine
from specgate.backends.eagle3.reference.state import Pending
from specgate.backends.eagle3.reference.target import target_forward
from specgate.contract import Block, Budget, CycleBudget, Finish, NearTies, PairRef, Plan, Role, Rule, Run
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.contract.tape import Tape, sha256_of_ids
from specgate.contract.traffic import AttentionTraffic, DraftTraffic, LinkTraffic, PassTraffic, Traffic
from specgate.planning.gates import floors_of
from specgate.reports.texts.explain import link_lines
from tests.support.factories import block, blocks_of, corrupt, plan_of, policy_of, run_of, scenario

MEMORY = Bandwidth("2026-11-21T12:00:00+00:00", "scripted clock", None, 1 << 30, 30, 1e12, 0.001)
CACHE = (AttentionTraffic(4, 1000),)
TRAFFIC = Traffic(
    PassTraffic(5_000_000_000, 100, CACHE),
    DraftTraffic(PassTraffic(900_000_000, 10, ()), PassTraffic(800_000_000, 10, ())),
)
SPEC, BASE = "demo-64/fake/c64/b1/spec-3", "demo-64/fake/c64/b1/baseline"


def found(
    blocks: Sequence[Block], plan: Plan, *, traffic: Traffic | None = TRAFFIC, bandwidth: Bandwidth | None = MEMORY
) -> dict[str, CycleBudget]:
    run = run_of(plan, blocks)
    engines = {key: replace(facts, traffic=traffic) for key, facts in run.engines.items()}
    return cycle_budgets(plan, run.cells, run.comparisons, blocks, engines, bandwidth)


def phased(made: Block, draft: float, verify: float, gap: float) -> Block:
    """Phases of these shares of the block's time."""
    shares = {"draft": draft if made.role.k else 0.0, "verify": verify, "accept": 0.01, "commit": 0.01}
    whole = sum(shares.values()) + gap
    return replace(made, phase_ns={name: int(made.elapsed_ns * share / whole) for name, share in shares.items()})


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(0.01, 2), st.floats(0.1, 2), st.floats(0, 1))
def test_the_parts_of_a_cycle_sum_up_to_it_and_the_gap_is_what_no_phase_has(
    draft: float, verify: float, gap: float
) -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=lambda b: phased(b, draft, verify, gap))
    for key, budget in found(blocks, plan).items():
        mine = [b for b in blocks if b.cell.key == key and not b.warmup]
        cycles = sum(len(b.step_ns) for b in mine)
        assert (budget.cycles, budget.balanced) == (cycles, True)
        assert sum(p.ms for p in budget.parts) == pytest.approx(budget.cycle_ms, rel=0.01)
        phases = sum(sum(b.phase_ns.values()) for b in mine)
        parts = {p.name: p.ms for p in budget.parts}
        assert parts["gap"] == pytest.approx((sum(b.elapsed_ns for b in mine) - phases) / cycles / 1e6, abs=1e-9)


def test_phases_that_exceed_their_steps_are_said() -> None:
    plan = plan_of()
    budgets = found(blocks_of(plan, change=lambda b: replace(b, phase_ns={"verify": int(1.02 * b.elapsed_ns)})), plan)
    assert budgets[SPEC].imbalance == pytest.approx(0.02, abs=1e-3)
    assert not budgets[SPEC].balanced


def test_phases_that_not_every_block_has_belong_to_the_gap() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=lambda b: replace(b, phase_ns={"verify": b.elapsed_ns // 2}) if b.round else b)
    parts = {p.name for p in found(blocks, plan)[SPEC].parts}
    assert parts == {"verify", "gap"}


# ── the bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────


PROMPTS = [[(7 * i + 3 * s) % 300 for i in range(24)] for s in range(3)]
COUNTS = ((1, 3, 0, 2), (0, 0, 3), (2,))
"""Drafts accepted by cycle, one row per slot, repeated."""


@pytest.fixture
def taped(tmp_path: Path, pair: tuple[Path, Path]) -> ReferenceEngine:
    """The reference engine on a tiny pair, its acceptance forced."""
    Tape({"run": "r1"}, (sha256_of_ids(PROMPTS),), {3: (COUNTS,)}).save(tmp_path / "tape.json")
    options = {"device": "cpu", "tape": str(tmp_path / "tape.json")}
    opened = open_engine(OpenRequest(PairRef("tiny", *pair), "float32", 3, 400, 3, False, options))
    opened.prefill(PROMPTS, draft=True)
    return opened


def as_block(decoded: Decoded, role: Role) -> Block:
    """What the runner would make of it."""
    (round_, *_) = plan_of(scenario(context=(24,), batch=(3,))).rounds
    return replace(
        block(round_, role),
        tokens=decoded.tokens,
        accepted=decoded.accepted,
        drafted=decoded.drafted,
        step_ns=decoded.step_ns,
        finish=tuple(map(Finish, decoded.finish)),
    )


def test_the_slots_of_every_step_stand_where_the_engines_passes_find_them(
    taped: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[tuple[list[int], int]] = []
    extended: list[tuple[list[int], list[int]]] = []
    own: list[int] = []
    forward, extend, step = target_forward, EagleDrafter._extend, EagleDrafter.take_step

    def spied_forward(w: Any, g: Any, t: Any, c: Any, tokens: Tensor, positions: Tensor, *others: Any) -> Any:
        verified.append((positions[:, 0].tolist(), positions.shape[1]))
        return forward(w, g, t, c, tokens, positions, *others)

    def spied_extend(self: EagleDrafter, pending: Pending) -> Tensor:
        extended.append((pending.start.tolist(), pending.count.tolist()))
        return extend(self, pending)

    def spied_step(self: EagleDrafter, tokens: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        own.append(tokens.shape[1])
        return step(self, tokens, hidden, positions)

    monkeypatch.setattr(target, "target_forward", spied_forward)
    monkeypatch.setattr(EagleDrafter, "_extend", spied_extend)
    monkeypatch.setattr(EagleDrafter, "take_step", spied_step)
    made = as_block(taped.decode(Role(3), Budget(steps=9), ()), Role(3))
    steps = list(steps_of(made))
    assert [([s.cached for s in step.verify], {s.rows for s in step.verify}) for step in steps] == [
        (starts, {rows}) for starts, rows in verified
    ]
    assert [([s.cached for s in step.draft], [s.rows for s in step.draft]) for step in steps] == extended
    assert len(own) == 9 * 3  # an extension and two steps of its own in every cycle


def test_bytes_are_those_of_the_tensors_and_positions_that_a_pass_needs(taped: ReferenceEngine) -> None:
    facts = taped.facts()
    baseline = as_block(taped.decode(Role(0), Budget(steps=2), ()), Role(0))
    moved = moved_by([baseline], facts.traffic)
    w, cache = taped.tw, taped.cache
    layers = [getattr(layer, name) for layer in w.layers for name in LayerWeights.__dataclass_fields__]
    weights = sum(t.nbytes for t in (*layers, w.norm, w.lm_head) if t is not None)
    embedded = 3 * w.embed[0].nbytes
    position = cache.bytes // (3 * plain(cache.k[0]).shape[2])
    assert moved["verify"].weights == 2 * (weights + embedded)
    assert moved["verify"].kv_read == 3 * (24 + 25) * position
    assert moved["verify"].kv_written == 3 * 2 * position
    assert moved["draft"].total == moved["accept"].total == moved["gap"].total == 0


def test_a_slot_that_has_ended_moves_nothing_more() -> None:
    plan = plan_of(scenario(batch=(2,)))
    whole = block(plan.rounds[0], Role(0), steps=3)
    ended = replace(whole, accepted=((0, 0), (0, -1), (-1, -1)), drafted=((0, 0), (0, -1), (-1, -1)))
    moved = moved_by([ended], TRAFFIC)["verify"]
    assert moved.weights == 2 * 5_000_000_000 + 3 * 100
    assert moved.kv_read == (64 + 64 + 65) * 4000


def test_blocks_that_repeat_each_other_count_each() -> None:
    plan = plan_of()
    one = block(plan.rounds[0], Role(3))
    once, twice = moved_by([one], TRAFFIC), moved_by([one, replace(one, round=7)], TRAFFIC)
    assert {name: 2 * moved.total for name, moved in once.items()} == {name: m.total for name, m in twice.items()}


# ── the floors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def split(made: Block) -> Block:
    return phased(made, 0.2, 0.7, 0.05)


def test_a_floor_is_bytes_over_bandwidth() -> None:
    plan = plan_of()
    budget = found(blocks_of(plan, change=split), plan)[SPEC]
    for part in budget.parts:
        assert part.moved is not None and part.floor_ms == pytest.approx(part.moved.total / 1e12 * 1e3)
    assert budget.no_floor is None
    assert budget.floor_ms == pytest.approx((5.0e9 + 0.9e9 + 2 * 0.8e9) / 1e12 * 1e3, rel=0.001)


@pytest.mark.parametrize(
    ("traffic", "bandwidth", "change", "message"),
    [
        (TRAFFIC, MEMORY, lambda b: replace(b, phase_ns={}), NOT_SPLIT),
        (None, MEMORY, split, NOT_TOLD),
        (replace(TRAFFIC, draft=None), MEMORY, split, DRAFT_NOT_TOLD),
        (TRAFFIC, None, split, NOT_MEASURED),
        (TRAFFIC, replace(MEMORY, device="another"), split, "that of another, the engine ran on scripted clock"),
    ],
)
def test_a_missing_floor_has_its_reason(
    traffic: Traffic | None, bandwidth: Bandwidth | None, change: Callable[[Block], Block], message: str
) -> None:
    plan = plan_of()
    budget = found(blocks_of(plan, change=change), plan, traffic=traffic, bandwidth=bandwidth)[SPEC]
    assert budget.no_floor is not None and message in budget.no_floor
    assert all(p.floor_ms is None for p in budget.parts)
    assert budget.floor_ms is None and budget.limit is None and budget.waterfall is not None


def test_a_baseline_needs_no_draft_to_be_told() -> None:
    plan = plan_of()
    assert found(blocks_of(plan, change=split), plan, traffic=replace(TRAFFIC, draft=None))[BASE].no_floor is None


def test_nothing_is_quoted_of_a_cell_whose_tokens_are_not_the_baselines() -> None:
    plan = plan_of()
    assert found(blocks_of(plan, change=corrupt), plan).keys() == {BASE}


def test_a_cell_that_contradicts_itself_has_no_budget() -> None:
    plan = plan_of()
    broken = blocks_of(plan, change=lambda b: replace(b, truncated=(3,)) if b.role.k else b)
    assert found(broken, plan).keys() == {BASE}


# ── the speed-up ─────────────────────────────────────────────────────────────────────────────────────────────────────

KINDS = pytest.mark.parametrize("kind", ["micro", "full"])


@pytest.mark.slow("decodes with the reference engine")
@KINDS
@given(
    accept=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    shares=st.tuples(st.floats(0, 1), st.floats(0.1, 1), st.floats(0, 1)),
    cycle_ns=st.integers(250_000_000, 900_000_000),  # its target's pass is no shorter than a baseline step
    jitter=st.sampled_from([0.0, 0.05]),
)
def test_the_factors_multiply_to_the_measured_speed_up(
    kind: Literal["micro", "full"], accept: list[int], shares: tuple[float, float, float], cycle_ns: int, jitter: float
) -> None:
    plan = plan_of(scenario(kind=kind, batch=(2,)))
    change = partial(phased, draft=shares[0], verify=shares[1], gap=shares[2])
    blocks = blocks_of(plan, accept=accept, cycle_ns=cycle_ns, jitter=jitter, change=change)
    run = run_of(plan, blocks)
    budgets = cycle_budgets(plan, run.cells, run.comparisons, blocks, run.engines, None)
    spec, base = (budgets[c.cell.key] for c in (run.cells[1], run.cells[0]))
    assert spec.waterfall is not None and run.cells[1].acceptance is not None
    ratios = {f.name: f.ratio for f in spec.waterfall.factors}
    assert prod(ratios.values()) == pytest.approx(run.comparisons[0].speedup.value, rel=1e-9)
    assert ratios["acceptance"] == run.cells[1].acceptance.acceptance_length
    assert ratios["slots"] == pytest.approx(1.0)
    assert spec.waterfall.cost == pytest.approx(base.cycle_ms / spec.cycle_ms, rel=0.01)
    assert ratios["pairing"] == pytest.approx(1.0, rel=1e-6 if jitter == 0 else 0.05)
    assert ("prefill" in ratios) == (kind == "full")


def test_slots_that_end_early_and_tokens_that_are_cut_are_a_factor_of_their_own() -> None:
    small_scenario = scenario(batch=(2,), steps=4)
    plan = plan_of(replace(small_scenario, budget=replace(small_scenario.budget, ignore_eos=False)))

    def ended(made: Block) -> Block:
        """The second slot ends with its second token, which is EOS: in a spec block a token before its cycle's end."""
        k = made.role.k
        rows = tuple((row[0], row[1] if n == 0 else -1) for n, row in enumerate(made.accepted))
        drafted = tuple((k, k if n == 0 else -1) for n in range(4))
        made = replace(made, truncated=(0, rows[0][1]), finish=(Finish.STEPS, Finish.EOS), counters={})
        return replace(made, accepted=rows, drafted=drafted, tokens=(made.tokens[0], made.tokens[1][:2]))

    blocks = blocks_of(plan, steps=4, accept=(1,), jitter=0, change=lambda b: ended(split(b)))
    cells, comparisons = measure(plan, blocks, (), NearTies())
    budget = cycle_budgets(plan, cells, comparisons, blocks, {}, None)[cells[1].cell.key]
    assert budget.waterfall is not None
    ratios = {f.name: f.ratio for f in budget.waterfall.factors}
    # Two tokens a cycle: eight of the first slot, one of the second; the baseline emits four and one in as many steps.
    assert ratios["acceptance"] == 2.0 and ratios["slots"] == pytest.approx(9 / 5 / 2.0)


def test_an_engine_that_does_not_split_has_one_factor_of_cost() -> None:
    plan = plan_of()
    budget = found(blocks_of(plan), plan)[SPEC]
    assert budget.waterfall is not None
    assert [f.name for f in budget.waterfall.factors] == ["acceptance", "slots", "cost", "pairing"]


# ── limits and ceilings ──────────────────────────────────────────────────────────────────────────────────────────────


def judged(kind: Literal["micro", "full"], floor: float, change: Callable[[Block], Block] = split) -> Run:
    """With budgets; every block of a role is alike."""
    plan = plan_of(scenario(kind=kind))
    blocks = blocks_of(plan, jitter=0, change=change)
    run = run_of(plan, blocks)
    engines = {key: replace(facts, traffic=TRAFFIC) for key, facts in run.engines.items()}
    budgets = cycle_budgets(plan, run.cells, run.comparisons, blocks, engines, MEMORY)
    rule = Rule("fast", "speed", True, role="spec-3", params={"min": floor})
    return with_ceilings(replace(run, budgets=budgets, bandwidth=MEMORY), floors_of(policy_of(rule)))


def speedup(run: Run) -> float:
    (comparison,) = run.comparisons
    assert comparison.speedup.value is not None
    return comparison.speedup.value


def imagined(kind: Literal["micro", "full"], change: Callable[[Block], Block]) -> float:
    """The speed-up of blocks that no engine could have run: their cycles are shorter than a baseline step."""
    blocks = {b.role.k: b for b in blocks_of(plan_of(scenario(kind=kind)), jitter=0, change=change)}
    return speed(blocks[3], kind == "full") / speed(blocks[0], kind == "full")


def at(ms: dict[int, float]) -> Callable[[Block], Block]:
    """Blocks whose steps take so long, by k."""

    def change(made: Block) -> Block:
        ns = round(ms[made.role.k] * 1e6)
        return replace(made, step_ns=(ns,) * len(made.step_ns), elapsed_ns=ns * len(made.step_ns))

    return change


@KINDS
def test_a_limit_is_the_speed_up_of_blocks_that_run_at_their_floors(kind: Literal["micro", "full"]) -> None:
    run = judged(kind, 2.0)
    spec, base = run.budgets[SPEC], run.budgets[BASE]
    assert spec.limit and spec.floor_ms and base.floor_ms
    assert spec.limit.highest == pytest.approx(imagined(kind, at({0: 10.0, 3: spec.floor_ms})), rel=1e-6)
    both = imagined(kind, at({0: base.floor_ms, 3: spec.floor_ms}))
    assert spec.limit.at_floors == pytest.approx(both, rel=1e-6)


@KINDS
@pytest.mark.parametrize("floor", [1.0, 2.0, 2.4])
def test_with_cycles_as_many_fewer_as_the_needed_length_says_the_gate_is_met(
    kind: Literal["micro", "full"], floor: float
) -> None:
    run = judged(kind, floor)
    spec = run.budgets[SPEC]
    (ceiling,) = spec.ceilings
    assert (ceiling.rule, ceiling.min) == ("fast", floor)
    assert spec.waterfall and spec.floor_ms and ceiling.needed and ceiling.needed_at_floor
    fewer = spec.waterfall.acceptance / ceiling.needed
    assert speedup(judged(kind, floor, at({0: 10.0, 3: 14.0 * fewer}))) == pytest.approx(floor, rel=1e-5)
    fewer = spec.waterfall.acceptance / ceiling.needed_at_floor
    assert speedup(judged(kind, floor, at({0: 10.0, 3: spec.floor_ms * fewer}))) == pytest.approx(floor, rel=1e-5)
    assert ceiling.reachable == (spec.limit is not None and spec.limit.highest >= floor)


def test_a_gate_that_prefill_alone_rules_out_needs_no_length() -> None:
    (ceiling,) = judged("full", 1000.0).budgets[SPEC].ceilings
    assert (ceiling.needed, ceiling.needed_at_floor, ceiling.reachable) == (None, None, False)


def test_a_part_that_is_faster_than_its_floor_has_nothing_to_win() -> None:
    budget = judged("micro", 2.0, lambda b: split(at({0: 4.0, 3: 6.0})(b))).budgets[BASE]
    parts = {p.name: p for p in budget.parts}
    assert (parts["verify"].floor_ms or 0) > parts["verify"].ms
    assert parts["verify"].above_floor_ms == 0.0
    assert parts["gap"].above_floor_ms == parts["gap"].ms
    assert budget.share_at_floor == pytest.approx(parts["verify"].ms / 4.0, rel=1e-4)


def test_rules_for_other_cells_and_floors_that_ask_nothing_have_no_ceiling() -> None:
    run = judged("micro", 0.0)
    assert run.budgets[SPEC].ceilings == ()
    other = policy_of(Rule("fast", "speed", True, role="spec-2", params={"min": 2.0}))
    assert with_ceilings(run, floors_of(other)).budgets[SPEC].ceilings == ()


# ── several GPUs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gpus_that_share_a_target_send_so_much_per_row_and_the_floors_do_not_count_it() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=lambda b: phased(b, 0.2, 0.7, 0.01))
    alone, shared = found(blocks, plan), found(blocks, plan, traffic=replace(TRAFFIC, link=LinkTraffic(2, 1000)))
    assert {key: budget.link_bytes for key, budget in shared.items()} == {BASE: 1000, SPEC: 4000}
    split = found(blocks, plan, traffic=replace(TRAFFIC, link=LinkTraffic(2, 1000, 10)))
    assert {key: budget.link_bytes for key, budget in split.items()} == {BASE: 1000, SPEC: 4030}
    assert all(budget.link_bytes is None for budget in alone.values())
    assert [budget.floor_ms for budget in shared.values()] == [budget.floor_ms for budget in alone.values()]
    assert not [*link_lines(alone[SPEC])]
    text = " ".join(line.strip() for line in link_lines(shared[SPEC]))
    assert "what each of them moves" in text and "0.00400 MB per cycle" in text

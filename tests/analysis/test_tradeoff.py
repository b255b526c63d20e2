"""Modes beside each other: bytes, passes and equal text by brute force over the blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.reduce import measure
from specgate.analysis.tradeoff import Group, Mode, equal_to_own, tradeoff_of
from specgate.contract import BASELINE, LOSSY, Block, NearTies, Run, Sampling, Scenario
from specgate.contract.traffic import AttentionTraffic, DraftTraffic, PassTraffic, Traffic
from specgate.reports.views.variants import rows
from tests.support.factories import blocks_of, corrupt, plan_of, run_of, scenario

POSITION = 2 * 3 * 64 * 4 * 30
"""Bytes of a cached position: keys and values of 3 heads of 64 in float32, in 30 layers."""
DRAFT = PassTraffic(5_000, 100, (AttentionTraffic(1, 512),))
TRAFFIC = Traffic(PassTraffic(100 * POSITION, 0, (AttentionTraffic(30, POSITION // 30),)), DraftTraffic(DRAFT, DRAFT))


def variant(name: str, **changes: object) -> Scenario:
    return replace(scenario(f"demo-64+{name}"), **changes)  # type: ignore[arg-type]


def group_of(change: Callable[[Block], Block], *others: Scenario, lossy: str = "") -> Group:
    """The one group of a run of `demo-64` and `others`. `lossy`: the variant whose engine says that it is."""
    plan = plan_of(scenario(), *others)
    blocks = [change(b) for b in blocks_of(plan)]
    run = run_of(plan, blocks)
    engines = {
        key: replace(f, traffic=TRAFFIC, details={LOSSY: "so"} if lossy and lossy in key else {})
        for key, f in run.engines.items()
    }
    cells, comparisons = measure(plan, blocks, (), NearTies(), check_facts=CheckFacts(engines, None))
    run = replace(run, engines=engines, cells=cells, comparisons=comparisons)
    (group,) = tradeoff_of([(run, [b for b in blocks if not b.warmup])])
    return group


def mode(group: Group, role: str) -> Mode:
    return next(m for m in group.modes if m.cell.role_name == role)


def test_variants_stand_in_the_group_of_their_scenario_behind_its_plain_roles() -> None:
    group = group_of(lambda b: b, variant("kv", options={"kv": "fp8"}))
    assert [m.cell.role_name for m in group.modes] == ["baseline", "spec-3", "baseline+kv", "spec-3+kv"]
    assert [m.varies for m in group.modes] == ["", "", "kv=fp8", "kv=fp8"]
    assert group.plain is not None and group.plain.cell.role == BASELINE
    assert group.times_plain(group.plain) == 1.0


def test_cache_bytes_read_are_those_of_every_pass_over_the_tokens() -> None:
    group = group_of(lambda b: b)
    for role, accepts in (("baseline", (0,)), ("spec-3", (3, 1, 2, 0, 3, 2))):
        cached, read, emitted = 64, 0, 0
        for step in range(12):
            read += cached * POSITION
            cached += accepts[step % len(accepts)] + 1
            emitted += accepts[step % len(accepts)] + 1
        row = mode(group, role)
        assert row.read_bytes == pytest.approx(read / emitted)
        assert row.passes is not None and row.passes.full == pytest.approx(12 / emitted)
        draft = 512 if role != "baseline" else 0
        assert row.held_bytes == (64 + 1 + emitted) * (POSITION + draft)


def test_what_an_engine_counts_of_partial_passes_takes_the_place_of_whole_ones() -> None:
    counters = {"specpv_partial_passes": 9, "specpv_full_passes": 3, "specpv_read_positions": 400}

    def counting(made: Block) -> Block:
        speculative = made.role.speculative and "pv" in made.point.scenario
        return replace(made, counters={**made.counters, **counters}) if speculative else made

    row = mode(group_of(counting, variant("pv")), "spec-3+pv")
    emitted = sum((3, 1, 2, 0, 3, 2)) * 2 + 12
    assert row.read_bytes == pytest.approx(400 * POSITION / emitted)
    assert row.passes is not None
    assert (row.passes.full, row.passes.partial) == pytest.approx((3 / emitted, 9 / emitted))


def test_text_is_held_against_plain_decoding_whatever_its_own_baseline_says() -> None:
    def other_text(made: Block) -> Block:
        """Both roles of the variant say something else from token 8 on, as with another cache."""
        if "+kv" not in made.point.scenario:
            return made
        return replace(made, tokens=tuple((*t[:8], *(x + 1 for x in t[8:])) for t in made.tokens))

    group = group_of(other_text, variant("kv"))
    spec = mode(group, "spec-3+kv")
    assert spec.comparison is not None and spec.comparison.tokens.identical
    assert spec.equal_to_plain == pytest.approx(8 / (1 + 12 + 22))
    assert {m.cell.role_name for m in group.exact} == {"baseline", "spec-3"}


def test_a_wrong_plain_role_is_no_measure_of_text() -> None:
    group = group_of(lambda b: corrupt(b, at=3) if "+" not in b.point.scenario else b, variant("kv"))
    assert mode(group, "spec-3").equal_to_plain == pytest.approx(3 / 13)  # as far as plain decoding went
    assert mode(group, "baseline+kv").equal_to_plain == 1.0


def test_what_was_not_compared_to_its_end_is_called_neither_equal_nor_another() -> None:
    group = group_of(lambda b: corrupt(b) if "+pv" in b.point.scenario else b, variant("pv"), lossy="+pv")
    (parted,) = [m.comparison for m in group.modes if m.cell.role_name == "spec-3+pv"]
    assert parted is not None and equal_to_own(parted) is None
    cut = replace(parted, tokens=replace(parted.tokens, divergences=(), compared_tokens=40, emitted_tokens=100))
    assert equal_to_own(cut) == 1.0
    whole = replace(
        parted, tokens=replace(parted.tokens, emitted_tokens=100, compared_tokens=58, whole_sets=(0, 1, 2, 3))
    )
    assert equal_to_own(whole) == (58 - 8) / 100


def test_drawn_text_is_not_held_against_greedy_text() -> None:
    group = group_of(lambda b: b, variant("t1", sampling=Sampling()))
    assert mode(group, "spec-3+t1").equal_to_plain is None
    assert mode(group, "spec-3+t1") not in group.exact


def test_a_lossy_mode_keeps_its_speed_and_says_so() -> None:
    group = group_of(lambda b: corrupt(b) if "+pv" in b.point.scenario else b, variant("pv"), lossy="+pv")
    row = mode(group, "spec-3+pv")
    assert row.lossy and row.tok_s is not None
    wrong = mode(group_of(lambda b: corrupt(b) if "+pv" in b.point.scenario else b, variant("pv")), "spec-3+pv")
    assert not wrong.lossy and wrong.tok_s is None


def test_the_share_of_cache_in_a_plain_step_and_where_it_is_half() -> None:
    group = group_of(lambda b: b)
    assert group.cache_share == pytest.approx(64 / 164)
    assert group.even_at == 100


def test_without_traffic_no_bytes_are_claimed() -> None:
    plan = plan_of()
    blocks = blocks_of(plan)
    run: Run = run_of(plan, blocks)
    (group,) = tradeoff_of([(run, [b for b in blocks if not b.warmup])])
    assert (group.cache_share, group.even_at) == (None, None)
    assert all((m.read_bytes, m.held_bytes) == (None, None) for m in group.modes)
    assert [r["role"] for r in rows([group])] == ["baseline", "spec-3"]

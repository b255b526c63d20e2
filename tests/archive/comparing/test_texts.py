"""`specgate runs compare --by texts`: texts and acceptance of two engines, on the prompts whose texts are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.verdict import overall_of_agreement
from specgate.archive.comparing.texts import agreement_of, cut_record, state_of
from specgate.archive.stored_runs import load_run
from specgate.contract import AcceptanceSource, Block, Cell, Divergence, Finish, Role, Served, ServedRequest, State
from specgate.contract.acceptance import AcceptanceRecord, Totals
from specgate.contract.comparisons import Agreement, Match
from specgate.errors import ExitCode, UsageError
from tests.support import factories
from tests.support.factories import blocks_of, corrupt, plan_of, scenario, with_acceptance
from tests.support.stored_runs import store

FULL = scenario("texts", "full", prompt_sets=8)
SPEC = 1
"""Which of a run's matches is its spec cell's."""


def agreed(tmp_path: Path, change: Callable[[Block], Block], **changes: object) -> Agreement:
    """A run of the reference, and one of an engine whose blocks are the reference's, changed."""
    folders = [
        store(tmp_path / "reference", scenarios=[FULL]),
        store(tmp_path / "engine", scenarios=[FULL], backend="engine", change=change, changes=changes),
    ]
    return agreement_of([load_run(folder) for folder in folders], margin_pct=3.0)


def behind_a_server(block: Block, record: AcceptanceRecord | None = None) -> Block:
    """The block as a server shows it: sums in place of steps."""
    if not block.role.speculative:
        return block
    made = AcceptanceRecord.from_steps(block.role.k, block.accepted, block.drafted, block.emitted, 0)
    requests = tuple(ServedRequest(0, (0, block.elapsed_ns), (1, len(tokens) - 1)) for tokens in block.tokens)
    return replace(
        block,
        served=Served(requests, record or made),
        step_ns=(),
        accepted=(),
        drafted=(),
        phase_ns={},
        counters={"undrafted_steps": 0},
    )


def test_an_engine_that_does_the_same_agrees_exactly(tmp_path: Path) -> None:
    agreement = agreed(tmp_path, behind_a_server)
    baseline, spec = agreement.matches
    assert [s.name for s in spec.shares] == ["acceptance_length", "accepted[1]", "accepted[2]", "accepted[3]"]
    assert all(s.ratio == 1 and s.ci_low == s.ci_high == 1 and s.state is State.PASS for s in spec.shares)
    # By the script: 3, 1, 2, 0, 3, 2 accepted drafts, over and over.
    assert [s.engine for s in spec.shares] == pytest.approx([1 + 11 / 6, 5 / 6, 4 / 6, 2 / 6])
    assert (spec.prompt_sets, spec.alike, baseline.shares) == (8, 8, ())
    assert overall_of_agreement(agreement) == (State.PASS, ExitCode.PASS)


def test_an_engine_that_accepts_less_of_the_same_text_fails(tmp_path: Path) -> None:
    def forgetful(block: Block) -> Block:
        if not block.role.speculative:
            return block
        fewer = tuple(tuple(max(0, a - 1) for a in row) for row in block.accepted)
        emitted = sum(map(sum, fewer)) + len(fewer)
        texts = tuple(text[: 1 + emitted] for text in block.tokens)
        record = AcceptanceRecord.from_steps(3, fewer, block.drafted, emitted, 0)
        return behind_a_server(replace(block, tokens=texts), record)

    agreement = agreed(tmp_path, forgetful)
    length = agreement.matches[SPEC].shares[0]
    assert length.ratio == pytest.approx((1 + 6 / 6) / (1 + 11 / 6)) and length.state is State.FAIL
    assert overall_of_agreement(agreement)[1] is ExitCode.FAIL


def test_a_prompt_whose_text_differs_is_left_out_of_acceptance_and_shown(tmp_path: Path) -> None:
    def strays(block: Block) -> Block:
        return corrupt(block, at=4) if block.prompt_set == 2 else block

    spec = agreed(tmp_path, strays).matches[SPEC]
    assert (spec.prompt_sets, spec.alike) == (8, 7)
    assert {(d.prompt_set, d.position) for d in spec.divergences} == {(2, 4)}
    assert spec.tokens is State.INCONCLUSIVE, "nobody has asked how near a tie it was"
    assert all(s.ratio == 1 for s in spec.shares)


@pytest.mark.parametrize(
    ("margin", "near_tie", "state"),
    [(1e-5, True, State.PASS), (0.5, False, State.FAIL), (None, False, State.INCONCLUSIVE)],
)
def test_a_text_may_part_at_a_near_tie_only(margin: float | None, near_tie: bool, state: State) -> None:
    divergence = Divergence(0, 0, 0, 4, 7, 8, margin, near_tie)
    cell = Cell(plan_of(FULL).points[0], Role(3))
    assert Match("engine", cell, 10, 1, 0, (divergence,)).tokens is state


def test_totals_alone_give_the_length_alone(tmp_path: Path) -> None:
    def sums(block: Block) -> Block:
        if not block.role.speculative:
            return block
        whole = AcceptanceRecord.from_steps(3, block.accepted, block.drafted, block.emitted, 0)
        totals = Totals(whole.steps, whole.drafted, whole.accepted)
        return behind_a_server(block, replace(whole, hist=(), totals=totals))

    assert [s.name for s in agreed(tmp_path, sums).matches[SPEC].shares] == ["acceptance_length"]


def test_other_prompts_and_another_target_are_not_compared(tmp_path: Path) -> None:
    key = "texts/engine/c64/b1"
    agreement = agreed(tmp_path, behind_a_server, prompts={key: {"sha256": "d" * 64}})
    assert {m.why_not for m in agreement.matches} == {"other prompts"}
    assert overall_of_agreement(agreement)[1] is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize("source", ["stand-in", "forced", "planted"])
def test_drafts_of_another_drafter_are_not_compared(source: AcceptanceSource, tmp_path: Path) -> None:
    runs = [load_run(store(tmp_path / name, scenarios=[FULL], backend=name)) for name in ("reference", "engine")]
    engine = replace(runs[1], run=with_acceptance(runs[1].run, source))
    baseline, spec = agreement_of([runs[0], engine], 3.0).matches
    assert spec.why_not == f"acceptance is real there, {source} here" and not spec.shares
    assert baseline.tokens is State.PASS
    planted = [replace(run, run=with_acceptance(run.run, "planted")) for run in runs]
    assert agreement_of(planted, 3.0).matches[SPEC].shares


def test_steps_of_engines_are_not_held_beside_each_other(tmp_path: Path) -> None:
    runs = [load_run(store(tmp_path / name, backend=name)) for name in ("a", "b")]
    with pytest.raises(UsageError, match="is a micro run"):
        agreement_of(runs, 3.0)


def test_runs_without_a_cell_in_common_are_refused(tmp_path: Path) -> None:
    other = scenario("others", "full", prompt_sets=8)
    runs = [load_run(store(tmp_path / s.name, scenarios=[s])) for s in (FULL, other)]
    with pytest.raises(UsageError, match="no cell of it is also in"):
        agreement_of(runs, 3.0)


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [
        (1.0, 1.0, State.PASS),
        (0.98, 1.02, State.PASS),
        (0.90, 0.95, State.FAIL),
        (1.04, 1.2, State.FAIL),
        (0.96, 1.02, State.INCONCLUSIVE),
        (None, None, State.INCONCLUSIVE),
    ],
)
def test_a_ratio_is_judged_either_way_by_its_interval(low: float | None, high: float | None, state: State) -> None:
    assert state_of(low, high, 3.0) is state


# ── chains that end with the request ─────────────────────────────────────────────────────────────────────────────────


def decoded(wanted: Sequence[int], k: int, limit: int, *, cut: bool) -> tuple[list[int], list[int], int]:
    """(accepted, drafted, truncated) of a request for `limit` tokens after the first, of whose drafts `wanted` would be
    right step by step; where `cut`, no more are drafted than there are tokens left beside the bonus token.
    """
    accepted, drafted, left = [], [], limit
    for right in wanted:
        made = min(k, left - 1) if cut else k
        accepted.append(min(right, made))
        drafted.append(made)
        left -= accepted[-1] + 1
        if left <= 0:
            break
    return accepted, drafted, -left


@given(k=st.integers(1, 6), limit=st.integers(1, 30), seed=st.lists(st.integers(0, 6), min_size=30, max_size=30))
def test_a_reference_is_counted_as_an_engine_that_drafts_no_more_than_fits(k: int, limit: int, seed: list[int]) -> None:
    wanted = [min(n, k) for n in seed]
    accepted, drafted, truncated = decoded(wanted, k, limit, cut=False)
    (round_,) = plan_of(scenario("texts", "full", spec=[k], prompt_sets=4)).rounds[:1]
    block = replace(
        factories.block(round_, Role(k)),
        tokens=(factories.text(0, 0, limit + 1),),
        accepted=tuple((a,) for a in accepted),
        drafted=tuple((d,) for d in drafted),
        truncated=(truncated,),
        finish=(Finish.LENGTH,),
    )
    record = cut_record(block, 0)
    expected, made, nothing = decoded(wanted, k, limit, cut=True)
    with_drafts = [a for a, d in zip(expected, made, strict=True) if d]
    assert nothing == 0 and record.steps == len(with_drafts) and record.accepted == sum(with_drafts)
    assert record.hist == tuple(with_drafts.count(i) for i in range(k + 1))
    assert record.emitted == record.steps + record.accepted


def test_a_natural_end_is_not_foreseen_by_any_engine() -> None:
    spec = next(block for block in blocks_of(plan_of(FULL)) if block.role.speculative)
    ended = replace(spec, truncated=(2,), finish=(Finish.EOS,))
    assert cut_record(ended, 0).hist == cut_record(replace(ended, truncated=(0,)), 0).hist


def test_a_run_whose_chains_were_cut_is_said_to_be(tmp_path: Path) -> None:
    def cut(block: Block) -> Block:
        if not block.role.speculative:
            return block
        whole = AcceptanceRecord.from_steps(3, block.accepted, block.drafted, block.emitted, 0)
        totals = Totals(whole.steps, whole.drafted - 1, whole.accepted)
        return behind_a_server(block, replace(whole, drafted_at_pos=(), totals=totals))

    spec = agreed(tmp_path, cut).matches[SPEC]
    assert spec.cut and math.isclose(spec.shares[0].ratio or 0, 1)

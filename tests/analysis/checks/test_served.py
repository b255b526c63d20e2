"""Blocks of a server: whole requests and totals in place of steps, through measurement, comparison and certificate."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from specgate.analysis.checks.identities import check_block
from specgate.analysis.perf_invariants.certificate import certify
from specgate.analysis.reduce import measure
from specgate.archive.tape import accept_counts
from specgate.contract import (
    ENGINE_DECODE_NS,
    Block,
    Budget,
    Cell,
    EngineFacts,
    Held,
    NearTies,
    Plan,
    Role,
    Round,
    Rule,
    Served,
    ServedRequest,
    State,
)
from specgate.contract.acceptance import AcceptanceRecord, Totals
from specgate.errors import InvalidResult, UsageError
from specgate.gates import acceptance, validity
from tests.support import factories

MS = 1_000_000
BUDGET = Budget(steps=10)
RECORD = AcceptanceRecord(3, (0, 2, 2, 4), (8, 8, 8), 20, 6, None)
"""Of two requests of 11 tokens each: 8 steps with 2 · 1 + 2 · 2 + 4 · 3 = 18 accepted drafts, 6 tokens cut."""


def block(round_: Round, role: Role, **changes: Any) -> Block:
    """Two requests, sent 1 ms apart; slot s has its first token after 10 + s ms, then one every 2 ms (spec: 1 ms on
    average, and the tokens of a step at once, each in a chunk of its own).
    """
    times = (0, *[3] * 3, *[5] * 2, *[9] * 4, 10) if role.speculative else range(0, 22, 2)
    requests = tuple(ServedRequest(s * MS, tuple((10 + 2 * s + at) * MS for at in times), (1,) * 11) for s in range(2))
    return factories.served_block(round_, role, requests, RECORD if role.speculative else None, **changes)


def plan() -> Plan:
    return factories.plan_of(factories.scenario(batch=(2,), steps=10))


def blocks() -> list[Block]:
    return [block(round_, role) for round_ in plan().rounds for role in round_.order]


def test_figures_of_a_cell_come_from_the_clocks_of_its_requests() -> None:
    cells, comparisons = measure(plan(), blocks(), (), NearTies())
    spec = next(c for c in cells if c.cell.role.speculative)
    assert spec.status == "ok" and spec.acceptance is not None
    values = {name: value.value for name, value in spec.values.items()}
    # By hand: 11 tokens a request, 1 ms apart on average; TTFT 10 ms and 11 ms after they were sent at 0 and 1 ms.
    assert values["mean_tpot_ms"] == 1.0 and values["mean_icl_ms"] == 1.0
    assert values["mean_ttft_ms"] == statistics.mean([10, 11]) and values["mean_e2e_ms"] == statistics.mean([20, 21])
    assert values["decode_tok_s"] == pytest.approx(20 / 12e-3), "from the first token of any to the last of all"
    assert values["prefill_tok_s"] == pytest.approx(2 * 64 / 12e-3)
    assert values["acceptance_length"] == 1 + 18 / 8 and values["emitted_per_step"] == 20 / 8
    assert values["acceptance_at_pos[1]"] == 1.0 and values["accept_hist[3]"] == 4 * 8
    assert "step_ms" not in values and "raggedness_ratio" not in values and "active_count_avg" not in values
    joint, decoded = comparisons[0].speedup, comparisons[0].beside[0]
    assert comparisons[0].tokens.identical and joint.reason_code == "no_joint_decoding", "too few chunks while both run"
    assert decoded.value == pytest.approx(22 / 12)


def test_the_clients_clock_is_held_beside_the_engines_own() -> None:
    """Two requests a block: 20 ms each in the baseline and 10 ms with speculation, of which the engine counts less."""
    counted = {False: 39 * MS, True: 16 * MS}
    replaces = [replace(b, counters={**b.counters, ENGINE_DECODE_NS: counted[b.role.speculative]}) for b in blocks()]
    cells, _ = measure(plan(), replaces, (), NearTies())
    ratios = [c.values["client_clock_ratio"] for c in cells]
    assert [r.value for r in ratios] == [pytest.approx(40 / 39), pytest.approx(20 / 16)]
    assert [r.n for r in ratios] == [c.blocks for c in cells]


def test_what_a_server_does_not_count_is_left_out_and_the_rest_stays() -> None:
    blind = replace(RECORD, hist=(), totals=Totals(8, 24, 18))
    replaces = [
        replace(b, served=replace(b.served, acceptance=blind)) if b.served and b.role.speculative else b
        for b in blocks()
    ]
    cells, _ = measure(plan(), replaces, (), NearTies())
    values = cells[1].values
    assert values["acceptance_length"].value == 1 + 18 / 8
    assert not [name for name in values if name.startswith(("accept_hist", "acceptance_at_pos"))]


def changed(**changes: Any) -> Served:
    """The requests of `block`, each with these changes."""
    served = block(plan().rounds[0], Role(3)).served
    assert served is not None
    return Served(tuple(replace(r, **changes) for r in served.requests), RECORD)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"served": Served((), RECORD)}, "2 slots, but 0 requests"),
        ({"step_ns": (1,), "accepted": ((1, 1),), "drafted": ((3, 3),)}, "a server shows no steps"),
        ({"served": Served((ServedRequest(5, (4,), (1,)), ServedRequest(0, (1,), (1,))), RECORD)}, "not in order"),
        ({"served": Served((ServedRequest(0, (), ()), ServedRequest(0, (1,), (1,))), RECORD)}, "not in order"),
        ({"served": changed(chunk_tokens=(1,) * 10)}, "11 chunks came and 11 tokens"),
        ({"served": changed(chunk_tokens=(0, 2, *(1,) * 9))}, "said to hold"),
        ({"served": changed(chunk_tokens=(2, *(1,) * 10))}, "said to hold"),
        ({"served": changed(prefix_hit_tokens=1 << 20)}, "slot 0: prefix_hit_tokens = 1048576, but its prompt has"),
        ({"counters": {"undrafted_steps": 1}}, "emitted 20, but steps with drafts emitted 20 and others 1"),
        ({"counters": {"uncounted_tokens": 1}}, "no output is said to hold several steps"),
        ({"counters": {"uncounted_tokens": 1, "joined_outputs": 1}}, "others 0, and 1 are not counted"),
    ],
)
def test_a_block_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    round_ = plan().rounds[0]
    check_block(block(round_, Role(3)), BUDGET)
    with pytest.raises(InvalidResult, match=message):
        check_block(block(round_, Role(3), **changes), BUDGET)


def due(*due_ns: int) -> Served:
    """The requests of `block`, sent after 0 and 1 ms and answered from 10 and 12 ms on, as they were due."""
    served = block(plan().rounds[0], Role(3)).served
    assert served is not None
    return Served(tuple(replace(r, due_ns=at) for r, at in zip(served.requests, due_ns, strict=True)), RECORD)


def test_no_request_of_an_open_loop_is_sent_or_answered_before_it_is_due() -> None:
    round_ = plan().rounds[0]
    check_block(block(round_, Role(3), served=due(0, MS)), BUDGET)
    check_block(block(round_, Role(3), served=due(MS, 0)), BUDGET)
    for served in (due(MS + 1, MS), due(0, 3 * MS)):
        with pytest.raises(InvalidResult, match="nothing comes before it is due"):
            check_block(block(round_, Role(3), served=served), BUDGET)
    early = due(0, 12 * MS + 1).requests
    served = Served((early[0], replace(early[1], sent_ns=12 * MS)), RECORD)
    with pytest.raises(InvalidResult, match="slot 1: due after 12000001 ns, but sent after 12000000 ns and answered"):
        check_block(block(round_, Role(3), served=served), BUDGET)


def test_a_spec_block_without_acceptance_and_a_baseline_with_one_are_refused() -> None:
    round_ = plan().rounds[0]
    for role, record in ((Role(3), None), (Role(0), RECORD), (Role(2), RECORD)):
        made = replace(block(round_, Role(3)), role=role)
        assert made.served is not None
        with pytest.raises(InvalidResult):
            check_block(replace(made, served=replace(made.served, acceptance=record)), BUDGET)


def test_drafting_and_streams_are_seen_through_a_server_and_the_rest_is_not() -> None:
    cells, comparisons = measure(plan(), blocks(), (), NearTies())
    spec = next(c for c in cells if c.cell.role.speculative)
    mine = [b for b in blocks() if b.cell == spec.cell and not b.warmup]
    certificate = {i.id: i.held for i in certify(spec, mine, comparisons[0], None, None, Budget(steps=10))}
    assert certificate == {
        **dict.fromkeys(("I1", "I2", "I4", "I6"), Held.UNSEEN),
        **dict.fromkeys(("I3", "I5", "I7"), Held.HELD),
    }


def test_no_tape_can_be_recorded_from_a_server() -> None:
    with pytest.raises(UsageError, match="does not say what each step accepted"):
        accept_counts([b for b in blocks() if not b.warmup], Role(3), 0)


def test_cells_of_servers_have_no_cycle_budget() -> None:
    from specgate.analysis.cycle_accounting import cycle_budgets

    cells, comparisons = measure(plan(), blocks(), (), NearTies())
    assert cycle_budgets(plan(), cells, comparisons, blocks(), {}, None) == {}
    assert {c.cell for c in cells} == {Cell(b.point, b.role) for b in blocks()}


CHUNKED = tuple(
    ServedRequest(s * MS, tuple((10 + 2 * s + at) * MS for at in (0, 3, 5, 9, 10)), (1, 3, 2, 4, 1)) for s in range(2)
)
"""Two requests of 11 tokens, of which 10 came in 4 chunks behind the first."""


def seen(engine: EngineFacts | None = None, **changes: Any) -> dict[str, Any]:
    """The certificate of the spec cell, where every block is changed like this."""
    of = [replace(block(r, role), **(changes if role.speculative else {})) for r in plan().rounds for role in r.order]
    cells, comparisons = measure(plan(), of, (), NearTies())
    mine = [b for b in of if b.role.speculative and not b.warmup]
    return {i.id: i for i in certify(cells[1], mine, comparisons[0], engine, None, BUDGET)}


def test_a_server_whose_chunks_are_its_drafted_steps_has_left_multi_token_mode_nowhere() -> None:
    i3 = seen(served=Served(CHUNKED, RECORD))["I3"]
    assert (i3.held, i3.reason_code) == (Held.HELD, "drafting_seen") and i3.evidence["undrafted_at_most"] == 0


def test_where_chunks_are_no_steps_the_cut_ends_leave_it_open_and_too_many_of_them_leave_it_unseen() -> None:
    # 8 steps a block; of 3 tokens that may be cut from each of two requests, all 6 are said to have been.
    assert seen()["I3"].evidence["undrafted_at_most"] == 0
    uncut = replace(RECORD, hist=(2, 4, 2, 0), emitted=16, truncated=0)
    doubtful = seen(tokens=tuple(factories.text(0, s, 9) for s in range(2)), served=Served(joined(9), uncut))["I3"]
    assert (doubtful.held, doubtful.evidence["undrafted_at_most"]) == (Held.UNSEEN, 6 * 8)


def test_a_server_that_lost_steps_shows_neither_drafting_nor_acceptance() -> None:
    """By hand: of 20 tokens a block, 4 are of steps that were lost from its counters."""
    counted = replace(RECORD, hist=(2, 4, 2, 0), emitted=16, truncated=0)
    lost = {"joined_outputs": 2, "uncounted_tokens": 4}
    replaces = [
        replace(b, counters=lost, served=Served(b.served.requests, counted)) if b.served and b.role.speculative else b
        for b in blocks()
    ]
    run = factories.run_of(plan(), replaces)
    (spec,) = (c for c in run.cells if c.cell.role.speculative)
    assert spec.values["joined_outputs"].value == 2 * spec.blocks
    assert "undrafted_steps" not in spec.values and "emitted_per_step" not in spec.values
    for gate in (acceptance.GATE, validity.GATE):
        verdict = list(gate.judge(Rule("rule", gate.name, True, params={"min": 1.0}), run))[-1]
        assert (verdict.state, verdict.reason_code) == (State.INVALID, "steps_lost"), verdict
        assert f"{2 * spec.blocks} of its {8 * spec.blocks} outputs" in verdict.message
    i3 = seen(counters=lost, served=Served(CHUNKED, counted))["I3"]
    assert (i3.held, i3.reason_code) == (Held.UNSEEN, "not_counted")


def joined(tokens: int) -> tuple[ServedRequest, ...]:
    """Two requests of so many tokens, all but the first in two chunks."""
    half = (tokens - 1) // 2
    times = (10 * MS, (10 + half) * MS, (9 + tokens) * MS)
    return tuple(ServedRequest(0, times, (1, half, half)) for _ in range(2))


@pytest.mark.parametrize(
    ("totals", "tokens", "backend", "code"),
    [
        (Totals(8, 8, 8), 9, "lmdeploy", "single_token_mode"),
        (Totals(8, 8, 8), 9, "vllm", "single_token_mode"),
        (Totals(8, 16, 12), 11, "lmdeploy", "short_drafts"),
        (Totals(8, 16, 12), 11, "vllm", "drafting_seen"),  # known to end chains early, if it is asked to
        (Totals(8, 23, 12), 11, "lmdeploy", "drafting_seen"),  # a last step had no room for three
    ],
)
def test_drafts_of_fewer_than_k_tokens_in_every_step_break_multi_token_mode(
    totals: Totals, tokens: int, backend: str, code: str
) -> None:
    """The audit's engine drafts one of three all the time, and every step has a draft."""
    record = AcceptanceRecord(3, (), (), 2 * (tokens - 1), 0, totals)
    served = Served(CHUNKED if tokens == 11 else joined(9), record)
    text = tuple(factories.text(0, s, tokens) for s in range(2))
    (facts,) = factories.run_of(plan(), blocks()).engines.values()
    i3 = seen(replace(facts, backend=backend), tokens=text, served=served)["I3"]
    assert i3.reason_code == code and (i3.held is Held.BROKEN) == (code != "drafting_seen")
    if code == "single_token_mode":
        assert "64 of 192 draft tokens (K × steps), 1.00 a step" in i3.message


def test_answers_with_streams_of_their_own_hold_the_layout() -> None:
    assert seen(served=Served(CHUNKED, RECORD))["I5"].held is Held.HELD

"""Each invariant, held, broken and unseen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specgate.analysis.perf_invariants.certificate import IDS, certificates
from specgate.analysis.perf_invariants.same_texts import drawn_anew
from specgate.contract import OWN_NUMBERS, Block, BlockTrace, Finding, Held, Invariant, LoopFigures, Plan, Run
from specgate.contract.traces import StatedInvariant, TunedProduct
from tests.support.factories import block, blocks_of, corrupt, plan_of, run_of, scenario, spans_of

COUNTERS = {"tuned_total": 40, "tuned_hits": 40, "kv_integrity_failures": 0, "disabled_multitoken_other": 0}

AS_TUNED: dict[str, Any] = {
    "products": (TunedProduct("O", "mine", "mine one way"), TunedProduct("QKV", "mine", "mine another way")),
    "launches": {"mine one way": 4, "mine another way": 4},
}


def perf_plan() -> Plan:
    return plan_of(replace(scenario(), perf_mode=True))


def counted(made: Block, **changes: int) -> Block:
    return replace(made, counters={**COUNTERS, **changes})


def traces_of(plan: Plan, **changes: Any) -> dict[str, BlockTrace]:
    """A quiet trace of every cell, of the first prompt set; `changes` to the spec cell's."""
    round_ = next(r for r in plan.rounds if not r.warmup and r.prompt_set == 0)
    traces = {}
    for cell in plan.cells:
        tokens, spans = block(round_, cell.role, steps=4).tokens, spans_of(block(round_, cell.role))
        calls = {"cudaGraphLaunch": 4}
        seen = BlockTrace(
            cell.key, 0, 0, "profiler", 4, tokens, kernels={"mine": 8}, calls=calls, spans=spans, **AS_TUNED
        )
        traces[cell.key] = replace(seen, **changes) if cell.role.speculative else seen
    return traces


def certified(
    plan: Plan, blocks: list[Block], traces: dict[str, BlockTrace], kernels: tuple[str, ...] | None = ("mine", "too")
) -> dict[str, Invariant]:
    """The spec cell's certificate by invariant."""
    run: Run = run_of(plan, blocks)
    engines = {key: replace(facts, kernels=kernels) for key, facts in run.engines.items()}
    made = certificates(plan, run.cells, run.comparisons, blocks, engines, traces)
    assert set(made) == {c.key for c in plan.cells}
    (spec,) = (result for key, result in made.items() if "spec" in key)
    assert tuple(i.id for i in spec) == IDS
    return {i.id: i for i in spec}


def all_of(plan: Plan, **changes: int) -> list[Block]:
    return blocks_of(plan, change=lambda b: counted(b, **changes))


def test_a_quiet_tuned_engine_holds_all_seven() -> None:
    plan = perf_plan()
    certificate = certified(plan, all_of(plan), traces_of(plan))
    assert {i.held for i in certificate.values()} == {Held.HELD}
    assert "8 launches of 1 kernels in 4 steps" in certificate["I1"].message


@pytest.mark.parametrize(
    ("id_", "code", "changes"),
    [
        ("I1", "fallback_kernel", {"kernels": {"mine": 8, "cutlass_80_gemm": 2}}),
        ("I6", "sync_in_loop", {"calls": {"cudaGraphLaunch": 4, "cudaStreamSynchronize": 1}}),
        ("I6", "sync_in_loop", {"calls": {"cudaMemcpy": 1}}),
        ("I6", "alloc_in_loop", {"calls": {"cudaMallocAsync": 1}}),
        ("I6", "alloc_in_loop", {"calls": {"cuMemAlloc_v2": 1}}),
        ("I6", "d2h_in_loop", {"copies": {"Memcpy DtoH (Device -> Pageable)": 1}}),
        ("I7", "trace_mismatch", {"tokens": ((1, 2, 3),)}),
    ],
)
def test_what_a_trace_shows_breaks_exactly_its_invariant(id_: str, code: str, changes: dict[str, object]) -> None:
    """Also a trace that the engine brought itself: what it says against itself is believed."""
    plan = perf_plan()
    certificate = certified(plan, all_of(plan), traces_of(plan, **changes))
    assert [i.id for i in certificate.values() if i.held is not Held.HELD] == [id_]
    own_word = certified(plan, all_of(plan), traces_of(plan, source="engine", **changes))
    for broken in (certificate, own_word):
        assert [(i.id, i.reason_code) for i in broken.values() if i.held is Held.BROKEN] == [(id_, code)]


@pytest.mark.parametrize(
    ("id_", "code", "changes"),
    [
        ("I2", "untuned_kernel", {"tuned_hits": 39}),
        ("I3", "left_multi_token_mode", {"disabled_multitoken_other": 1}),
        ("I4", "kv_integrity", {"kv_integrity_failures": 1}),
        ("I4", "mask_integrity", {"tree_tokens": 60, "mask_integrity_failures": 1}),
    ],
)
def test_what_counters_show_breaks_exactly_its_invariant(id_: str, code: str, changes: dict[str, int]) -> None:
    plan = perf_plan()
    certificate = certified(plan, all_of(plan, **changes), traces_of(plan))
    assert [(i.id, i.reason_code) for i in certificate.values() if i.held is Held.BROKEN] == [(id_, code)]


@pytest.mark.parametrize(
    ("changes", "state", "message"),
    [
        ({}, Held.HELD, "all 8 launches of 2 products are those of their tuned configurations"),
        (
            {"launches": {"mine one way": 4, "mine a third way": 4}},
            Held.BROKEN,
            "4 launches are of no tuned configuration, e.g. 4 of mine a third way",
        ),
        (
            {"launches": {"mine one way": 8}},
            Held.BROKEN,
            "1 tuned products were not launched as tuned, e.g. QKV: mine another way",
        ),
        (
            {"products": (*AS_TUNED["products"], TunedProduct("LM_HEAD", "mine", None))},
            Held.BROKEN,
            "no configuration is tuned for 1 of 3 products, e.g. LM_HEAD",
        ),
        (
            {"products": (AS_TUNED["products"][0], replace(AS_TUNED["products"][1], by_rule=True))},
            Held.BROKEN,
            "1 of 2 products run more rows than were tuned, e.g. QKV",
        ),
        ({"kernels": {"mine": 9}}, Held.UNSEEN, "the profiler tells no grid of some launches"),
        ({"partial": "3 of 4 launches have no work"}, Held.UNSEEN, "3 of 4 launches have no work"),
        ({"unseen": "no CUDA device"}, Held.UNSEEN, "no CUDA device"),
        (
            {"products": (), "launches": {}},
            Held.UNSEEN,
            "the engine says: 320 of 320 look-ups found their tuned configuration; it states no launches",
        ),
    ],
)
def test_i2_is_held_by_the_launches_that_the_profiler_saw_and_not_by_look_ups(
    changes: dict[str, Any], state: Held, message: str
) -> None:
    plan = perf_plan()
    certificate = certified(plan, all_of(plan), traces_of(plan, **changes))["I2"]
    assert (certificate.held, certificate.message) == (state, message)


def test_one_broken_mask_counts_although_other_blocks_have_none() -> None:
    plan = perf_plan()
    blocks = all_of(plan)
    spec = next(i for i, b in enumerate(blocks) if b.role.speculative and not b.warmup)
    blocks[spec] = counted(blocks[spec], tree_tokens=60, mask_integrity_failures=2)
    assert certified(plan, blocks, traces_of(plan))["I4"].reason_code == "mask_integrity"


def test_tokens_that_leave_the_baseline_break_determinism() -> None:
    plan = perf_plan()
    certificate = certified(plan, blocks_of(plan, change=lambda b: corrupt(counted(b), at=9)), traces_of(plan))
    assert (certificate["I7"].held, certificate["I7"].reason_code) == (Held.BROKEN, "token_mismatch")
    assert "leaves the baseline at token 9" in certificate["I7"].message


def test_texts_that_an_engine_draws_by_numbers_of_its_own_break_nothing_and_prove_nothing() -> None:
    run = run_of(plan_of(), blocks_of(plan_of()))
    (facts,) = run.engines.values()
    broken, invariant = (
        Invariant("I7", Held.BROKEN, "token_mismatch", "x"),
        Invariant("I7", Held.HELD, "deterministic", "x"),
    )
    own = replace(facts, details={OWN_NUMBERS: "the server's own"})
    assert drawn_anew(broken, facts) is broken and drawn_anew(invariant, own) is invariant
    assert (drawn_anew(broken, own).held, drawn_anew(broken, own).reason_code) == (Held.UNSEEN, "own_random_numbers")


def test_a_copy_to_the_device_and_host_bookkeeping_are_no_fault() -> None:
    plan = perf_plan()
    quiet = {"cudaGraphLaunch": 4, "cudaEventRecord": 4, "cudaStreamIsCapturing": 4, "cudaMemcpyAsync": 1}
    certificate = certified(
        plan, all_of(plan), traces_of(plan, calls=quiet, copies={"Memcpy HtoD (Pinned -> Device)": 1})
    )
    assert certificate["I6"].held is Held.HELD


def test_what_cannot_be_seen_is_never_held() -> None:
    plan = perf_plan()
    bare = [replace(b, counters={}) for b in blocks_of(plan)]
    certificate = certified(plan, bare, {}, kernels=None)
    assert [i.id for i in certificate.values() if i.held is Held.UNSEEN] == ["I1", "I2", "I4", "I6"]
    assert certificate["I1"].message == "no block was traced"
    assert certificate["I3"].held is Held.HELD, "the steps show it, whatever an engine counts"
    unseen = certified(plan, bare, traces_of(plan, unseen="no CUDA device"), kernels=None)
    assert unseen["I6"].message == "no CUDA device"
    assert certified(plan, all_of(plan), traces_of(plan), kernels=None)["I1"].reason_code == "no_allow_list"


@pytest.mark.parametrize(
    "changes",
    [
        {"partial": "3 of 4 launches have no work"},
        {"calls": {"cudaGraphLaunch": 4, "musaMalloc": 1}},
        {"copies": {"Memcpy 77": 1}},
    ],
)
def test_a_trace_in_which_more_may_have_happened_holds_nothing_and_still_breaks(changes: dict[str, Any]) -> None:
    plan = perf_plan()
    certificate = certified(plan, all_of(plan), traces_of(plan, **changes))
    assert (certificate["I6"].held, certificate["I6"].reason_code) == (Held.UNSEEN, "not_whole")
    assert certificate["I1"].held is (Held.UNSEEN if "partial" in changes else Held.HELD)
    calls = {**changes.get("calls", {}), "hipMalloc": 1}
    broken = certified(plan, all_of(plan), traces_of(plan, **{**changes, "calls": calls, "kernels": {"other": 1}}))
    assert (broken["I6"].reason_code, broken["I1"].reason_code) == ("alloc_in_loop", "fallback_kernel")


def test_drafts_that_are_missing_break_multi_token_mode_although_the_engine_counts_none() -> None:
    def pause(b: Block) -> Block:
        if not b.role.speculative:
            return counted(b)
        accepted, drafted = ((0,), *b.accepted[1:]), ((2,), *b.drafted[1:])
        tokens = (b.tokens[0][: 1 + sum(a + 1 for (a,) in accepted)],)
        return counted(replace(b, accepted=accepted, drafted=drafted, tokens=tokens))

    plan = perf_plan()
    certificate = certified(plan, blocks_of(plan, change=pause), traces_of(plan))["I3"]
    assert (certificate.held, certificate.reason_code) == (Held.BROKEN, "left_multi_token_mode")
    assert certificate.message == "disabled_multitoken_other = 8 over 8 timed blocks"


def test_a_trace_that_the_engine_brought_itself_holds_nothing() -> None:
    plan = perf_plan()
    certificate = certified(plan, all_of(plan), traces_of(plan, source="engine"))
    assert {i.id: i.reason_code for i in certificate.values() if i.held is Held.UNSEEN} == dict.fromkeys(
        ("I1", "I2", "I4", "I6"), "engines_own_word"
    )
    assert "8 launches of 1 kernels" in certificate["I1"].message


def test_scenarios_that_do_not_ask_for_it_get_no_certificate() -> None:
    plan = plan_of()
    run = run_of(plan, all_of(plan))
    assert certificates(plan, run.cells, run.comparisons, all_of(plan), run.engines, traces_of(plan)) == {}


# A server's own profiler, and what an engine says itself

LOOP = LoopFigures(1_000_000, 970_000, 7, 1_000, 9_000, 12_000, bytes_to_host=32, waits_elsewhere=4)


def test_a_servers_own_profiler_can_hold_an_invariant_and_is_named() -> None:
    plan = perf_plan()
    certificate = certified(
        plan, all_of(plan), traces_of(plan, source="server-profiler", allowed=("mi*",)), kernels=None
    )
    assert {i.held for i in certificate.values()} == {Held.HELD}
    assert certificate["I1"].message == (
        "8 launches of 1 kernels in 4 steps, all on the list of those that are allowed, by the server's own profiler"
    )
    assert certificate["I6"].message.endswith("by the server's own profiler") and certificate["I6"].evidence[
        "source"
    ] == ("server-profiler")


def test_a_server_that_copies_its_tokens_breaks_the_quiet_loop_with_numbers_per_step() -> None:
    plan = perf_plan()
    seen = {"copies": {"Memcpy DtoH (Device -> Pinned)": 4}, "calls": {"cudaEventSynchronize": 4}, "loop": LOOP}
    certificate = certified(plan, all_of(plan), traces_of(plan, source="server-profiler", **seen))["I6"]
    assert (certificate.held, certificate.reason_code) == (Held.BROKEN, "d2h_in_loop")
    assert certificate.message == (
        "per step 1.00 copies to the host (8 bytes), 1.00 waits (1.00 on other threads than the loop's) and 0.00 "
        "allocations, in 4 steps"
    )
    assert certificate.evidence["gpu_busy_share"] == 0.97 and certificate.evidence["sync_in_loop"] == 4


def test_kernels_of_a_server_are_held_against_the_list_of_its_user_and_else_only_shown() -> None:
    plan = perf_plan()
    shown = {"source": "server-profiler", "kernels": {"mine": 8, "cutlass_80_gemm": 2}}
    certificate = certified(plan, all_of(plan), traces_of(plan, **shown), kernels=None)["I1"]
    assert (certificate.held, certificate.reason_code) == (Held.UNSEEN, "no_allow_list")
    assert certificate.evidence == {"mine": 8, "cutlass_80_gemm": 2}
    held_to_it = certified(plan, all_of(plan), traces_of(plan, **shown, allowed=("mine",)), kernels=None)["I1"]
    assert (held_to_it.held, held_to_it.evidence) == (Held.BROKEN, {"cutlass_80_gemm": 2})
    assert "not on the list of those that are allowed, e.g. cutlass_80_gemm (2 launches)" in held_to_it.message


def finding(invariant: StatedInvariant, breaks: bool) -> Finding:
    return Finding(
        invariant, "fallback_kernel", breaks, 2, "server.log:7", "No feasible kernel found", "no fused kernel"
    )


@pytest.mark.parametrize("id_", ["I1", "I2", "I3"])
def test_what_the_engine_says_against_itself_breaks_its_invariant_with_file_and_line(id_: StatedInvariant) -> None:
    plan = perf_plan()
    certificate = certified(plan, all_of(plan), traces_of(plan, findings=(finding(id_, True), finding(id_, False))))
    assert [i.id for i in certificate.values() if i.held is not Held.HELD] == [id_]
    assert (certificate[id_].held, certificate[id_].reason_code) == (Held.BROKEN, "fallback_kernel")
    assert certificate[id_].message == "no fused kernel: server.log:7: No feasible kernel found (2 times)"


def test_what_the_engine_says_for_itself_stands_beside_what_is_unseen_and_holds_nothing() -> None:
    plan = perf_plan()
    bare = [replace(b, counters={}) for b in blocks_of(plan)]
    seen = traces_of(plan, unseen="behind a server", findings=(finding("I2", False),))
    certificate = certified(plan, bare, seen, kernels=None)["I2"]
    assert certificate.held is Held.UNSEEN and certificate.message.endswith(
        "server.log:7: No feasible kernel found (2 times)"
    )
    tuned = certified(plan, all_of(plan), traces_of(plan, findings=(finding("I2", False),)))["I2"]
    assert (tuned.held, tuned.reason_code) == (Held.HELD, "launched_as_tuned")

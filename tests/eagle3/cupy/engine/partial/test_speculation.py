"""Verification over a part of the cache on a GPU: counts, texts that can be explained, and what must not change."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.partial import graphs_of, kinds_of
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import MOST_ROWS
from specgate.backends.eagle3.cupy.kernels.loader import entry_points
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import Budget, Role
from specgate.run import profiler
from tests.eagle3.cupy.engine.test_quiet import HOST_CALLS
from tests.eagle3.cupy.engine.tracing import check_spans, reference_logits, same_prefixes
from tests.eagle3.cupy.gpu_pairs import (
    GEOMETRIES,
    RECIPE_EXPERTS,
    SIZES,
    checkpoints,
    checkpoints_of,
    engine,
    engine_of,
    expert_pair,
    random_prompts,
)

pytestmark = pytest.mark.gpu

SMALL = PartialPlan(1, 4, 2, 12)
LONG = [700, 333, 513, 1100, 260, 1024, 400, 1500]
STEPS = 24


@cache
def in_part(name: str = "4:1 of 64", recipe: str = "A", plan: PartialPlan = SMALL) -> CupyEngine:
    pair = (
        checkpoints(expert_pair(), RECIPE_EXPERTS)
        if name == "gpt-oss"
        else checkpoints_of(name, recipe, torch.bfloat16)
    )
    slots = SIZES.slots if name != "gpt-oss" else MOST_ROWS // replace(SIZES, partial=plan).most_rows
    sizes = replace(SIZES, partial=plan, slots=slots)
    return engine_of(*pair, replace(sizes, positions=2048 + sizes.most_rows))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_counts_of_a_run_are_those_of_its_schedule(name: str, batch: int) -> None:
    made, lengths = in_part(name), LONG[:batch]
    made.prefill(random_prompts(lengths, seed=batch), draft=True)
    for k in (1, 3, 5):
        kinds = kinds_of(made.sizes, k, lengths, STEPS)
        block = made.decode(Role(k), Budget(steps=STEPS), ())
        check_spans(made, Role(k), Budget(steps=STEPS), block)
        counted = {name: block.counters[f"specpv_{name}"] for name in ("partial_passes", "full_passes", "short_passes")}
        assert counted == {
            "partial_passes": batch * kinds.count(PARTIAL),
            "full_passes": batch * kinds.count(FULL),
            "short_passes": 0,
        }
        accepted = block.counters["specpv_partial_accepted"] + block.counters["specpv_full_accepted"]
        assert accepted == sum(a for row in block.accepted for a in row)
        assert block.counters["specpv_overruled"] <= block.counters["specpv_checked"]
        assert 0 < block.counters["specpv_read_positions"] < block.counters["specpv_cached_positions"]
        assert block.counters["kv_integrity_failures"] == 0 and block.counters["kv_checked_steps"] == STEPS


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_baseline_of_such_an_engine_is_that_of_any_other(name: str) -> None:
    made, plain, prompts = in_part(name), engine(name), random_prompts(LONG)
    for each in (made, plain):
        each.prefill(prompts, draft=True)
    made.decode(Role(3), Budget(steps=STEPS), ())
    ours, theirs = (each.decode(Role(0), Budget(steps=STEPS), ()) for each in (made, plain))
    assert ours.tokens == theirs.tokens
    assert not [name for name in ours.counters if name.startswith("specpv")]
    assert made.logits(Role(0), (1, 9)) == plain.logits(Role(0), (1, 9))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_run_repeats_itself_and_does_not_depend_on_graphs(name: str) -> None:
    made, prompts = in_part(name), random_prompts(LONG)
    made.prefill(prompts, draft=True)
    first, again = (made.decode(Role(3), Budget(steps=STEPS), ()) for _ in range(2))
    assert (first.tokens, first.accepted, first.counters) == (again.tokens, again.accepted, again.counters)
    made.use_graphs = False
    try:
        alone = made.decode(Role(3), Budget(steps=STEPS), ())
    finally:
        made.use_graphs = True
    assert (alone.tokens, alone.accepted, alone.counters) == (first.tokens, first.accepted, first.counters)


def test_a_batch_with_a_short_prompt_verifies_in_full_and_emits_the_baselines_text() -> None:
    made = in_part()
    made.prefill(random_prompts([700, 50]), draft=True)
    block, baseline = made.decode(Role(3), Budget(steps=12), ()), made.decode(Role(0), Budget(steps=48), ())
    assert block.counters["specpv_partial_passes"] == 0
    assert block.counters["specpv_short_passes"] == 12
    assert same_prefixes(block.tokens, baseline.tokens)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_token_of_a_full_verification_is_one_that_the_reference_would_choose_after_the_text(name: str) -> None:
    """Step by step: the logits of rows that are run again, and of the newest, beside those over everything."""
    made, lengths = in_part(name), LONG[:3]
    oracle = ReferenceEngine(*checkpoints_of(name, "A", torch.float32), max_batch=3, max_positions=2048, device="cuda")
    prompts = random_prompts(lengths)
    for each in (made, oracle):
        each.prefill(prompts, draft=True)
    assert made.prefilled is not None and made.b.partial is not None
    k, slots, kinds, looked = 3, made.b.slots, kinds_of(made.sizes, 3, lengths, 10), 0
    with torch.inference_mode(), made.stream.current():
        steps = {kind: made.step(k, 3, (kind,)) for kind in dict.fromkeys(kinds)}
        made.prefilled.rewind(made.b, StopRule((), (), made.sizes.positions), SMALL)
        for kind in kinds:
            before, verified = slots.length.tolist(), made.b.partial.verified.tolist()
            steps[kind]()
            made.stream.wait()
            assert not slots.fault.any()
            rows = made.sizes.full_rows_of(k)
            for slot, length in enumerate(lengths) if kind == FULL else ():
                text = slots.out[slot, : int(slots.emitted[slot])].tolist()
                first = verified[slot] - length + 1  # tokens behind the prompt that row 0 has seen
                for row in range(before[slot] - verified[slot] + 1):
                    exact = reference_logits(oracle, slot, text[: first + row])
                    logits = made.b.target.layer.logits[slot * rows + row].float()
                    assert torch.cosine_similarity(exact, logits, dim=0) > 0.99
                    looked += 1
    assert looked > 3 * kinds.count(FULL)


def test_a_mixture_with_windows_and_sinks_is_verified_in_part() -> None:
    """Full passes have near the logits of plain steps over the text; runs repeat themselves, and count their passes."""
    made, lengths, k = in_part("gpt-oss"), LONG[:3], 3
    made.prefill(random_prompts(lengths), draft=True)
    assert made.prefilled is not None and made.b.partial is not None
    slots, kinds, rule = made.b.slots, kinds_of(made.sizes, k, lengths, 10), StopRule((), (), made.sizes.positions)
    rows, per = list[tuple[int, tuple[int, ...], torch.Tensor]](), made.sizes.full_rows_of(k)
    with torch.inference_mode(), made.stream.current():
        steps = {kind: made.step(k, 3, (kind,)) for kind in dict.fromkeys(kinds)}
        made.prefilled.rewind(made.b, rule, SMALL)
        for kind in kinds:
            before, verified = slots.length.tolist(), made.b.partial.verified.tolist()
            steps[kind]()
            made.stream.wait()
            assert not slots.fault.any()
            for slot, length in enumerate(lengths) if kind == FULL else ():
                text = slots.out[slot, : int(slots.emitted[slot])].tolist()
                for row in range(before[slot] - verified[slot] + 1):
                    seen = tuple(text[: verified[slot] - length + 1 + row])
                    rows.append((slot, seen, made.b.target.layer.logits[slot * per + row].clone()))  # overwritten
        near = [torch.cosine_similarity(made._logits_after(s, seen), got, dim=0) for s, seen, got in rows]
    assert len(rows) > 3 * kinds.count(FULL) and min(near) > 0.99
    first, again = (made.decode(Role(k), Budget(steps=STEPS), ()) for _ in range(2))
    assert (first.tokens, first.accepted, first.counters) == (again.tokens, again.accepted, again.counters)
    assert first.counters["specpv_partial_passes"] == 3 * kinds_of(made.sizes, k, lengths, STEPS).count(PARTIAL) > 0
    assert first.experts is not None and not first.counters["kv_integrity_failures"]


def test_shown_logits_of_a_spec_role_are_those_of_its_rows() -> None:
    """In steps of both kinds, whose rows begin at different places."""
    made = in_part()
    made.prefill(random_prompts(LONG[:4]), draft=True)
    decoded, shown = made.decode(Role(3), Budget(new_tokens=12), ()), made.logits(Role(3), (1, 5, 11))
    for slot, row in enumerate(shown):
        assert [token for token, _ in row] == [decoded.tokens[slot][at] for at in (1, 5, 11)]


def test_slots_that_end_leave_a_run_in_order() -> None:
    made = in_part()
    made.prefill(random_prompts(LONG), draft=True)
    whole = made.decode(Role(3), Budget(new_tokens=60), ())
    assert [len(text) for text in whole.tokens] == [60] * 8 and {*whole.finish} == {"length"}
    stop = whole.tokens[2][17]
    block = made.decode(Role(3), Budget(new_tokens=60, ignore_eos=False), (stop,))
    assert block.tokens[2] == whole.tokens[2][: whole.tokens[2].index(stop) + 1]


@pytest.mark.parametrize("batch", [1, 4])
def test_between_the_first_and_the_last_cycle_there_are_graph_launches_and_our_kernels_alone(batch: int) -> None:
    made, lengths = in_part(), LONG[:batch]
    made.prefill(random_prompts(lengths), draft=True)
    made.decode(Role(3), Budget(steps=STEPS), ())
    decoded, seen = profiler.trace(made, Role(3), Budget(steps=STEPS))
    kinds = kinds_of(made.sizes, 3, lengths, STEPS)
    assert seen.unseen is None and len(decoded.step_ns) == STEPS and seen.copies == {}
    assert set(seen.calls) <= HOST_CALLS and seen.calls["cudaGraphLaunch"] == len(graphs_of(kinds))
    assert set(seen.kernels) <= entry_points() and seen.kernels["commit"] == STEPS
    assert seen.kernels["choose_blocks"] == seen.kernels["accept_replayed"] == kinds.count(FULL)
    assert seen.kernels["accept"] == kinds.count(PARTIAL)

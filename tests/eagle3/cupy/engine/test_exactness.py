"""Bit-exact speculation on a GPU, and how near its logits are to float32."""

from __future__ import annotations

import statistics

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.run_parts import Lengths
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.chains import ChainLengths, table_of
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES as DENSE
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import BASELINE, Budget, Role
from tests.eagle3.cupy.engine.tracing import accepted_of, check_speculation, nearness, same_prefixes, tokens, trace
from tests.eagle3.cupy.gpu_pairs import (
    GEOMETRIES,
    RAGGED,
    SIZES,
    checkpoints,
    checkpoints_of,
    engine,
    engine_of,
    random_prompts,
    shape,
)

pytestmark = pytest.mark.gpu

STEPS = 24


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_tokens_and_logits_of_every_draft_length_equal_the_baselines_bit_for_bit(
    name: str, recipe: str, batch: int
) -> None:
    made = engine(name, recipe)
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    accepted = accepted_of(check_speculation(made, (1, 2, 3, 4, 5), STEPS, spans=True))
    assert accepted > STEPS  # else nothing but the first row was ever compared


def test_normed_heads_of_qwen3_are_as_near_to_float32_and_as_exact() -> None:
    pair = DENSE["qwen3-tiny"]()
    made = engine_of(*checkpoints(pair), SIZES)
    exact, rounded = (
        ReferenceEngine(*checkpoints(pair, dtype=dtype), max_batch=2, max_positions=512, device="cuda")
        for dtype in (torch.float32, torch.bfloat16)
    )
    ours, torchs = nearness(made, exact, rounded, random_prompts([300, 70]), 40)
    assert ours.pooled >= 0.9999 and ours.pooled > torchs.pooled
    made.prefill(random_prompts(RAGGED, seed=1), draft=True)
    assert all(accepted_of([block]) > STEPS for block in check_speculation(made, (1, 3, 5), STEPS))


@pytest.mark.parametrize("batch", [20, 64])
def test_more_rows_than_a_block_takes_leave_every_bit_as_it_is(batch: int) -> None:
    """Up to 256 rows a step; each slot's logits are those that it has among others, and alone."""
    made = engine_of(*checkpoints(shape(8, 4, 128)), Sizes(slots=64, positions=512, max_rows=4))
    prompts = random_prompts([20 + 3 * slot for slot in range(batch)], seed=batch)
    made.prefill(prompts, draft=True)
    check_speculation(made, (1, 3), 8, 30)
    rule = StopRule((), (), 512)
    plain = trace(made, 0, 30, rule)
    made.prefill(prompts[-1:], draft=True)
    alone = trace(made, 3, 8, rule)
    slot = batch - 1
    assert all(torch.equal(row, plain[slot, at]) for (_, at), row in alone.items() if (slot, at) in plain)


def test_slots_that_end_leave_the_others_bits_alone() -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED), draft=True)
    free_run = tokens(made, 0, Budget(steps=60))
    # Stop ids that some slots meet early and some never.
    stop = sorted({text[3 + 4 * slot] for slot, text in enumerate(free_run[:5])})
    budget = Budget(new_tokens=50, ignore_eos=False)
    baseline = made.decode(BASELINE, budget, stop)
    assert len({len(t) for t in baseline.tokens}) > 2
    assert same_prefixes(baseline.tokens, free_run)
    assert all((t[-1] in stop) == (f == "stop") for t, f in zip(baseline.tokens, baseline.finish, strict=True))
    rule = StopRule((), tuple(stop), 50)
    plain = trace(made, 0, 50, rule)
    for k in (1, 3, 5):
        block = made.decode(Role(k), budget, stop)
        assert (block.tokens, block.finish) == (baseline.tokens, baseline.finish)
        got = trace(made, k, 50, rule)
        assert all(torch.equal(got[at], plain[at]) for at in got if at in plain)
        counts = [sum(a >= 0 for a in row) for row in block.accepted]
        assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] > 0


def test_a_long_context_is_bit_exact_too() -> None:
    made = engine_of(*checkpoints(shape(8, 2, 128)), Sizes(slots=2, positions=33400, max_rows=6))
    made.prefill(random_prompts([32768, 16384 + 7]), draft=True)
    check_speculation(made, (1, 2, 3, 4, 5), 20)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
def test_logits_are_nearer_to_the_float32_reference_than_torch_is_in_bfloat16(name: str, recipe: str) -> None:
    exact, rounded = (oracle(name, recipe, dtype) for dtype in (torch.float32, torch.bfloat16))
    ours, torchs = nearness(engine(name, recipe), exact, rounded, random_prompts([300, 70]), 40)
    print(f"{name}, recipe {recipe}: {ours}; torch in bfloat16: {torchs}")
    assert ours.pooled >= 0.9999
    assert ours.pooled > torchs.pooled and ours.least > torchs.least


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
def test_the_draft_is_accepted_as_often_as_the_float32_references(name: str, recipe: str) -> None:
    lengths = []
    for made in (engine(name, recipe), oracle(name, recipe, torch.float32)):
        made.prefill(random_prompts(RAGGED), draft=True)
        accepted = made.decode(Role(3), Budget(steps=60), ()).accepted
        lengths.append(1 + statistics.fmean(a for row in accepted for a in row))
    # 480 cycles each, of other texts after the first near tie: the means differ by 0.08 at most in two of three runs.
    assert lengths[0] == pytest.approx(lengths[1], abs=0.3) and lengths[0] > 2


def oracle(name: str, recipe: str, dtype: torch.dtype) -> ReferenceEngine:
    checkpoints = checkpoints_of(name, recipe, dtype)
    return ReferenceEngine(*checkpoints, max_batch=8, max_positions=1024, device="cuda")


def test_the_number_of_requests_picks_the_chain_of_a_decode_run() -> None:
    """Each shorter chain is the shorter role's own: the same tokens, counts and logits."""
    made, plain = engine_of(*checkpoints_of("4:1 of 64", "A", torch.bfloat16), SIZES), engine("4:1 of 64")
    made.parts.append(Lengths(ChainLengths(table=table_of("1:5,2:3,4:1", "here"))))
    for batch, k in ((1, 5), (2, 3), (3, 3), (4, 1), (8, 1)):
        for each in (made, plain):
            each.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
        block, want = made.decode(Role(5), Budget(steps=STEPS), ()), plain.decode(Role(k), Budget(steps=STEPS), ())
        assert (block.tokens, block.accepted, block.drafted) == (want.tokens, want.accepted, want.drafted)
        assert block.counters["chains_ended_early"] == (STEPS * batch if k < 5 else 0)
        assert made.logits(Role(5), (1, 9)) == plain.logits(Role(k), (1, 9)) == plain.logits(Role(0), (1, 9))
    shorter = made.decode(Role(1), Budget(steps=STEPS), ())
    assert {d for row in shorter.drafted for d in row} == {1} and shorter.counters["chains_ended_early"] == 0

"""A target that two or four GPUs share. From the exchange alone to whole runs: the first that fails tells most."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.tensor_parallel.exchange import Side, check_sums, sides, time_sums
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.ranks.rank import Rank, whole_logits
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.contract import BASELINE, Budget, Role
from specgate.errors import BackendError
from tests.eagle3.cupy.engine.ranks.checks import (
    STEPS,
    check_logits,
    check_prefill,
    check_single_launches,
    check_speculation,
    check_whole_requests,
)
from tests.eagle3.cupy.engine.ranks.on_gpus import engine_on, gpus_or_skip
from tests.eagle3.cupy.engine.tracing import same_prefixes
from tests.eagle3.cupy.gpu_pairs import RAGGED, RECIPE_B, random_prompts, shape

pytestmark = pytest.mark.gpu

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # before NCCL is first used: no multicast over NVLink

PAIR = shape(8, 4, 128)


@pytest.fixture(scope="module", params=[2, 4])
def gpus(request: pytest.FixtureRequest) -> tuple[torch.device, ...]:
    return gpus_or_skip(request.param)


@pytest.fixture(scope="module")
def ranks(gpus: tuple[torch.device, ...]) -> list[Side]:
    return sides(gpus, 4096)


@pytest.fixture(scope="module")
def shared(gpus: tuple[torch.device, ...]) -> CupyEngine:
    return engine_on(gpus, PAIR, RECIPE_B)


@pytest.fixture(scope="module")
def alone(gpus: tuple[torch.device, ...]) -> CupyEngine:
    return engine_on(gpus[:1], PAIR, RECIPE_B)


@pytest.mark.parametrize("rows", [1, 4, 16, 1])
def test_all_ranks_get_the_sum_in_the_order_of_ranks(ranks: list[Side], rows: int) -> None:
    check_sums(ranks, 4096, rows)


def test_graphs_of_exchanges_are_replayed_in_step(ranks: list[Side]) -> None:
    print(f"{time_sums(ranks, 4096, 4):.2f} us each")
    check_sums(ranks, 4096, 4)  # whichever exchange it is now


def test_the_sum_is_nccls(ranks: list[Side]) -> None:
    check_sums(ranks, 4096, 4)
    parts = [side.boxes.partial[:4].clone() for side in ranks]
    nccl: Any = torch.cuda.nccl
    nccl.all_reduce(parts)
    for side in ranks:
        torch.cuda.synchronize(side.device)
    assert all(torch.equal(parts[0].cpu(), part.cpu()) for part in parts[1:])
    generator = torch.Generator().manual_seed(4)
    before = [torch.randn(16, 4096, generator=generator) for _ in range(len(ranks) + 1)][-1][:4]
    assert torch.allclose(ranks[0].residual[:4].cpu() - before, parts[0].cpu(), atol=1e-5)


def test_a_prefill_of_several_gpus_is_near_that_of_one_and_the_same_on_all(
    shared: CupyEngine, alone: CupyEngine
) -> None:
    check_prefill(shared, alone)


def test_single_launches_run_in_step(shared: CupyEngine) -> None:
    check_single_launches(shared)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_speculation_keeps_the_baselines_tokens_and_logits_bit_for_bit(shared: CupyEngine, k: int) -> None:
    check_speculation(shared, k)


@pytest.mark.parametrize("tree", [TreeShape.of([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]), DynamicGrowth(3, 6, 15)])
def test_trees_keep_the_baselines_tokens_and_logits_bit_for_bit(
    gpus: tuple[torch.device, ...], tree: DraftTree
) -> None:
    made = engine_on(gpus, PAIR, RECIPE_B, tree=tree)
    for k in (1, 3):
        check_speculation(made, k)
    counters = made.decode(Role(3), Budget(steps=STEPS), ()).counters
    assert counters["mask_checked_steps"] == STEPS and not counters["mask_integrity_failures"]


@pytest.fixture(scope="module")
def split(gpus: tuple[torch.device, ...]) -> CupyEngine:
    """With the draft divided, too."""
    return engine_on(gpus, PAIR, RECIPE_B, draft_ranks=len(gpus))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_with_a_split_draft_speculation_keeps_the_baselines_tokens_and_logits_too(split: CupyEngine, k: int) -> None:
    check_speculation(split, k)


def test_a_split_draft_is_accepted_about_as_often_as_the_whole_one(split: CupyEngine, shared: CupyEngine) -> None:
    accepted = []
    for made in (split, shared):
        made.prefill(random_prompts(RAGGED), draft=True)
        accepted.append(sum(a for row in made.decode(Role(3), Budget(steps=STEPS), ()).accepted for a in row if a > 0))
    print("accepted by the split and by the whole draft", *accepted)
    assert abs(accepted[0] - accepted[1]) < 0.1 * accepted[1]


def test_prompts_and_whole_requests_with_a_split_draft(split: CupyEngine, alone: CupyEngine) -> None:
    check_prefill(split, alone)
    check_whole_requests(split)


def test_whole_requests_end_at_their_limit(shared: CupyEngine) -> None:
    check_whole_requests(shared)


def test_logits_of_several_gpus_are_near_those_of_one(shared: CupyEngine, alone: CupyEngine) -> None:
    check_logits(shared, alone)


def test_a_text_is_extended_on_all(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    begun = shared.decode(BASELINE, Budget(steps=STEPS), ())
    extended = shared.extend(13)
    whole = shared.decode(BASELINE, Budget(steps=STEPS + 13), ())
    assert extended.tokens == whole.tokens and same_prefixes(begun.tokens, extended.tokens)


def test_a_rank_that_is_lost_ends_the_run_in_time_and_the_engine_goes_on(
    shared: CupyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    before = shared.decode(BASELINE, Budget(steps=STEPS), ())
    lost = shared.ranks[1]
    with monkeypatch.context() as patch:
        patch.setattr(Rank, "replay", lambda rank, *of: (lambda: None) if rank is lost else replay(rank, *of))
        began = time.monotonic()
        with pytest.raises(BackendError, match=r"waited more than 4 s for another one"):
            shared.decode(BASELINE, Budget(steps=STEPS), ())
        assert time.monotonic() - began < 10
    shared.prefill(random_prompts(RAGGED), draft=True)
    assert shared.decode(BASELINE, Budget(steps=STEPS), ()).tokens == before.tokens


replay = Rank.replay


def test_ranks_with_other_tokens_end_the_run(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    second = shared.ranks[1].of_prompts
    shared.ranks[1].prefilled = replace(
        second, first=replace(second.first, tokens=tuple((t + 1) % 2048 for t in second.first.tokens))
    )
    with pytest.raises(BackendError, match="read different tokens in one step"):
        shared.decode(BASELINE, Budget(steps=STEPS), ())
    shared.prefill(random_prompts(RAGGED), draft=True)
    shared.decode(BASELINE, Budget(steps=STEPS), ())


def test_whole_logits_have_the_parts_in_order(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=False)
    with shared.stream.current():
        rows = whole_logits(shared.ranks, len(RAGGED))
    assert rows.shape == (len(RAGGED), 2048)
    assert tuple(rows.argmax(-1).tolist()) == shared.first.of_prompts.first.tokens

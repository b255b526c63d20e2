"""A target that two or four GPUs share. From the exchange alone to whole runs: the first that fails tells most."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.tensor_parallel.exchange import Side, check_sums, sides, time_sums
from bench.tensor_parallel.pairs import write_configs
from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.ranks.rank import Rank, whole_logits
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry, dense, mixture, plain_draft
from specgate.checkpoints.geometry import ExpertGeometry
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError
from specgate.pairs.resolve import resolve_pair
from tests.eagle3.cupy.engine.ranks.on_gpus import engine_on, gpus_or_skip
from tests.eagle3.cupy.engine.tracing import same_prefixes
from tests.eagle3.cupy.gpu_pairs import RAGGED, RECIPE_B, RECIPE_EXPERTS, modes_on_gpu, random_prompts, shape

pytestmark = pytest.mark.gpu

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # before NCCL is first used: no multicast over NVLink

STEPS = 27
OF_EXPERTS = mixture(
    dense(4, 512, 128, heads=8, kv_heads=4, head_dim=64, vocab=2048, positions=4096),
    ExpertGeometry(8, 2, mxfp4=True),
    window=32,
)
PAIRS = {
    "dense": (shape(8, 4, 128), RECIPE_B),
    "experts": (
        PairGeometry(OF_EXPERTS, plain_draft(OF_EXPERTS, 512, 512), (1, 2, 4), context=256, written=False),
        replace(RECIPE_EXPERTS, signal=0.95),
    ),
}
DENSE, EXPERTS = (pytest.mark.parametrize("name", [name], indirect=True) for name in PAIRS)


@pytest.fixture(scope="module", params=[2, 4])
def gpus(request: pytest.FixtureRequest) -> tuple[torch.device, ...]:
    return gpus_or_skip(request.param)


@pytest.fixture(scope="module", params=PAIRS)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a pair."""
    return str(request.param)


@pytest.fixture(scope="module")
def ranks(gpus: tuple[torch.device, ...]) -> list[Side]:
    return sides(gpus, 4096)


@pytest.fixture(scope="module")
def shared(gpus: tuple[torch.device, ...], name: str) -> CupyEngine:
    return engine_on(gpus, *PAIRS[name])


@pytest.fixture(scope="module")
def alone(gpus: tuple[torch.device, ...], name: str) -> CupyEngine:
    return engine_on(gpus[:1], *PAIRS[name])


@pytest.fixture(scope="module")
def split(gpus: tuple[torch.device, ...]) -> CupyEngine:
    """With the draft divided, too."""
    return engine_on(gpus, *PAIRS["dense"], draft_ranks=len(gpus))


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


def check_prefill(shared: CupyEngine, alone: CupyEngine) -> None:
    """The last rows of prompts are near those of one GPU, and the same on all ranks, as is a whole draft's cache."""
    for made in (shared, alone):
        made.prefill(random_prompts(RAGGED), draft=True)
    first, near = shared.first, list[float]()
    assert first.b.draft is not None and first.draft is not None
    whole = first.draft.shard.ranks == 1
    for rank in shared.ranks:
        for one, other, own in zip(
            alone.first.of_prompts.last, rank.of_prompts.last, first.of_prompts.last, strict=True
        ):
            near.append(float(torch.cosine_similarity(one.stream.cpu(), other.stream.cpu(), dim=0)))
            assert torch.equal(other.stream.cpu(), own.stream.cpu())
        assert rank.b.draft is not None
        assert not whole or torch.equal(rank.b.draft.pages.k.cpu(), first.b.draft.pages.k.cpu())
    print("least cosine of last rows", min(near))
    assert min(near) > 0.999


def test_a_prefill_of_several_gpus_is_near_that_of_one_and_the_same_on_all(
    shared: CupyEngine, alone: CupyEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of experts in every way to prefill them."""
    for mode in modes_on_gpu().values() if name == "experts" else [shared.mode]:
        for made in (shared, alone):
            monkeypatch.setattr(made, "mode", mode)
        check_prefill(shared, alone)


def test_single_launches_and_graphs_give_the_same_tokens(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    shared.use_graphs = False
    launched = shared.decode(BASELINE, Budget(steps=STEPS), ())
    shared.use_graphs = True
    assert launched.tokens == shared.decode(BASELINE, Budget(steps=STEPS), ()).tokens


def check_speculation(shared: CupyEngine, k: int) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    plain = shared.decode(BASELINE, Budget(steps=4 * STEPS), ())
    spec = shared.decode(Role(k), Budget(steps=STEPS), ())
    assert same_prefixes(plain.tokens, spec.tokens)
    assert sum(a for row in spec.accepted for a in row if a > 0) > 0
    positions = (1, 2, 5, 11, 23)
    assert shared.logits(Role(k), positions) == shared.logits(BASELINE, positions)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_speculation_keeps_the_baselines_tokens_and_logits_bit_for_bit(shared: CupyEngine, k: int) -> None:
    check_speculation(shared, k)


@pytest.mark.parametrize("tree", [TreeShape.of([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]), DynamicGrowth(3, 6, 15)])
def test_trees_keep_the_baselines_tokens_and_logits_bit_for_bit(
    gpus: tuple[torch.device, ...], tree: DraftTree
) -> None:
    made = engine_on(gpus, *PAIRS["dense"], tree=tree)
    for k in (1, 3):
        check_speculation(made, k)
    counters = made.decode(Role(3), Budget(steps=STEPS), ()).counters
    assert counters["mask_checked_steps"] == STEPS and not counters["mask_integrity_failures"]


def check_whole_requests(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    spec = shared.decode(Role(3), Budget(new_tokens=60), ())
    plain = shared.decode(BASELINE, Budget(new_tokens=60), ())
    assert spec.tokens == plain.tokens and {len(text) for text in plain.tokens} == {60}


def test_whole_requests_end_at_their_limit(shared: CupyEngine) -> None:
    check_whole_requests(shared)


def test_logits_of_several_gpus_are_near_those_of_one(shared: CupyEngine, alone: CupyEngine) -> None:
    for made in (shared, alone):
        made.prefill(random_prompts(RAGGED), draft=True)
    text = alone.decode(BASELINE, Budget(steps=12), ()).tokens
    for slot in (0, 3, 6):
        for n in (1, 7):
            one, other = (made._logits_after(slot, text[slot][:n]).float().cpu() for made in (shared, alone))
            assert float(torch.cosine_similarity(one, other, dim=0)) > 0.999


@pytest.mark.parametrize("k", [1, 3, 5])
def test_with_a_split_draft_speculation_keeps_the_baselines_tokens_and_logits_too(split: CupyEngine, k: int) -> None:
    check_speculation(split, k)


@DENSE
def test_a_split_draft_is_accepted_about_as_often_as_the_whole_one(split: CupyEngine, shared: CupyEngine) -> None:
    accepted = []
    for made in (split, shared):
        made.prefill(random_prompts(RAGGED), draft=True)
        accepted.append(sum(a for row in made.decode(Role(3), Budget(steps=STEPS), ()).accepted for a in row if a > 0))
    print("accepted by the split and by the whole draft", *accepted)
    assert abs(accepted[0] - accepted[1]) < 0.1 * accepted[1]


@DENSE
def test_prompts_and_whole_requests_with_a_split_draft(split: CupyEngine, alone: CupyEngine) -> None:
    check_prefill(split, alone)
    check_whole_requests(split)


@DENSE
def test_a_text_is_extended_on_all(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    begun = shared.decode(BASELINE, Budget(steps=STEPS), ())
    extended = shared.extend(13)
    whole = shared.decode(BASELINE, Budget(steps=STEPS + 13), ())
    assert extended.tokens == whole.tokens and same_prefixes(begun.tokens, extended.tokens)


@DENSE
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


@DENSE
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


@DENSE
def test_whole_logits_have_the_parts_in_order(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=False)
    with shared.stream.current():
        rows = whole_logits(shared.ranks, len(RAGGED))
    assert rows.shape == (len(RAGGED), 2048)
    assert tuple(rows.argmax(-1).tolist()) == shared.first.of_prompts.first.tokens


@EXPERTS
@pytest.mark.parametrize("k", [0, 3])
def test_all_ranks_touch_the_same_experts(shared: CupyEngine, k: int) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    decoded = shared.decode(Role(k), Budget(steps=STEPS), ())
    assert decoded.experts is not None and min(decoded.experts.touched) > 0
    counts = [rank.b.target.layer.mixture for rank in shared.ranks]
    assert all(one is not None and one.touched[:STEPS].min() > 0 for one in counts)
    first, *others = (one.touched[:STEPS].cpu() for one in counts if one is not None)
    assert all(torch.equal(first, other) for other in others)


def test_a_planted_folder_is_opened_part_by_part(gpus: tuple[torch.device, ...], tmp_path: Path) -> None:
    """Through the door, with the memory plan and the facts: no rank ever has more of a layer than its part."""
    write_configs(tmp_path / "pair", PAIRS["experts"][0], overlap=0.5)
    request = OpenRequest(
        pair=resolve_pair(str(tmp_path / "pair"), None, None),
        dtype="bfloat16",
        max_batch=2,
        max_positions=512,
        max_k=3,
        perf_mode=False,
        options={"tp": str(len(gpus))},
    )
    engine = BACKEND.open(request)
    assert isinstance(engine, CupyEngine)
    facts = engine.facts()
    assert facts.traffic is not None and facts.traffic.gpus == len(gpus)
    engine.prefill(random_prompts([70, 200]), draft=True)
    plain = engine.decode(BASELINE, Budget(steps=4 * STEPS), ())
    assert same_prefixes(plain.tokens, engine.decode(Role(3), Budget(steps=STEPS), ()).tokens)

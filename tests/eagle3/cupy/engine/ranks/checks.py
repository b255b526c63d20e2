"""Requirements of engines whose target several GPUs share, whatever the target."""

from __future__ import annotations

import torch

from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.contract import BASELINE, Budget, Role
from tests.eagle3.cupy.engine.tracing import same_prefixes
from tests.eagle3.cupy.gpu_pairs import RAGGED, random_prompts

STEPS = 27


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


def check_single_launches(shared: CupyEngine) -> None:
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


def check_whole_requests(shared: CupyEngine) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    spec = shared.decode(Role(3), Budget(new_tokens=60), ())
    plain = shared.decode(BASELINE, Budget(new_tokens=60), ())
    assert spec.tokens == plain.tokens and {len(text) for text in plain.tokens} == {60}


def check_logits(shared: CupyEngine, alone: CupyEngine) -> None:
    for made in (shared, alone):
        made.prefill(random_prompts(RAGGED), draft=True)
    text = alone.decode(BASELINE, Budget(steps=12), ()).tokens
    for slot in (0, 3, 6):
        for n in (1, 7):
            one, other = (made._logits_after(slot, text[slot][:n]).float().cpu() for made in (shared, alone))
            assert float(torch.cosine_similarity(one, other, dim=0)) > 0.999

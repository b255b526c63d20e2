"""Whole steps of a target that is split among two or four ranks, on a CPU, each kernel run from its own source."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specgate.backends.eagle3.cupy.engine import prefill_experts, prefill_mixture
from specgate.backends.eagle3.cupy.engine.prefill_mixture import ROWS
from specgate.backends.eagle3.cupy.engine.prefilled import prefill_prompts
from specgate.backends.eagle3.cupy.engine.ranks import prefill_experts as of_ranks
from specgate.backends.eagle3.cupy.engine.ranks.prefill import Prefill
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.memory.sizes import assign_blocks
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry, dense, mixture, plain_draft
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy.engine.ranks.sides import Alone, check_split, decode, decoded_alone, sides
from tests.eagle3.cupy.gpu_pairs import RECIPE_A, RECIPE_EXPERTS, random_prompts, shape
from tests.eagle3.cupy.kernels.device import relative_error
from tests.eagle3.cupy.kernels.peers.ranks_on_host import Ranks

PAIR = replace(shape(8, 4, 64, hidden=128), draft=shape(4, 2, 64, hidden=128).draft)
"""With a draft that can be split between two, too."""
RECIPE = replace(RECIPE_A, signal=0.95)
OF_EXPERTS = mixture(
    dense(4, 128, 128, heads=8, kv_heads=4, head_dim=64, vocab=2048, positions=4096),
    ExpertGeometry(8, 2, mxfp4=True),
    window=32,
)
EXPERTS = PairGeometry(
    OF_EXPERTS, plain_draft(replace(OF_EXPERTS, heads=4, kv_heads=2), 512, 128), (1, 2, 4), context=256, written=False
)
RECIPE_OF_EXPERTS = replace(RECIPE_EXPERTS, signal=0.95)


NVFP4 = KvModes("nvfp4", "nvfp4")


@pytest.fixture(scope="module")
def alone(four: Ranks, request: pytest.FixtureRequest) -> Alone:
    return decoded_alone(PAIR, RECIPE, four, request.param)


@pytest.fixture(scope="module")
def mixture_alone(four: Ranks) -> Alone:
    return decoded_alone(EXPERTS, RECIPE_OF_EXPERTS, four)


@pytest.mark.parametrize("alone", [AS_COMPUTED], indirect=True, ids=["bf16"])
def test_a_split_draft_is_accepted_as_often_as_the_whole_one(four: Ranks, alone: Alone) -> None:
    whole, _ = decode(alone[0], four, 3, 4)
    split = check_split(PAIR, RECIPE, four, alone, 2, draft_ranks=2)
    assert split.accepted == whole.accepted and split.tokens == whole.tokens


@pytest.mark.parametrize(
    ("alone", "ranks"),
    [
        pytest.param(AS_COMPUTED, 4, id="bf16-4"),  # a draft that is split has two ranks, above
        pytest.param(NVFP4, 2, id="nvfp4-2"),  # a rank's heads have scales of their own, however many ranks there are
    ],
    indirect=["alone"],
)
def test_a_split_target_speculates_bit_for_bit_and_is_near_the_whole_one(four: Ranks, alone: Alone, ranks: int) -> None:
    check_split(PAIR, RECIPE, four, alone, ranks)


def test_a_split_mixture_of_experts_speculates_bit_for_bit_and_is_near_the_whole_one(
    four: Ranks, mixture_alone: Alone
) -> None:
    """Between two; `kernels/experts/test_parts.py` has the parts of four."""
    check_split(EXPERTS, RECIPE_OF_EXPERTS, four, mixture_alone, 2)


def test_a_split_mixture_verifies_trees_bit_for_bit_which_its_whole_drafts_grow_alike(
    four: Ranks, mixture_alone: Alone
) -> None:
    check_split(EXPERTS, RECIPE_OF_EXPERTS, four, mixture_alone, 2, tree=DynamicGrowth(3, 3, 10))


@pytest.mark.parametrize("rows", [ROWS, 50], ids=["together", "in several passes"])
def test_a_split_mixture_is_prefilled_by_kernels_as_by_torch(
    four: Ranks, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Equal prompts in two slots, whose blocks are partly copies. Every rank has the same stream, bit for bit."""
    for module in (prefill_experts, prefill_mixture, of_ranks):
        monkeypatch.setattr(module, "ROWS", rows)
    first, second = random_prompts([BLOCK + 30, 40])
    prompts, values = [first, second, first], []
    for ranks, fused, packed_rows in ((1, False, 0), (2, False, 0), (2, True, 0), (2, True, 60)):
        made = sides(EXPERTS, RECIPE_OF_EXPERTS, ranks, fused=fused, packed_rows=packed_rows)
        layout = assign_blocks(prompts, made[0].sizes)
        assert layout.twin == (0, 1, 0)
        if ranks == 1:
            last = [prefill_prompts(made[0].target, made[0].draft, made[0].b, prompts, layout, made[0].mode)]
        else:
            last = Prefill(made).prompts(prompts, layout, draft=True)
        for own in last[1:]:
            assert all(torch.equal(a.stream, b.stream) for a, b in zip(own, last[0], strict=True))
        keys = torch.cat([side.b.target.pages.k for side in made], dim=2)  # of all heads
        twin, slot, own_blocks = layout.blocks[0], layout.blocks[2], layout.private[2]
        assert own_blocks > 0
        assert torch.equal(keys[:, list(twin[-own_blocks:])], keys[:, list(slot[-own_blocks:])])
        values.append((torch.stack([row.stream for row in last[0]]), keys.float()))
    for streams, keys in values[1:]:
        assert torch.cosine_similarity(streams, values[0][0], dim=1).min() > 0.9995
        assert relative_error(keys, values[0][1]) < 0.02

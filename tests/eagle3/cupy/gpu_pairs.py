"""Planted pairs on the GPU, made in memory, in an engine of a few slots."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from specgate.backends.eagle3.cupy.device import multiprocessors
from specgate.backends.eagle3.cupy.engine.facts import engine_facts
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.engine.prefill_attention import Library, PrefillAttention
from specgate.backends.eagle3.cupy.engine.ranks.rank import Rank
from specgate.backends.eagle3.cupy.engine.run_parts import parts_of
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import unable
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED, Tuned
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.pair_tools.plant.calibrate import made_target
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, PairGeometry, dense, draft_of
from tests.eagle3.lib.planted.drafts import made_draft

RECIPE_A = Recipe("A", seed=3, draft_vocab=512, signal=0.75, boundaries=(1, 2, 3))
RECIPE_B = Recipe("B", seed=3, draft_vocab=512, signal=1.0, boundaries=(1, 2, 3))


def shape(heads: int, kv_heads: int, head_dim: int, hidden: int = 512) -> PairGeometry:
    """Four layers and 2,048 tokens: small enough for a test, large enough for either recipe."""
    target = dense(
        4, hidden, 2 * hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, vocab=2048, positions=40000
    )
    return PairGeometry(target, draft_of(target, 512), (1, 2, 3), context=256, written=False)


def checkpoints(
    geometry: PairGeometry, recipe: Recipe = RECIPE_A, dtype: torch.dtype = torch.bfloat16
) -> tuple[TargetCheckpoint, DraftCheckpoint]:
    return made_target(recipe, geometry, dtype, "cuda"), made_draft(recipe, geometry, dtype, "cuda")


def engine_of(
    target: TargetCheckpoint,
    draft: DraftCheckpoint | None,
    sizes: Sizes,
    *,
    graphs: bool = True,
    plain: bool = False,
    tuned: Tuned = NOTHING_TUNED,
) -> CupyEngine:
    """The checkpoints are used up. A test in inference mode may ask first, so the tensors are made outside of it."""
    with torch.inference_mode(False):
        return _engine_of(target, draft, sizes, graphs, plain, tuned)


def _engine_of(
    target: TargetCheckpoint, draft: DraftCheckpoint | None, sizes: Sizes, graphs: bool, plain: bool, tuned: Tuned
) -> CupyEngine:
    facts = engine_facts(target, draft, None, {}, sizes, graphs=graphs)
    buffers = Buffers.allocate(target.geometry, draft.geometry if draft else None, sizes, "cuda")
    model = Target.of(target, sizes.positions)
    head = Draft.of(draft, model, sizes.positions) if draft else None
    rank = Rank(model, head, sizes, buffers, tuned=tuned)
    return CupyEngine([rank], facts, parts_of(sizes), graphs=graphs, plain_on_draft_error=plain)


def random_prompts(lengths: list[int], vocab: int = 2048, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in lengths]


RECIPE_EXPERTS = replace(RECIPE_A, boundaries=(1, 2, 4), expert_overlap=0.5)


def expert_pair() -> PairGeometry:
    """The tiny planted gpt-oss: four layers of 8 experts, windows of 32 positions in every other one."""
    return EXPERT_GEOMETRIES["gpt-oss-tiny"]()


@cache
def expert_engine() -> CupyEngine:
    return engine_of(*checkpoints(expert_pair(), RECIPE_EXPERTS), replace(SIZES, max_rows=8))


def modes_on_gpu() -> dict[str, PrefillMode]:
    """How experts can be prefilled: by the kernels, with grouped products and with cuBLAS, or of prompts of few rows as
    they are packed, by warps and, where the GPU has them, by warpgroups; and by torch alone.
    """
    cuda = torch.device("cuda")
    best, torchs = PrefillAttention.on(cuda), PrefillAttention.on(cuda, Library.TORCH)
    return {
        "grouped": PrefillMode(True, best, grouped=True),
        "one by one": PrefillMode(True, best),
        "packed": PrefillMode(True, best, grouped=True, packed_rows=132),
        "wgmma": PrefillMode(True, best, grouped=True, packed_rows=132, wgmma=unable(multiprocessors()) is None),
        "torch": PrefillMode(False, torchs),
    }


GEOMETRIES = {"4:1 of 64": (8, 2, 64), "3:1 of 64": (9, 3, 64), "2:1 of 128": (8, 4, 128), "8:1 of 128": (16, 2, 128)}
SIZES = Sizes(slots=8, positions=2048, max_rows=6)
CHUNK = FmhaConfig().kv_tile
RAGGED = [5, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 2, CHUNK, 700, 1]


def checkpoints_of(name: str, recipe: str, dtype: torch.dtype) -> tuple[TargetCheckpoint, DraftCheckpoint]:
    return checkpoints(shape(*GEOMETRIES[name]), {"A": RECIPE_A, "B": RECIPE_B}[recipe], dtype)


@cache
def engine(name: str = "4:1 of 64", recipe: str = "A") -> CupyEngine:
    return engine_of(*checkpoints_of(name, recipe, torch.bfloat16), SIZES)

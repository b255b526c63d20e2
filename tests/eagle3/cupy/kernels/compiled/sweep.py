"""Every kernel of every geometry, role and batch, and which of them have the same code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from specgate.backends.eagle3.cupy.device import RESERVED_SHARED, Multiprocessors
from specgate.backends.eagle3.cupy.engine.prefill import kernels as prefill_kernels
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import MOST_ROWS
from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, Switches
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import WgmmaConfig
from specgate.backends.eagle3.cupy.kernels.read_memory import ReadMemory
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.shard import WHOLE, Shard
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, GEOMETRIES, PairGeometry
from specgate.backends.eagle3.pairs.shipped import DRAFT_FOLDER
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import Sampling
from tests.eagle3.cupy.pairs import parts_without_weights, without_weights

GPUS: Final[Mapping[str, Multiprocessors]] = {
    "sm_80": Multiprocessors(108, 164 * 1024, (8, 0)),
    "sm_89": Multiprocessors(142, 100 * 1024, (8, 9)),
    "sm_90": Multiprocessors(132, 228 * 1024, (9, 0)),
    "sm_100": Multiprocessors(148, 228 * 1024, (10, 0)),
    "sm_120": Multiprocessors(188, 100 * 1024, (12, 0)),
}
"""Architecture → a GPU of it: A100, L40S, H200, B200, RTX PRO 6000. Shared memory per SM is from the CUDA C++
Programming Guide, "Compute Capabilities"; the numbers of SMs are from NVIDIA's data sheets.
"""
ARCHITECTURES = tuple(GPUS)
SLOTS = (1, 4, 8)
LENGTHS = (0, 3, 5)
"""Drafts per step: baseline, spec-3, spec-5."""
POSITIONS = 32768
SIZES = {
    "matmul_rows": ("N_OUT", "K_IN"),
    "matmul_many": ("N_OUT", "K_IN"),
    "maxima_rows": ("N_OUT", "K_IN"),
    "maxima_many": ("N_OUT", "K_IN"),
    "attention": ("HEADS", "KV_HEADS", "MAX_BLOCKS", "MAX_CHUNKS"),
    "embed_rows": ("HIDDEN",),
    "feature_capture": ("HIDDEN",),
    "feature_rows": ("HIDDEN",),
    "draft_input": ("HIDDEN",),
    "draft_token": ("HIDDEN", "DRAFT_VOCAB"),
    "all_reduce": ("HIDDEN", "MAX_ROWS"),
    "combine_choices": ("PART", "MAX_ROWS"),
    "kv_reserve": ("BLOCKS", "MAX_BLOCKS", "MAX_POSITIONS"),
    "route": ("EXPERTS", "ROWS"),
    "expert_gate_up": ("EXPERTS",),
    "expert_down": ("EXPERTS",),
    "bias_rows": ("VOCAB",),
    "penalise_rows": ("VOCAB",),
    "count_tokens": ("VOCAB",),
    "sum_rows": ("VOCAB", "DRAFT_VOCAB"),
    "verify_drafts": ("VOCAB", "DRAFT_VOCAB"),
    "weigh_rows": ("VOCAB",),
    "cut_rows": ("VOCAB",),
    "draw_rows": ("VOCAB",),
    "tree_top": ("COLUMNS", "PARTS"),
    "tree_token": ("HIDDEN", "DRAFT_VOCAB"),
    "tree_grow": ("HIDDEN", "DRAFT_VOCAB", "POOL", "FOREST"),
    "tree_choose": ("DRAFT_VOCAB", "POOL", "FOREST", "STRIDE", "MAX_ROWS"),
    "tree_settle": ("LAYERS", "BLOCKS", "MAX_BLOCKS", "WIDTH", "KV_HEADS"),
    "wide_attention": ("HEADS", "KV_HEADS", "MAX_BLOCKS", "MAX_CHUNKS"),
    "block_bounds": ("KV_HEADS", "MAX_BLOCKS", "BLOCKS"),
    "block_scores": ("HEADS", "KV_HEADS", "MAX_BLOCKS", "BLOCKS", "STRIDE"),
    "choose_blocks": ("KV_HEADS",),
    "prefill_gate": ("INTERMEDIATE",),
    "prefill_heads": ("HEADS", "KV_HEADS"),
    "prefill_stream": ("HIDDEN", "THREADS"),
    "prefill_draft": ("HIDDEN", "THREADS"),
    "prefill_route": ("EXPERTS",),
    "prefill_decode": ("N_OUT", "K_IN"),
    "prefill_swiglu": ("INTERMEDIATE",),
    "prefill_row_groups": ("EXPERTS",),
    "prefill_gate_up": ("K_IN", "TILES"),
    "prefill_down": ("K_IN", "TILES"),
}
"""Kernel → the constants of it that are bounds of loops and widths of rows, and choose no code."""
SAMPLED = (
    Sampling(),
    Sampling(top_p=0.9),
    Sampling(temperature=0.6, top_k=50, top_p=0.95, min_p=0.05, logit_bias=((0, 1.0),)),
    Sampling(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
    Sampling(repetition_penalty=0.9, presence_penalty=-0.5, logit_bias=((0, 1.0),)),
    Sampling(method="rejection"),
    Sampling(temperature=0.6, top_p=0.95, method="rejection"),
)
TREES: tuple[DraftTree, ...] = (
    TreeShape.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 2), (1, 0, 0)]),
    # As many rows and levels as a step may have.
    TreeShape.of([(*(0,) * above, rank) for above in range(7) for rank in range(9)]),
    DynamicGrowth(4, 10, 31),
    # As many levels, and as many rows on which the draft runs, as a step may have.
    DynamicGrowth(7, 10, 63),
    DynamicGrowth(3, 32, 63),
    DynamicGrowth(2, 63, 63),
    DynamicGrowth(3, 1, 3),
)
BROAD = TreeShape.of([*((rank,) for rank in range(5)), *((rank, 0) for rank in range(5))])
"""A tree of which the draft runs on more than 16 rows of four slots."""
CODES = (KvModes("fp8", "fp8"), KvModes("nvfp4", "nvfp4"))
"""Caches that hold codes."""


def attributes_of(architecture: str) -> Mapping[str, int]:
    """The device attributes that launches are made for, as `device.current_attributes` returns them there."""
    gpu = GPUS[architecture]
    return {
        "MaxSharedMemoryPerBlockOptin": gpu.shared_memory - RESERVED_SHARED,
        "MaxSharedMemoryPerMultiprocessor": gpu.shared_memory,
        "MultiProcessorCount": gpu.count,
    }


def demo() -> PairGeometry:
    """The demo pair: SmolLM2-135M, and a draft whose attention has a window."""
    smollm2 = GEOMETRIES["smollm2-135m"]()
    draft, capture = draft_geometry(read_config(DRAFT_FOLDER), smollm2.target, ("lm_head.weight",))
    low, middle, high = capture.boundaries
    return PairGeometry(smollm2.target, draft, (low, middle, high), context=0, written=True)


def specs_of(pair: PairGeometry) -> Iterator[Spec]:
    positions = min(pair.target.max_positions, POSITIONS)
    target, draft = without_weights(pair.target, pair.draft, pair.boundaries, positions)
    for slots in SLOTS:
        sizes = Sizes(slots, positions, max(LENGTHS) + 1)
        for k in LENGTHS:
            yield from (kernel.spec for kernel in Cycle(target, draft, sizes, slots, k).kernels().values())
    forced = (Cycle(target, draft, Sizes(8, positions, 6, forced=True), 8, k) for k in LENGTHS if k)
    yield from (cycle.verify.accept.spec for cycle in forced)
    for refresh, slots, k in ((20, 1, 3), (60, 2, 1), (20, 4, 5)) if pair.target.experts is None else ((20, 2, 3),):
        in_part = Sizes(slots, positions, k + 1, partial=PartialPlan(2, 256, 8, refresh))
        for kind in (FULL, PARTIAL):
            verifying = Cycle(target, draft, in_part, slots, k, kind=kind).kernels()
            own = (kernel.spec for path, kernel in verifying.items() if path.startswith("verify."))
            yield from (spec for spec in own if not spec.stem.startswith(("matmul", "expert")))
    for kv in CODES:
        for k in LENGTHS:
            over_codes = Cycle(target, draft, Sizes(4, positions, 6, kv=kv), 4, k).kernels().values()
            yield from (kernel.spec for kernel in over_codes if kernel.spec.stem == "attention")
    dense = pair.target.experts is None
    few = TREES[0], TREES[3]  # other numbers of rows choose the same code in every target and cache
    for tree, kv in (*product(TREES if dense else few, [AS_COMPUTED]), *product(few, CODES)):
        sizes = Sizes(4 if dense else 1, positions, tree.rows, tree=tree, kv=kv)
        growing = Cycle(target, draft, sizes, sizes.slots, tree.depth).kernels().values()
        stems = ("attention", "commit", "maxima", "tree")
        yield from (kernel.spec for kernel in growing if kernel.spec.stem.startswith(stems))
    for sampling in (SAMPLED[0], SAMPLED[2], SAMPLED[3], SAMPLED[4]) if dense else ():
        sizes = Sizes(4, positions, TREES[0].rows, tree=TREES[0], sampling=sampling)
        drawing = Cycle(target, draft, sizes, 4, TREES[0].depth).kernels()
        yield from (kernel.spec for path, kernel in drawing.items() if ".draw." in path)
    if pair.target.experts is None:
        broad = Cycle(target, draft, Sizes(4, positions, BROAD.rows, tree=BROAD), 4, BROAD.depth).kernels().values()
        yield from (kernel.spec for kernel in broad if kernel.spec.stem.startswith("maxima"))
    for sampling in SAMPLED:
        drawing = Cycle(target, draft, Sizes(1, positions, 4, sampling=sampling), 1, 3).kernels()
        yield from (kernel.spec for path, kernel in drawing.items() if ".draw." in path)
    for kv in (AS_COMPUTED, *CODES):
        yield from (kernel.spec for kernel in prefill_kernels(pair.target, pair.draft, kv, packed=True))
    yield from specs_of_ranks(pair, positions)


def specs_of_ranks(pair: PairGeometry, positions: int) -> Iterator[Spec]:
    """What only GPUs that share a target run, where it can be divided; the draft is, too, where it can be."""
    stems = {"all_reduce", "combine_choices"} | ({"expert_gate_up", "expert_down"} if pair.target.experts else set())
    for ranks in (2, 4):
        shard = Shard(0, ranks)
        if shard.unfit(pair.target) or shard.cuts_blocks(pair.target):
            continue
        of_draft = WHOLE if shard.unfit(pair.draft) else shard
        part, draft = parts_without_weights(pair, positions, shard, of_draft)
        for slots, k in ((1, 0), (1, 3), (4, 3), (8, 5)):
            sizes = Sizes(slots, positions, max(LENGTHS) + 1)
            kernels = Cycle(part, draft, sizes, slots, k).kernels()
            yield from (kernel.spec for kernel in kernels.values() if kernel.spec.stem in stems)
            if pair.target.biases:
                yield kernels["verify.layer.o"].spec  # partial sums with a bias are left by no other product
        if pair.target.experts:
            own = prefill_kernels(shard.geometry(pair.target), None, ranks=ranks, packed=True)
            yield from (kernel.spec for kernel in own)


def by_wgmma() -> list[Spec]:
    """Products by a warpgroup, which are for sm_90a alone: every epilogue, with most rows in each of the blocks and
    clusters that the tuner tries, and with fewer in one of them.
    """
    products: list[tuple[Epilogue, Switches]] = [
        (Epilogue.PLAIN, {"scaled": True}),
        (Epilogue.PLAIN, {"scaled": True, "chooses": True}),
        (Epilogue.PLAIN, {"scaled": True, "biased": True, "maxima": True}),
        (Epilogue.RESIDUAL, {"feeds_norm": True}),
        (Epilogue.RESIDUAL, {"feeds_norm": True, "biased": True}),
        (Epilogue.SWIGLU, {"scaled": True}),
    ]
    specs = list[Spec]()
    for number, (epilogue, switches) in enumerate(products):
        ways = [WgmmaConfig(*blocks, cluster) for blocks in ((2, 4), (4, 3)) for cluster in (1, 2, 8)]
        for rows, of_rows in ((64, ways), *((few, [ways[(few // 16 + number) % len(ways)]]) for few in (16, 32, 48))):
            specs += [MatmulRows(4096, 4096, epilogue, rows, way, **switches).spec for way in of_rows]
    return specs


def chosen_here() -> list[Spec]:
    """Products and attentions as an engine without a tuned file divides them on the current GPU, up to 128 rows per
    step. Of those that differ in their sizes alone, the largest.
    """
    every = []
    for pair in (geometry() for geometry in (*GEOMETRIES.values(), *EXPERT_GEOMETRIES.values())):
        positions = min(pair.target.max_positions, POSITIONS)
        target, draft = without_weights(pair.target, pair.draft, pair.boundaries, positions)
        for slots, k in ((1, 0), (1, 3), (4, 3), (8, 3), (16, 3), (32, 0), (32, 3)):
            if pair.target.experts is None or slots * (k + 1) <= MOST_ROWS:
                sizes = Sizes(slots, positions, k + 1).usual(pair.target)
                specs = [kernel.spec for kernel in Cycle(target, draft, sizes, slots, k).kernels().values()]
                stems = ("matmul", "maxima", "expert", *(["attention"] if slots <= 4 and k else []))
                every += [spec for spec in specs if spec.stem.startswith(stems)]
    return without_twins(every)


def every_spec() -> list[Spec]:
    """Equal ones once."""
    pairs = [demo(), *(geometry() for geometry in (*GEOMETRIES.values(), *EXPERT_GEOMETRIES.values()))]
    beside = ReadMemory().spec
    return [*dict.fromkeys(spec for pair in pairs for spec in specs_of(pair)), beside]


def code_of(spec: Spec) -> tuple[object, ...]:
    """What is the same in kernels that differ in their `SIZES` alone.

    Which loads, tiles and epilogues a kernel has is in its other constants, and of attention in how many query heads
    share a key/value head.
    """
    constants, sizes = dict(spec.constants), SIZES.get(spec.stem, ())
    by_head = spec.stem in ("attention", "wide_attention", "block_scores")
    shared = int(constants["HEADS"]) // int(constants["KV_HEADS"]) if by_head else None
    return spec.stem, shared, *((name, value) for name, value in spec.constants if name not in sizes)


def without_twins(specs: Sequence[Spec]) -> list[Spec]:
    """Of the kernels that differ in their sizes alone, the largest: what it keeps in registers is the most."""

    def size(spec: Spec) -> int:
        constants = dict(spec.constants)
        return math.prod(int(constants[name]) for name in SIZES.get(spec.stem, ()))

    return list({code_of(spec): spec for spec in sorted(specs, key=size)}.values())

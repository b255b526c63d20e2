"""An engine with tuned configurations: what its blocks count, what its log holds, what it emits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from specgate.analysis.perf_invariants.loop import tuned_kernels
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuned.required import ShapeLog
from specgate.backends.eagle3.cupy.tuning.expert_product import launcher
from specgate.backends.eagle3.cupy.tuning.expert_weight import candidates as candidates_of_experts
from specgate.backends.eagle3.cupy.tuning.gemm_weight import candidates
from specgate.backends.eagle3.cupy.tuning.search import gemm_shapes
from specgate.backends.eagle3.nouns.gemms import GemmShape, read_shapes
from specgate.contract import BlockTrace, Budget, Held, Role
from specgate.run import profiler
from tests.eagle3.cupy.gpu_pairs import RECIPE_EXPERTS, checkpoints, engine_of, expert_pair, random_prompts, shape
from tests.eagle3.cupy.tuned.files import experts, gemm, written

pytestmark = pytest.mark.gpu

PAIR = shape(8, 2, 64)


@cache
def shapes() -> Sequence[GemmShape]:
    """The products of the pair's steps. To count them makes its weights, which no other worker needs."""
    return gemm_shapes(Geometry(PAIR.target, PAIR.draft, PAIR.boundaries), batches=(2,), draft_lengths=(3,))


def engine(tuned: Tuned) -> CupyEngine:
    return engine_of(*checkpoints(PAIR), Sizes(slots=2, positions=1024, max_rows=4), tuned=tuned)


def tuned(folder: Path, configs: dict[tuple[int, int], GemmConfig]) -> Tuned:
    device = torch.cuda.get_device_name()
    file = written(folder / "t.json", *(gemm(n, k, config) for (n, k), config in configs.items()), device=device)
    return Tuned.on(device, file)


def other_split(n: int, k: int) -> GemmConfig:
    """A configuration that adds in another order than the default does."""
    default = GemmConfig()
    return next(c for c in candidates(n, k) if (c.warps, c.k_chunks) != (default.warps, default.k_chunks))


def test_a_block_counts_its_lookups_and_the_log_holds_what_was_run(tmp_path: Path) -> None:
    made = engine(tuned(tmp_path, {s.weight: GemmConfig() for s in shapes() if s.tag.startswith("TARGET_")}))
    made.shape_log = ShapeLog(tmp_path / "shapes.json")
    made.prefill(random_prompts([40, 50]), draft=True)
    for k in (0, 3):
        counters = made.decode(Role(k), Budget(steps=4), ()).counters
        expected = made._cycle(k, 2).gemms.counters
        assert {name: counters[name] for name in expected} == expected
        assert expected["tuned_total"] == (15 if k else 5) and expected["tuned_hits"] >= 5
    assert set(read_shapes(tmp_path / "shapes.json")) == set(shapes())


def test_experts_with_other_configurations_still_emit_the_baselines_tokens(tmp_path: Path) -> None:
    pair = expert_pair()
    shapes = gemm_shapes(Geometry(pair.target, pair.draft, RECIPE_EXPERTS.boundaries), batches=(2,), draft_lengths=(3,))
    entries = []
    for product in {product.key: product for product in shapes if product.experts}.values():
        usual = launcher(product).config
        other = next(config for config in candidates_of_experts(product.n, product.k) if config != usual)
        entries.append(experts(product, other))
    device = torch.cuda.get_device_name()
    known = Tuned.on(device, written(tmp_path / "t.json", *entries, device=device))
    sizes = Sizes(slots=2, positions=1024, max_rows=4)
    made = engine_of(*checkpoints(pair, RECIPE_EXPERTS), sizes, tuned=known)
    made.prefill(random_prompts([60, 9]), draft=True)
    base, spec = (made.decode(Role(k), Budget(new_tokens=48), ()) for k in (0, 3))
    assert base.counters["tuned_hits"] == spec.counters["tuned_hits"] == 2
    assert spec.tokens == base.tokens


def test_with_other_configurations_speculation_still_emits_the_baselines_tokens(tmp_path: Path) -> None:
    made = engine(tuned(tmp_path, {s.weight: other_split(*s.weight) for s in shapes()}))
    made.prefill(random_prompts([60, 9]), draft=True)
    base, spec = (made.decode(Role(k), Budget(new_tokens=48), ()) for k in (0, 3))
    assert base.counters["tuned_hits"] == base.counters["tuned_total"]
    assert spec.tokens == base.tokens


def test_a_profiler_sees_every_product_launched_as_its_tuned_configuration_has_it(tmp_path: Path) -> None:
    made = engine(tuned(tmp_path, {s.weight: other_split(*s.weight) for s in shapes()}))
    made.prefill(random_prompts([60, 9]), draft=True)
    for k in (0, 3):
        decoded, seen = profiler.trace(made, Role(k), Budget(steps=16))
        trace = BlockTrace(
            cell="a cell",
            prompt_set=0,
            worker_generation=0,
            source="profiler",
            steps=16,
            tokens=decoded.tokens,
            kernels=seen.kernels,
            unseen=seen.unseen,
            partial=seen.partial,
            products=seen.products,
            launches=seen.launches,
        )
        invariant = tuned_kernels([], trace)
        assert invariant.held is Held.HELD, invariant.message

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.analysis.perf_invariants.loop import tuned_kernels
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.chain import Chain
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.expert_layer import ExpertLayer
from specgate.backends.eagle3.cupy.tuned import gemms as tuned_gemms
from specgate.backends.eagle3.cupy.tuned.gemms import EPILOGUES, Gemms
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuned.required import require
from specgate.backends.eagle3.cupy.tuning.gemm_weight import candidates
from specgate.backends.eagle3.cupy.tuning.search import gemm_shapes
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.nouns.gemms import GemmShape
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, GEOMETRIES, PairGeometry
from specgate.contract import BlockTrace, Held, PairRef
from specgate.contract.traces import TunedProduct, launch_name
from tests.eagle3.cupy.kernels.launches import EXPERTS, PAIRS, Launch, step
from tests.eagle3.cupy.pairs import BOUNDARIES, DRAFT, MIXTURE
from tests.eagle3.cupy.tuned.files import DEVICE, experts, gemm, written
from tests.support.factories import blocks_of, plan_of


def geometry(name: str) -> Geometry:
    pair = GEOMETRIES[name]()
    return Geometry(pair.target, pair.draft, pair.boundaries)


# By hand, from the config of Llama-3.1-8B and of its draft: 32 heads and 8 key/value heads of 128, hidden size 4096,
# intermediate size 14336, 128,256 and 32,000 tokens; the draft's attention sees embedding and hidden state.
LLAMA = {
    "TARGET_QKV": ((32 + 2 * 8) * 128, 4096),
    "TARGET_O": (4096, 32 * 128),
    "TARGET_FFN_GATE_UP": (2 * 14336, 4096),
    "TARGET_FFN_DOWN": (4096, 14336),
    "TARGET_LM_HEAD": (128256, 4096),
    "EAGLE3_FC": (4096, 3 * 4096),
    "EAGLE3_QKV": ((32 + 2 * 8) * 128, 2 * 4096),
    "EAGLE3_O": (4096, 32 * 128),
    "EAGLE3_FFN_GATE_UP": (2 * 14336, 4096),
    "EAGLE3_FFN_DOWN": (4096, 14336),
    "EAGLE3_LM_HEAD_SMALLVOC": (32000, 4096),
}


def test_the_products_of_a_pair_are_those_of_its_layers_heads_and_features() -> None:
    shapes = gemm_shapes(geometry("llama-3.1-8b"), batches=(1, 4), draft_lengths=(3,))
    assert {shape.tag: shape.weight for shape in shapes} == LLAMA == {s.tag: s.weight for s in reversed(shapes)}
    rows = {tag: {shape.m for shape in shapes if shape.tag == tag} for tag in EPILOGUES}
    for tag in ("TARGET_QKV", "TARGET_FFN_DOWN", "TARGET_LM_HEAD"):
        assert rows[tag] == {1, 4, 16}  # a baseline step and a verify pass of K + 1 rows, over 1 and 4 slots
    for tag in ("EAGLE3_O", "EAGLE3_LM_HEAD_SMALLVOC"):
        assert rows[tag] == {1, 4}  # one row per slot goes on
    assert rows["EAGLE3_FC"] == {4, 16} and rows["EAGLE3_QKV"] == {1, 4, 16}


def test_a_gpt_oss_draft_has_the_gate_of_34560_rows() -> None:
    shapes = gemm_shapes(geometry("gpt-oss-120b-dense"), batches=(1, 3, 5), draft_lengths=(2,))
    for rows in (3, 5):
        assert GemmShape("EAGLE3_FFN_GATE_UP", 34560, 2880, rows) in shapes


# By hand, from the config of gpt-oss-120b: 128 experts of width 2880, of which a token has 4.
OF_EXPERTS = {
    1: {("TARGET_EXPERT_GATE_UP", 5760, 2880, 128, 4), ("TARGET_EXPERT_DOWN", 2880, 2880, 128, 4)},
    2: {("TARGET_EXPERT_GATE_UP", 2880, 2880, 128, 4), ("TARGET_EXPERT_DOWN", 2880, 1440, 128, 4)},
}


@pytest.mark.parametrize("ranks", OF_EXPERTS)
def test_a_target_with_experts_has_their_products_to_tune_and_those_around_its_attention(ranks: int) -> None:
    part = Shard(0, ranks).geometry(EXPERT_GEOMETRIES["gpt-oss-120b"]().target)
    shapes = gemm_shapes(Geometry(part, None, ()), batches=(1, 4), draft_lengths=())
    plain = {
        ("TARGET_QKV", 5120 // ranks, 2880, 0, 0),
        ("TARGET_O", 2880, 4096 // ranks, 0, 0),
        ("TARGET_LM_HEAD", 201088 // ranks, 2880, 0, 0),
    }
    assert {(s.tag, s.n, s.k, s.experts, s.per_token) for s in shapes} == plain | OF_EXPERTS[ranks]
    assert len({shape.key for shape in shapes}) == 5 and {shape.m for shape in shapes} == {1, 4}


def test_without_a_draft_there_are_the_targets_products_only() -> None:
    alone = Geometry(geometry("tiny").target, None, ())
    shapes = gemm_shapes(alone, batches=(2,), draft_lengths=(3,))
    assert {shape.tag for shape in shapes} == {tag for tag in EPILOGUES if tag.startswith("TARGET_")}
    assert {shape.m for shape in shapes} == {2}


@pytest.fixture
def half_tuned(tmp_path: Path) -> tuple[Tuned, GemmConfig]:
    """Only the weight 512 x 512 of the tiny pair is tuned: O of target and draft, and the LM head of 512 tokens."""
    other = next(config for config in candidates(512, 512) if config.warps != GemmConfig().warps)
    return Tuned.on(DEVICE, written(tmp_path / "t.json", gemm(512, 512, other))), other


def cycle(k: int, tuned: Tuned) -> Cycle:
    target, draft = random_pair(geometry("tiny"), 256, "meta")
    return Cycle(target, draft, Sizes(2, 256, 4), 2, k, tuned)


def test_a_launcher_gets_its_weights_configuration_and_any_other_the_default(
    half_tuned: tuple[Tuned, GemmConfig],
) -> None:
    tuned, other = half_tuned
    step = cycle(3, tuned)
    assert isinstance(step.drafting, Chain)
    for launcher, warps in (
        (step.verify.layer.o, other.warps),
        (step.drafting.step.o, other.warps),
        (step.drafting.extension.o, other.warps),
        (step.drafting.lm_head, other.warps),
        (step.verify.layer.down, GemmConfig().warps),
        (step.verify.lm_head, GemmConfig().warps),
    ):
        assert isinstance(launcher, MatmulRows) and dict(launcher.spec.constants)["WARPS"] == str(warps)


def test_products_of_experts_get_their_configurations_and_are_counted(tmp_path: Path) -> None:
    target, draft = random_pair(Geometry(MIXTURE, DRAFT, BOUNDARIES), 256, "meta")
    shapes = gemm_shapes(Geometry(MIXTURE, DRAFT, BOUNDARIES), batches=(2,), draft_lengths=(3,))
    (gate_up,) = (shape for shape in shapes if shape.tag == "TARGET_EXPERT_GATE_UP" and shape.m == 8)
    other = replace(ExpertConfig.usual(gate_up.k, gate_up.n // TILE, 2), warps=7, tiles=1)
    tuned = Tuned.on(DEVICE, written(tmp_path / "t.json", experts(gate_up, other)))
    for k, total in ((3, 2 + 4 + 4 + 5), (0, 5)):
        step = Cycle(target, draft, Sizes(2, 256, 4), 2, k, tuned)
        layer = step.verify.layer
        assert isinstance(layer, ExpertLayer)
        assert (layer.expert_gate_up.config.warps, layer.expert_gate_up.config.tiles) == (7, 1)
        down = layer.expert_down
        assert down.config == ExpertDown(64, 96, down.experts, down.rows).config
        assert step.gemms.counters == {"tuned_total": total, "tuned_hits": 1, "tuned_by_rule": 0}
        assert [lookup.shape.tag for lookup in step.gemms.lookups if lookup.hit] == ["TARGET_EXPERT_GATE_UP"]


@pytest.mark.parametrize("pair", [PAIRS["llama-3.1-8b"], EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("k", [0, 3])
def test_the_launches_of_a_step_are_those_of_the_tuned_file_and_others_break_i2(
    pair: PairGeometry, k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_gemms, "declared_shared_bytes", lambda spec, name, device: 64)
    shapes = gemm_shapes(Geometry(pair.target, pair.draft, pair.boundaries), batches=(2,), draft_lengths=(0, 3))
    entries = {s.key: experts(s) if s.experts else gemm(s.n, s.k, of_four_warps(s)) for s in shapes}
    tuned = Tuned.on(DEVICE, written(tmp_path / "t.json", *entries.values()))
    running = step(monkeypatch, pair, k, 2, tuned=tuned)
    products = tuple(running.cycle.gemms.products(0))
    assert len(products) == running.cycle.gemms.counters["tuned_total"] > 4
    as_tuned = tuned_kernels([], block_trace(products, running.launches))
    assert (as_tuned.held, as_tuned.reason_code) == (Held.HELD, "launched_as_tuned"), as_tuned.message
    # The same table, and a step that was made without it, as by a cycle that somebody forgot to give it to.
    forgotten = tuned_kernels([], block_trace(products, step(monkeypatch, pair, k, 2).launches))
    assert (forgotten.held, forgotten.reason_code) == (Held.BROKEN, "untuned_kernel")
    assert "launches are of no tuned configuration, e.g. " in forgotten.message


def of_four_warps(shape: GemmShape) -> GemmConfig:
    """A configuration that the default is not."""
    return next(config for config in candidates(shape.n, shape.k) if config.warps == 4)


def block_trace(products: tuple[TunedProduct, ...], launches: list[Launch]) -> BlockTrace:
    """What a profiler sees of a step that makes `launches`, each of which declares 64 bytes of shared memory."""
    mine = [launch for launch in launches if launch.name in {product.kernel for product in products}]
    names = [launch_name(launch.name, launch.grid, launch.block, launch.shared_bytes + 64) for launch in mine]
    kernels = Counter(launch.name for launch in launches)
    return BlockTrace("a cell", 0, 0, "profiler", 1, (), kernels=kernels, products=products, launches=Counter(names))


@pytest.mark.parametrize(("rows", "hit"), [(4, True), (16, True), (17, False), (64, False)])
def test_products_of_more_than_16_rows_are_divided_by_a_rule_and_count_as_untuned(
    rows: int, hit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuned_gemms, "declared_shared_bytes", lambda spec, name, device: 0)
    gemms = Gemms(Tuned.on(DEVICE, written(tmp_path / "t.json", gemm(4096, 4096))))
    gemms("TARGET_O", 4096, 4096, rows)
    assert gemms.counters == {"tuned_total": 1, "tuned_hits": int(hit), "tuned_by_rule": int(not hit)}
    (product,) = gemms.products(0)
    assert product.launch is not None and product.by_rule is not hit
    kernels, launches = {product.kernel: 1}, {product.launch: 1}
    seen = BlockTrace("", 0, 0, "profiler", 1, (), kernels=kernels, products=(product,), launches=launches)
    assert tuned_kernels([], seen).reason_code == ("launched_as_tuned" if hit else "untuned_rows")
    require(gemms.tuned, gemms.lookups, PairRef("p", tmp_path, None), perf_mode=True)  # type: ignore[arg-type]
    assert ("of more than 16 rows, which breaks I2" in capsys.readouterr().out) is not hit


@pytest.mark.parametrize(("k", "others"), [(3, 13), (0, 3)])
def test_experts_that_are_not_tuned_break_i2(k: int, others: int, tmp_path: Path) -> None:
    target, draft = random_pair(Geometry(MIXTURE, DRAFT, BOUNDARIES), 256, "meta")
    shapes = gemm_shapes(Geometry(MIXTURE, DRAFT, BOUNDARIES), batches=(2,), draft_lengths=(0, 3))
    entries = [*{s.weight: gemm(s.n, s.k) for s in shapes if not s.experts}.values()]
    tuned = Tuned.on(DEVICE, written(tmp_path / "t.json", *entries))
    gemms = Cycle(target, draft, Sizes(2, 256, 4), 2, k, tuned).gemms
    assert len(gemms.lookups) == others + 2 and set(gemms.shapes) <= set(shapes)
    assert gemms.counters == {"tuned_total": others + 2, "tuned_hits": others, "tuned_by_rule": 0}
    blocks = blocks_of(plan_of(), change=lambda block: replace(block, counters=gemms.counters))
    assert tuned_kernels(blocks, None).held is Held.BROKEN


def test_a_block_counts_the_lookups_of_its_own_step(half_tuned: tuple[Tuned, GemmConfig]) -> None:
    tuned, _ = half_tuned
    # fc and small LM head once, a layer's four products in extension and own step, in the target, and its LM head.
    assert cycle(3, tuned).gemms.counters == {"tuned_total": 2 + 4 + 4 + 4 + 1, "tuned_hits": 4, "tuned_by_rule": 0}
    assert cycle(0, tuned).gemms.counters == {"tuned_total": 4 + 1, "tuned_hits": 1, "tuned_by_rule": 0}

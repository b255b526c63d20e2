"""Products by a warpgroup round otherwise: an engine has them in all its steps or in none, as its largest decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.engine.stages import StagePasses
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import WgmmaConfig
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.backends.eagle3.cupy.tuned.lookup import KERNEL_OF_WGMMA, NOTHING_TUNED, Tuned, code_sha256
from specgate.backends.eagle3.cupy.tuned.required import describe
from specgate.backends.eagle3.nouns.gemms import GemmShape, TunedWgmma, read_tuned
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES
from tests.eagle3.cupy.kernels.launches import SMALL, check_arguments, mixed_up, step, touched_early
from tests.eagle3.cupy.tuned.files import DEVICE, gemm, wgmma, written

SHAPE = GemmShape("TARGET_O", 512, 512, 4)
POSITIONS = 256


@pytest.fixture
def tuned(tmp_path: Path) -> Tuned:
    """Of the tiny pair, O of target and draft and the head of 512 tokens are of a warpgroup from 64 rows on."""
    return Tuned.on(DEVICE, written(tmp_path / "t.json", gemm(512, 512, wgmma=wgmma(64)), gemm(1024, 512)))


def step_of(slots: int, k: int, tuned: Tuned, of: int | None = None) -> Cycle:
    """A step of spec-`k`, over `of` slots of an engine of `slots` for spec-3 at most."""
    pair = GEOMETRIES["tiny"]()
    target, draft = random_pair(Geometry(pair.target, pair.draft, pair.boundaries), POSITIONS, "meta")
    return Cycle(target, draft, Sizes(slots, POSITIONS, 4), of or slots, k, tuned)


def of_warpgroups(cycle: Cycle) -> dict[str, bool]:
    return {
        path: kernel.wgmma is not None for path, kernel in cycle.kernels().items() if isinstance(kernel, MatmulRows)
    }


@pytest.mark.parametrize(("slots", "chosen"), [(15, False), (16, True), (40, True)])
def test_the_largest_step_of_an_engine_decides_for_all_of_its_steps(slots: int, chosen: bool, tuned: Tuned) -> None:
    for k in (0, 1, 3):
        for running in (1, slots):
            of = of_warpgroups(step_of(slots, k, tuned, running))
            expected = {path for path in of if path.endswith((".o", "chain.lm_head"))}
            assert expected >= {"verify.layer.o"}
            assert {path for path, yes in of.items() if yes} == (expected if chosen else set())


def test_what_is_shown_of_a_stage_is_what_the_engine_decodes_with(tuned: Tuned) -> None:
    pair = GEOMETRIES["tiny"]()
    target, draft = random_pair(Geometry(pair.target, pair.draft, pair.boundaries), POSITIONS, "meta")
    for slots, chosen in ((15, False), (16, True)):
        passes = StagePasses(target, draft, Sizes(slots, POSITIONS, 4), tuned)
        assert (passes.verify.layer.o.wgmma is not None) is chosen


def test_an_engine_says_which_products_are_of_a_warpgroup_and_they_count_as_tuned(tuned: Tuned) -> None:
    large, small = (step_of(slots, 0, tuned).gemms for slots in (17, 4))
    assert describe(tuned, large.lookups) == (
        "1 of 5 from t.json, 4 of more than 16 rows by a rule, 1 by wgmma in every step, as the largest decides"
    )
    assert "wgmma" not in describe(tuned, small.lookups)
    assert tuned.sha256(large.shapes, large.largest_step) != tuned.sha256(large.shapes)
    assert tuned.sha256(small.shapes, small.largest_step) == tuned.sha256(small.shapes)


def test_a_product_of_a_trace_is_compared_with_its_launch_by_a_warpgroup(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgate.backends.eagle3.cupy.tuned.gemms.declared_shared_bytes", lambda *_: 1024)
    gemms = Gemms(tuned, 64)
    launcher = gemms("TARGET_O", 512, 512, 32, feeds_norm=True)
    (product,) = gemms.products(0)
    assert product.kernel == "matmul_wgmma" and not product.by_rule
    assert product.launch is not None and str(launcher.shared_bytes + 1024) in product.launch
    assert launcher.grid == (512 // 128,) and launcher.threads == 288


def test_each_argument_of_a_step_by_warpgroups_is_what_its_field_declares_and_none_is_read_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {lookup.shape.weight for lookup in step(monkeypatch, SMALL, 3, 2).cycle.gemms.lookups}
    tuned = Tuned.on(DEVICE, written(tmp_path / "t.json", *(gemm(n, k, wgmma=wgmma(1)) for n, k in shapes)))
    for k in (0, 3):
        launches = step(monkeypatch, SMALL, k, 2, times=3, tuned=tuned).launches
        assert {launch.name for launch in launches if launch.name.startswith("matmul")} == {"matmul_wgmma"}
        check_arguments(launches)
        first = "feature_rows" if k else "embed_rows"  # for a fault alone, as by other products
        assert mixed_up(launches) == {f"{first}.active_count while kv_reserve may write active_count"}
        assert any(own.name == "matmul_wgmma" and touched_early(own) for own in launches)


def test_the_configuration_is_stored_with_the_weight_and_read_back(tmp_path: Path) -> None:
    entry = gemm(512, 512, wgmma=wgmma(48, WgmmaConfig(4, 5, 8, 16, 1)))
    file = written(tmp_path / "t.json", entry, gemm(1024, 512))
    assert read_tuned(file).gemms == (entry, gemm(1024, 512))
    assert file.read_text().count("wgmma") == 1
    tuned = Tuned.on(DEVICE, file)
    assert [tuned.find(SHAPE, rows) for rows in (0, 47, 48, 256)] == [
        *[GemmConfig()] * 2,
        *[WgmmaConfig(4, 5, 8, 16, 1)] * 2,
    ]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (
            wgmma(source_sha256="0" * 64),
            f"tuned for other code of matmul_wgmma.cu (00000000, this is {code_sha256(KERNEL_OF_WGMMA)[:8]})",
        ),
        (
            replace(wgmma(), config={"boxes": 2, "tiles": 1}),
            "has configurations of boxes, tiles; matmul_wgmma.cu takes boxes, chain, cluster, delay_dependents, stages",
        ),
        (wgmma(config=WgmmaConfig(boxes=3)), "wgmma of 512 x 512 is none that the kernel can have: {'boxes': 3"),
        (wgmma(config=WgmmaConfig(cluster=8, chain=5)), "wgmma of 512 x 512 is none that the kernel can have"),
    ],
    ids=["other code", "other fields", "no such boxes", "no such chain"],
)
def test_one_that_is_of_no_use_any_more_is_said(tmp_path: Path, stored: TunedWgmma, message: str) -> None:
    file = written(tmp_path / "t.json", gemm(512, 512, wgmma=stored))
    (reason,) = Tuned.on(DEVICE, file).misses([SHAPE])
    assert reason.startswith(f"{file}: {message}")


def test_without_a_tuned_file_no_product_is_of_a_warpgroup() -> None:
    assert not any(of_warpgroups(step_of(64, 3, NOTHING_TUNED)).values())

"""Registers of experts' products, in every configuration that ships or is searched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import (
    MOST_EXPERTS,
    MOST_PLACES,
    ROUTING_BYTES,
    ExpertConfig,
)
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.backends.eagle3.cupy.kernels.prefill.packed import launchers
from specgate.backends.eagle3.cupy.kernels.prefill.packed.launchers import WARPS, PrefillDown, PrefillGateUp
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP, SHIPPED, Tuned
from specgate.backends.eagle3.cupy.tuning.expert_product import launcher
from specgate.backends.eagle3.cupy.tuning.expert_weight import candidates, retilings
from specgate.backends.eagle3.nouns.gemms import GemmShape, read_tuned
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy.kernels.compiled.compiler import Compiler
from tests.eagle3.cupy.kernels.compiled.sweep import ARCHITECTURES

H200_SHARED = 226 * 1024


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", EXPERT_GEOMETRIES)
def test_products_of_experts_have_registers_for_three_blocks_of_an_sm_at_any_number_of_rows(
    architecture: str, name: str, compiler: Compiler
) -> None:
    g = EXPERT_GEOMETRIES[name]().target
    assert g.experts is not None
    kernels = [
        kernel
        for rows in (1, 8, 9, 16, 64)
        for kernel in (
            ExpertGateUp(g.intermediate, g.hidden, g.experts, rows),
            ExpertDown(g.hidden, g.intermediate, g.experts, rows),
        )
    ]
    assert (
        len({kernel.spec for kernel in kernels}) == 4
    )  # what differs is whether an expert may have several row groups
    for kernel, use in zip(kernels, compiler.uses_of(architecture, [k.spec for k in kernels]), strict=True):
        assert kernel.config.room == kernel.config.blocks_per_sm == 3
        assert 3 * 32 * kernel.config.warps * use.registers <= 65536


@pytest.mark.parametrize("rows", [8, 64])
def test_the_routing_of_most_experts_fits_into_the_shared_memory_that_is_left_for_it(
    rows: int, compiler: Compiler
) -> None:
    experts = ExpertGeometry(MOST_EXPERTS, MOST_PLACES, mxfp4=True)
    specs = [ExpertGateUp(2880, 2880, experts, rows).spec, ExpertDown(2880, 2880, experts, rows).spec]
    assert all(use.shared_bytes <= ROUTING_BYTES for use in compiler.uses_of("sm_90", specs))


@pytest.mark.parametrize(("architecture", "wgmma"), [("sm_80", False), ("sm_90", False), ("sm_90a", True)])
def test_products_of_packed_experts_have_registers_where_there_is_more_shared_memory(
    architecture: str, wgmma: bool, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    """The sweep compiles them as the smallest GPU has them."""
    monkeypatch.setattr(launchers, "shared_memory_limit", lambda: 162 * 1024)
    experts = ExpertGeometry(128, 4, mxfp4=True)
    specs = [
        kernel.spec
        for width in (2880, 1440)
        for kernel in (PrefillGateUp(width, 2880, experts, wgmma), PrefillDown(2880, width, experts, wgmma))
    ]
    assert {dict(spec.constants)["WEIGHT_TILES"] for spec in specs} == {"3"}
    assert all(32 * WARPS * use.registers <= 65536 for use in compiler.uses_of(architecture, specs))


def test_experts_that_ship_have_registers(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_config, "shared_memory_limit", lambda: H200_SHARED)
    for file in sorted(SHIPPED.glob("*.json")):
        tuned = read_tuned(file)
        specs = list[Spec]()
        for entry in (gemm for gemm in tuned.gemms if gemm.experts):
            for rows in (1, 4, 16):
                shape = GemmShape(entry.tags[0], entry.n, entry.k, rows, entry.experts, entry.per_token)
                config = Tuned.on(tuned.device, file).find_experts(shape)
                assert config is not None
                specs.append(launcher(shape, config).spec)
        compiler.uses_of(f"sm_{tuned.compute_capability.replace('.', '')}", specs)


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("tag", "n", "k"), [(EXPERT_GATE_UP, 5760, 2880), (EXPERT_DOWN, 2880, 2880), (EXPERT_DOWN, 2880, 1440)]
)
def test_candidates_compile_and_spill_no_register(
    tag: str, n: int, k: int, architecture: str, rows: int, compiler: Compiler, on_gpu_of: Callable[[str], None]
) -> None:
    on_gpu_of(architecture)
    shape = GemmShape(tag, n, k, rows, 128, 4)
    configs = dict.fromkeys([*candidates(n, k), *retilings(ExpertConfig.usual(k, n // TILE, 2), n)])
    specs = list(dict.fromkeys(launcher(shape, config).spec for config in configs))[::4]
    assert len(compiler.uses_of(architecture, specs)) == len(specs) > 0

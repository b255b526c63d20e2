"""Every kernel compiles to machine code for every architecture and geometry, and what tests ask of its registers.

PTX alone would prove little: it is the assembler that refuses instructions and counts registers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.backends.eagle3.cupy.device import STATIC_SHARED, Multiprocessors
from specgate.backends.eagle3.cupy.kernels.attention import attention, fmha_config
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import usual_config
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import OF_SM_90A, Spec
from specgate.backends.eagle3.cupy.kernels.matmul import matmul_rows
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import CLUSTERED
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import SHIPPED, Tuned
from specgate.backends.eagle3.cupy.tuning.gemm_weight import candidates, retilings
from specgate.backends.eagle3.lib.kv.modes import MODES, KvMode
from specgate.backends.eagle3.nouns.gemms import GemmShape
from tests.eagle3.cupy.kernels.compiled.compiler import Compiler, check, outcomes
from tests.eagle3.cupy.kernels.compiled.covering import covering
from tests.eagle3.cupy.kernels.compiled.sweep import (
    ARCHITECTURES,
    GPUS,
    POSITIONS,
    by_wgmma,
    chosen_here,
    without_twins,
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_spills_no_register(
    architecture: str, specs: list[Spec], compiler: Compiler, every_code: bool
) -> None:
    usual = covering(specs)[architecture]
    assert len(compiler.uses_of(architecture, usual)) == len(usual) > 0
    if every_code:
        others = [spec for spec in without_twins(specs) if spec not in usual]
        check(architecture, others, outcomes(architecture, others))


SHIPPED_FOR = [json.loads(file.read_text())["device"] for file in sorted(SHIPPED.glob("*.json"))]


@pytest.mark.parametrize("device", SHIPPED_FOR)
def test_an_lm_head_has_registers_for_its_choices_as_its_work_is_cut_on_a_gpu_that_ships_tuned(
    device: str, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    (file,) = (f for f in SHIPPED.glob("*.json") if json.loads(f.read_text())["device"] == device)
    tuned = Tuned.on(device, file)
    heads = []
    for tag, n, k in (("TARGET_LM_HEAD", 128256, 4096), ("EAGLE3_LM_HEAD_SMALLVOC", 32000, 4096)):
        for rows in (1, 4, 16, 64):
            config = tuned.find(GemmShape(tag, n, k, rows))
            assert config is not None
            heads.append(MatmulRows(n, k, Epilogue.PLAIN, rows, config, scaled=True, chooses=True))
    several = GemmConfig(16, 2, 3, 1, passes=31)
    heads.append(MatmulRows(128256, 4096, Epilogue.PLAIN, 4, several, scaled=True, chooses=True))
    assert compiler.uses_of("sm_90", [head.spec for head in heads])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_of_more_rows_than_a_block_takes_have_registers(architecture: str, compiler: Compiler) -> None:
    specs = []
    for rows in (65, 256):
        for n, k, epilogue in ((128256, 4096, Epilogue.PLAIN), (4096, 14336, Epilogue.RESIDUAL)):
            adds = epilogue is Epilogue.RESIDUAL
            config = GemmConfig().at(rows)
            kernel = MatmulRows(n, k, epilogue, rows, config, scaled=not adds, feeds_norm=adds, chooses=not adds)
            specs.append(kernel.spec)
        specs.append(MatmulRows(14336, 4096, Epilogue.SWIGLU, rows, GemmConfig().at(rows), scaled=True).spec)
    groups = [dict(spec.constants)["ROW_GROUPS"] for spec in specs]
    assert groups == ["2"] * 3 + ["4"] * 3
    assert compiler.uses_of(architecture, specs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_an_engine_chooses_by_a_gpus_own_limits_has_registers(
    architecture: str, on_gpu_of: Callable[[str], None], compiler: Compiler
) -> None:
    on_gpu_of(architecture)
    specs = chosen_here()
    clusters = {dict(spec.constants)["CLUSTER"] for spec in specs if spec.stem == "matmul_many"}
    assert clusters == ({"1"} if GPUS[architecture].capability < CLUSTERED else {"1", "4", "8"})
    assert len(compiler.uses_of(architecture, specs)) == len(specs)


def test_products_by_a_warpgroup_have_registers_for_all_blocks_that_share_an_sm(compiler: Compiler) -> None:
    specs = by_wgmma()
    assert {spec.stem for spec in specs} == OF_SM_90A
    for spec, use in zip(specs, compiler.uses_of("sm_90a", specs), strict=True):
        boxes = int(dict(spec.constants)["BOXES"])
        assert use.shared_bytes <= STATIC_SHARED
        assert use.registers * (128 * boxes + 32) * (2 if boxes == 2 else 1) <= 65536


@pytest.mark.parametrize("architecture", ["sm_100", "sm_120"])
@pytest.mark.parametrize(("n", "k", "epilogue"), [(2880, 4096, Epilogue.RESIDUAL), (14336, 4096, Epilogue.SWIGLU)])
def test_what_the_tuner_tries_on_a_gpu_that_ships_no_tuned_file_has_registers(
    architecture: str, n: int, k: int, epilogue: Epilogue, on_gpu_of: Callable[[str], None], compiler: Compiler
) -> None:
    """One of eight codes: the tuner passes over what its compiler refuses."""
    on_gpu_of(architecture)
    weight = (1 + (epilogue is Epilogue.SWIGLU)) * n, k
    configs = dict.fromkeys([*candidates(*weight), *retilings(GemmConfig(), *weight, GPUS[architecture].count)])
    specs = without_twins([MatmulRows(n, k, epilogue, 8, config).spec for config in configs])[::8]
    assert len(compiler.uses_of(architecture, specs)) == len(specs) > 4


@pytest.mark.parametrize("device", SHIPPED_FOR)
def test_large_products_have_registers_as_their_work_is_cut_on_a_gpu_that_ships_tuned(
    device: str, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    (file,) = (f for f in SHIPPED.glob("*.json") if json.loads(f.read_text())["device"] == device)
    tuned = Tuned.on(device, file)
    specs = []
    for rows in (1, 4, 16):
        for tag, n, k, epilogue in (
            ("TARGET_QKV", 6144, 4096, Epilogue.PLAIN),
            ("TARGET_O", 4096, 4096, Epilogue.RESIDUAL),
            ("TARGET_FFN_GATE_UP", 28672, 4096, Epilogue.SWIGLU),
            ("TARGET_FFN_DOWN", 4096, 14336, Epilogue.RESIDUAL),
        ):
            config = tuned.find(GemmShape(tag, n, k, rows))
            assert config is not None
            adds = epilogue is Epilogue.RESIDUAL
            n_out = n // 2 if epilogue is Epilogue.SWIGLU else n
            specs.append(MatmulRows(n_out, k, epilogue, rows, config, scaled=not adds, feeds_norm=adds).spec)
    assert any(("X_IN_REGISTERS", "1") in spec.constants for spec in specs)
    assert compiler.uses_of("sm_90", specs)


@pytest.mark.parametrize("kv", MODES)
@pytest.mark.parametrize("heads", [Heads(9, 3, 64, POSITIONS), Heads(32, 8, 128, POSITIONS)], ids=["64", "128"])
def test_attention_has_registers_for_all_blocks_that_an_sm_of_an_h200_is_counted_on_for(
    monkeypatch: pytest.MonkeyPatch, heads: Heads, kv: KvMode, compiler: Compiler
) -> None:
    heads = replace(heads, kv=kv)
    monkeypatch.setattr(attention, "shared_memory_limit", lambda: 226 * 1024)
    monkeypatch.setattr(fmha_config, "shared_memory_limit", lambda: 226 * 1024)
    monkeypatch.setattr(fmha_config, "multiprocessors", lambda: Multiprocessors(132, 228 * 1024))
    tiled = [(usual_config(heads, slots), rows) for slots in (1, 4) for rows in (1, 4, 8)]
    uses = compiler.uses_of("sm_90", [Attention(heads, rows, config=config).spec for config, rows in tiled])
    for (config, _), use in zip(tiled, uses, strict=True):
        blocks = config.blocks_per_sm(heads.head_dim, 228 * 1024, kv=kv)
        assert blocks * 32 * config.warps * use.registers <= 65536

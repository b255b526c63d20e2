"""Every kernel compiles to machine code for every architecture and geometry, on any machine: no GPU is needed.

PTX alone would prove little: it is the assembler that refuses instructions and counts registers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from specgate.backends.eagle3.cupy.device import Multiprocessors
from specgate.backends.eagle3.cupy.kernels.attention import attention, fmha_config
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import usual_config
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import MOST_EXPERTS, MOST_PLACES, ROUTING_BYTES
from specgate.backends.eagle3.cupy.kernels.experts.expert_down import ExpertDown
from specgate.backends.eagle3.cupy.kernels.experts.expert_gate_up import ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.backends.eagle3.cupy.kernels.matmul import matmul_rows
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import SHIPPED, Tuned
from specgate.backends.eagle3.lib.kv.modes import MODES, KvMode
from specgate.backends.eagle3.nouns.gemms import GemmShape
from specgate.backends.eagle3.pair_tools.plant.expert_geometries import EXPERT_GEOMETRIES
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy.kernels.compiled.compiler import Compiler, Outcome
from tests.eagle3.cupy.kernels.compiled.covering import chosen
from tests.eagle3.cupy.kernels.compiled.sweep import ARCHITECTURES, POSITIONS


@pytest.fixture(scope="module")
def swept(specs: list[Spec], request: pytest.FixtureRequest) -> Mapping[str, list[Spec]]:
    return chosen(specs, every_code=request.config.getoption("every_code"))


@pytest.fixture(scope="module")
def outcomes(swept: Mapping[str, list[Spec]], compiler: Compiler) -> Iterator[Mapping[str, Future[list[Outcome]]]]:
    """By architecture, compiled side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(compiler.compile_all, name, specs) for name, specs in swept.items()}


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_spills_no_register(
    architecture: str, swept: Mapping[str, list[Spec]], outcomes: Mapping[str, Future[list[Outcome]]]
) -> None:
    found = list(zip(swept[architecture], outcomes[architecture].result(), strict=True))
    refused = [(spec, o.log) for spec, o in found if not o.compiled]
    assert not refused
    spilled = [(spec, o.log) for spec, o in found if o.spilled]
    assert not spilled


SHIPPED_FOR = [json.loads(file.read_text())["device"] for file in sorted(SHIPPED.glob("*.json"))]


@pytest.mark.slow("compiles hundreds of kernels")
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
    assert all(
        outcome.compiled and not outcome.spilled for outcome in compiler.compile_all("sm_90", [h.spec for h in heads])
    )


@pytest.mark.slow("compiles hundreds of kernels")
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
    assert all(outcome.compiled and not outcome.spilled for outcome in compiler.compile_all(architecture, specs))


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize(("architecture", "capability"), [("sm_90", (9, 0)), ("sm_120", (12, 0))])
def test_products_of_many_rows_have_registers_as_clusters_divide_them(
    architecture: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    monkeypatch.setattr(matmul_rows, "multiprocessors", lambda: Multiprocessors(132, 228 * 1024, capability))
    specs = []
    for rows in (17, 32, 64, 128):
        for n, k, epilogue, split in (
            (128256, 4096, Epilogue.PLAIN, GemmConfig(16, 2)),
            (6144, 4096, Epilogue.PLAIN, GemmConfig(16, 2)),
            (4096, 14336, Epilogue.RESIDUAL, GemmConfig(8, 4)),
            (14336, 4096, Epilogue.SWIGLU, GemmConfig(16, 2)),
            (25600, 5120, Epilogue.SWIGLU, GemmConfig(16, 2)),
        ):
            adds, head = epilogue is Epilogue.RESIDUAL, n == 128256
            kernel = MatmulRows(n, k, epilogue, rows, split, scaled=not adds, feeds_norm=adds, chooses=head)
            specs.append(kernel.spec)
    assert {spec.stem for spec in specs} == {"matmul_many"}
    assert {dict(spec.constants)["CLUSTER"] for spec in specs} == {"1", "4", "8"}
    assert all(outcome.compiled and not outcome.spilled for outcome in compiler.compile_all(architecture, specs))


@pytest.mark.slow("compiles hundreds of kernels")
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
    assert all(outcome.compiled and not outcome.spilled for outcome in compiler.compile_all("sm_90", specs))


@pytest.mark.slow("compiles hundreds of kernels")
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
    assert len({kernel.spec for kernel in kernels}) == 4  # what differs is whether an expert may have several parties
    for kernel, outcome in zip(kernels, compiler.compile_all(architecture, [k.spec for k in kernels]), strict=True):
        assert outcome.compiled and not outcome.spilled
        assert kernel.config.room == kernel.config.blocks_per_sm == 3
        assert 3 * 32 * kernel.config.warps * outcome.registers <= 65536


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize("rows", [8, 64])
def test_the_routing_of_most_experts_fits_into_the_shared_memory_that_is_left_for_it(
    rows: int, compiler: Compiler
) -> None:
    experts = ExpertGeometry(MOST_EXPERTS, MOST_PLACES, mxfp4=True)
    specs = [ExpertGateUp(2880, 2880, experts, rows).spec, ExpertDown(2880, 2880, experts, rows).spec]
    for outcome in compiler.compile_all("sm_90", specs):
        assert outcome.compiled and outcome.shared_bytes <= ROUTING_BYTES


@pytest.mark.slow("compiles hundreds of kernels")
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
    outcomes = compiler.compile_all("sm_90", [Attention(heads, rows, config=config).spec for config, rows in tiled])
    for (config, _), outcome in zip(tiled, outcomes, strict=True):
        assert outcome.compiled and not outcome.spilled
        blocks = config.blocks_per_sm(heads.head_dim, 228 * 1024, kv=kv)
        assert blocks * 32 * config.warps * outcome.registers <= 65536

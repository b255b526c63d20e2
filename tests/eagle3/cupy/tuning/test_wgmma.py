"""Which divisions of a warpgroup's products are tried, and from how many rows on they are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.bench.timing import Timing
from specgate.backends.eagle3.cupy.device import Multiprocessors, multiprocessors
from specgate.backends.eagle3.cupy.kernels.compiling import Compiler, compiler
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from specgate.backends.eagle3.cupy.kernels.matmul import matmul_rows
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import PIECE
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuning import search, wgmma
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight
from specgate.backends.eagle3.cupy.tuning.product import Product
from specgate.backends.eagle3.cupy.tuning.search import Tuner
from specgate.backends.eagle3.cupy.tuning.weights import weights_of
from specgate.backends.eagle3.cupy.tuning.wgmma import NEVER, ROWS, TURNS, candidates, first_faster, searched
from specgate.backends.eagle3.nouns.gemms import GemmShape
from tests.eagle3.cupy.kernels.device import needs_wgmma
from tests.eagle3.cupy.tuned.files import DEVICE, gemm, written
from tests.eagle3.cupy.tuned.files import wgmma as found

WEIGHTS = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
ROOM = 226 * 1024


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_what_is_tried_is_possible_fits_an_sm_and_gives_each_few_blocks(
    weight: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wgmma, "shared_memory_limit", lambda: ROOM)
    tried = candidates(*weight, 132)
    assert len({*tried}) == len(tried) > 2
    for config in tried:
        blocks = -(-weight[0] // (PIECE * config.boxes))
        assert config.possible(*weight) and config.shared_bytes(8) <= ROOM
        assert config.cluster == 1 or blocks * config.cluster <= TURNS * 132
    most = max(config.cluster for config in tried)
    assert most == {6144: 8, 4096: 8, 28672: 8, 128256: 2}[weight[0]]


@given(st.lists(st.floats(1, 9), min_size=4, max_size=4), st.lists(st.floats(1, 9), min_size=4, max_size=4))
def test_it_is_chosen_from_the_rows_on_from_which_it_is_faster_at_all(us: list[float], others: list[float]) -> None:
    times, mma = (dict(zip(ROWS, each, strict=True)) for each in (us, others))
    first = first_faster(times, mma)
    assert first in (*ROWS, NEVER)
    assert all(times[rows] < mma[rows] for rows in ROWS if rows >= first)
    fewer = max((rows for rows in ROWS if rows < first), default=None)
    assert fewer is None or times[fewer] >= mma[fewer]


def test_a_weight_has_the_most_rows_that_its_products_have() -> None:
    shapes = [GemmShape(tag, 64, 64, rows) for tag, rows in (("TARGET_O", 8), ("TARGET_QKV", 32), ("EAGLE3_O", 4))]
    (weight,) = weights_of(shapes)
    assert isinstance(weight, GemmWeight) and weight.rows == weight.shape.m == 32


@pytest.mark.parametrize(
    ("capability", "rows", "kept"), [((9, 0), 24, True), ((9, 0), 23, False), ((8, 0), 64, False), ((12, 0), 64, False)]
)
def test_a_tuned_weight_lacks_products_by_wgmma_where_steps_have_many_rows_on_a_gpu_that_has_them(
    capability: tuple[int, int], rows: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "first_gpu", lambda: None)
    monkeypatch.setattr(search, "multiprocessors", lambda: Multiprocessors(132, 228 * 1024, capability))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: DEVICE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    tuner, missing = Tuner(), GemmShape("TARGET_QKV", 192, 64, 1)
    file = written(tmp_path / "t.json", gemm(64, 64), gemm(128, 64, wgmma=found(NEVER)))
    shapes = [*(GemmShape("TARGET_O", n, 64, m) for n in (64, 128) for m in (1, rows)), missing]
    of_o = [GemmShape("TARGET_O", 64, 64, m) for m in (1, rows)]
    assert tuner.untuned(shapes, file) == [*(of_o if kept else []), missing]
    assert tuner.kept == ({(64, 64): gemm(64, 64)} if kept else {})


def test_a_search_compiles_all_that_it_launches_before_it_launches_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, by all CPUs. A launch would compile for itself, and the GPU would wait."""
    compiled, launched = list[Spec](), list[Spec]()

    class Told(Compiler):
        def compile(self, specs: Iterable[Spec]) -> Mapping[Spec, str | None]:
            assert not launched
            compiled.extend(specs)
            return dict.fromkeys(compiled)

    def timed(launch: Callable[[int], object], inputs: int, stream: None) -> Timing:
        launch(inputs - 1)
        return Timing(1.0, 0.0)

    monkeypatch.setattr(matmul_rows, "multiprocessors", lambda: None)
    monkeypatch.setattr(Kernel, "enqueue", lambda kernel, *_, **__: launched.append(kernel.spec))
    monkeypatch.setattr(Product, "fault", lambda product, config: None)
    monkeypatch.setattr(Product, "random", partial(Product.random, device="cpu"))
    for name, value in (("time_launches", timed), ("l2_bytes", lambda: 1), ("shared_memory_limit", lambda: ROOM)):
        monkeypatch.setattr(wgmma, name, value)
    no_stream: Any = None
    with torch.inference_mode(), ProcessPoolExecutor(1) as unused:
        result = searched(GemmWeight(128, 128, ("TARGET_O",), 64), gemm(128, 128), Told(unused), no_stream, 132)
    assert result is not None and {*launched} <= {*compiled}
    assert {spec.stem for spec in launched} > {"matmul_wgmma"}


@pytest.mark.gpu
def test_a_search_finds_what_is_right_and_compares_it_with_mma_and_cublas() -> None:
    needs_wgmma("cuda")
    gpu = multiprocessors()
    assert gpu is not None
    stream, weight = Stream(), GemmWeight(4096, 2048, ("TARGET_O",), 64)
    with compiler() as side_by_side, stream.current(), torch.inference_mode():
        result = searched(weight, gemm(4096, 2048), side_by_side, stream, gpu.count)
    assert result is not None and result.tried == len(candidates(4096, 2048, gpu.count))
    assert {*result.us} == {*result.mma_us} == {*result.cublas_us} == {*ROWS}
    assert replace(gemm(4096, 2048), wgmma=result).wgmma == result

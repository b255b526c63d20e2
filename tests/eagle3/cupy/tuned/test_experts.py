"""Configurations of experts' products: found, not found, and refused in PERF_MODE; and those that ship."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from bench.tensor_parallel.pairs import write_configs
from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.engine import open as opening
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.tuned import lookup
from specgate.backends.eagle3.cupy.tuned.gemms import Lookup
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP, NOTHING_TUNED, SHIPPED, Tuned
from specgate.backends.eagle3.cupy.tuned.required import never_tuned, require
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key, TunedGemm, read_tuned
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.errors import EnvironmentRefused, ExitCode
from tests.eagle3.cupy.tuned.files import DEVICE, experts, gemm, written

SHAPE = GemmShape(EXPERT_DOWN, 2880, 2880, 4, 128, 4)
USUAL = ExpertConfig.usual(2880, 180, 2)
OTHER = replace(USUAL, warps=9, ring=5)


def test_experts_are_found_by_product_sizes_and_mixture(tmp_path: Path) -> None:
    """The second product of a whole expert has the sizes of half an expert's first."""
    known = Tuned.on(DEVICE, written(tmp_path / "t.json", experts(SHAPE, OTHER), gemm(2880, 2880)))
    assert [known.find_experts(replace(SHAPE, m=rows)) for rows in (1, 4, 16, 64)] == [OTHER] * 4
    for other in (
        replace(SHAPE, tag=EXPERT_GATE_UP),
        replace(SHAPE, experts=32),
        replace(SHAPE, per_token=2),
        replace(SHAPE, n=1440),
        replace(SHAPE, k=1440),
    ):
        assert known.find_experts(other) is None
        (reason,) = known.misses([other])
        assert reason.endswith("t.json: does not hold them")
    plain = GemmShape("TARGET_O", 2880, 2880, 4)
    assert known.find(SHAPE) is None and known.find_experts(plain) is None and known.find(plain) is not None


def test_at_some_rows_the_work_is_moved_otherwise(tmp_path: Path) -> None:
    at_rows = {rows: replace(OTHER, room=room, blocks_per_sm=room).stored() for rows, room in ((1, 1), (16, 2))}
    known = Tuned.on(DEVICE, written(tmp_path / "t.json", experts(SHAPE, OTHER, at_rows=at_rows)))
    rooms = {rows: tuned.room for rows in (1, 4, 9, 24) if (tuned := known.find_experts(replace(SHAPE, m=rows)))}
    assert rooms == {1: 1, 4: 1, 9: 2, 24: OTHER.room}


def test_the_fingerprint_knows_the_experts(tmp_path: Path) -> None:
    usual = Tuned.on(DEVICE, written(tmp_path / "a.json", experts(SHAPE)))
    other = Tuned.on(DEVICE, written(tmp_path / "b.json", experts(SHAPE, OTHER)))
    plain = GemmShape("TARGET_O", 2880, 2880, 4)
    assert usual.sha256([SHAPE, plain]) == NOTHING_TUNED.sha256([plain, SHAPE]) != other.sha256([SHAPE, plain])
    assert usual.sha256([plain]) == other.sha256([plain])


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRequest:
    """For a tiny planted gpt-oss, on a GPU that is only named: what is refused is refused before it would be used."""
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lookup, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(opening, "first_gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: DEVICE)
    write_configs(tmp_path / "pair", replace(EXPERT_GEOMETRIES["gpt-oss-tiny"](), written=False), overlap=0.5)
    pair = PairRef("tiny", tmp_path / "pair" / "target", tmp_path / "pair" / "draft")
    return OpenRequest(pair, "bfloat16", max_batch=2, max_positions=256, max_k=3, perf_mode=True)


def of_other_experts(shapes: Sequence[GemmShape]) -> dict[Key, TunedGemm]:
    """Every product but the experts', and one of experts of other sizes."""
    return {s.key: gemm(s.n, s.k) for s in shapes if not s.experts} | {SHAPE.key: experts(SHAPE)}


def of_one_product(shapes: Sequence[GemmShape]) -> dict[Key, TunedGemm]:
    """Every product but the experts' first."""
    return {s.key: experts(s) if s.experts else gemm(s.n, s.k) for s in shapes if s.tag != EXPERT_GATE_UP}


def of_no_experts(shapes: Sequence[GemmShape]) -> dict[Key, TunedGemm]:
    """Every product but the experts'."""
    return {s.key: gemm(s.n, s.k) for s in shapes if not s.experts}


GATE_UP, DOWN = f"{EXPERT_GATE_UP} 128 x 512 of 8 experts", f"{EXPERT_DOWN} 512 x 64 of 8 experts"


@pytest.mark.parametrize(
    ("tuned", "missing"),
    [(of_one_product, (GATE_UP,)), (of_other_experts, (GATE_UP, DOWN)), (of_no_experts, (GATE_UP, DOWN))],
    ids=["the other product is tuned", "other experts are tuned", "no experts are tuned"],
)
def test_perf_mode_refuses_experts_that_are_not_tuned_with_device_shape_and_command(
    tuned: Callable[[Sequence[GemmShape]], dict[Key, TunedGemm]],
    missing: Sequence[str],
    request_: OpenRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shapes = BACKEND.gemm_shapes(request_.pair, (request_.max_batch,), (request_.max_k,))
    file = written(tmp_path / "t.json", *tuned(shapes).values())
    with pytest.raises(EnvironmentRefused) as refused:
        BACKEND.open(replace(request_, options={"tuned": str(file)}))
    first, why, hint = str(refused.value).splitlines()
    assert first == (
        f"PERF_MODE on {DEVICE}: no tuned configuration for {len(missing)} of 15 products: {', '.join(missing)}"
    )
    assert why == f"  {file}: does not hold them"
    pair = shlex.join(["--target", str(request_.pair.target), "--draft", str(request_.pair.draft)])
    assert hint == f"  tune them: specgate engine tune gemm --missing {pair}"
    assert refused.value.exit_code is ExitCode.ENV_REJECTED
    assert f"tuned products: {15 - len(missing)} of 15 from {file.name}\n" in capsys.readouterr().out


class WentOnError(Exception):
    """Nothing was refused."""


@pytest.fixture
def goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends opening an engine after what is required of its products."""

    def allocated(*arguments: object) -> None:
        raise WentOnError

    monkeypatch.setattr(opening, "Buffers", SimpleNamespace(allocate=allocated))  # what comes next


@pytest.mark.usefixtures("goes_on")
def test_without_perf_mode_misses_are_said_with_the_command_that_tunes_them(
    request_: OpenRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = BACKEND.gemm_shapes(request_.pair, (request_.max_batch,), (request_.max_k,))
    file = written(tmp_path / "t.json", *{s.weight: gemm(s.n, s.k) for s in shapes if not s.experts}.values())
    with pytest.raises(WentOnError):
        BACKEND.open(replace(request_, perf_mode=False, options={"tuned": str(file)}))
    pair = shlex.join(["--target", str(request_.pair.target), "--draft", str(request_.pair.draft)])
    assert f"""\
tuned products: 13 of 15 from {file.name}
not tuned: {GATE_UP}, {DOWN}
  {file}: does not hold them
  tune them: specgate engine tune gemm --missing {pair}
""" in (capsys.readouterr().out)


def test_on_a_kind_of_gpu_without_a_file_perf_mode_asks_for_experts_too_and_the_engine_says_how(
    request_: OpenRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EnvironmentRefused, match="no tuned configuration for 15 of 15 products: "):
        BACKEND.open(request_)
    assert f"tuned products: 0 of 15, never tuned on {DEVICE}\n" in capsys.readouterr().out
    (warning,) = never_tuned(Tuned.on(DEVICE), request_.pair)
    assert f"nothing was tuned on {DEVICE}: " in warning and "specgate engine tune gemm --missing " in warning
    # A file of this kind of GPU, be what it holds of no use any more, tells that it was tuned.
    file = written(tmp_path / "t.json", experts(SHAPE, source_sha256="0" * 64))
    assert never_tuned(Tuned.on(DEVICE, file), request_.pair) == ()
    assert never_tuned(Tuned.on("NVIDIA A100", file), request_.pair) != ()


def test_of_parts_of_a_pair_the_command_begins_with_a_log(tmp_path: Path) -> None:
    lookups, pair = [Lookup(SHAPE, cast(Any, None), found=False)], PairRef("p", tmp_path, tmp_path)
    with pytest.raises(
        EnvironmentRefused, match=r"-o log_shapes=shapes\.json, then specgate engine tune gemm --missing "
    ):
        require(Tuned(DEVICE), lookups, pair, perf_mode=True, ranks=2)


ENTRIES = [
    (file.name, tuned.device, f"sm_{tuned.compute_capability.replace('.', '')}", gemm)
    for file in sorted(SHIPPED.glob("*.json"))
    for tuned in (read_tuned(file),)
    for gemm in tuned.gemms
]


@pytest.mark.parametrize(
    ("file", "device", "entry"), [(file, device, entry) for file, device, _, entry in ENTRIES], ids=str
)
def test_every_entry_that_ships_is_of_use(file: str, device: str, entry: TunedGemm) -> None:
    shape = GemmShape(entry.tags[0], entry.n, entry.k, 4, entry.experts, entry.per_token)
    known = Tuned.on(device, SHIPPED / file)
    assert not [*known.misses([shape])]
    assert (known.find_experts(shape) if entry.experts else known.find(shape)) is not None

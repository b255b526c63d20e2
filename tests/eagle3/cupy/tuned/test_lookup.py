from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.kernels import loader
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.loader import with_headers
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.tuned import lookup
from specgate.backends.eagle3.cupy.tuned.lookup import KERNEL, NOTHING_TUNED, Tuned, WeightConfig, code_sha256
from specgate.backends.eagle3.cupy.tuning.gemm_weight import candidates
from specgate.backends.eagle3.nouns.gemms import GemmShape, TunedGemm
from specgate.errors import UsageError
from tests.eagle3.cupy.tuned.files import DEVICE, experts, gemm, written

SHAPE = GemmShape("TARGET_O", 4096, 4096, 4)
EXPERTS = GemmShape("TARGET_EXPERT_DOWN", 2880, 2880, 4, 128, 4)
USUAL = ExpertConfig.usual(2880, 180, 2)
OTHER = next(config for config in candidates(*SHAPE.weight) if config != GemmConfig())


def test_a_weight_is_split_alike_whatever_the_product_and_the_rows(tmp_path: Path) -> None:
    known = Tuned.on(DEVICE, written(tmp_path / "t.json", gemm(4096, 4096, OTHER)))
    for tag, rows in (("TARGET_O", 1), ("EAGLE3_O", 8), ("TARGET_O", 16), ("TARGET_O", 64)):
        tuned = known.find(GemmShape(tag, 4096, 4096, rows))
        assert tuned == OTHER.at(rows) and tuned.split == OTHER.split
    assert known.find(GemmShape("TARGET_O", 4096, 2048, 4)) is None
    assert known.find(GemmShape("TARGET_O", 2048, 4096, 4)) is None


@pytest.mark.parametrize(
    ("stored", "device", "message"),
    [
        (gemm(4096, 2048), DEVICE, "does not hold them"),
        (gemm(4096, 4096), "NVIDIA A100", f"tuned on NVIDIA A100, this is {DEVICE}"),
        (
            gemm(4096, 4096, source_sha256="0" * 64),
            DEVICE,
            f"tuned for other code of matmul_rows.cu (00000000, this is {code_sha256()[:8]})",
        ),
        (
            replace(gemm(4096, 4096), config={"warps": 8, "tile": 16}),
            DEVICE,
            f"has configurations of tile, warps; the kernel takes {', '.join(sorted(GemmConfig().stored()))}",
        ),
        (
            replace(gemm(4096, 4096), config={**GemmConfig().stored(), "warps": 7}),
            DEVICE,
            "config of 4096 x 4096 is none that the kernel can have",
        ),
        (
            gemm(4096, 4096, at_rows={4: {**GemmConfig().stored(), "warps": 8}}),
            DEVICE,
            "at_rows of 4096 x 4096 splits k by 8 warps of 2 chunks, config by 16 warps of 2 chunks: bits would",
        ),
        (
            gemm(4096, 4096, at_rows={4: {**GemmConfig().stored(), "passes": 0}}),
            DEVICE,
            "config of 4096 x 4096 is none that the kernel can have",
        ),
        (
            experts(EXPERTS, source_sha256="0" * 64),
            DEVICE,
            f"tuned for other code of expert_down.cu (00000000, this is {code_sha256('expert_down.cu')[:8]})",
        ),
        (
            replace(experts(EXPERTS), config={"warps": 5, "span": 2}),
            DEVICE,
            "has configurations of span, warps; the kernel takes blocks_per_sm, ring, room, tiles, warps",
        ),
        *(
            (
                replace(experts(EXPERTS), config={**USUAL.stored(), **changes}),
                DEVICE,
                "config of 2880 x 2880 is none that the kernel can have",
            )
            for changes in ({"warps": 3}, {"ring": 2}, {"tiles": 7}, {"room": 0})
        ),
        (
            experts(EXPERTS, at_rows={4: replace(USUAL, warps=9, ring=5).stored()}),
            DEVICE,
            "at_rows of 2880 x 2880 splits k by 9 warps, config by 5 warps: bits would depend on the rows",
        ),
    ],
    ids=[
        "another weight",
        "another device",
        "other code",
        "other fields",
        "no such configuration",
        "another split at other rows",
        "no such configuration at some rows",
        *("other code of experts", "other fields of experts", "warps", "ring", "tiles", "room"),
        "other warps at some rows",
    ],
)
def test_a_miss_has_a_reason(tmp_path: Path, stored: TunedGemm, device: str, message: str) -> None:
    file = written(tmp_path / "t.json", stored, device=device)
    known, shape = Tuned.on(DEVICE, file), EXPERTS if stored.experts else SHAPE
    assert (known.find(shape), known.find_experts(shape)) == (None, None)
    (reason,) = known.misses([shape, shape])
    assert reason.startswith(f"{file}: {message}")


@pytest.fixture
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's file and the shipped one of `DEVICE`, neither there yet."""
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lookup, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "cache" / "tuned" / "nvidia-t4.json", tmp_path / "shipped" / "nvidia-t4.json"


def test_what_the_user_tuned_comes_before_what_was_shipped_unless_it_is_of_no_use(shelves: tuple[Path, Path]) -> None:
    user, shipped = shelves
    written(shipped, gemm(4096, 4096), gemm(1024, 1024, GemmConfig()))
    assert Tuned.on(DEVICE).find(SHAPE) == GemmConfig()
    written(user, gemm(4096, 4096, OTHER))
    assert Tuned.on(DEVICE).find(SHAPE) == OTHER
    assert Tuned.on(DEVICE).find(GemmShape("TARGET_O", 1024, 1024, 4)) == GemmConfig()
    written(user, gemm(4096, 4096, OTHER, source_sha256="0" * 64))
    assert Tuned.on(DEVICE).find(SHAPE) == GemmConfig()


def test_a_file_that_is_named_is_the_only_one_that_is_looked_at(shelves: tuple[Path, Path], tmp_path: Path) -> None:
    written(shelves[0], gemm(4096, 4096))
    file = written(tmp_path / "mine.json", gemm(64, 32))
    assert Tuned.on(DEVICE, file).find(SHAPE) is None
    with pytest.raises(UsageError, match=r"absent\.json: cannot be read"):
        Tuned.on(DEVICE, tmp_path / "absent.json")


def test_without_any_file_the_places_that_were_looked_at_are_named(shelves: tuple[Path, Path]) -> None:
    (reason,) = Tuned.on(DEVICE).misses([SHAPE])
    assert reason == f"no file for {DEVICE}: {shelves[0]} and {shelves[1]} are not there"


def test_a_broken_file_of_the_users_is_refused_and_not_passed_over(shelves: tuple[Path, Path]) -> None:
    shelves[0].parent.mkdir(parents=True)
    shelves[0].write_text("{")
    with pytest.raises(UsageError, match=r"nvidia-t4\.json:1: not valid YAML"):
        Tuned.on(DEVICE)


def test_at_some_rows_a_weight_is_cut_otherwise_and_at_others_as_at_the_nearest_with_as_many_tiles(
    tmp_path: Path,
) -> None:
    one, four, sixteen = (replace(GemmConfig(), stages=stages) for stages in (1, 2, 4))
    at_rows = {rows: config.stored() for rows, config in ((1, one), (4, four), (16, sixteen))}
    known = Tuned.on(DEVICE, written(tmp_path / "t.json", gemm(4096, 4096, at_rows=at_rows)))
    tuned = {rows: known.find(replace(SHAPE, m=rows)) for rows in (1, 2, 3, 4, 8, 9, 16, 17, 64)}
    assert tuned == {
        **dict.fromkeys((1, 2), one),
        **dict.fromkeys((3, 4, 8), four),
        **dict.fromkeys((9, 16), sixteen),
        **{rows: GemmConfig().at(rows) for rows in (17, 64)},
    }


def test_engines_have_the_same_fingerprint_where_their_configurations_are_the_same(tmp_path: Path) -> None:
    default = Tuned.on(DEVICE, written(tmp_path / "a.json", gemm(4096, 4096), gemm(64, 32)))
    another = Tuned.on(DEVICE, written(tmp_path / "b.json", gemm(4096, 4096, OTHER)))
    assert default.sha256([SHAPE]) == NOTHING_TUNED.sha256([SHAPE, GemmShape("EAGLE3_O", 4096, 4096, 1)])
    assert another.sha256([SHAPE]) != default.sha256([SHAPE])
    assert another.sha256([SHAPE]) == another.sha256([replace(SHAPE, m=16)])
    at_rows = {4: replace(GemmConfig(), stages=2).stored()}
    moved = Tuned.on(DEVICE, written(tmp_path / "c.json", gemm(4096, 4096, at_rows=at_rows)))
    assert moved.sha256([SHAPE]) != default.sha256([SHAPE])


def test_the_text_behind_a_fingerprint_is_that_of_all_stored_runs() -> None:
    usual, moved = GemmConfig(), GemmConfig(k_chunks=4, delay_dependents=1)
    words = "GemmConfig(warps=16, span={}, stages=3, tiles=1, passes=1, held={})"
    assert WeightConfig(usual).identity() == f"Cuts(config={words.format(2, 0)}, at_rows={{}})"
    both = WeightConfig(usual, {4: moved, 16: usual}).identity()
    assert both == f"Cuts(config={words.format(2, 0)}, at_rows={{4: {words.format(4, 1)}, 16: {words.format(2, 0)}}})"


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernel and its headers, to edit."""
    for file in loader.kernel_files().values():
        (tmp_path / file.name).write_text(file.read_text())
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    with_headers.cache_clear()
    code_sha256.cache_clear()
    yield tmp_path
    with_headers.cache_clear()
    code_sha256.cache_clear()


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        (KERNEL, "// ", "// now ", True),
        (KERNEL, "\n", "\n\n", True),
        (KERNEL, "float", "double", False),
        ("bf16.cuh", "return", "  return", True),
        ("mma.cuh", "uint4", "int4", False),
    ],
    ids=["comments", "empty lines", "code", "indentation of a header", "code of a header"],
)
def test_only_a_change_of_code_makes_a_configuration_stale(
    edited: Path, file: str, old: str, new: str, same: bool
) -> None:
    before = code_sha256()
    text = (edited / file).read_text()
    assert old in text
    (edited / file).write_text(text.replace(old, new))
    with_headers.cache_clear()
    code_sha256.cache_clear()
    assert (code_sha256() == before) is same

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.nouns.gemms import (
    GemmShape,
    InSteps,
    Point,
    TunedGemm,
    TunedGemms,
    file_name,
    read_shapes,
    read_tuned,
    user_file,
    write_shapes,
    write_tuned,
)
from specgate.errors import EnvironmentRefused, UsageError

words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=12)
counts = st.integers(1, 1 << 40)
positive = st.floats(1e-3, 1e15)
times = st.dictionaries(counts, positive, min_size=1, max_size=3)
mixtures = st.sampled_from([(0, 0), (128, 4)])
shapes = st.builds(
    lambda tag, n, k, m, mixture: GemmShape(tag, n, k, m, *mixture), words, counts, counts, counts, mixtures
)
roles = st.dictionaries(words, positive, min_size=1, max_size=3)
configs = st.dictionaries(words, st.integers(-1, 64), min_size=1, max_size=3)
in_steps = st.builds(
    InSteps,
    pair=words,
    points=st.lists(st.builds(Point, counts, counts), min_size=1, max_size=2).map(tuple),
    k=counts,
    before=configs,
    before_us=roles,
    us=roles,
    tried=counts,
    measured=words,
)
plain_gemms = st.builds(
    TunedGemm,
    n=counts,
    k=counts,
    tags=st.lists(words, min_size=1, max_size=2).map(tuple),
    config=configs,
    tried=counts,
    left_out=st.dictionaries(words, words, max_size=2),
    us=times,
    default_us=times,
    share=positive,
    bandwidth=positive,
    measured=words,
    source_sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    versions=st.dictionaries(words, words, max_size=2),
    in_steps=st.none() | in_steps,
    at_rows=st.dictionaries(counts, configs, max_size=2),
)
gemms = plain_gemms | plain_gemms.map(lambda gemm: replace(gemm, tags=gemm.tags[:1], experts=128, per_token=4))


@given(gemm_shapes=st.lists(shapes, min_size=1, max_size=5))
def test_shapes_are_read_back_as_they_were_written_each_once(
    tmp_path_factory: pytest.TempPathFactory, gemm_shapes: list[GemmShape]
) -> None:
    file = tmp_path_factory.mktemp("shapes") / "shapes.json"
    write_shapes(file, [*gemm_shapes, *gemm_shapes])
    assert read_shapes(file) == tuple(sorted(set(gemm_shapes)))


def test_turbominds_list_of_products_is_read_as_shapes(tmp_path: Path) -> None:
    product = {"tag": "EAGLE3_FC", "M": 3, "K": 8640, "N": 2880, "dtype": 14, "layout": "row", "count": 512}
    head = {**product, "tag": "EAGLE3_LM_HEAD", "K": 2880, "N": 201088}
    (file := tmp_path / "eagle3_gemm_shapes_sm120.json").write_text(json.dumps([product, head, {**product, "M": 4}]))
    assert read_shapes(file) == (
        GemmShape("EAGLE3_FC", 2880, 8640, 3),
        GemmShape("EAGLE3_FC", 2880, 8640, 4),
        GemmShape("EAGLE3_LM_HEAD_SMALLVOC", 201088, 2880, 3),
    )
    for key, value, message in (("M", 0, "EAGLE3_FC: 0 x 8640 x 2880: M, K and N are"), ("N", "a", r"\[0\].N: 'a'")):
        file.write_text(json.dumps([{**product, key: value}]))
        with pytest.raises(UsageError, match=message):
            read_shapes(file)


@pytest.mark.slow("many generated files")
@given(tuned_gemms=st.lists(gemms, max_size=3, unique_by=lambda gemm: gemm.key), device=words)
def test_tuned_configurations_are_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, tuned_gemms: list[TunedGemm], device: str
) -> None:
    tuned = TunedGemms(device, "9.0")
    for gemm in tuned_gemms:
        tuned = tuned.with_(gemm)
    file = tmp_path_factory.mktemp("tuned") / "tuned.json"
    write_tuned(file, tuned)
    assert read_tuned(file) == tuned


@pytest.mark.slow("many generated files")
@given(first=gemms, second=gemms, third=gemms)
def test_a_new_result_replaces_the_one_of_its_weight_and_no_other(
    first: TunedGemm, second: TunedGemm, third: TunedGemm
) -> None:
    tuned = TunedGemms("a", "9.0").with_(first).with_(second).with_(third)
    newest = {gemm.key: gemm for gemm in (first, second, third)}
    assert {gemm.key: gemm for gemm in tuned.gemms} == newest and len(tuned.gemms) == len(newest)


def test_what_has_no_experts_is_stored_without_a_word_of_them(tmp_path: Path) -> None:
    plain, of_experts = GemmShape("TARGET_O", 64, 32, 4), GemmShape("TARGET_EXPERT_DOWN", 64, 32, 4, 8, 2)
    write_shapes(tmp_path / "shapes.json", [plain, of_experts])
    stored = json.loads((tmp_path / "shapes.json").read_text())["shapes"]
    assert stored == [{**SHAPE, "tag": "TARGET_EXPERT_DOWN", "experts": 8, "per_token": 2}, SHAPE]


def test_both_products_of_equal_weights_are_kept_as_are_those_of_other_mixtures(tmp_path: Path) -> None:
    of_others = [{**EXPERTS, "tags": ["TARGET_EXPERT_GATE_UP"]}, {**EXPERTS, "experts": 32}]
    (tmp_path / "tuned.json").write_text(json.dumps({**TUNED, "gemms": [GEMM, EXPERTS, *of_others]}))
    tuned = read_tuned(tmp_path / "tuned.json")
    assert len({gemm.key for gemm in tuned.gemms}) == 4
    write_tuned(tmp_path / "again.json", tuned.with_(tuned.gemms[1]))
    assert {gemm.key: gemm for gemm in read_tuned(tmp_path / "again.json").gemms} == {g.key: g for g in tuned.gemms}


GEMM: dict[str, Any] = {
    "n": 64,
    "k": 32,
    "tags": ["TARGET_O"],
    "config": {"warps": 8},
    "tried": 3,
    "left_out": {},
    "us": {"1": 2.5},
    "default_us": {"1": 2.5},
    "share": 0.8,
    "bandwidth": 4e12,
    "measured": "2026-11-21T12:00:00+00:00",
    "source_sha256": "0" * 64,
    "versions": {},
}
EXPERTS = {**GEMM, "tags": ["TARGET_EXPERT_DOWN"], "experts": 8, "per_token": 2}
TUNED: dict[str, Any] = {
    "schema": "specgate.tuned-gemms/v1",
    "device": "NVIDIA H200",
    "compute_capability": "9.0",
    "gemms": [GEMM],
}
SHAPE = {"tag": "TARGET_O", "n": 64, "k": 32, "m": 4}
SHAPES = {"schema": "specgate.gemm-shapes/v1", "shapes": [SHAPE]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"an empty file where a mapping was expected"),
        ("{", r"not valid YAML"),
        ("[1]", r"a list where a mapping was expected"),
        ({"shapes": [SHAPE]}, r"schema: this key is required"),
        ({**SHAPES, "schema": "specgate.gemm-shapes/v2"}, r"schema: .*v2.* not one of .*v1"),
        ({**SHAPES, "shapes": []}, r"shapes: .*must not be empty"),
        ({**SHAPES, "shapes": [{**SHAPE, "n": 0}]}, r"shapes\[0\]\.n: 0: .*at least 1"),
        ({**SHAPES, "shapes": [{**SHAPE, "k": -32}]}, r"shapes\[0\]\.k: -32"),
        ({**SHAPES, "shapes": [{**SHAPE, "m": "4"}]}, r"shapes\[0\]\.m: '4': .*an integer"),
        (
            {**SHAPES, "shapes": [{**SHAPE, "tile": 4}]},
            r"shapes\[0\]\.tile: 4: no such key; .*known: experts, k, m, n, per_token, tag",
        ),
    ],
)
def test_a_shape_file_that_cannot_be_meant_is_refused_with_its_place(
    tmp_path: Path, content: object, message: str
) -> None:
    file = tmp_path / "shapes.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    with pytest.raises(UsageError, match=message) as refused:
        read_shapes(file)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**TUNED, "compute_capability": "nine"}, r"compute_capability: 'nine'"),
        ({**TUNED, "gemms": [GEMM, GEMM]}, r"the weight 64 x 32 is there twice"),
        ({**TUNED, "gemms": [EXPERTS, EXPERTS]}, r"the weight 64 x 32 of 8 experts is there twice"),
        ({**TUNED, "gemms": [{**EXPERTS, "tags": ["A", "B"]}]}, r"gemms\[0\]: .*A, B: experts have an entry for each"),
        ({**TUNED, "gemms": [{**GEMM, "experts": 8}]}, r"gemms\[0\]: .*give both of a mixture of experts"),
        ({**TUNED, "gemms": [{**GEMM, "source_sha256": "abc"}]}, r"gemms\[0\]\.source_sha256: 'abc'"),
        ({**TUNED, "gemms": [{**GEMM, "us": {"one": 2.5}}]}, r"gemms\[0\]\.us\.one"),
        ({**TUNED, "gemms": [{**GEMM, "us": {"1": 0.0}}]}, r"gemms\[0\]\.us\.1: 0\.0: .*more than 0"),
        ({**TUNED, "gemms": [{**GEMM, "config": {}}]}, r"gemms\[0\]\.config"),
        ({**TUNED, "gemms": [{**GEMM, "config": {"warps": 1.5}}]}, r"gemms\[0\]\.config\.warps: 1\.5"),
        ({**TUNED, "gemms": [{**GEMM, "at_rows": {"0": {"warps": 8}}}]}, r"gemms\[0\]\.at_rows\.0"),
        ({**TUNED, "gemms": [{**GEMM, "at_rows": {"4": {}}}]}, r"gemms\[0\]\.at_rows\.4"),
        ({**TUNED, "gemms": [{**GEMM, "tile": 4}]}, r"gemms\[0\]\.tile: 4: no such key"),
    ],
)
def test_a_tuned_file_that_cannot_be_meant_is_refused_with_its_place(
    tmp_path: Path, content: object, message: str
) -> None:
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps(content, indent=1))
    with pytest.raises(UsageError, match=message):
        read_tuned(file)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.json: cannot be read: No such file"):
        read_tuned(tmp_path / "absent.json")


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentRefused, match="cannot be written"):
        write_shapes(tmp_path / "file" / "shapes.json", [GemmShape("TARGET_O", 64, 32, 1)])


def test_a_device_has_a_file_name_and_a_place_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path))
    assert file_name("NVIDIA GeForce RTX 4090 (D)") == "nvidia-geforce-rtx-4090-d.json"
    assert user_file("NVIDIA H200") == tmp_path / "tuned" / "nvidia-h200.json"

"""Configurations of attention: as an option has them, and as an engine takes them from sweeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.nouns.fmha import (
    HEADS,
    Wanted,
    best_of,
    chosen_in,
    keep,
    kept_config,
    kept_in,
    parse_config,
    read_sweep,
)
from specgate.contract.sweeps import Best, Sweep, SweptPoint, Trial
from specgate.errors import UsageError

BEST = Best({"fmha": "kv_tile:1024,warps:8"}, 1.03, 1.01, 1.05, 0.004, True, (), "20261129-ab", "-o fmha=…")
SWEEP = Sweep(
    measured="2026-11-29T18:00:00+00:00",
    backend="cupy",
    device="NVIDIA H200",
    pair="demo",
    engine={HEADS: "32 of 128"},
    points=(SweptPoint("micro-16k-b4", 16384, 4),),
    options={"tile_stats": "on"},
    trials=(Trial({"fmha": "kv_tile:1024,warps:8"}),),
    best=BEST,
    verdict="the default stays: kv_tile:1024 gains no 1 %",
)
WANTED = Wanted("NVIDIA H200", "32 of 128", 4, 16700, {})


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("text", ["", "kv_tile", "kv_tile:", "kv_tile:a", "kv_tile:1,kv_tile:2", "kv_tile:-1", ":3"])
def test_a_configuration_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="KNOB:NUMBER"):
        parse_config(text)


def test_a_kept_sweep_is_taken_by_engines_of_its_pair_device_batch_and_context_alone() -> None:
    assert kept_config(WANTED) is None
    assert read_sweep(keep(SWEEP)) == SWEEP
    assert kept_config(WANTED) == {"kv_tile": 1024, "warps": 8}
    for other in (
        replace(WANTED, device="NVIDIA H100"),
        replace(WANTED, heads="32 of 64"),
        replace(WANTED, slots=1),
        replace(WANTED, positions=16000),
        replace(WANTED, positions=2 * 16384),
        replace(WANTED, options={"kv": "fp8"}),
    ):
        assert kept_config(other) is None
    assert kept_config(replace(WANTED, options={"graphs": "off"})) is not None


def test_of_kept_sweeps_the_one_with_the_nearest_prompts_counts_and_a_later_one_replaces_its_like() -> None:
    keep(SWEEP)
    nearer = replace(BEST, config={"fmha": "kv_tile:512"})
    keep(replace(SWEEP, points=(SweptPoint("own", 16500, 4),), best=nearer))
    assert kept_config(WANTED) == {"kv_tile": 512}
    keep(replace(SWEEP, points=(SweptPoint("own", 16500, 4),), best=replace(BEST, config={"fmha": "kv_tile:640"})))
    assert kept_config(WANTED) == {"kv_tile": 640} and len([*kept_in().iterdir()]) == 2


@pytest.mark.parametrize(
    "best", [None, replace(BEST, faster=False), replace(BEST, config={"fmha": "kv_tile:512", "graphs": "off"})]
)
def test_what_is_not_proven_faster_by_itself_is_no_configuration(best: Best | None) -> None:
    assert best_of(replace(SWEEP, best=best)) is None
    with pytest.raises(UsageError, match=r"best: no value of fmha is proven faster than the default"):
        chosen_in(keep(replace(SWEEP, best=best)), "NVIDIA H200")


def test_a_sweep_of_another_device_is_refused_as_an_option_and_a_damaged_file_by_line() -> None:
    file = keep(SWEEP)
    assert chosen_in(file, "NVIDIA H200") == {"kv_tile": 1024, "warps": 8}
    with pytest.raises(UsageError, match="device: 'NVIDIA H200', but this is 'NVIDIA L4'"):
        chosen_in(file, "NVIDIA L4")
    file.write_text(file.read_text().replace('"batch": 4', '"batch": "four"'))
    with pytest.raises(UsageError, match=r"points\[0\].batch"):
        read_sweep(file)

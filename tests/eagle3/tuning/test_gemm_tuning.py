"""From shapes to a stored file, with a tuner that only says what it would have found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from specgate.backends.eagle3.commands.tune import tune
from specgate.backends.eagle3.nouns.abilities import GemmTuner, TunesGemms
from specgate.backends.eagle3.nouns.gemms import (
    GemmShape,
    InSteps,
    Point,
    StepsRequest,
    TunedGemm,
    TunedGemms,
    TunedWgmma,
    read_tuned,
    write_shapes,
    write_tuned,
)
from specgate.backends.eagle3.tuning import gemm_tuning
from specgate.backends.eagle3.tuning.gemm_tuning import refine_into, tune_into, tuning_backend, wanted
from specgate.contract import PairRef
from specgate.errors import EnvironmentRefused, ExitCode, UsageError

DEVICE = "NVIDIA T4"
LARGE = GemmShape("TARGET_LM_HEAD", 128256, 4096, 4)
SMALL = [GemmShape("EAGLE3_O", 4096, 4096, 1), GemmShape("TARGET_O", 4096, 4096, 4)]


def found(shapes: Sequence[GemmShape], us: float = 50.0) -> TunedGemm:
    n, k = shapes[0].weight
    return TunedGemm(
        n=n,
        k=k,
        tags=tuple(sorted({shape.tag for shape in shapes})),
        config={"warps": 16, "span": 2, "stages": 4, "features": 16},
        tried=36,
        left_out={"warps=4 span=1 stages=3 features=32": "differs from float64 by 2.0e-02"},
        us={1: us, 8: us},
        default_us={1: us * 1.1, 8: us * 1.1},
        share=0.91,
        bandwidth=4.48e12,
        measured="2026-11-21T12:00:00+00:00",
        source_sha256="0" * 64,
        versions={"driver": "580.1"},
    )


def in_steps(gemm: TunedGemm, request: StepsRequest) -> TunedGemm:
    steps = InSteps(
        pair=request.pair.name,
        points=request.points,
        k=request.k,
        before=gemm.config,
        before_us={"baseline 1 x 32768": 4725.4, "spec-3 1 x 32768": 5741.9},
        us={"baseline 1 x 32768": 4618.1, "spec-3 1 x 32768": 5640.5},
        tried=46,
        measured="2026-11-21T18:00:00+00:00",
    )
    config = {**gemm.config, "stages": 2}
    return replace(gemm, config=config, in_steps=steps, at_rows={4: {**config, "features": 32}})


class Tuner:
    """Knows `known` beforehand, and finds something for `most` weights before the time is over."""

    device, compute_capability = DEVICE, "7.5"

    def __init__(self, known: Sequence[GemmShape] = (), most: int = 9) -> None:
        self.known, self.most = known, most

    def untuned(self, shapes: Sequence[GemmShape], file: Path | None) -> Sequence[GemmShape]:
        return [shape for shape in shapes if shape not in self.known]

    def tune(self, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
        for weight in sorted({shape.weight for shape in shapes}, reverse=True)[: self.most]:
            yield found([shape for shape in shapes if shape.weight == weight])

    def refine(self, request: StepsRequest, file: Path | None, seconds: float) -> Iterator[TunedGemm]:
        for shapes in ([LARGE], SMALL)[: self.most]:
            yield in_steps(found(shapes), request)


class Engine:
    """A back end that tunes and does nothing else."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner = tuner

    def gemm_shapes(self, pair: PairRef, batches: Sequence[int], draft_lengths: Sequence[int]) -> Sequence[GemmShape]:
        return [LARGE]

    def gemm_tuner(self) -> GemmTuner:
        return self.tuner


def test_every_result_is_stored_as_it_comes(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "t.json"
    results = tune_into(file, Tuner(), [LARGE, *SMALL], 60)
    assert next(results).weight == LARGE.weight
    assert [gemm.weight for gemm in read_tuned(file).gemms] == [LARGE.weight]
    assert next(results).tags == ("EAGLE3_O", "TARGET_O")
    assert {gemm.weight for gemm in read_tuned(file).gemms} == {LARGE.weight, SMALL[0].weight}


def test_what_the_file_held_of_other_weights_stays(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    earlier = found([GemmShape("TARGET_O", 64, 64, 1)])
    write_tuned(file, TunedGemms(DEVICE, "7.5", (earlier, found(SMALL, us=99.0))))
    list(tune_into(file, Tuner(), SMALL, 60))
    assert read_tuned(file).gemms == (earlier, found(SMALL))


def test_a_file_of_another_device_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    write_tuned(file, TunedGemms("NVIDIA A100", "8.0"))
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"t\.json: device: 'NVIDIA A100', but this is 'NVIDIA T4'\n  .*--out"):
        list(tune_into(file, Tuner(), SMALL, 60))
    assert file.read_bytes() == before


def test_what_whole_steps_have_chosen_replaces_what_was_the_fastest_alone(tmp_path: Path) -> None:
    file, request = tmp_path / "t.json", StepsRequest(PairRef("p", tmp_path, tmp_path), (Point(32768, 1),), 3)
    list(tune_into(file, Tuner(), [LARGE, *SMALL], 60))
    (chosen,) = refine_into(file, Tuner(most=1), request, 60)
    stored = {gemm.weight: gemm for gemm in read_tuned(file).gemms}
    assert stored == {LARGE.weight: chosen, SMALL[0].weight: found(SMALL)}
    assert chosen.in_steps is not None and chosen.in_steps.before == found([LARGE]).config != chosen.config
    assert chosen.in_steps.gain == pytest.approx(1 - (4618.1 / 4725.4 + 5640.5 / 5741.9) / 2)


def test_lines_of_whole_steps_say_configurations_at_all_and_at_some_rows_gain_and_steps_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gemm_tuning, "tuning_backend", lambda *_, **__: Engine(Tuner()))
    done = CliRunner().invoke(tune, ["steps", "--out", str(tmp_path / "t.json")])
    assert done.exit_code == 0
    first, _, header, line, at_four, *_, last = done.stdout.splitlines()
    assert first == "NVIDIA T4, planted-llama-3.1-8b-al3.0, 1 x 32768 and 4 x 16384"
    assert header.split() == ["weight", "rows", "from", "to", "gain"]
    assert line.split() == ["128256", "x", "4096", "any", "16/2/4/16", "16/2/2/16", "2.0%"]
    assert at_four.split() == ["4", "16/2/2/32"]
    assert last == "spec-3 1 x 32768: 5640.5 us per step, 5741.9 before"
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("point", ["32768", "0x4096", "1x63", "1x-1", "4 x 4096", "axb"])
def test_a_point_that_cannot_be_meant_is_refused_with_an_example(point: str) -> None:
    done = CliRunner().invoke(tune, ["steps", "--at", point])
    assert done.exit_code == ExitCode.USAGE and f"{point}: slots x cached positions, 64 or more" in done.stderr


def test_steps_that_are_not_reached_within_the_budget_are_inconclusive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gemm_tuning, "tuning_backend", lambda *_, **__: Engine(Tuner(most=0)))
    done = CliRunner().invoke(tune, ["steps", "--out", str(tmp_path / "t.json")])
    assert done.exit_code == ExitCode.INCONCLUSIVE and "the budget was spent before the first" in done.stderr


def test_shapes_come_from_files_and_pairs_each_once(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        write_shapes(file, SMALL)
    pair = PairRef("p", tmp_path, tmp_path)
    assert wanted(Engine(Tuner()), files, [pair, pair], (1,), (1,)) == tuple(sorted((LARGE, *SMALL)))
    with pytest.raises(UsageError, match=r"no shapes\n  give --shapes FILE, --pair NAME"):
        wanted(Engine(Tuner()), [], [], (1,), (1,))


def test_an_engine_without_products_of_its_own_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="back end 'fake' has no products to tune"):
        tuning_backend("fake", here=True)


def test_shapes_need_no_gpu_and_tuning_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert isinstance(tuning_backend(None, here=False), TunesGemms)
    with pytest.raises(EnvironmentRefused, match=r"no product can be tuned on this machine \(cupy: "):
        tuning_backend(None, here=True)


def told(monkeypatch: pytest.MonkeyPatch, tuner: Tuner, *arguments: str) -> tuple[int, list[str], str]:
    """Exit code, lines and what went to the error stream of `specgate engine tune gemm`."""
    monkeypatch.setattr(gemm_tuning, "tuning_backend", lambda name, here: Engine(tuner))
    done = CliRunner().invoke(tune, ["gemm", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout.splitlines(), done.stderr


@pytest.fixture
def shapes(tmp_path: Path) -> str:
    write_shapes(tmp_path / "shapes.json", [LARGE, *SMALL])
    return str(tmp_path / "shapes.json")


def test_a_line_per_weight_says_configuration_times_share_and_gain_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, shapes: str, tmp_path: Path
) -> None:
    file = tmp_path / "t.json"
    code, lines, _ = told(monkeypatch, Tuner(), "--shapes", shapes, "--out", str(file))
    assert code == ExitCode.PASS
    assert lines[0] == "NVIDIA T4: 2 weights to tune"
    assert lines[1].startswith("configurations are warps/span/stages/features; ")
    assert lines[3].split() == ["TARGET_LM_HEAD", "128256", "x", "4096", "16/2/4/16", "50.00", "50.00", "91%", "1.10x"]
    assert lines[4].split()[:2] == ["EAGLE3_O", "+1"]
    assert all(len(line) <= 80 for line in lines[:5])
    assert lines[5] == "2 configurations left out, for example: differs from float64 by 2.0e-02"
    assert lines[6] == f"2 weights in {file}"


def test_products_by_wgmma_have_a_line_of_their_own_with_their_times_in_those_of_cublas(
    monkeypatch: pytest.MonkeyPatch, shapes: str, tmp_path: Path
) -> None:
    of_rows = dict.fromkeys((24, 32, 48, 64), 10.0)
    config = dict(zip(("boxes", "stages", "cluster", "chain", "delay_dependents"), (2, 4, 1, 8, 0), strict=True))
    wgmma = TunedWgmma(config, 257, {**of_rows, 64: 11.0}, of_rows, {**of_rows, 24: 8.0}, 9, "now", "0" * 64)

    class TunerOfGroups(Tuner):
        def tune(self, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
            yield replace(found([LARGE]), wgmma=wgmma)

    _, lines, _ = told(monkeypatch, TunerOfGroups(), "--shapes", shapes, "--out", str(tmp_path / "t.json"))
    assert lines[4] == "  wgmma 2/4/1/8/0 from 257 rows: 1.25 1.00 1.00 1.10 of cuBLAS at 24 32 48 64"
    assert len(lines[4]) <= 80
    assert read_tuned(tmp_path / "t.json").gemms[0].wgmma == wgmma


def test_experts_say_how_many_they_are_and_have_a_header_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class TunerOfExperts(Tuner):
        def tune(self, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
            for shape in shapes:
                one = found([shape])
                mixture = {"warps": 5, "ring": 3, "tiles": 2, "blocks_per_sm": 3, "room": 3}
                yield replace(one, config=mixture, experts=shape.experts, per_token=4) if shape.experts else one

    shapes, file = tmp_path / "shapes.json", tmp_path / "t.json"
    gate_up = [GemmShape("TARGET_EXPERT_GATE_UP", 5760, 2880, 1, experts, 4) for experts in (32, 128)]
    write_shapes(shapes, [*SMALL[:1], *gate_up])
    code, lines, _ = told(monkeypatch, TunerOfExperts(), "--shapes", str(shapes), "--out", str(file))
    assert code == ExitCode.PASS and lines[0].endswith("3 weights to tune")
    assert [line.split(";")[0] for line in lines if line.startswith("configurations")] == [
        "configurations are warps/span/stages/features",
        "configurations are warps/ring/tiles/blocks_per_sm/room",
    ]
    of_experts = [line for line in lines if line.startswith("EXPERT")]
    assert [line.split()[:7] for line in of_experts] == [
        ["EXPERT_GATE_UP", "of", experts, "5760", "x", "2880", "5/3/2/3/3"] for experts in ("32", "128")
    ]
    assert all(len(line) <= 80 for line in of_experts)
    assert {gemm.key for gemm in read_tuned(file).gemms} == {shape.key for shape in (*SMALL[:1], *gate_up)}


def test_a_spent_budget_is_inconclusive_and_names_what_was_not_reached(
    monkeypatch: pytest.MonkeyPatch, shapes: str, tmp_path: Path
) -> None:
    code, _, text = told(monkeypatch, Tuner(most=1), "--shapes", shapes, "--out", str(tmp_path / "t.json"))
    assert code == ExitCode.INCONCLUSIVE
    assert "budget spent before 2 products: EAGLE3_O 4096 x 4096, TARGET_O 4096 x 4096: go on with --missing" in text


def test_with_missing_only_what_an_engine_would_not_find_is_tuned(
    monkeypatch: pytest.MonkeyPatch, shapes: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path))
    code, lines, _ = told(monkeypatch, Tuner(known=[LARGE]), "--shapes", shapes, "--missing")
    assert code == ExitCode.PASS and lines[0].endswith("1 weights to tune")
    assert [gemm.weight for gemm in read_tuned(tmp_path / "tuned" / "nvidia-t4.json").gemms] == [SMALL[0].weight]
    code, lines, _ = told(monkeypatch, Tuner(known=[LARGE, *SMALL]), "--shapes", shapes, "--missing")
    assert (code, lines) == (ExitCode.PASS, ["NVIDIA T4: 0 weights to tune"])

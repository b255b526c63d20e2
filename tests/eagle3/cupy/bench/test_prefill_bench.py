"""A prefill's parts: what they are said to compute and move, against tensors and sums by hand; and, by torch on a CPU,
that each part is right, and that a wrong one is seen.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specgate.backends.eagle3.cupy.bench.prefill import run as bench
from specgate.backends.eagle3.cupy.bench.prefill.floors import Work, whole, works
from specgate.backends.eagle3.cupy.bench.prefill.run import timings
from specgate.backends.eagle3.cupy.bench.prefill.stage import PrefillStage
from specgate.backends.eagle3.cupy.bench.prefill.timing import PartTime
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.engine import prefill
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.lib.weights import LayerWeights
from specgate.backends.eagle3.nouns.kernel_bench import WHOLE, PartTiming, used_parts_us
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES
from tests.eagle3.cupy.bench.staged import SMALL

LLAMA = GEOMETRIES["llama-3.1-8b"]()
BIG = Geometry(LLAMA.target, LLAMA.draft, LLAMA.boundaries)
LONG = 32000


def by_part(geometry: Geometry, positions: int) -> dict[str, Work]:
    return {work.part: work for work in works(geometry, positions)}


# ── floors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_operations_of_32k_tokens_of_llama_8b_are_those_counted_by_hand() -> None:
    parts = by_part(BIG, LONG)
    per_token = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)  # of one layer
    attention = 4 * 32 * 128 * LONG * (LONG + 1) // 2
    assert parts["qkv"].flops == 2 * LONG * 4096 * 6144 and parts["qkv"].times == 32
    assert parts["attention"].flops == attention and parts["attention"].times == 31
    target = sum(w.times * w.flops for w in works(Geometry(BIG.target, None, ()), LONG))
    spared = LONG * (per_token - 2 * 4096 * 6144) + attention  # the last layer's but its projection and one row
    one_row = per_token - 2 * 4096 * 6144 + 4 * 32 * 128 * LONG
    assert target == 32 * (LONG * per_token + attention) - spared + one_row
    assert 32 * (LONG * per_token + attention) == pytest.approx(715e12, rel=2e-3)


def test_where_a_draft_reads_behind_the_last_layer_every_row_goes_through_it() -> None:
    assert SMALL.target.layers in SMALL.boundaries
    assert by_part(SMALL, 300)["attention"].times == SMALL.target.layers
    assert by_part(Geometry(SMALL.target, SMALL.draft, (0, 1, 2)), 300)["attention"].times == SMALL.target.layers - 1


@pytest.mark.parametrize("positions", [2, 70, 300])
def test_the_bytes_of_a_part_are_those_of_its_tensors(positions: int) -> None:
    stage = PrefillStage(SMALL, random_pair(SMALL, 320, "cpu"), positions, "cpu")
    parts, layer = by_part(SMALL, positions), stage.target.weights.layers[0]
    assert isinstance(layer, LayerWeights)
    blocks = -(-positions // BLOCK)
    assert parts["qkv"].size == stage.normed.nbytes + layer.qkv.nbytes + stage.qkv.nbytes
    assert parts["o"].size == stage.mixed.nbytes + layer.o.nbytes + stage.added.nbytes
    assert parts["attention"].size == stage.qkv.nbytes + stage.mixed.nbytes
    assert parts["gate"].size == stage.gate_up.nbytes + stage.act.nbytes
    assert parts["down"].size == stage.act.nbytes + layer.down.nbytes + stage.added.nbytes
    assert parts["residual"].size == (
        stage.added.nbytes + 2 * stage.x.nbytes + stage.normed.nbytes + layer.post_norm.nbytes
    )
    taken = stage.tokens.nbytes + stage.normed.nbytes  # a row of the embedding has as many bytes as one of its norm
    assert parts["embed"].size == taken + stage.x.nbytes + stage.normed.nbytes + layer.input_norm.nbytes
    cached = 2 * blocks * stage.pages.k[0, 0].nbytes
    values = positions * stage.pages.v[0, 0, :, :, 0].nbytes
    angles = sum(t[:positions].nbytes for t in stage.target.rope)
    assert parts["heads"].size == 2 * stage.qkv.nbytes - values + cached + angles + stage.blocks.nbytes
    assert stage.draft is not None
    assert parts["draft input"].size == (
        stage.tokens[1:].nbytes + 2 * stage.hidden.nbytes + stage.draft_in.nbytes + 2 * stage.draft.geometry.hidden * 2
    )
    kv = stage.draft.weights.layer.qkv[stage.draft.geometry.heads * stage.draft.geometry.head_dim :]
    assert parts["draft kv"].size == stage.draft_in.nbytes + kv.nbytes + stage.kv.nbytes


def test_the_whole_is_the_sum_of_its_parts_as_often_as_they_are_needed() -> None:
    parts = (Work("a", "", 3, 5, 7), Work("b", "", 1, 0, 11))
    assert whole(parts, 9) == Work(WHOLE, "9", 1, 15, 32)


# ── parts, on a CPU by torch alone ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def stage() -> PrefillStage:
    torch.manual_seed(0)
    return PrefillStage(SMALL, random_pair(SMALL, 320, "cpu"), 130, "cpu")


def timed_as(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed, as there is no GPU: what is checked is checked, and every part is said to take so long."""

    def time_part(run: Any, stream: Any, read: Any) -> PartTime:
        run()
        return PartTime(seconds * 1e6, 0.0, 1980.0, None)

    monkeypatch.setattr(bench, "time_part", time_part)


def timed_parts(stage: PrefillStage, monkeypatch: pytest.MonkeyPatch) -> list[PartTiming]:
    timed_as(1e-3, monkeypatch)
    no_stream: Any = SimpleNamespace()
    return list(timings(stage, works(SMALL, stage.positions), no_stream, lambda: None))


@torch.inference_mode()
def test_every_part_has_a_way_that_the_engine_goes_and_is_right(
    stage: PrefillStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = timed_parts(stage, monkeypatch)
    wanted = [*(work.part for work in works(SMALL, 130)), WHOLE]
    assert [part.part for part in made if part.used] == wanted
    assert all(part.right for part in made), [(p.part, p.how, p.error) for p in made if not p.right]
    assert used_parts_us(tuple(made)) == pytest.approx(1e3 * sum(work.times for work in works(SMALL, 130)))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("rope", {"heads", "draft heads"}),
        ("rms_norm", {"embed", "residual", "draft input", "last row"}),
        ("write_pages", {"heads", "draft heads"}),
        ("capture", {"capture"}),
    ],
)
@torch.inference_mode()
def test_a_wrong_part_is_seen(stage: PrefillStage, monkeypatch: pytest.MonkeyPatch, name: str, parts: set[str]) -> None:
    own = getattr(prefill, name)

    def spoiled(*arguments: Any) -> Any:
        if name in ("write_pages", "capture"):
            return None
        return 1.1 * own(*arguments)

    monkeypatch.setattr(prefill, name, spoiled)
    made = timed_parts(stage, monkeypatch)
    assert {part.part for part in made if not part.right and part.part != WHOLE} == parts


@torch.inference_mode()
def test_a_way_that_fails_is_reported_unless_it_is_the_engines(
    stage: PrefillStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("no such kernel")

    timed_as(1e-3, monkeypatch)
    no_stream: Any = SimpleNamespace()
    other = replace(stage.variants()["gate"][0], used=False, run=refuse)
    failed = bench.timed(other, by_part(SMALL, 130)["gate"], 130, no_stream, lambda: None)
    assert failed.us is None and failed.reason == "RuntimeError: no such kernel"
    assert failed.right and failed.us_per_prompt == 0.0
    monkeypatch.setattr(prefill, "gated", refuse)
    with pytest.raises(RuntimeError, match="no such kernel"):
        timed_parts(stage, monkeypatch)


def test_a_prompt_of_one_token_has_no_part_of_the_draft() -> None:
    assert not [work.part for work in works(SMALL, 1) if work.part.startswith("draft")]

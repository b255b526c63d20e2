"""The benchmark of a gpt-oss prefill: its floors, and that every part can be run in every way, on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.gpt_oss.prefill import LayerStage, Rates, touched, ways_on, whole_floor_ms, works
from bench.gpt_oss.steps import Point
from specgate.backends.eagle3.cupy.bench.prefill.floors import Work
from specgate.backends.eagle3.cupy.engine.prefill_mixture import ROWS
from specgate.backends.eagle3.pair_tools.plant.expert_geometries import EXPERT_GEOMETRIES
from tests.eagle3.cupy.pairs import MIXTURE

CPU = torch.device("cpu")
H200 = Rates(4.6e12, 670e12)


def of(found: tuple[Work, ...], part: str) -> Work:
    (one,) = (work for work in found if work.part == part)
    return one


@pytest.mark.parametrize("positions", [1, 70])
@torch.inference_mode()
def test_every_part_runs_in_every_way_and_one_of_them_is_the_engines(positions: int) -> None:
    g = replace(MIXTURE, windows=(20, None, 20))
    pieces = list(LayerStage(g, positions, CPU).pieces(ways_on(CPU, positions)))
    for piece in pieces:
        piece.run()
    used = [piece.part for piece in pieces if piece.used]
    wanted = [work.part for work in works(g, positions)]
    assert sorted(used) == sorted({*wanted} - {"router"})
    assert {piece.part for piece in pieces} == {*wanted}


def test_operations_and_bytes_of_gpt_oss_120b_are_those_counted_by_hand() -> None:
    found = works(EXPERT_GEOMETRIES["gpt-oss-120b"]().target, 32768)
    # Four experts of a row, of three matrices of 2,880 by 2,880, in 35 layers.
    products = [of(found, part) for part in ("gate_up", "down")]
    assert sum(work.times * work.flops for work in products) == 35 * 32768 * 4 * 3 * 2 * 2880 * 2880
    # A number takes half a byte and a scale of a byte for 32, and becomes two bytes.
    decoding = [of(found, part) for part in ("decode gate_up", "decode down")]
    assert sum(work.size for work in decoding) == 128 * 3 * 2880 * 2880 * (17 + 64) // 32
    assert {work.times for work in decoding} == {35}
    # Every other layer has a window of 128.
    assert of(found, "windows").times == 18 and of(found, "attention").times == 17
    assert of(found, "attention").flops == 4 * 4096 * 32768 * 32769 // 2
    assert of(found, "windows").flops == 4 * 4096 * (128 * 129 // 2 + (32768 - 128) * 128)


def test_a_prompt_within_the_window_has_no_windows() -> None:
    g = EXPERT_GEOMETRIES["gpt-oss-20b"]().target
    assert [work.part for work in works(g, 128)].count("windows") == 0
    assert of(works(g, 128), "attention").times == g.layers - 1


def test_experts_are_decoded_once_for_prompts_that_go_together_and_again_beyond_their_rows() -> None:
    g = EXPERT_GEOMETRIES["gpt-oss-120b"]().target
    one, eight, apart = (whole_floor_ms(g, Point(n, b, (0,)), H200) for n, b in ((1024, 1), (1024, 8), (ROWS, 2)))
    decoding = sum(w.times * H200.floor_us(w) for w in works(g, 1024) if w.part.startswith("decode")) / 1e3
    assert eight == pytest.approx(8 * one - 7 * decoding)
    assert apart == pytest.approx(2 * whole_floor_ms(g, Point(ROWS, 1, (0,)), H200))
    assert of(works(g, 2 * ROWS), "decode down").times == 2 * of(works(g, ROWS), "decode down").times


def test_packed_experts_are_read_once_for_all_prompts_that_go_together() -> None:
    g = EXPERT_GEOMETRIES["gpt-oss-120b"]().target
    found = works(g, 1024, packed=True)
    assert not [work.part for work in found if work.part.startswith("decode")]
    # Half a byte of a number and a byte for 32 of them; rows, activations and results take two bytes.
    products = [of(found, part) for part in ("packed gate_up", "packed down")]
    weights, rows = 128 * 3 * 2880 * 2880 * 17 // 32, 1024 * 2880 * 2
    assert sum(work.size for work in products) == weights + rows * (1 + 4 + 4 + 4)
    assert sum(work.flops for work in products) == 1024 * 4 * 3 * 2 * 2880 * 2880
    one, four = (whole_floor_ms(g, Point(1024, n, (0,)), H200, packed=True) for n in (1, 4))
    apart = sum(w.times * H200.floor_us(w) for w in found if w.part != "router") / 1e3
    assert one == pytest.approx(apart) and one < whole_floor_ms(g, Point(1024, 1, (0,)), H200) / 4
    assert four < 4 * one


def test_rows_that_choose_independently_touch_what_the_overlap_says() -> None:
    g = EXPERT_GEOMETRIES["gpt-oss-120b"]().target
    assert touched(g, 1) == pytest.approx(4)
    assert touched(g, 4) == pytest.approx(128 * (1 - (124 / 128) ** 4))
    assert touched(g, 32768) == pytest.approx(128)

"""The benchmark of drawing: what it prints, and that its steps are the greedy one's but for what draws."""

from __future__ import annotations

import pytest
import torch

from bench.sampled_steps import KINDS, lines, sampled, times
from specgate.backends.eagle3.cupy.bench.stage import Stage
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED
from specgate.contract import Role
from tests.eagle3.cupy.pairs import BOUNDARIES, DRAFT, TARGET, without_weights


def greedy_stage(k: int) -> Stage:
    sizes, pair = Sizes(2, 300, k + 1), without_weights(TARGET, DRAFT, BOUNDARIES, 300)
    b = Buffers.allocate(TARGET, DRAFT, sizes, "meta")
    return Stage(Geometry(TARGET, DRAFT, BOUNDARIES), pair, b, sizes, 100, k)


@pytest.mark.parametrize("k", [0, 3])
def test_a_sampled_step_is_the_greedy_one_with_kernels_that_draw(k: int) -> None:
    greedy = greedy_stage(k)
    for asked in KINDS.values():
        made = sampled(greedy, asked, NOTHING_TUNED)
        kernels = made.cycle.kernels()
        beside = {path: kernel.spec for path, kernel in kernels.items() if ".draw." not in path}
        assert beside == {path: kernel.spec for path, kernel in greedy.cycle.kernels().items()}
        assert (len(kernels) > len(beside)) == (asked is not None)
        assert made.b.target is greedy.b.target and (made.b.sampling is None) == (asked is None)


def test_what_drawing_adds_is_held_against_what_it_may() -> None:
    found = list(lines(Role(3), {"greedy": 5000.0, "temperature": 5050.0, "top-p": 5200.0}))
    assert found == [
        "spec-3    greedy              5000.0 us/step      +0.0 us   +0.00%",
        "spec-3    temperature         5050.0 us/step     +50.0 us   +1.00%  (at most 2%)",
        "spec-3    top-p               5200.0 us/step    +200.0 us   +4.00%  (MORE THAN 2%)",
    ]


@pytest.mark.gpu
def test_all_steps_can_be_captured_and_timed() -> None:
    geometry, sizes, stream = Geometry(TARGET, DRAFT, BOUNDARIES), Sizes(2, 400, 4), Stream()
    with torch.inference_mode(), stream.current():
        b = Buffers.allocate(TARGET, DRAFT, sizes, "cuda")
        greedy = Stage(geometry, random_pair(geometry, 400, "cuda"), b, sizes, 100, 3)
        greedy.fill()
        found = times({name: sampled(greedy, asked, NOTHING_TUNED) for name, asked in KINDS.items()}, stream, 1)
    assert found.keys() == KINDS.keys() and all(took > 0 for took in found.values())

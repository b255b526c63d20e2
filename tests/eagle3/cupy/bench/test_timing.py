from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.bench.run import groups_of, timings
from specgate.backends.eagle3.cupy.bench.timing import LAUNCHES, TIMES_L2, inputs_to_rotate, time_launches
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.contract import Role
from tests.eagle3.cupy.bench.staged import KINDS, staged
from tests.eagle3.cupy.kernels.codes.caches import CODES


@given(size=st.integers(1, 1 << 32), l2=st.integers(1 << 16, 1 << 28))
def test_inputs_that_take_turns_are_larger_than_the_cache_together_and_no_more_of_them_than_that_takes(
    size: int, l2: int
) -> None:
    inputs = inputs_to_rotate(size, l2)
    assert inputs >= 2 and inputs * size >= TIMES_L2 * l2
    assert inputs == 2 or (inputs - 1) * size < TIMES_L2 * l2


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [2, 5, LAUNCHES, LAUNCHES + 3])
def test_every_input_is_launched_on_equally_often(inputs: int) -> None:
    from specgate.backends.eagle3.cupy.stream import Stream

    launched = torch.zeros(inputs, 64, device="cuda")
    timing = time_launches(lambda i: launched[i].add_(1), inputs, Stream())
    assert timing.latency_us > 0 and timing.spread >= 0
    assert float(launched[0, 0]) >= 2 and torch.equal(launched, launched[:1].expand_as(launched))


STEPS = [(0, "chain", AS_COMPUTED), *((3, kind, AS_COMPUTED) for kind in KINDS)]
CODED = [(k, "chain", KvModes(mode, mode)) for mode in CODES for k in (0, 3)]


@pytest.mark.gpu
@pytest.mark.parametrize(("k", "kind", "kv"), [*STEPS, *CODED])
def test_every_kernel_of_a_step_takes_time(k: int, kind: str, kv: KvModes) -> None:
    from specgate.backends.eagle3.cupy.stream import Stream

    stream, (geometry, tree) = Stream(), KINDS[kind]
    with torch.inference_mode(), stream.current():
        stage = staged(k, slots=2, context=1024, device="cuda", geometry=geometry, tree=tree, kv=kv)
        results = list(timings(Role(k), stage, stream))
    assert all(timing.us > 0 and timing.per_step > 0 for timing in results)
    assert {timing.tag for timing in results} == {group.tag for group in groups_of(stage.calls, stage.context)}

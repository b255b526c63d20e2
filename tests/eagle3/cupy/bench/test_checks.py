from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.bench.run import groups_of, timings
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.contract import Role
from tests.eagle3.cupy.bench.checks import check, index_of, packed
from tests.eagle3.cupy.bench.staged import KINDS, no_launches, staged
from tests.eagle3.cupy.kernels.host import Host
from tests.eagle3.cupy.step.decoder import kernels_from_source

STEPS = [(0, "chain"), *((3, kind) for kind in KINDS)]


@pytest.mark.parametrize(("k", "kind"), STEPS)
def test_a_kernel_that_does_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch, k: int, kind: str) -> None:
    no_launches(monkeypatch)
    geometry, tree = KINDS[kind]
    stage = staged(k, slots=3, device="cpu", geometry=geometry, tree=tree)
    for group in groups_of(stage.calls, stage.context):
        error, tolerance = check(group.calls[0], stage)
        assert not error <= tolerance, group.tag


@pytest.mark.slow("compiles kernels as C++")
def test_every_kernel_of_a_step_with_experts_is_right(host: Host) -> None:
    with kernels_from_source(host):
        stage = staged(3, slots=2, device="cpu", geometry=KINDS["experts"][0])
        for group in groups_of(stage.calls, stage.context):
            error, tolerance = check(group.calls[0], stage)
            assert error <= tolerance, f"{group.tag}: {error}"


@given(token=st.integers(0, (1 << 31) - 1))
def test_a_packed_choice_holds_its_token(token: int) -> None:
    choices = packed(torch.tensor([token], dtype=torch.int32))
    assert index_of(choices).tolist() == [token]
    assert (int(choices[0]) >> 32) & 0xFFFFFFFF == 0xC0000000


@pytest.mark.gpu
@pytest.mark.parametrize(("k", "kind"), STEPS)
def test_every_kernel_of_a_step_is_right_and_takes_time(k: int, kind: str) -> None:
    from specgate.backends.eagle3.cupy.stream import Stream

    stream = Stream()
    with torch.inference_mode(), stream.current():
        geometry, tree = KINDS[kind]
        stage = staged(k, slots=2, context=1024, device="cuda", geometry=geometry, tree=tree)
        results = list(timings(Role(k), stage, stream))
        for group in groups_of(stage.calls, stage.context):
            error, tolerance = check(group.calls[0], stage)
            assert error <= tolerance, f"{group.tag}: {error}"
    assert {t.tag for t in results} == {g.tag for g in groups_of(stage.calls, stage.context)}
    for timing in results:
        assert timing.us > 0 and timing.per_step > 0
        assert all(peer.us is not None and peer.us > 0 for peer in timing.peers), timing.peers
    assert any(timing.peers for timing in results)


@pytest.mark.gpu
def test_a_product_over_another_weight_is_wrong() -> None:
    from specgate.backends.eagle3.cupy.stream import Stream

    with torch.inference_mode(), Stream().current():
        stage = staged(0, slots=1, device="cuda")
        call = next(c for c in stage.calls if isinstance(c.kernel, MatmulRows))
        error, tolerance = check(call, stage)
        assert error <= tolerance
        other = call.named["weight"].clone()
        other[0, 0] += 1
        error, tolerance = check(replace(call, named={**call.named, "weight": other}), stage)
        assert not error <= tolerance

"""The launchers of a step, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.loader import LISTENER, Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.step.recording import recorded
from tests.eagle3.cupy.bench.staged import no_launches, staged


def inside(part: object) -> Iterator[Kernel]:
    """Every launcher that can be reached from `part`."""
    if isinstance(part, Kernel):
        yield part
    elif isinstance(part, dict):
        yield from (kernel for inner in part.values() for kernel in inside(inner))
    elif type(part).__module__.startswith("specgate.backends.eagle3.cupy"):
        names = [field.name for field in fields(part)] if is_dataclass(part) else getattr(part, "__dict__", ())
        yield from (kernel for name in names for kernel in inside(getattr(part, name)))


@pytest.mark.parametrize("k", [0, 1, 3])
def test_a_cycle_names_each_of_its_launchers(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    no_launches(monkeypatch)
    cycle = staged(k).cycle
    named = cycle.kernels()
    assert {*named.values()} == {*inside(cycle)} and len(named) == len({*named.values()})


@pytest.mark.parametrize("k", [0, 1, 3])
def test_launchers_are_named_in_stream_order(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    no_launches(monkeypatch)
    stage = staged(k)
    called = list(dict.fromkeys(call.path for call in stage.calls))
    unused = {f"chain.step.{name}" for name in stage.cycle.verify.layer.kernels()} if k == 1 else set()
    unused |= set() if k else {"verify.capture"}
    assert called == [path for path in stage.cycle.kernels() if path not in unused]


def test_a_recorded_call_has_its_arguments_by_name_and_repeats_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = no_launches(monkeypatch)
    stage = staged(3)
    call = next(call for call in stage.calls if call.path == "verify.layer.attention")
    assert {"out", "qkv", "rows", "groups", "operands"} <= set(call.named) and "self" not in call.named
    assert [launch.name for launch in call.launches] == ["attention", "attention_combine"]
    assert all(launch.kernel is call.kernel is stage.cycle.kernels()[call.path] for launch in call.launches)
    launched.clear()
    call()
    assert launched == ["attention", "attention_combine"]


def test_nothing_is_recorded_of_launchers_beside_the_step_and_after_the_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = no_launches(monkeypatch)
    stage = staged(0)
    launched.clear()
    with recorded(stage.cycle) as calls:
        x, weight = torch.empty(1, 64, dtype=torch.bfloat16), torch.empty(64, 64, dtype=torch.bfloat16)
        MatmulRows(64, 64, Epilogue.PLAIN, 1)(torch.empty(1, 64), x, weight, stage.b.slots.rows(1, 1))
        stage.cycle.reserve(stage.b.kv, stage.b.slots)
    stage.cycle.reserve(stage.b.kv, stage.b.slots)
    assert [call.path for call in calls] == ["reserve"]
    assert launched == ["matmul_rows", "kv_reserve", "kv_reserve"]
    assert LISTENER.get() is None


def test_a_launch_without_a_call_of_its_launcher_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    stage = staged(0)
    with recorded(stage.cycle), pytest.raises(AssertionError, match="outside of a call of its launcher"):
        stage.cycle.reserve(stage.b.kv, stage.b.slots)
        stage.cycle.commit.launch((1,), stage.b.kv, stage.b.slots, threads=1)

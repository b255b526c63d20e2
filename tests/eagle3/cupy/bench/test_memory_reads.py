"""Reading a GPU's memory: how fast, of which GPU, and only where it fits."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.bench import timing
from specgate.errors import EnvironmentRefused
from specgate.machine import inventory


@pytest.mark.gpu
def test_the_gpu_that_would_be_measured_is_read() -> None:
    bandwidth = BACKEND.read_memory(10)
    assert bandwidth.gpu_uuid == inventory.visible_gpu_uuid()
    assert bandwidth.device == torch.cuda.get_device_name()
    assert bandwidth.size in timing.SIZES and len(bandwidth.elapsed_ns) == 10
    assert min(bandwidth.elapsed_ns) > 0


@pytest.mark.gpu
def test_nothing_is_held_afterwards() -> None:
    before = torch.cuda.memory_allocated()
    BACKEND.read_memory(1)
    assert torch.cuda.memory_allocated() == before


def test_a_gpu_with_too_little_free_memory_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "first_gpu", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(timing, "free_bytes", lambda device: 3_000_000_000)
    with pytest.raises(EnvironmentRefused, match=r"cuda:0: 3\.00 GB free, but reading takes 4\.29 GB"):
        timing.read_memory(1)

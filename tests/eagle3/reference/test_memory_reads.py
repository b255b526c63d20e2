"""Reading the host's memory."""

from __future__ import annotations

import pytest

from specgate.backends.eagle3.reference import memory_reads
from specgate.errors import EnvironmentRefused


def test_every_read_but_the_warm_up_is_timed() -> None:
    bandwidth = memory_reads.read_memory(5, size=1 << 22)
    assert (bandwidth.device, bandwidth.gpu_uuid, bandwidth.size) == ("cpu", None, 1 << 22)
    assert len(bandwidth.elapsed_ns) == 5 and min(bandwidth.elapsed_ns) > 0


def test_a_host_with_too_little_free_memory_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_reads, "free_bytes", lambda device: 1_000_000_000)
    with pytest.raises(EnvironmentRefused, match=r"1\.00 GB of memory free, but reading takes 2\.15 GB"):
        memory_reads.read_memory(1)

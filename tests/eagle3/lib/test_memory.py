from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.lib import memory
from specgate.backends.eagle3.lib.memory import free_bytes, refusing_overflow, require_room, weight_bytes
from specgate.checkpoints.heads.tensors import Wanted
from specgate.errors import EnvironmentRefused

WANTED = {"a": Wanted((1000, 1000)), "b": Wanted((1000,))}


def test_bytes_are_counted_in_the_dtype_asked_for() -> None:
    assert weight_bytes(WANTED, torch.bfloat16) == 2 * 1_001_000
    assert weight_bytes(WANTED, torch.float32) == 4 * 1_001_000


def test_what_fits_exactly_is_allowed_and_a_byte_more_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3_000_000)
    require_room(WANTED, torch.bfloat16, "cpu", "it", 3_000_000 - 2_002_000)
    with pytest.raises(
        EnvironmentRefused, match=r"it: 0\.00 GB of weights in bfloat16 and 0\.00 GB beside them, but cpu has 0\.00 GB"
    ):
        require_room(WANTED, torch.bfloat16, "cpu", "it", 3_000_001 - 2_002_000)


def test_a_cpu_has_memory_free() -> None:
    assert free_bytes(torch.device("cpu")) > 1_000_000


def test_torchs_own_refusal_is_one_of_this_machine() -> None:
    message = r"the pair: CUDA out of memory\. Tried 9 GiB\n  ask for a shorter"
    with pytest.raises(EnvironmentRefused, match=message), refusing_overflow("the pair"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB\nmore lines")

"""Devices for the kernels of a test: the CPU as C++, and a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels import operands
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from tests.eagle3.cupy.kernels.host import Host, host_map


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The device of tensors. On `cpu` every launch runs the kernel's own source as C++."""
    if request.param == "cpu":
        compiled: Host = request.getfixturevalue("host")

        def enqueue(kernel: Kernel, *arguments: Any, **keywords: Any) -> None:
            compiled.enqueue(kernel, *arguments, **keywords)

        monkeypatch.setattr(Kernel, "enqueue", enqueue)
        monkeypatch.setattr(operands, "tensor_map", host_map)
    with torch.inference_mode():
        yield request.param

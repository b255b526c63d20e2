"""Kernels on the CPU as C++, one by one or in whole steps, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels import operands
from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from tests.eagle3.cupy.kernels.host import COMPILER, Host, host_map
from tests.eagle3.cupy.kernels.peers.ranks_on_host import kernels_from_source


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Libraries are kept in pytest's cache: `--cache-clear` empties it, `-p no:cacheprovider` does without."""
    if COMPILER is None:
        pytest.skip("no g++ here")
    cache = getattr(request.config, "cache", None)
    return Host(tmp_path_factory.mktemp("kernels"), cache and cache.mkdir("kernels-on-the-cpu"))


@pytest.fixture
def on_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch runs the kernel's own source as C++. Of experts it has few blocks, which run one after the other."""
    monkeypatch.setattr(Kernel, "enqueue", lambda *arguments, **keywords: host.enqueue(*arguments, **keywords))
    monkeypatch.setattr(operands, "tensor_map", host_map)
    monkeypatch.setattr(expert_config, "PROCESSORS", 3)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the device of tensors. On `cpu` kernels run as C++."""
    if request.param == "cpu":
        request.getfixturevalue("on_host")
    with torch.inference_mode():
        yield request.param


@pytest.fixture(scope="module")
def whole_steps(host: Host) -> Iterator[None]:
    """In all tests of a module, every launch runs on the CPU."""
    with kernels_from_source(host):
        yield

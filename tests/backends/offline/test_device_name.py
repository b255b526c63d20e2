"""The name of vLLM's GPU: whatever its platform raises for want of one, and nothing else, leaves the name out."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from specgate.backends.offline.driver.vllm_engine import device_name


class NVMLError(Exception):
    """As in vLLM's copy of pynvml."""


class Platform:
    def __init__(self, error: Exception | None = None, cuda: bool = True) -> None:
        self.error, self.cuda = error, cuda

    def is_cuda(self) -> bool:
        return self.cuda

    def get_device_name(self) -> str:
        if self.error is not None:
            raise self.error
        return "NVIDIA H200"


def of(platform: Platform, patch: pytest.MonkeyPatch) -> str | None:
    modules = {
        "vllm": SimpleNamespace(),
        "vllm.platforms": SimpleNamespace(current_platform=platform),
        "vllm.third_party": SimpleNamespace(),
        "vllm.third_party.pynvml": SimpleNamespace(NVMLError=NVMLError),
    }
    for name, module in modules.items():
        patch.setitem(sys.modules, name, module)
    return device_name()


def test_a_gpu_has_its_name_and_a_cpu_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(Platform(), monkeypatch) == "NVIDIA H200"
    assert of(Platform(cuda=False), monkeypatch) is None


@pytest.mark.parametrize(
    "error", [NotImplementedError(), RuntimeError("no driver"), NVMLError(999), IndexError(), ValueError()]
)
def test_a_platform_that_tells_no_name_costs_nothing_but_the_name(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of(Platform(error), monkeypatch) is None


def test_an_error_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError):
        of(Platform(AttributeError("get_device_name")), monkeypatch)

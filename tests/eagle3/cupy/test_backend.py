"""Machines that the built-in engine says it can run on."""

from __future__ import annotations

import sys

import pytest

from specgate.backends.eagle3.cupy import backend
from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.engine.facts import describe_sampling
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.reference.backend import BACKEND as REFERENCE
from specgate.contract import Sampling
from specgate.contract.protocols import ChecksSampling, DrawsTexts, OffersSampling, ShowsDistribution
from tests.support.fake_nvml import driver


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: name if name in names else None)


def gpus(monkeypatch: pytest.MonkeyPatch, **capabilities: tuple[int, int] | None) -> None:
    """GPUs of these compute capabilities, by UUID; the first is visible. None: the driver does not know."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", driver(capabilities))


NOT_INSTALLED = "{} not installed (in specgate's checkout: pip install '.[cuda13]')"
TOO_OLD = "the GPU has compute capability 7.5, but 8.0 is needed (sm_80)"


@pytest.mark.parametrize(
    ("names", "capabilities", "reason"),
    [
        pytest.param((), {"a": (9, 0)}, NOT_INSTALLED.format("cupy and torch"), id="no libraries"),
        pytest.param(("torch",), {"a": (9, 0)}, NOT_INSTALLED.format("cupy"), id="no cupy"),
        pytest.param(("cupy",), {"a": (9, 0)}, NOT_INSTALLED.format("torch"), id="no torch"),
        pytest.param(("cupy", "torch"), {}, "no CUDA GPU, or no NVIDIA driver", id="no GPU"),
        pytest.param(("cupy", "torch"), {"a": (7, 5), "b": (9, 0)}, TOO_OLD, id="no bfloat16 tensor cores"),
    ],
)
def test_where_it_does_not_run_the_reason_is_named(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], capabilities: dict[str, tuple[int, int]], reason: str
) -> None:
    installed(monkeypatch, *names)
    gpus(monkeypatch, **capabilities)
    availability = BACKEND.available()
    assert (availability.usable, availability.reason) == (False, reason)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0), None], ids=str)
def test_where_it_runs_it_is_preferred_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None
) -> None:
    installed(monkeypatch, "cupy", "torch")
    gpus(monkeypatch, a=capability)
    availability = BACKEND.available()
    assert availability.usable
    assert availability.rank > REFERENCE.available().rank


def test_it_offers_sampling_draws_texts_and_shows_their_distribution() -> None:
    assert isinstance(BACKEND, OffersSampling)
    assert issubclass(CupyEngine, DrawsTexts) and issubclass(CupyEngine, ShowsDistribution)


def test_it_takes_every_setting_of_sampling() -> None:
    assert not isinstance(BACKEND, ChecksSampling)


def test_what_is_drawn_how_is_told_in_one_line() -> None:
    assert describe_sampling(Sampling()) == "temperature 1, coupled, seed 0, on the device"
    sampling = Sampling(temperature=0.6, top_p=0.95, top_k=20, frequency_penalty=0.2, logit_bias=((3, 1.0),), seed=7)
    message = (
        "temperature 0.6, top_p 0.95, top_k 20, frequency_penalty 0.2, 1 biased tokens, coupled, seed 7, on the device"
    )
    assert describe_sampling(sampling) == message

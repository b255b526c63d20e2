"""Faults in a library's process end in an error that names them, and nothing is left running."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specgate.contract import BASELINE, Budget, Role
from specgate.errors import BackendError, UsageError
from specgate.plugins import backend
from tests.backends.offline.helpers import opened, request_of

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
STEPS, TOKENS = Budget(steps=6), Budget(new_tokens=21)


pytestmark = pytest.mark.slow("starts and ends an engine's process in every test")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("open=raise", "open: RuntimeError: CUDA error: an illegal memory access"),
        ("open=exit", "open: SystemExit: engine core initialisation failed"),
        ("open=die", "its process was ended by signal 9"),
        ("open=garbage", "malformed answer: .*not a message"),
        ("open=number", "malformed answer: 7: an object is needed"),
    ],
)
def test_a_library_that_does_not_open(fault: str, message: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=message):
        backend("vllm-offline").open(request_of(pair, tmp_path, {}, fault=fault, max_k=0))


def test_a_library_that_takes_too_long_to_open(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="open: no progress in time") as caught:
        backend("vllm-offline").open(request_of(pair, tmp_path, {"start_s": "0.4"}, fault="open=hang", max_k=0))
    assert "-o start_s=SECONDS" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("vllm-offline", "step=raise", "decode: RuntimeError: CUDA error"),
        ("vllm-offline", "step=die", "its process was ended by signal 9"),
        ("vllm-offline", "step=hang", "decode: no progress in time"),
        ("vllm-offline", "step=garbage", "malformed answer"),
        ("vllm-offline", "step=endless", "an answer of more than 1 MiB"),
        ("vllm-offline", "mixed", "2 prompts should have got one each"),
        ("lmdeploy-pipeline", "step=raise", "decode: RuntimeError: CUDA error"),
        ("lmdeploy-pipeline", "error", "slot 0: ended with INTERNAL_ENGINE_ERROR"),
    ],
)
def test_a_block_that_goes_wrong(
    name: str, fault: str, message: str, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgate.backends.offline.wire.LONGEST_LINE", 1 << 20)
    with opened(name, request_of(pair, tmp_path, {"stall_s": "0.5"}, fault=fault, max_k=0)) as engine:
        engine.prefill(PROMPTS, draft=False)
        with pytest.raises(BackendError, match=message):
            engine.decode(BASELINE, STEPS, ())


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("vllm-offline", "miscount", "but the counters of get_metrics grew by"),
        ("vllm-offline", "preempt", r"step 4: slots \[0\] got tokens"),
        ("lmdeploy-pipeline", "joined", "an output of . tokens says that . drafts were accepted"),
    ],
)
def test_a_block_of_drafts_that_goes_wrong(
    name: str, fault: str, message: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with opened(name, request_of(pair, tmp_path, {}, fault=fault)) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match=message):
            engine.decode(Role(3), TOKENS, ())


def test_sums_of_a_request_without_their_steps_are_not_taken_for_a_steps_counts(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    request = request_of(pair, tmp_path, {"engine": "turbomind"}, fault="lacks=num_drafts")
    with opened("lmdeploy-pipeline", request) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match="malformed answer: KeyError 'num_drafts'"):
            engine.decode(Role(3), TOKENS, ())


@pytest.mark.parametrize("name", ["vllm-offline", "lmdeploy-pipeline"])
def test_an_engine_that_shows_one_token_ranks_none_and_a_strange_one_is_named(
    name: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    for fault in ("blind", "strange"):
        with opened(name, request_of(pair, tmp_path, {}, fault=fault, max_k=0)) as engine:
            engine.prefill(PROMPTS, draft=False)
            if fault == "blind":
                assert engine.ranked(0, (), 1) is None and engine.top2(0, ()) is None
                continue
            with pytest.raises(BackendError, match="token id 1048576, but the vocabulary has"):
                engine.top2(0, ())


def test_a_process_that_somebody_kills(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with opened("vllm-offline", request_of(pair, tmp_path, {}, max_k=0)) as engine:
        assert engine.processes[BASELINE].process.ended is None
        os.kill(int(engine.processes[BASELINE].process.pid or 0), signal.SIGKILL)
        with pytest.raises(BackendError, match="its process was ended by signal 9"):
            engine.prefill(PROMPTS, draft=True)


def test_a_library_that_is_not_installed_is_named_with_what_to_do(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    options = {"pythonpath": str(tmp_path / "empty")}
    with pytest.raises(BackendError, match="No module named 'lmdeploy'") as caught:
        backend("lmdeploy-pipeline").open(request_of(pair, tmp_path, options, max_k=0))
    assert "-o python=" in str(caught.value.hint)


def test_a_missing_interpreter_is_a_usage_error(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="option python = no-such-python: no such program"):
        backend("vllm-offline").open(request_of(pair, tmp_path, {"python": "no-such-python"}))


def test_an_argument_that_the_library_does_not_know(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"TypeError: .*unexpected keyword argument 'nothing_of_the_kind'"):
        backend("lmdeploy-pipeline").open(request_of(pair, tmp_path, {"config.nothing_of_the_kind": "1"}, max_k=0))

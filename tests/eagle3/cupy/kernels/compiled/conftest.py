"""The record of compiled kernels, and what has to be in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.cupy import device
from specgate.backends.eagle3.cupy.kernels.loader import Spec
from tests.eagle3.cupy.kernels.compiled.compiler import Compiler
from tests.eagle3.cupy.kernels.compiled.sweep import GPUS, attributes_of, every_spec

RECORD = Path(__file__).with_name("registers.json")
COMPILER = pytest.StashKey[Compiler]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-compiled", action="store_true", help=f"compile the kernels that are not in {RECORD.name}, and write it"
    )
    parser.addoption(
        "--every-code",
        action="store_true",
        help="with --write-compiled: compile every code for every architecture, those in the file too",
    )


@pytest.fixture(scope="session")
def every_code(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("every_code", False))


@pytest.fixture(scope="session")
def compiler(pytestconfig: pytest.Config, every_code: bool) -> Compiler:
    writes = bool(pytestconfig.getoption("write_compiled", False))
    return pytestconfig.stash.setdefault(COMPILER, Compiler(RECORD, writes=writes, anew=writes and every_code))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Take out of the record what no test has needed, after all tests here were run."""
    compiler, config = session.config.stash.get(COMPILER, None), session.config
    whole = [Path(arg).resolve() for arg in config.args] == [RECORD.parent] and not config.getoption("keyword")
    if compiler is not None and compiler.writes and exitstatus == 0 and whole:
        compiler.forget_others()


@contextmanager
def without_gpu() -> Iterator[None]:
    """Choose kernels as on a machine without a GPU, so that the record is the same everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "current_attributes", lambda: None)
        yield


@pytest.fixture(autouse=True)
def no_gpu() -> Iterator[None]:
    with without_gpu():
        yield


@pytest.fixture
def on_gpu_of(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> Callable[[str], None]:
    """Call it with an architecture: from then on kernels are chosen as on the GPU that `GPUS` has of it."""

    def choose(architecture: str) -> None:
        monkeypatch.setattr(device, "current_attributes", lambda: attributes_of(architecture))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: GPUS[architecture].capability)

    return choose


@pytest.fixture(scope="session")
def specs() -> list[Spec]:
    with without_gpu():
        return every_spec()

"""Shared fixtures, and the one place that decides whether GPU tests can run."""

from __future__ import annotations

import os
from pathlib import Path

# Reproducible and polite on small machines: the tests' models are tiny, more threads only fight each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

from tests.support.command import Cli

# Deadlines measure the machine, not the code.
settings.register_profile("specgate", deadline=None)
settings.load_profile("specgate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU; torch sees none here"))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from specgate.eagle3.tiny import write_random_pair

    return write_random_pair(tmp_path_factory.mktemp("pair"), seed=8)


@pytest.fixture
def cli(tmp_path: Path, pair: tuple[Path, Path]) -> Cli:
    return Cli(tmp_path, *pair)

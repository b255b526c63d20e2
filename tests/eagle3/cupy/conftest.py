"""Kernels on the CPU, for those who run them one by one and for those who run whole steps."""

from __future__ import annotations

import pytest

from tests.eagle3.cupy.kernels.host import COMPILER, Host


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Libraries are kept in pytest's cache: `--cache-clear` empties it, `-p no:cacheprovider` does without."""
    if COMPILER is None:
        pytest.skip("no g++ here")
    cache = getattr(request.config, "cache", None)
    return Host(tmp_path_factory.mktemp("kernels"), cache and cache.mkdir("kernels-on-the-cpu"))

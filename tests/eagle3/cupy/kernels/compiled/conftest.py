"""The compiler, and what it compiles."""

from __future__ import annotations

import pytest

from specgate.backends.eagle3.cupy.kernels.loader import Spec
from tests.eagle3.cupy.kernels.compiled.compiler import Compiler
from tests.eagle3.cupy.kernels.compiled.sweep import every_spec


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Its cache is pytest's: `--cache-clear` empties it, `-p no:cacheprovider` does without."""
    cache = getattr(request.config, "cache", None)
    return Compiler(cache and cache.mkdir("compiled-kernels"))


@pytest.fixture(scope="session")
def specs() -> list[Spec]:
    return every_spec()

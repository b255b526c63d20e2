"""The real engines that are installed here."""

from __future__ import annotations

import pytest

from tests.real.engines import NAMES, RealEngine, engine_here


@pytest.fixture(scope="module", params=NAMES)
def real(request: pytest.FixtureRequest) -> RealEngine:
    result = engine_here(request.param)
    if isinstance(result, str):
        pytest.skip(result)
    return result

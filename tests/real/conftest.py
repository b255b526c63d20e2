"""The real engines that are installed here."""

from __future__ import annotations

import pytest

from tests.real.engines import NAMES, RealEngine, engine_here


@pytest.fixture(scope="module", params=NAMES)
def real(request: pytest.FixtureRequest) -> RealEngine:
    engine_or_reason = engine_here(request.param)
    if isinstance(engine_or_reason, str):
        pytest.skip(engine_or_reason)
    return engine_or_reason

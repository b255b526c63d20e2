"""The picture of acceptance over uptime: left out where all that it would show is rounding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specgate.contract import AcceptanceDrift
from specgate.reports.pictures.uptime import over_requests

DRIFT: dict[str, Any] = {
    "slope": 2e-13, "freedom": 6, "correlation": 0.0, "sets": 8, "length": 2.9, "requests": 8,
    "blocks": ((2.5, 0.0), (9.5, 0.0)),
}  # fmt: skip


def test_blocks_that_accepted_the_same_are_said_so_and_no_slope_of_rounding_is_drawn() -> None:
    drift = AcceptanceDrift(error=0.0, set_error=0.0, **DRIFT)
    result: Any = SimpleNamespace(drift=drift, cell=SimpleNamespace(role_name="spec-3"))
    picture = over_requests("key", [result])
    assert picture.svg is None and "spec-3: every block of a prompt set accepted the same" in picture.caption

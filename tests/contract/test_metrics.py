"""Every figure a run can hold has one definition."""

from __future__ import annotations

import pytest

from specgate.contract.metrics import METRICS, metric
from tests.support.factories import blocks_of, plan_of, run_of, scenario


@pytest.mark.parametrize("kind", ["micro", "full"])
def test_every_figure_of_a_run_has_a_unit_and_a_direction(kind: str) -> None:
    plan = plan_of(scenario(kind="full" if kind == "full" else "micro", batch=(2,), spec=(1, 5)))
    run = run_of(plan, blocks_of(plan))
    values = [*(v for c in run.cells for v in c.values.values()), *(c.speedup for c in run.comparisons)]
    assert all(metric(v.metric).unit and metric(v.metric).direction for v in values)


def test_names_are_keys_and_end_in_their_unit() -> None:
    assert all(name == m.name for name, m in METRICS.items())
    assert all(m.unit == "ms" for name, m in METRICS.items() if name.endswith("_ms"))
    assert all("tok/s" in m.unit for name, m in METRICS.items() if "tok_s" in name)


def test_an_indexed_metric_is_defined_once_for_all_positions() -> None:
    assert metric("acceptance_at_pos[1]") is metric("acceptance_at_pos[7]")


@pytest.mark.parametrize("name", ["no_such", "no_such[1]"])
def test_an_unknown_metric_is_a_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        metric(name)

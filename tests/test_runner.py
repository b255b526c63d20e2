"""What a resumed run may be measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.core import EngineFacts
from specgate.errors import UsageError
from specgate.runner import Runner
from specgate.store import Config, RunFolder
from tests.factories import POLICY, plan_of, run_of


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("target_sha256", lambda facts: replace(facts, target_sha256="another")),
        ("draft_sha256", lambda facts: replace(facts, draft_sha256="another")),
        ("device", lambda facts: replace(facts, device="another")),
        ("dtype", lambda facts: replace(facts, dtype="another")),
        ("capture_rule", lambda facts: replace(facts, capture_rule="another")),
        ("tape_sha256", lambda facts: replace(facts, tape_sha256="another")),
    ],
)
def test_a_point_is_measured_on_one_engine_with_one_tape(
    tmp_path: Path, key: str, change: Callable[[EngineFacts], EngineFacts]
) -> None:
    plan = plan_of()
    run, (point,) = run_of(plan, ()), plan.points
    folder = RunFolder.create(tmp_path, "micro", "demo", "0" * 64)
    folder.append_engine(point.key, run.engines[point.key])
    config = Config("micro", "fake", run.pair, POLICY, run.scenarios)
    runner = Runner(plan, {}, config, folder, lambda block, done, total: None)
    runner._register(point, run.engines[point.key])
    other = change(run.engines[point.key])
    with pytest.raises(UsageError, match=f"{key}: it was .*, it is another now"):
        runner._register(point, other)

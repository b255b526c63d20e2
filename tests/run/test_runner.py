"""Machines and builds that a resumed run may be measured on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.fake.engine import FakeEngine
from specgate.contract import BASELINE, Block, Budget, EngineFacts, EngineIdentity, Finish, Point, Role, Round, Scenario
from specgate.contract.protocols import Decoded
from specgate.errors import UsageError
from specgate.files.config import Config
from specgate.files.journal import PointEngine
from specgate.files.run_folder import RunFolder
from specgate.machine.monitor import line_of
from specgate.run.point_blocks import make_block
from specgate.run.progress import Silent
from specgate.run.runner import Runner
from tests.support.command import Cli
from tests.support.factories import POLICY, plan_of, run_of
from tests.support.surroundings import sample


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("target_sha256", lambda facts: replace(facts, target_sha256="another")),
        ("draft_sha256", lambda facts: replace(facts, draft_sha256="another")),
        ("device", lambda facts: replace(facts, device="another")),
        ("engine_version", lambda facts: replace(facts, engine_version="another")),
        ("dtype", lambda facts: replace(facts, dtype="another")),
        ("capture_rule", lambda facts: replace(facts, capture_rule="another")),
        ("tape_sha256", lambda facts: replace(facts, tape_sha256="another")),
        ("tuned_sha256", lambda facts: replace(facts, tuned_sha256="another")),
        ("engine:build", lambda facts: replace(facts, identity=EngineIdentity("vllm", "0.25.1", "another"))),
    ],
)
def test_a_point_is_measured_on_one_engine_with_one_tape(
    tmp_path: Path, key: str, change: Callable[[EngineFacts], EngineFacts]
) -> None:
    plan = plan_of()
    run, (point,) = run_of(plan, ()), plan.points
    folder = RunFolder.create(tmp_path, "micro", "demo", "0" * 64)
    folder.append(PointEngine(point.key, run.engines[point.key]))
    config = Config("micro", "fake", run.pair, POLICY, run.scenarios)
    runner = Runner(plan, {}, config, folder, Silent())
    runner._register(point, run.engines[point.key])
    other = change(run.engines[point.key])
    with pytest.raises(UsageError, match=f"{key}: it was .*, it is another now"):
        runner._register(point, other)


def test_sessions_of_a_start_that_measured_nothing_are_not_used_again(tmp_path: Path) -> None:
    """Else samples of two starts, perhaps of two boots, would be taken for one watch's."""
    folder = RunFolder.create(tmp_path, "micro", "demo", "0" * 64)
    plan = plan_of()
    config = Config("micro", "fake", run_of(plan, ()).pair, POLICY, plan.scenarios)
    for expected in (-1, 0, 1):
        runner = Runner(plan, {}, config, folder, Silent())
        assert runner.worker_generation == expected
        with folder.watch_file.open("a") as out:
            out.write(line_of(sample(0, worker_generation=runner.worker_generation + 1)))


@pytest.mark.parametrize(("sets", "rounds"), [(8, 4), (4, 8)])
def test_an_engine_that_holds_one_role_at_a_time_is_loaded_at_most_six_times_for_32_pairs(
    sets: int, rounds: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Role] = []

    class OneRole(FakeEngine):
        """The scripted engine, which notes every role that it would have to load."""

        def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
            if loads[-1:] != [role]:
                loads.append(role)
            return super().decode(role, budget, stop_token_ids)

    def by_load(scenarios: Sequence[Scenario], *_: object) -> list[Scenario]:
        return [replace(s, schedule=replace(s.schedule, by_load=True)) for s in scenarios]

    monkeypatch.setattr("specgate.backends.fake.engine.FakeEngine", OneRole)
    monkeypatch.setattr("specgate.planning.resolution.one_role_at_a_time", by_load)
    cli.scenario(spec=[3], sets=sets, rounds=rounds)
    cli.micro("--backend", "fake", code=0)
    spec = Role(3)
    assert loads == [BASELINE, spec, BASELINE, spec, BASELINE], "texts are checked while the baseline is loaded"
    blocks = RunFolder.open(cli.newest()).lines(Block)
    assert Counter((b.role, b.warmup) for b in blocks) == {(r, w): 1 if w else 32 for r in loads[:2] for w in (0, 1)}
    firsts = Counter((b.prompt_set, b.role) for b in blocks if not b.position_in_round and not b.warmup)
    assert set(firsts.values()) == {rounds // 2} and len(firsts) == 2 * sets
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


def test_only_a_back_end_that_comes_with_specgate_is_believed_when_its_block_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the call of a server does beside its requests has no bound that a begin could be held to."""
    round_ = Round(Point("s", "vllm", 8, 1), 0, 0, (BASELINE,), warmup=False)
    decoded = Decoded(5, (), ((1, 2),), (), (), (0,), (Finish.LENGTH,), prefill_ns=3, began_ns=70)
    assert make_block(round_, 0, BASELINE, 0, 0, decoded).began_ns == 70
    monkeypatch.setattr("specgate.plugins.from_outside", lambda group, names: list(names))
    assert make_block(round_, 0, BASELINE, 0, 0, decoded).began_ns is None

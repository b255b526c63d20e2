from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specgate import plugins
from specgate.contract import Rule, Run, State, Verdict
from specgate.selftest.faults import FAULTS, GREEN, PROCESSES, Fault, injected, newest, outcomes, scripted, surroundings
from tests.support import in_process

pytestmark = pytest.mark.usefixtures("no_processes")


@pytest.mark.slow("twenty-nine runs")
def test_every_gate_sees_a_fault_of_its_own_and_a_clean_engine_has_none(tmp_path: Path) -> None:
    results = list(outcomes(tmp_path))
    assert [o for o in results if o.wrong] == []
    expected = [o.expected.split() for o in results]
    seen = {gate for gate, state, *_ in expected if state in [s for s in State if s not in GREEN]}
    assert seen == set(plugins.registered("specgate.gates"))
    made = [p for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    assert len(made) == len({(f.kind, *f.options.items()) for f in FAULTS}) + 2 + PROCESSES


def test_a_judge_that_passes_everything_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = plugins.gate("invariants")

    def blind(rule: Rule, run: Run) -> Iterator[Verdict]:
        return (replace(v, state=State.PASS) for v in type(gate).judge(gate, rule, run))

    monkeypatch.setattr(gate, "judge", blind)
    fault = next(f for f in FAULTS if f.reason_code == "sync_in_loop")
    (outcome,) = injected([fault], tmp_path)
    assert outcome.wrong == "invariants did not see it"


def test_a_gate_that_objects_to_what_is_not_its_own_is_found_out(tmp_path: Path) -> None:
    fault = Fault("one wrong token", {"wrong_token_at": "9"}, "tokens", "token_mismatch")
    (outcome,) = injected([fault], tmp_path)
    assert outcome.wrong == "invariants, speed objected too"


@pytest.fixture(scope="module")
def unspoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of the scripted engine without a fault."""
    with pytest.MonkeyPatch.context() as patch:
        in_process.stay_here(patch)
        folder = tmp_path_factory.mktemp("unspoilt")
        scripted({}, folder)
        yield newest(folder)


def test_a_blind_gate_for_distributions_is_found_out(unspoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = plugins.gate("distribution")

    def blind(rule: Rule, run: Run) -> Iterator[Verdict]:
        return (replace(v, state=State.PASS) for v in type(gate).judge(gate, rule, run))

    monkeypatch.setattr(gate, "judge", blind)
    wrong = [outcome.wrong for outcome in surroundings(unspoilt, unspoilt.parent) if "distribution" in outcome.expected]
    assert wrong == [None, "it said PASS not_the_targets"]

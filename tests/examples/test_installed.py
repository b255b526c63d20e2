"""The packages of docs/examples as a user has them: installed, listed, measured with, judged by, verified."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from specgate import plugins
from specgate.cli import cli as command_line
from specgate.contract import Run, State
from specgate.errors import UsageError
from specgate.files.run_folder import RunFolder
from specgate.planning.policy import load_policy
from tests.support.command import POLICY, ROOT, Cli
from tests.support.example_packages import MODULES, install

pytestmark = pytest.mark.slow("installs three packages")
DRAWS = True
"""Its run is made by a process that draws, and is verified here."""

RULE = "  - {id: p90, gate: tpot-percentile, required: true, role: spec-*, percentile: 90, max_ms: 1000}\n"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def folder(packages: Path, tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Path:
    """A run of the back end from outside, in a process of its own, judged by a policy that names the gate."""
    made = Cli(tmp_path_factory.mktemp("outside"), *pair)
    made.write("policy.yaml", POLICY.replace("MIN", "1.0") + RULE)
    options = {"--backend": "counting", "--scenario": "tiny.yaml", "--policy": "policy.yaml"}
    options |= {"--target": str(made.target), "--draft": str(made.draft)}
    words = [word for item in options.items() for word in item]
    command = [sys.executable, "-m", "specgate", "micro", "--plain", *words]
    environment = {k: v for k, v in os.environ.items() if k != "SPECGATE_LOAD_PLUGINS"}
    environment |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(packages))), "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=made.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "p90" in (made.newest() / "summary.md").read_text()
    return made.newest()


@pytest.fixture
def run(folder: Path) -> Run:
    return RunFolder.open(folder).read_run()


@pytest.fixture
def seen(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The packages are installed in this process too."""
    monkeypatch.delenv("SPECGATE_LOAD_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(packages)
    plugins.registered.cache_clear()
    yield
    plugins.registered.cache_clear()
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("seen")
def test_the_back_end_is_listed_and_keeps_the_protocol() -> None:
    listed = CliRunner().invoke(command_line, ["machine", "backends", "--validate"])
    assert listed.exit_code == 0, listed.output
    lines = [line.split(maxsplit=1) for line in listed.output.splitlines()]
    assert ["counting", "fine (specgate_example_backend:BACKEND)"] in lines


def test_the_back_end_is_measured(run: Run) -> None:
    spec_3 = run.cells[2]
    # k = 3: 1 and 3 drafts are accepted in turn, over 6 steps.
    assert spec_3.acceptance is not None and spec_3.acceptance.acceptance_length == 3.0


def test_the_gate_judges_every_cell_that_its_rule_selects(run: Run) -> None:
    verdicts = [v for v in run.verdicts if v.gate == "tpot-percentile"]
    assert [v.cell.rpartition("/")[2] for v in verdicts] == ["spec-2", "spec-3"]
    assert {v.judges for v in verdicts} == {("latency",)}, "a kind of its own"
    assert run.not_judged is not None and "latency" not in {gap.kind for gap in run.not_judged}
    # Four prompt sets of two requests, two rounds.
    assert [(v.state, v.evidence["requests"]) for v in verdicts] == [(State.PASS, 16)] * 2


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("correct", "wrong", "message"),
    [
        ("max_ms", "max_msec", "max_msec.*max_ms"),
        ("max_ms: 1000", "max_ms: soon", "takes a float"),
        (", max_ms: 1000", "", "needs max_ms"),
        ("percentile: 90", "percentile: 100", "percentile: 100: it lies between 0 and 100"),
    ],
)
def test_a_parameter_that_the_gate_cannot_take_is_refused(
    tmp_path: Path, correct: str, wrong: str, message: str
) -> None:
    file = tmp_path / "wrong.yaml"
    policy = POLICY.replace("micro: [gate.yaml]\n", "").replace("MIN", "1.0")
    file.write_text(policy + RULE.replace(correct, wrong))
    with pytest.raises(UsageError, match=rf"wrong\.yaml:{len(policy.splitlines()) + 1}.*{message}"):
        load_policy(file, plugins.gates())


def test_the_report_is_in_the_run_folder_and_prometheus_reads_it(folder: Path) -> None:
    text = (folder / "specgate.prom").read_text(encoding="utf-8")
    data = {family.name: family.samples for family in text_string_to_metric_families(text)}
    lengths = {s.labels["role"]: s.value for s in data["specgate_acceptance_length"]}
    assert lengths["spec-3"] == 3.0 and "baseline" not in lengths
    assert [s.value for s in data["specgate_exit_code"]] == [0.0]


@pytest.mark.usefixtures("seen")
def test_the_run_follows_from_its_samples(folder: Path) -> None:
    verified = CliRunner().invoke(command_line, ["runs", "verify", str(folder)])
    assert verified.exit_code == 0, verified.output

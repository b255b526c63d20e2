"""compare: results of other tools side by side, decided by repetitions alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specgate.archive.comparing.other_results import contrast_of_results
from specgate.cli import cli
from specgate.contract.comparisons import How
from specgate.errors import UsageError
from tests.archive.other_tools.test_reading import GUIDELLM, LLAMA, PLAIN, SGLANG, SPECULATIVE, write

SPEEDS = (60.0, 60.3, 59.8, 60.1)


def side(folder: Path, name: str, factor: float, count: int = 4, result: dict[str, object] = SPECULATIVE) -> Path:
    """A folder with a file per repetition, each `factor` times as fast."""
    (folder / name).mkdir()
    for i, speed in enumerate(SPEEDS[:count]):
        one = {**result, "output_throughput": speed * factor, "mean_tpot_ms": 1e3 / speed / factor}
        write(folder / name, one, f"{i}.json")
    return folder / name


def compared(a: Path, b: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["runs", "compare", str(a), str(b), "--plain", *options])


def refused(done: Result) -> str:
    """The message of a call that was refused with exit 2."""
    assert isinstance(done.exception, UsageError) and done.exception.exit_code == 2
    return str(done.exception)


@pytest.mark.parametrize(
    ("factor", "code", "words"),
    [(0.9, 1, "more than 5 % worse"), (1.1, 0, "IMPROVED"), (1.005, 0, "the same, within 5 % either way")],
)
def test_three_repetitions_of_each_side_decide(tmp_path: Path, factor: float, code: int, words: str) -> None:
    a, b = side(tmp_path, "a", 1.0), side(tmp_path, "b", factor)
    done = compared(a, b)
    assert done.exit_code == code and words in done.output, done.output
    change = contrast_of_results(a, b).change(contrast_of_results(a, b).cells[0], "output_tok_s")
    assert change is not None and change.how is How.REPEATED and change.ratio == pytest.approx(factor)
    assert change.ci_low is not None and change.ci_high is not None and change.ci_low < factor < change.ci_high
    assert change.ci_high / change.ci_low > 1.02, "what differs between processes is allowed for"


def test_speeds_beside_requests_that_failed_decide_nothing(tmp_path: Path) -> None:
    a = side(tmp_path, "a", 1.0)
    done = compared(a, side(tmp_path, "b", 1.1, result={**SPECULATIVE, "failed": 40}))
    assert done.exit_code == 3 and "without an interval: requests failed" in done.output


def test_fewer_show_the_difference_and_say_what_would_decide_it(tmp_path: Path) -> None:
    done = compared(write(tmp_path, PLAIN, "a.json"), write(tmp_path, SPECULATIVE, "b.json"))
    assert done.exit_code == 3
    assert "1.580x, without an interval: few repetitions" in done.output
    assert "baseline → spec-3" in done.output and "specgate ab URL URL" in done.output.splitlines()[-1]


def test_results_are_matched_by_what_was_asked(tmp_path: Path) -> None:
    other = {**GUIDELLM, "benchmarks": list(reversed(GUIDELLM["benchmarks"]))}
    contrast = contrast_of_results(write(tmp_path, GUIDELLM, "a.json"), write(tmp_path, other, "b.json"))
    changes = [c for c in contrast.changes if c.metric == "output_tok_s"]
    assert [(c.a, c.ratio) for c in changes] == [(25.6, 1.0), (204.8, 1.0)]
    assert [c.cell.point.scenario for c in changes] == ["streams 1", "streams 8"]
    with pytest.raises(UsageError, match=r"nothing was asked of both: A has .*; B has"):
        contrast_of_results(write(tmp_path, LLAMA, "a.json"), write(tmp_path, {**LLAMA, "n_gen": 64}, "b.json"))


def test_runs_and_results_of_other_tools_are_not_mixed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.resolved.yaml").touch()
    done = compared(run, write(tmp_path, PLAIN))
    assert "is not a run folder, and others are" in refused(done)
    done = CliRunner().invoke(cli, ["runs", "compare", *[str(tmp_path / "result.json")] * 3])
    assert "compared two by two" in refused(done)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = compared(empty, tmp_path / "result.json")
    assert "holds no result that is known" in refused(done)


def test_a_policy_of_results_is_passed_by_them(tmp_path: Path) -> None:
    spec, mean = write(tmp_path, SPECULATIVE, "spec.json"), write(tmp_path, SGLANG, "mean.jsonl")
    policy = tmp_path / "floors.yaml"
    made = CliRunner().invoke(cli, ["policy", "init", str(spec), str(mean), "--out", str(policy)])
    assert made.exit_code == 0, made.output
    assert "min: 2.23" in policy.read_text(), "5 % below 2.35, the lower of the two"
    for file in (spec, mean):
        done = CliRunner().invoke(cli, ["runs", "check", str(file), "--policy", str(policy)])
        assert done.exit_code == 0 and "acceptance_length" in done.output, done.output
    fewer = {**SPECULATIVE, "spec_decode_accepted_tokens": 4000, "spec_decode_acceptance_rate": 100 / 3}
    fewer |= {"spec_decode_acceptance_length": 2.0, "spec_decode_per_position_acceptance_rates": [0.6, 0.3, 0.1]}
    done = CliRunner().invoke(cli, ["runs", "check", str(write(tmp_path, fewer)), "--policy", str(policy)])
    assert done.exit_code == 1
    done = CliRunner().invoke(cli, ["policy", "init", str(write(tmp_path, json.dumps(PLAIN)))])
    assert "tells an acceptance length" in refused(done)

"""`specgate scenarios …` and `specgate scenarios plan`, called as commands."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specgate.commands.scenarios import plan, scenarios, spec_range
from specgate.errors import ExitCode, UsageError
from specgate.planning.scenario import dump, find, shipped


def run(*args: str) -> Result:
    return CliRunner().invoke(scenarios, args)


def test_list_names_every_shipped_scenario_with_its_question() -> None:
    lines = [line.split("\t") for line in run("list", "--plain").output.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [(s.name, s.question) for s in shipped()]
    assert [line[0] for line in lines if line[4] != "default"] == [
        "active-slots-8b", "batch-8b", "cpu-1k-single", "cpu-512-batch4", "cpu-drawn", "cpu-engines",
        "cpu-full-sampled", "cpu-sampled", "cpu-spec-sweep", "cpu-specpv", "cpu-variants", "full-120b-16k-b4",
        "full-120b-1k-sampled", "full-120b-1k-single", "full-120b-32k-single", "full-8b-16k-b4", "full-8b-32k-single",
        "load-8b", "load-gpt-oss", "load-rates", "micro-120b-16k-b4", "micro-120b-1k-single", "micro-120b-32k-single",
        "micro-8b-16k-b4", "micro-8b-32k-single", "micro-8b-4k-sampled", "micro-8b-drawn", "variants-8b",
    ]  # fmt: skip


def test_show_prints_a_whole_scenario_that_can_be_validated(tmp_path: Path) -> None:
    shown = run("show", "stress").output
    assert shown == dump(find("stress"))
    file = tmp_path / "copy.yaml"
    file.write_text(shown)
    assert run("check", str(file)).output == (
        f"{file}: fine: full scenario copy, context 32773/65536, batch 1, spec-2..5, variants kv-0.75, kv-0.9\n"
    )


def test_validate_reports_every_problem_of_every_file(tmp_path: Path) -> None:
    good, bad, worse = (tmp_path / name for name in ("good.yaml", "bad.yaml", "worse.yaml"))
    good.write_text("# Q?\nextends: cpu-1k-single\n")
    bad.write_text("# Q?\nextends: cpu-1k-single\nkindd: micro\nneeds: tpu\n")
    worse.write_text("a: 1\na: 2\n")
    result = run("check", str(bad), str(good), str(worse))
    assert result.output == f"{good}: fine: micro scenario good, context 1024, batch 1, spec-3\n"
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == ExitCode.USAGE
    message = str(result.exception)
    assert [f"{bad}:3: kindd" in message, f"{bad}:4: needs" in message, f"{worse}:2: a" in message] == [True] * 3


def test_plan_prints_points_rounds_pairs_and_minutes_without_running_anything() -> None:
    result = CliRunner().invoke(plan, ["--backend", "fake", "--machine", "cpu", "--plain"], catch_exceptions=False)
    header, *rows, total = result.output.splitlines()
    assert header.split("\t") == ["scenario", "context", "batch", "roles", "rounds", "pairs", "blocks", "min"]
    assert [row.split("\t")[:-1] for row in rows] == [["cpu-first", "512", "1", "baseline spec-3", "16+1", "16", "34"]]
    assert total.startswith("1 point on fake, about ")


def test_plan_takes_scenarios_of_either_kind_by_name() -> None:
    args = ["--backend", "fake", "--machine", "gpu", "--scenario", "stress,micro-16k-b4", "--plain"]
    rows = CliRunner().invoke(plan, args, catch_exceptions=False).output.splitlines()[1:-1]
    assert [row.split("\t")[0] for row in rows] == ["stress", "stress", "micro-16k-b4"]


@pytest.mark.parametrize(
    ("spec", "text"), [((3,), "spec-3"), ((2, 3, 4), "spec-2..4"), ((1, 3), "spec-1,3"), ((1, 2), "spec-1..2")]
)
def test_draft_lengths_are_written_short(spec: tuple[int, ...], text: str) -> None:
    assert spec_range(spec) == text


def test_plan_takes_the_rounds_and_the_time_that_a_run_takes() -> None:
    def row(*args: str) -> dict[str, str]:
        question = ["--backend", "fake", "--machine", "gpu", "--context", "1K", "--plain"]
        header, cells, _ = CliRunner().invoke(plan, [*question, *args], catch_exceptions=False).output.splitlines()
        return dict(zip(header.split("\t"), cells.split("\t"), strict=True))

    sets, runs, warmup = 8, 4, 3
    fixed = row("--measurement-runs", str(runs), "--warmup-runs", str(warmup), "--perf-mode")
    assert fixed["rounds"].endswith(f"{sets * runs}+{warmup}")
    minutes = {time: float(row("--budget", time)["min"].rpartition("–")[2]) for time in ("2m", "12m")}
    assert minutes["12m"] - minutes["2m"] == pytest.approx(10, abs=0.11), "minutes of blocks, to a tenth each"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--budget", "1m", "--measurement-runs", "4"), "--budget with --measurement-runs"),
        (("--no-baseline",), "--no-baseline with back end fake"),
    ],
)
def test_plan_refuses_what_a_run_refuses(args: tuple[str, ...], message: str) -> None:
    wrong = CliRunner().invoke(plan, ["--backend", "fake", "--machine", "cpu", *args]).exception
    assert isinstance(wrong, UsageError) and message in str(wrong)


@pytest.mark.parametrize(
    ("args", "wrong", "right"),
    [
        (("--rate", "abc"), "'abc' is not a valid number", ""),
        (("--new-tokens", "1.5"), "'1.5' is not a valid whole number", ""),
        (("--batch", "0"), "'0': whole numbers", "such as 1,4."),
        (("--context", "32M"), "'32M': whole numbers", "such as 8K,32K (K = 1024)."),
        (("--batch", "1,x"), "'x' in '1,x': whole numbers", "such as 1,4."),
        (("--goodput", "x"), "--goodput x: there is no limit 'x'", "such as ttft=500,tpot=30"),
        (("--goodput", "ttft"), "--goodput ttft: ttft: '': a number was expected", "such as ttft=500,tpot=30"),
        (("--find-max-goodput",), "nothing to search for", "--goodput ttft=…,tpot=…"),
        (("--arrivals", "gamma:x"), "--arrivals gamma:x: 'x': a number was expected", "gamma:0.5"),
    ],
)
def test_a_number_that_is_none_or_missing_is_named_with_one_that_would_be_right(
    args: tuple[str, ...], wrong: str, right: str
) -> None:
    ended = CliRunner().invoke(plan, ["--backend", "vllm", "--machine", "gpu", "--kind", "load", *args])
    message = ended.output if isinstance(ended.exception, SystemExit) else str(ended.exception)
    assert ended.exit_code and wrong in message and right in message


ONE = ("--backend", "fake", "--machine", "cpu", "--scenario", "cpu-1k-single", "--plain")


def lines(*args: str) -> list[str]:
    output = CliRunner().invoke(plan, [*ONE, *args], catch_exceptions=False).output.splitlines()
    return output[next(i for i, line in enumerate(output) if line.startswith("1 point on")) + 1 :]


def test_floors_of_a_policy_that_no_run_can_reach_are_said_beforehand(tmp_path: Path) -> None:
    assert lines("--policy", "seed") == []
    policy = tmp_path / "policy.yaml"
    rule = "{id: fast, gate: speed, required: true, role: spec-3, min: 4.5}"
    policy.write_text(f"schema: specgate.policy/v1\nrules:\n  - {rule}\n")
    (line,) = lines("--policy", str(policy))
    assert line.startswith("rule fast asks for a speed-up of 4.5 of ") and line.endswith("it takes spec-4 or more")
    wrong = CliRunner().invoke(plan, [*ONE, "--policy", "nonsense"]).exception
    assert isinstance(wrong, UsageError) and "no such policy: 'nonsense'" in str(wrong)
    folder = CliRunner().invoke(plan, [*ONE, "--policy", str(tmp_path)]).exception
    assert isinstance(folder, UsageError) and f"{tmp_path}: cannot be read: Is a directory" in str(folder)

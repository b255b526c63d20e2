"""`specgate engine sweep` on the scripted engine, whose speed is an option: the best setting is known beforehand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specgate.ab.request import AbRequest
from specgate.ab.runner import AbRunner
from specgate.ab.schedule import ProcessPair
from specgate.sweep.measuring import Candidate, measure_beside
from tests.backends.offline.helpers import STAND_INS
from tests.support.command import Cli


@pytest.fixture
def cli(cli: Cli) -> Cli:
    cli.scenario(spec=[3])
    return cli


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps have as few process pairs as there can be."""
    for name, value in (("halving.LAST_PAIRS", 1), ("session.FINAL_PAIRS", 3), ("session.FINAL_LOOKS", (3,))):
        monkeypatch.setattr(f"specgate.sweep.{name}", value)


def sweep(cli: Cli, *arguments: str, code: int) -> str:
    """Run `specgate engine sweep` and return its output; its exit code must be `code`."""
    fixed = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake", "-o", "step_ns=2000000")
    done = cli.run("engine", "sweep", *fixed, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def result(cli: Cli) -> dict[str, Any]:
    (file,) = (cli.folder / "runs").glob("*-sweep-*/sweep.json")
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def by_value(cli: Cli) -> dict[str, dict[str, Any]]:
    """Trials by their (only) value."""
    return {next(iter(trial["config"].values())): trial for trial in result(cli)["trials"]}


def test_the_fastest_setting_is_found_with_the_gain_that_the_script_has_on_fresh_blocks(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgate.sweep.session.FINAL_LOOKS", (3,))
    output = sweep(cli, "--try", "draft_ns=100000,40000,900000", code=0)
    assert "faster than the default: draft_ns=40000: +8.5% tokens per second" in output
    assert "bake it: -o draft_ns=40000" in output
    best = result(cli)["best"]
    # A cycle of spec-3 takes step_ns + 3 draft_ns; the default's draft_ns is 100,000.
    assert best["config"] == {"draft_ns": "40000"} and best["faster"] and best["ties"] == []
    assert best["low"] <= best["ratio"] == pytest.approx(2.30 / 2.12, rel=0.002)
    trials = by_value(cli)
    assert [trials[value]["pairs"] for value in ("40000", "100000", "900000")] == [4, 4, 2]
    assert trials["40000"]["cells"]["tiny/c24/b2/spec-3"]["accept_len"] == 3.0
    assert trials["900000"]["ratio"] == pytest.approx(2.3 / 4.7, rel=0.002) and trials["900000"]["low"] is None
    samples = cli.folder / "runs" / best["comparison"]
    assert samples.name not in {trial["folder"] for trial in trials.values()}
    assert cli.run("runs", "verify", samples, pair=False).returncode == 0


@pytest.mark.usefixtures("short")
def test_settings_that_are_equally_fast_are_said_to_be_ties(cli: Cli) -> None:
    output = sweep(cli, "--try", "draft_ns=40000", "--try", "margin=6,7", code=0)
    assert result(cli)["best"]["faster"]
    (tie,) = result(cli)["best"]["ties"]
    assert f"not told from it: draft_ns=40000 margin={tie['margin']}" in output


@pytest.mark.usefixtures("short")
def test_a_setting_that_fails_or_has_other_tokens_is_named_and_cannot_win_and_the_others_go_on(cli: Cli) -> None:
    cli.write(
        "grid.yaml",
        "schema: specgate.sweep-grid/v1\n"
        'grid: {draft_ns: [20000, "40000"], max_positions: [8, 9999], wrong_token_at: [5, 90]}\n',
    )
    output = sweep(cli, "--grid", "grid.yaml", code=0)
    why_not = {tuple(trial["config"].values()): trial["why_not"] for trial in result(cli)["trials"]}
    assert {key for key, why in why_not.items() if why is None} == {("20000", "9999", "90"), ("40000", "9999", "90")}
    assert "max_positions = 8, but the plan needs" in str(why_not["20000", "8", "90"])
    assert "texts are not those of its own baseline" in str(why_not["20000", "9999", "5"])
    assert "draft_ns=20000 max_positions=8 wrong_token_at=90: cannot win: back end fake" in output
    assert result(cli)["best"]["config"]["draft_ns"] == "20000"


@pytest.mark.usefixtures("short")
def test_a_setting_whose_texts_part_from_the_defaults_cannot_win_however_fast_it_is(cli: Cli) -> None:
    output = sweep(cli, "--try", "loop_period=4,1000", "--try", "draft_ns=40000", code=0)
    assert "loop_period=4 draft_ns=40000: cannot win: tiny/c24/b2/baseline: 2 of 2 texts differ" in output
    assert "(logits 8 apart, near ties 0.001)" in output
    assert result(cli)["best"]["config"]["loop_period"] == "1000"


@pytest.mark.usefixtures("short")
def test_texts_that_part_at_near_ties_alone_keep_no_setting_from_winning(cli: Cli) -> None:
    sweep(cli, "-o", "margin=0.0005", "--try", "loop_period=4,5", "--try", "draft_ns=40000", code=0)
    assert [trial["why_not"] for trial in result(cli)["trials"]] == [None, None]
    comparison = cli.folder / "runs" / result(cli)["best"]["comparison"]
    changed = json.loads((comparison / "ab.json").read_text())["texts"][1]["changed"]
    assert changed and {round(place["gap"], 6) for place in changed} == {0.0005}
    assert cli.run("runs", "verify", comparison, pair=False).returncode == 0


@pytest.mark.usefixtures("short")
def test_an_option_that_nothing_reads_is_said_to_change_nothing(cli: Cli) -> None:
    output = sweep(cli, "--try", "margin=6,7,9", code=3)
    assert "nothing changes between the points" in output and "does the engine read margin?" in output
    assert result(cli)["best"] is None and [t["pairs"] for t in result(cli)["trials"]] == [1, 1, 1]


@pytest.mark.usefixtures("short")
def test_where_every_setting_is_slower_the_default_stays(cli: Cli) -> None:
    output = sweep(cli, "--try", "draft_ns=200000,300000", code=0)
    assert "the default stays: no setting was faster; draft_ns=200000: -" in output


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to try"),
        (
            ("--try", "draft_ns=1"),
            "the grid has one point\n  a sweep chooses among several; specgate ab --new draft_ns=1",
        ),
        (("--try", "margin=7", "--through", "margin"), "--through margin\n  write it as WRITES:READS"),
        (("--try", "margin=7", "--through", "accept:accept"), "write it as WRITES:READS, two options"),
        (("--try", "margin=7", "--through", "accept:margin"), "integers ≥ 0 with commas was expected"),
        (("--try", "draft_ns=1,,2"), "--try draft_ns=1,,2: a value is empty"),
        (
            (
                "--try",
                f"draft_ns={','.join(map(str, range(100)))}",
                "--try",
                f"step_ns={','.join(map(str, range(100)))}",
            ),
            "the grid has 10,000 points (100 of draft_ns x 100 of step_ns)",
        ),
        (("--try", "draft_n=1,2"), "back end fake: option 'draft_n' is not known"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    assert message in sweep(cli, *arguments, code=2)


@pytest.mark.usefixtures("short")
def test_a_budget_shorter_than_one_halving_is_refused_after_the_first_setting_whose_samples_stay(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgate.sweep.session.LEAST_PAIR_S", 1e-6)
    assert "--budget 0.01s is shorter than one halving" in sweep(
        cli, "--try", "margin=6,7,9", "--budget", "0.01s", code=2
    )
    assert [t["pairs"] for t in result(cli)["trials"]] == [1, 0, 0]


@pytest.mark.usefixtures("short")
def test_a_budget_that_ends_between_two_halvings_compares_the_best_so_far(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgate.sweep.session.State.affords", lambda state, pairs: pairs == 3)
    output = sweep(cli, "--try", "draft_ns=100000,40000,200000,300000", code=0)
    assert "budget: no time for halving 2 of 2" in output
    assert result(cli)["best"]["config"] == {"draft_ns": "40000"}


def turbomind(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A sweep of TurboMind's stand-in, whose cycle takes 8 ms with today's tiles of 32, and 2 ms with tiles of 64:
    four baseline steps, so that a busy machine makes it no faster than verification allows.
    """
    engine = ("--backend", "lmdeploy-pipeline", "-o", "engine=turbomind", "-o", f"pythonpath={STAND_INS}")
    fixed = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "-o", "stop_s=1")
    today = ("-o", "env.TM_EAGLE3_FMHA_KV_TILE=32")
    done = cli.run("engine", "sweep", *engine, *fixed, *today, *arguments)
    assert done.returncode in (0, 3), done.stdout + done.stderr  # three pairs of a busy machine may tell nothing
    return done


@pytest.mark.usefixtures("short")
@pytest.mark.slow("starts an engine's processes for five pairs")
def test_a_variable_of_an_engines_environment_is_swept_and_a_value_that_kills_the_engine_is_named(cli: Cli) -> None:
    done = turbomind(cli, "-o", "env.TM_EAGLE3_FMHA_TILE_STATS=1", "--try", "env.TM_EAGLE3_FMHA_KV_TILE=13,64")
    killed, other = result(cli)["trials"]
    assert killed["ratio"] is None and "signal 9" in killed["why_not"]
    assert other["ratio"] is not None and other["why_not"] is None
    best = result(cli)["best"]
    assert best["config"] == {"env.TM_EAGLE3_FMHA_KV_TILE": "64"} and best["faster"] == (best["low"] > 1)
    assert ("bake it: export TM_EAGLE3_FMHA_KV_TILE=64" in done.stdout) == best["faster"]
    tiles = other["cells"]["tiny/c24/b2/spec-3"]["tile_stats"]
    assert tiles == {"total": 96, "span_empty": 12, "mask_empty": 4, "executed": 80}, "as the engine logs it once"


@pytest.mark.usefixtures("short")
def test_a_sweep_that_was_cut_off_goes_on_with_the_pairs_that_its_settings_had(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[str]()

    def until(most: int) -> None:
        def measure(candidate: Candidate, request: AbRequest, parent: Path) -> KeyboardInterrupt | None:
            if len(measured) == most:
                raise KeyboardInterrupt
            measured.append(candidate.setting["draft_ns"])
            return measure_beside(candidate, request, parent)

        monkeypatch.setattr("specgate.sweep.session.measure_beside", measure)

    tries = ("--try", "draft_ns=100000,40000,200000")
    assert "has no sweep.json" in sweep(cli, *tries, "--resume", "runs", code=2)
    until(2)
    output = sweep(cli, *tries, code=130)
    (folder,) = (cli.folder / "runs").glob("*-sweep-*")
    assert f"to go on, add --resume runs/{folder.name}" in output
    kept = [trial["folder"] for trial in result(cli)["trials"]]
    assert kept[2] is None and "its settings are others, such as draft_ns=200000" in sweep(
        cli, "--try", "draft_ns=100000,40000", "--resume", str(folder), code=2
    )
    refused = sweep(cli, *tries, "--resume", str(folder), "-o", "accept=3,1", code=2)
    assert 'old: options.accept: was null, is "3,1"' in refused
    until(9)
    assert "faster than the default: draft_ns=40000" in sweep(cli, *tries, "--resume", str(folder), code=0)
    assert measured == ["100000", "40000", "200000", "40000", "100000"]
    assert [trial["folder"] for trial in result(cli)["trials"]][:2] == kept[:2]
    assert [trial["pairs"] for trial in result(cli)["trials"]] == [2, 2, 1]
    assert "it has ended: faster than the default" in sweep(cli, *tries, "--resume", str(folder), code=2)


@pytest.mark.usefixtures("short")
def test_a_sweep_whose_final_comparison_was_cut_off_has_not_ended_and_says_how_to_go_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = ("--try", "draft_ns=100000,40000")

    def run(runner: AbRunner, left: Sequence[ProcessPair], count: int) -> None:
        if len(left) == 3:  # the final comparison's
            raise KeyboardInterrupt
        whole(runner, left, count)

    whole = AbRunner.run
    with monkeypatch.context() as cut:
        cut.setattr(AbRunner, "run", run)
        output = sweep(cli, *tries, code=130)
    (folder,) = (cli.folder / "runs").glob("*-sweep-*")
    assert f"to go on, add --resume runs/{folder.name}" in output and result(cli)["verdict"] == "not ended"
    assert "faster than the default: draft_ns=40000" in sweep(cli, *tries, "--resume", str(folder), code=0)

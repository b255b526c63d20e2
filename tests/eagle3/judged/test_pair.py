"""Measuring a planted pair by its folder: random prompts, and the label that it is planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.backends.eagle3.lib.pair import target_source
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.checkpoints.hf_keys import read_config
from specgate.files.run_folder import RunFolder
from tests.pairs.planted import RECIPE, SHAPE, TARGET
from tests.support.command import Cli, scenario_text

OF_TEXTS = scenario_text(context=96, batch=1, spec=[3], sets=8).replace(", source: random", "")


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    folder = tmp_path / "planted-tiny"
    write_target(folder / "target", TARGET, RECIPE, {}, written=False)
    sha256 = target_source(read_config(folder / "target"), TARGET).sha256(folder / "target" / "config.json")
    write_draft(folder / "draft", SHAPE, RECIPE, {}, False, sha256)
    return folder


def test_a_planted_pair_is_measured_on_random_prompts_and_labelled(cli: Cli, planted: Path) -> None:
    cli.write("text.yaml", f"{OF_TEXTS}rope: {{rope_type: yarn, factor: 4.0}}\n")
    cli.run("micro", "--scenario", "text.yaml", "--policy", "policy.yaml", "--pair", planted, pair=False, code=0)
    assert "acceptance is planted (pair planted-tiny)" in cli.details()
    run = RunFolder.open(cli.newest()).read_run()
    (scenario,) = run.scenarios.values()
    assert (scenario.workload.source, scenario.rope) == ("random", None)
    length = run.cells[1].values["acceptance_length"].value
    assert length is not None and length > 2.3
    assert run.warnings == ()


def test_a_pair_named_in_two_ways_is_refused(cli: Cli, planted: Path) -> None:
    done = cli.micro("--pair", planted)
    assert done.returncode == 2 and "--pair together with --target or --draft" in done.stderr


def test_a_pair_that_is_neither_name_nor_folder_is_refused(cli: Cli) -> None:
    done = cli.run("micro", "--scenario", "tiny.yaml", "--pair", "nowhere", pair=False)
    assert done.returncode == 2 and "pair 'nowhere' is not known" in done.stderr and "known: demo" in done.stderr

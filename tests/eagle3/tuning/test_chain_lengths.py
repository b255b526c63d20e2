"""The draft length of each batch size: the fastest that stored runs have measured, as a table that engines take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgate.archive.stored_runs import load_run
from specgate.backends.eagle3.lib.chains import table_in
from specgate.backends.eagle3.tuning.chain_lengths import choices, table_of
from specgate.contract import Block
from specgate.errors import UsageError
from tests.support.command import Cli
from tests.support.factories import scenario
from tests.support.stored_runs import store

MEASURED = scenario(batch=(1, 4), spec=(1, 3))


def one_is_slower(made: Block) -> Block:
    """At batch 1 spec-1, at batch 4 spec-3: twice as slow."""
    if made.role.k != {1: 1, 4: 3}[made.cell.point.batch]:
        return made
    return replace(made, elapsed_ns=2 * made.elapsed_ns, step_ns=tuple(2 * ns for ns in made.step_ns))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("runs") / "a", scenarios=[MEASURED], change=one_is_slower, accept=(1,))


def test_every_batch_size_gets_the_fastest_draft_length(folder: Path) -> None:
    chosen = choices([load_run(folder).run], None)
    assert table_of(chosen).rows == ((1, 3), (4, 1))
    run = load_run(folder).run
    for one in chosen:
        ratios = {c.cell.role.k: c.speedup.value for c in run.comparisons if c.cell.point.batch == one.best.batch}
        assert ratios[one.best.drafts] == max(v for v in ratios.values() if v is not None)
        assert one.is_told and [m.drafts for m in one.others] == [k for k in (1, 3) if k != one.best.drafts]


def test_a_length_that_was_measured_twice_counts_once_by_its_narrower_interval(folder: Path, tmp_path: Path) -> None:
    noisy = store(tmp_path / "noisy", scenarios=[MEASURED], accept=(1,), jitter=0.2)
    chosen = choices([load_run(noisy).run, load_run(folder).run], None)
    assert all(one.best.run == "a" and {m.run for m in one.others} == {"a"} for one in chosen)


@pytest.mark.parametrize(
    ("context", "message"), [(None, "contexts 64, 128: one table is of one"), (32, "no speed-up may be quoted")]
)
def test_a_table_is_of_one_context(tmp_path: Path, context: int | None, message: str) -> None:
    run = load_run(store(tmp_path / "two", scenarios=[scenario(context=(64, 128))])).run
    assert [one.best.batch for one in choices([run], 128)] == [1]
    with pytest.raises(UsageError, match=message):
        choices([run], context)


def test_runs_of_two_engines_make_no_table(folder: Path, tmp_path: Path) -> None:
    other = store(tmp_path / "other", scenarios=[MEASURED], backend="other")
    with pytest.raises(UsageError, match="engine fake and other: a table is of one"):
        choices([load_run(folder).run, load_run(other).run], None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "dtype [a-z0-9]+ and float16"),
        ({"target_sha256": "f" * 64}, f"target .+ and {'f' * 64}"),
        ({"details": {"draft tree": "dynamic:8"}}, "decoding greedy, whole chains and tree: dynamic:8"),
    ],
)
def test_a_table_is_of_one_pair_of_weights_and_one_way_of_decoding(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    run = load_run(folder).run
    other = replace(run, id="b", engines={key: replace(facts, **change) for key, facts in run.engines.items()})
    with pytest.raises(UsageError, match=f"b: {message}: a table is of one"):
        choices([run, other], None)


def test_the_command_writes_what_the_engine_takes(cli: Cli, folder: Path) -> None:
    done = cli.run("engine", "tune", "drafts", folder, "--out", "table.yaml", pair=False, code=0)
    assert done.stdout.splitlines()[-1] == "wrote table.yaml" and max(map(len, done.stdout.splitlines())) <= 80
    stored = yaml.safe_load((cli.folder / "table.yaml").read_text())
    assert len(stored["measured"]) == 4 and stored["measured"][0]["run"] == "a"
    assert str(table_in(cli.folder / "table.yaml")) == "1:3,4:1"
    cli.micro("--backend", "reference", "-o", "k_by_batch=table.yaml", "-o", "confidence=0.02", code=0)
    assert "chains may end before N tokens" in (cli.newest() / "run.json").read_text()
    assert "chains_ended_early" in (cli.newest() / "metrics.csv").read_text()
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


def test_a_folder_that_is_no_run_is_named(cli: Cli) -> None:
    done = cli.run("engine", "tune", "drafts", cli.folder, pair=False)
    assert done.returncode == 2 and "is not a run folder" in done.stderr

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from specgate import plugins
from specgate.contract import Run, Verdict
from specgate.files.run_folder import RunFolder
from specgate.planning.request import Request
from specgate.run.session import carry_out
from tests.cheats.accidents import ENGINES as ACCIDENTS
from tests.cheats.engines import ENGINES
from tests.pairs.planted import write_planted_pair
from tests.support.command import NOT_SCORED, Cli

Cheating = Callable[[str], tuple[int, Run]]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_planted_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def cheating(cli: Cli, monkeypatch: pytest.MonkeyPatch, no_processes: None) -> Iterator[Cheating]:
    """A micro run on the cheat with this name, without pages. Returns the exit code and the run."""
    entries = tuple(
        ("specgate.backends", e.__name__, f"{e.__module__}:PLUGIN_{e.__name__}") for e in (*ENGINES, *ACCIDENTS)
    )
    built_in = (*plugins.built_in(), *entries)
    monkeypatch.setattr(plugins, "built_in", lambda: built_in)
    plugins.registered.cache_clear()
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text().replace(NOT_SCORED, ""))
    cli.scenario(spec=[3])  # a role more says nothing more of an engine that cheats

    def run(engine: str) -> tuple[int, Run]:
        code = carry_out(
            Request(
                kind="micro",
                argv=("micro",),
                plain=True,
                out=cli.folder / "runs",
                backend=engine,
                scenarios=(str(cli.folder / "tiny.yaml"),),
                policy=str(cli.folder / "policy.yaml"),
                target=cli.target,
                draft=cli.draft,
                reports=False,
            )
        )
        return int(code), RunFolder.open(cli.newest()).read_run()

    yield run
    plugins.registered.cache_clear()


def objections(run: Run) -> Sequence[Verdict]:
    return [v for v in run.verdicts if v.required and v.state not in ("PASS", "SKIPPED")]

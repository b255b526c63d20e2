from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.archive.verification import verify_builds
from specgate.contract.two_builds import TwoBuilds, Word
from tests.support.command import Cli


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> TwoBuilds:
    """A comparison that was measured, of two looks, which ended with SLOWER."""
    cli = Cli(tmp_path_factory.mktemp("ab"), *pair)
    fixed = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake", "-o", "step_ns=2000000")
    done = cli.run("ab", *fixed, "--new", "prompt_jitter=0.002", "--new", "slowdown=1.02", "--processes", "3")
    assert done.returncode in (1, 3), done.stdout + done.stderr
    (made,) = (cli.folder / "runs").glob("*-ab-*")
    result = verify_builds(made).result
    assert result is not None
    first = replace(result.looks[0], word=Word.CANNOT_TELL, reason="prefill time tiny/c24/b2 +0.10% (-0.30% … +0.51%)")
    return replace(result, looks=(first, replace(result.looks[0], pairs=16, error=0.0008)))

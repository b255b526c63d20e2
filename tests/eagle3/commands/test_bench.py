"""`specgate engine bench kernels` where it cannot be meant, or not be carried out."""

from __future__ import annotations

import pytest
import torch

from specgate.errors import ExitCode
from tests.support.command import Cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "reference"), "no kernels of its own"),
        (("--backend", "cupi"), "did you mean 'cupy'"),
        (("--spec", "-1"), "--spec"),
        (("--context", "0"), "--context"),
        (("--batch", "many"), "--batch"),
        (("-o", "kv"), "KEY=VALUE"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli.run("engine", "bench", "kernels", *arguments, pair=False)
    assert done.returncode == ExitCode.USAGE
    assert message in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_time(cli: Cli) -> None:
    done = cli.run("engine", "bench", "kernels", "--json", "kernels.json", pair=False)
    assert done.returncode == ExitCode.ENV_REJECTED
    assert "back end cupy" in done.stderr and not (cli.folder / "kernels.json").exists()

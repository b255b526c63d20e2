"""Comparisons of builds on a scenario with one draft length."""

from __future__ import annotations

import pytest

from tests.support.command import Cli


@pytest.fixture
def cli(cli: Cli) -> Cli:
    cli.scenario(spec=[3])
    return cli

"""`specgate machine backends`: what is listed, and what is validated. tests/examples has a package from outside."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner

from specgate import plugins
from specgate.cli import cli
from specgate.contract.protocols import Availability, Engine, OpenRequest
from specgate.errors import UsageError


class Misnamed:
    name = "other"
    description = ""

    def available(self) -> Availability:
        return Availability(True, "")

    def open(self, request: OpenRequest) -> Engine:
        raise AssertionError(request)


MISNAMED = Misnamed()


def test_every_built_in_back_end_keeps_the_protocol() -> None:
    done = CliRunner().invoke(cli, ["machine", "backends", "--validate"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == len(plugins.registered("specgate.backends")) and all(" fine (" in line for line in lines)


def test_without_a_subcommand_they_are_listed() -> None:
    assert "llamacpp" in CliRunner().invoke(cli, ["machine", "backends"]).output


def test_broken_ones_are_named_with_every_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [("misnamed", f"{__name__}:MISNAMED"), ("gone", "no.such.module:BACKEND")]
    result = [EntryPoint(name, value, "specgate.backends") for name, value in entries]
    monkeypatch.setattr(plugins, "entry_points", lambda group: result if group == "specgate.backends" else [])
    plugins.registered.cache_clear()
    try:
        done = CliRunner().invoke(cli, ["machine", "backends", "--validate"])
    finally:
        plugins.registered.cache_clear()
    assert isinstance(done.exception, UsageError) and "misnamed, gone" in str(done.exception)
    assert "its name is other" in done.output and "no description" in done.output
    assert "cannot be loaded: No module named 'no'" in done.output

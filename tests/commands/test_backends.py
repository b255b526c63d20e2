"""`specgate backends`: what is listed, what is validated, and a package from outside in a venv of its own."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from specgate import plugins
from specgate.api import Availability, Engine, OpenRequest
from specgate.cli import cli
from specgate.errors import UsageError
from specgate.files.run_folder import RunFolder
from tests.support.command import ROOT, Cli

EXAMPLE = ROOT / "docs" / "examples" / "backend-plugin"


class Misnamed:
    name = "other"
    description = ""

    def available(self) -> Availability:
        return Availability(True, "")

    def open(self, request: OpenRequest) -> Engine:
        raise AssertionError(request)


MISNAMED = Misnamed()


def test_every_built_in_back_end_keeps_the_protocol() -> None:
    done = CliRunner().invoke(cli, ["backends", "list", "--validate"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == len(plugins.registered("specgate.backends")) and all(" fine (" in line for line in lines)


def test_without_a_subcommand_they_are_listed() -> None:
    alone, listed = (CliRunner().invoke(cli, words) for words in (["backends"], ["backends", "list"]))
    assert alone.output == listed.output and "llamacpp" in alone.output


def test_broken_ones_are_named_with_every_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [("misnamed", f"{__name__}:MISNAMED"), ("gone", "no.such.module:BACKEND")]
    found = [EntryPoint(name, value, "specgate.backends") for name, value in entries]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found if group == "specgate.backends" else [])
    plugins.registered.cache_clear()
    try:
        done = CliRunner().invoke(cli, ["backends", "list", "--validate"])
    finally:
        plugins.registered.cache_clear()
    assert isinstance(done.exception, UsageError) and "misnamed, gone" in str(done.exception)
    assert "its name is other" in done.output and "no description" in done.output
    assert "cannot be loaded: No module named 'no'" in done.output


@pytest.mark.slow("installs a package")
def test_the_example_package_is_installed_validated_and_measured(cli: Cli) -> None:
    python = installed(cli.folder)
    paths = [str(ROOT), *site.getsitepackages()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}

    def specgate(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "specgate", *arguments]
        return subprocess.run(command, cwd=cli.folder, env=environment, capture_output=True, text=True, timeout=120)

    assert "counting     fine (specgate_example_backend:BACKEND)" in specgate("backends", "list", "--validate").stdout
    pair = ("--target", str(cli.target), "--draft", str(cli.draft))
    done = specgate(
        "micro", "--backend", "counting", "--scenario", "tiny.yaml", "--policy", "policy.yaml", "--plain", *pair
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    # k = 3: 1 and 3 drafts are accepted in turn, over 6 steps.
    assert run.cells[2].acceptance is not None and run.cells[2].acceptance.acceptance_length == 3.0
    refused = specgate("micro", "--backend", "counting", "-o", "x=1", "--scenario", "tiny.yaml", *pair)
    assert refused.returncode == 2 and "option x: not known" in refused.stderr


def installed(folder: Path) -> Path:
    """The Python of a new environment that holds the example; it is built without an index."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    source = folder / "source"
    source.mkdir()
    for file in EXAMPLE.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    subprocess.run(wheel, check=True, capture_output=True)
    python = folder / "venv" / "bin" / "python"
    (file,) = folder.glob("*.whl")
    site_packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    unpack = [*pip, "install", "--no-deps", "--no-index", "--target", str(site_packages), str(file)]
    subprocess.run(unpack, check=True, capture_output=True)
    return python

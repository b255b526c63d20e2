"""The workflows to copy: YAML that parses, steps that a shell accepts, and commands and options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from specgate.cli import cli
from tests.support.fences import command_lines

EXAMPLES = sorted((Path(__file__).parent.parent / "docs" / "examples").glob("*.yml"))
COMMAND = re.compile(r"(?:\.venv/bin/specgate|\./run_suite\.sh(?= (?:micro|full))) ([^\n|&]+)")


def steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values():
        yield from job["steps"]


def commands(file: Path) -> Iterator[list[str]]:
    for step in steps(file):
        yield from (shlex.split(command) for command in COMMAND.findall(step.get("run", "")))
        if "docker run" in step.get("run", ""):
            yield from command_lines(step["run"])


USED = {
    "github-ab.yml": {"machine", "ab"},
    "github-cpu.yml": {"runs", "micro"},
    "github-gpu.yml": {"runs", "micro"},
    "github-your-repo.yml": {"smoke", "runs", "micro"},
}
"""Workflow → commands that it cannot do without."""


def test_there_is_one_for_a_cpu_a_gpu_a_pull_request_against_its_base_and_another_repository() -> None:
    assert [file.name for file in EXAMPLES] == list(USED)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.name)
def test_every_step_is_one_thing_and_its_script_is_bash(file: Path) -> None:
    for step in steps(file):
        assert ("run" in step) != ("uses" in step)
        if "run" in step:
            script = re.sub(r"\$\{\{.*?\}\}", "x", step["run"])
            done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.name)
def test_every_command_and_option_exists(file: Path) -> None:
    results = list(commands(file))
    assert USED[file.name] <= {words[0] for words in results}
    for name, *arguments in results:
        command: click.Command = cli.commands[name]
        while isinstance(command, click.Group):
            command = command.commands[arguments.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {a for a in arguments if a.startswith("--")} <= known, (name, arguments)

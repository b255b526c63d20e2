"""The Containerfile of docs/examples. No image is built here: its paths, arguments and shell are checked."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib

import pytest
import yaml

from tests.guide.conftest import PARTS
from tests.support.command import ROOT
from tests.support.fences import blocks, statements

FILE = ROOT / "docs" / "examples" / "container" / "Containerfile"
WORKFLOW = ROOT / "docs" / "examples" / "github-your-repo.yml"
GUIDE = ROOT / "docs" / "ci.md"


def instructions() -> list[tuple[str, str]]:
    """(instruction, its arguments) in order."""
    lines = [line for line in FILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def copies() -> list[tuple[list[str], str]]:
    """(sources, destination) of what is copied from the checkout."""
    copied_paths = [shlex.split(rest) for name, rest in instructions() if name == "COPY" and "--from=" not in rest]
    return [(words[:-1], words[-1]) for words in copied_paths]


def builds() -> list[list[str]]:
    """The words of every `docker build` in the guide, in the workflow and in the file's own head."""
    head = "\n".join(re.findall(r"^# ?(.*)$", FILE.read_text(), re.MULTILINE))
    steps = [
        step.get("run", "") for job in yaml.safe_load(WORKFLOW.read_text())["jobs"].values() for step in job["steps"]
    ]
    scripts = [re.sub(r"[^\n]*\n", "", head, count=1), *steps, *(b.text for b in blocks(GUIDE) if b.language == "sh")]
    typed = (
        words
        for script in scripts
        for part in re.findall(r"docker build(?:.*\\\n)*.*", script)
        for words in statements(part)
    )
    return [words for words in typed if words[:2] == ["docker", "build"]]


def test_it_has_instructions_in_the_order_of_a_build() -> None:
    names = [name for name, _ in instructions()]
    assert names[:2] == ["ARG", "FROM"] and names.count("FROM") == 2 and names[-1] == "ENTRYPOINT"
    assert set(names) <= {"ARG", "FROM", "COPY", "RUN", "WORKDIR", "ENTRYPOINT"}


def test_every_path_that_it_copies_exists() -> None:
    assert [source for sources, _ in copies() for source in sources if not (ROOT / source).exists()] == []
    assert len(copies()) >= 6


@pytest.mark.parametrize("script", [rest for name, rest in instructions() if name == "RUN"])
def test_what_it_runs_is_shell(script: str) -> None:
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_handed_to_a_build_is_known_to_it() -> None:
    arguments = {rest.partition("=")[0] for name, rest in instructions() if name == "ARG"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    result = builds()
    assert len(result) >= 8
    for words in result:
        given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--build-arg")
        assert given.keys() <= arguments
        assert set(given.get("EXTRAS", "torch").split(",")) <= extras.keys()
        assert (ROOT / words[words.index("-f") + 1].removeprefix("specgate/")) == FILE


def test_what_it_copies_is_what_a_wheel_is_made_from() -> None:
    to = {
        source: destination + source if destination.endswith("/") else destination
        for names, destination in copies()
        for source in names
    }
    assert to == {part: f"/src/{part}" for part in PARTS}

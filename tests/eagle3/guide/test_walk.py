"""Commands in docs/engine.md and docs/server.md that need no GPU are run, block by block, as they stand there.

Two things are not as in the document. The pair that it fetches first is a small one here, made from a seed, whose draft
is of use. Ports are free ones.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from specgate.backends.servers.process import free_port
from tests.pairs.planted import write_planted_pair
from tests.support.command import ROOT
from tests.support.fences import blocks

pytestmark = pytest.mark.slow("follows the guide, in processes of their own")
DRAWS = True
"""Its runs are made by processes that draw."""

PAIR = ROOT / "docs" / "engine.md", "Without a GPU: a pair"
SERVER = ROOT / "docs" / "server.md", "Without a GPU: a server"
FETCH = re.compile(r"^specgate engine (pairs fetch|export --format hf my-pair)\b.*$", re.MULTILINE)
"""What leaves a pair in `my-pair`."""


def walk(page: Path, section: str) -> tuple[str, list[str]]:
    """Return the script of the blocks below a heading, and the lines that it should print, whose figures may differ."""
    below = [block for block in blocks(page) if block.section == section]
    script = "\n".join(block.text for block in below if block.language == "sh")
    return script, [line for block in below if not block.language for line in block.text.splitlines()]


def in_bash(script: str, folder: Path, environment: dict[str, str]) -> str:
    """Run the script and return its output; it ends at the first command that fails. Whatever it started is ended."""
    (folder / "typed.sh").write_text(script)
    command = ["bash", "-euo", "pipefail", "typed.sh"]
    # Into a file: what runs on in the background would keep a pipe open.
    with (
        (folder / "printed").open("w") as out,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True) as shell,
    ):
        try:
            shell.wait(timeout=600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    printed = (folder / "printed").read_text()
    assert shell.returncode == 0, printed
    return printed


def pattern(line: str) -> str:
    return re.sub(r"\d+(?:\\\.\d+)?", r"[\\d.]+", re.escape(line))


def missing(expected: list[str], printed: str) -> list[str]:
    return [line for line in expected if not re.search(pattern(line), printed)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with the checkout in it, and a pair where the first block leaves one."""
    work = tmp_path_factory.mktemp("work")
    (work / "specgate").symlink_to(ROOT)
    write_planted_pair(work / "my-pair")
    return work


def test_a_pair_of_ones_own_gets_its_verdict(folder: Path, environment: dict[str, str]) -> None:
    script, expected = walk(*PAIR)
    script, replaced = FETCH.subn("true", script)
    assert replaced == 2 and expected
    printed = in_bash(script, folder, environment)
    assert missing(expected, printed) == [], printed
    assert [run.name for run in (folder / "runs").glob("*-micro-*") if (run / "report.html").is_file()]


def test_a_server_of_ones_own_gets_its_verdict(folder: Path, environment: dict[str, str]) -> None:
    script, expected = walk(*SERVER)
    # The files that the part before it leaves behind.
    left, _ = walk(*PAIR)
    files = "\n".join(re.findall(r"^cat > .*?^END$", left, re.DOTALL | re.MULTILINE))
    for port in ("8000", "8003"):
        script = script.replace(port, str(free_port()))
    printed = in_bash(f"{files}\n{script}", folder, environment)
    assert missing(expected, printed) == [], printed
    assert "verdict PASS (exit 0)" in printed and "verdict NOT_JUDGED (exit 8)" in printed


def test_a_line_that_is_not_printed_is_seen() -> None:
    assert missing(["PASS: All 5 required verdicts are green."], "PASS: All 7 required verdicts are green.") == []
    assert missing(["PASS: All green"], "FAIL: 2 of 7") == ["PASS: All green"]

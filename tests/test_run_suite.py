"""run_suite.sh: what it runs on which machine, and the code that it ends with. specgate itself is a recorder here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command import ROOT

RECORDER = """\
#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in *"$FAILING"*) exit 3 ;; esac
"""
"""Stands for .venv/bin/specgate: writes down its arguments, and ends with 3 where they hold $FAILING."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script, and with an environment that looks installed."""
    shutil.copy(ROOT / "run_suite.sh", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    for name, text in (
        (".venv/bin/python", "#!/bin/sh\n"),
        (".venv/bin/specgate", RECORDER),
        ("gpu/nvidia-smi", "#!/bin/sh\necho 'GPU 0: a GPU'\n"),
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    for extras in ("torch", "cuda13", "torch_dev", "torch_dev_browser"):
        (tmp_path / ".venv" / f".installed-{extras}").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    return tmp_path


def ran(
    checkout: Path, *arguments: str, gpu: bool, failing: str = "nothing", **variables: str
) -> tuple[int, list[str]]:
    """(exit code, what specgate was called with)."""
    log = checkout / "log"
    log.unlink(missing_ok=True)
    path = f"{checkout / 'gpu'}:{os.environ['PATH']}" if gpu else os.environ["PATH"]
    environment = {"PATH": path, "HOME": str(checkout), "LOG": str(log), "FAILING": failing, **variables}
    done = subprocess.run(
        ["bash", "run_suite.sh", *arguments], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, log.read_text().splitlines() if log.exists() else []


def test_the_help_is_the_whole_first_comment_in_80_columns(checkout: Path) -> None:
    done = subprocess.run(["bash", "run_suite.sh", "--help"], cwd=checkout, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "The one command." and lines[-1].endswith("PYTHON.")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "cpu"])
def test_what_is_asked_for_is_handed_to_specgate_which_chooses_the_rest(checkout: Path, gpu: bool) -> None:
    assert ran(checkout, gpu=gpu) == (0, ["micro"])
    assert ran(checkout, "full", "--policy", "merge", gpu=gpu) == (0, ["full --policy merge"])
    body = {"SCENARIOS": "a,b.yaml", "BACKEND": "reference", "MEASUREMENT_RUNS": "4", "PERF_MODE": "0"}
    options = "--scenario a --scenario b.yaml --backend reference --measurement-runs 4"
    assert ran(checkout, gpu=gpu, **body) == (0, [f"full --micro-first {options} --no-perf-mode"])
    assert ran(checkout, "suite", gpu=gpu, MICRO_STEPS="64") == (2, []), "the gates have steps of their own"
    looked = ran(checkout, "micro", gpu=gpu, MICRO_STEPS="64", **body)
    assert looked == (0, [f"micro {options} --steps 64 --no-perf-mode"])
    assert ran(checkout, gpu=gpu, failing="micro")[0] == 3
    assert ran(checkout, gpu=gpu, PERF_MODE="yes") == (2, [])
    recorder = checkout / ".venv" / "bin" / "specgate"
    recorder.write_text(recorder.read_text().replace("$@", "$1 ${OMP_WAIT_POLICY:-unset}"))
    assert ran(checkout, gpu=gpu)[1] == ["micro unset" if gpu else "micro passive"], "threads of a CPU do not spin"
    assert ran(checkout, gpu=gpu, OMP_WAIT_POLICY="active")[1] == ["micro active"]


@pytest.mark.parametrize(
    ("tested", "typed", "ended"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (5, 2, 5)], ids=["green", "pytest", "mypy", "both"]
)
def test_mypy_beside_pytest_is_heard_and_counts(checkout: Path, tested: int, typed: int, ended: int) -> None:
    tools = {
        "python": f'case "$*" in *pytest*) echo "tests ran: $*"; exit {tested} ;; *sched_getaffinity*) echo 3 ;; esac',
        "mypy": f"echo types were read; exit {typed}",
        "ruff": "exit 0",
        "clang-format": "exit 0",
    }
    for name, does in tools.items():
        file = checkout / ".venv" / "bin" / name
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(checkout), "LOG": os.devnull, "FAILING": "nothing"}
    command = ["bash", "run_suite.sh", "test", "harness", "--quick", "tests/gates"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == ended, done.stderr
    ran, read = done.stdout.index("tests ran: "), done.stdout.index("types were read")
    assert ran < read and ("--last-failed" in done.stdout) == (tested == 1)
    assert "--numprocesses 3 " in done.stdout and "--ignore tests/eagle3 -m not slow tests/gates" in done.stdout

"""Builds from elsewhere: a folder, a git revision. Their processes are real, with code of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specgate.ab.sides import asked_of, package_folder, tree_sha256, worktree
from specgate.errors import UsageError
from specgate.machine.checkout import checkout_of
from tests.support.command import Cli

ENGINE = """\
from specgate.backends.fake.engine import FakeBackend


class Toy(FakeBackend):
    name = "toy"

    def open(self, request):
        from dataclasses import replace

        return super().open(replace(request, options={{"step_ns": "{step_ns}", "draft_ns": "200000"}}))


BACKEND = Toy()
"""


def write_build(folder: Path, step_ns: int) -> Path:
    """A checkout of a back end `toy` with code in `src`, whose steps take `step_ns`."""
    package, metadata = folder / "src" / "toy_engine", folder / "src" / "toy_engine-1.0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    metadata.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(ENGINE.format(step_ns=step_ns))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[specgate.backends]\ntoy = toy_engine:BACKEND\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout whose newest commit takes 3 % longer per step than the one before."""
    folder = write_build(tmp_path / "checkout", 2_000_000)
    git(folder, "init", "-q")
    for step_ns in (2_000_000, 2_060_000):
        write_build(folder, step_ns)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"{step_ns} ns")
    return folder


FIXED = ("--scenario", "../tiny.yaml", "--policy", "../policy.yaml", "--processes", "3", "--out", "../runs")


@pytest.mark.slow("six engine processes with code of their own")
def test_a_slower_commit_is_found_against_the_one_before_and_no_worktree_stays(cli: Cli, checkout: Path) -> None:
    before = git_worktrees(checkout)
    inside = Cli(checkout, cli.target, cli.draft)
    for name in ("tiny.yaml", "policy.yaml", "gate.yaml"):
        (checkout / name).unlink()  # untracked files of `Cli`
    inside.run_apart(
        "ab", "--base", "HEAD~1", "--backend", "toy", "--build", "test -d src && echo built", *FIXED, code=1
    )
    (folder,) = (cli.folder / "runs").glob("*-ab-*")
    data = json.loads((folder / "ab.json").read_text())
    assert [data["sides"][name]["revision"] for name in ("old", "new")] == commits(checkout)
    assert all(p["origin"]["python"] for p in data["processes"])
    assert (folder / "logs" / "build-old.log").read_text() == "built\n"
    step = next(q for q in data["quantities"] if q["name"] == "step_ms" and q["cell"].endswith("baseline"))
    assert step["ratio"] == pytest.approx(1.03, rel=0.01) and step["word"] == "SLOWER"
    assert git_worktrees(checkout) == before
    assert cli.run("runs", "verify", folder, pair=False).returncode == 0


def commits(checkout: Path) -> list[str]:
    return git(checkout, "log", "--format=%H", "--reverse").split()


def git_worktrees(checkout: Path) -> str:
    return git(checkout, "worktree", "list")


@pytest.mark.slow("six engine processes with code of their own")
def test_two_folders_are_compared_under_an_interpreter_that_is_named(cli: Cli, tmp_path: Path) -> None:
    slow, fast = write_build(tmp_path / "slow", 2_060_000), write_build(tmp_path / "fast", 2_000_000)
    sides = ("--old", f"source={slow}", "--new", f"source={fast}", "--old", f"python={sys.executable}")
    common = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--processes", "3", "--backend", "toy")
    done = cli.run_apart("ab", *sides, *common)
    assert done.returncode == 0 and "verdict FASTER" in done.stdout, done.stdout + done.stderr


def test_a_base_that_does_not_build_is_named_and_nothing_is_measured(cli: Cli, checkout: Path) -> None:
    inside = Cli(checkout, cli.target, cli.draft)
    done = inside.run(
        "ab", "--base", "HEAD~1", "--backend", "toy", "--build", "echo no compiler; exit 3", *FIXED, code=7
    )
    assert "old: --build" in done.stderr and "exit code 3" in done.stderr and "no compiler" in done.stderr
    assert not (cli.folder / "runs").exists()


def test_a_specgate_of_another_protocol_is_refused_by_name(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ancient" / "specgate").mkdir(parents=True)
    (tmp_path / "ancient" / "specgate" / "__init__.py").touch()
    done = cli.run("ab", "--old", f"source={tmp_path / 'ancient'}", "--scenario", "tiny.yaml", "--backend", "fake")
    assert done.returncode == 2 and "too old" in done.stderr


def test_a_worktree_has_the_files_of_its_revision_and_goes_with_its_body(checkout: Path) -> None:
    here = checkout_of(checkout / "src")
    assert here is not None and here.top == checkout and not here.changed
    with worktree(checkout, "HEAD~1") as tree:
        assert "2000000" in (tree / "src" / "toy_engine" / "__init__.py").read_text()
        assert checkout_of(tree) is not None
    assert not tree.exists()
    write_build(checkout, 1)
    changed = checkout_of(checkout)
    assert changed is not None and changed.changed


def test_a_folder_that_git_ignores_has_no_commit(checkout: Path) -> None:
    (checkout / ".gitignore").write_text("/build/\n")
    (checkout / "build").mkdir()
    assert checkout_of(checkout / "build") is None
    assert checkout_of(checkout / "src") is not None


def test_a_revision_that_is_none_is_refused(checkout: Path) -> None:
    with pytest.raises(UsageError, match="no such revision"), worktree(checkout, "--help"):
        pass


def test_the_code_of_a_checkout_is_looked_for_in_src_first_where_it_has_no_package_itself(checkout: Path) -> None:
    assert package_folder(checkout) == checkout / "src"
    (checkout / "package").mkdir()
    (checkout / "package" / "__init__.py").touch()
    assert package_folder(checkout) == checkout


def test_the_hash_of_a_side_follows_its_code_and_nothing_else(tmp_path: Path) -> None:
    folder = write_build(tmp_path / "a", 1)
    before = tree_sha256(folder)
    (folder / "notes.txt").write_text("no code")
    assert tree_sha256(folder) == before
    write_build(folder, 2)
    assert tree_sha256(folder) != before


def test_results_that_lie_in_a_checkout_are_no_code_of_it(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("step = 1\n")
    before = tree_sha256(tmp_path)
    for kept, file in (("runs", "ledger.jsonl"), ("comparison", "asked.json"), ("run", "MANIFEST.sha256")):
        (tmp_path / kept / "deeper").mkdir(parents=True)
        for name in (file, "deeper/run.json"):
            (tmp_path / kept / name).write_text("{}")
    assert tree_sha256(tmp_path) == before
    (tmp_path / "more.json").write_text("{}")
    assert tree_sha256(tmp_path) != before


def test_every_key_but_three_is_an_option_of_the_back_end() -> None:
    side = asked_of("new", [("url", "http://127.0.0.1:1"), ("backend", "vllm")])
    assert side.options == {"url": "http://127.0.0.1:1"} and side.backend == "vllm" and not side.foreign


def test_a_misspelt_key_of_a_side_is_no_option_of_its_back_end() -> None:
    with pytest.raises(UsageError, match=r"(?s)--old sorce: no such key.*did you mean source\?"):
        asked_of("old", [("sorce", "a")])

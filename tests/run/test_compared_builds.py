"""Runs that ask for a comparison of their build: which one is found, and what is copied of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specgate.run.references import revision_of
from tests.ab.test_sides import git
from tests.support.command import SCRIPTED_POLICY, Cli

POLICY = SCRIPTED_POLICY + "  - {id: no-slower-build, gate: builds, required: true, base: main}\n"


@pytest.fixture
def checkout(cli: Cli) -> Cli:
    """The folder of the command line as a git checkout whose branch has left main, which has gone on since."""
    cli.write("policy.yaml", POLICY)
    git(cli.folder, "init", "-q", "-b", "main")
    for branch, message in (("main", "first"), ("mine", "of the branch"), ("main", "second")):
        git(cli.folder, "checkout", "-q", *([branch] if branch == "main" and message == "second" else ["-B", branch]))
        git(cli.folder, "add", "policy.yaml")
        git(cli.folder, "commit", "-q", "--allow-empty", "-m", message)
    git(cli.folder, "checkout", "-q", "mine")
    return cli


def verdict(cli: Cli) -> dict[str, Any]:
    return verdict_of(cli.newest())


AB = ("ab", "--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake", "--processes", "3")


def test_a_revision_is_resolved_with_the_commit_that_the_branch_left_it_at(checkout: Cli) -> None:
    revision = revision_of("main", checkout.folder)
    assert revision.commit == git(checkout.folder, "rev-parse", "main")
    assert revision.branched_at == git(checkout.folder, "rev-parse", "main~1") != revision.commit
    assert revision_of("nowhere", checkout.folder).commit is None
    git(checkout.folder, "update-ref", "refs/remotes/origin/release", "main")
    remote = revision_of("release", checkout.folder)
    assert (remote.commit, remote.name) == (revision.commit, "origin/release")


def test_without_a_comparison_a_run_is_not_judged_and_says_the_command(checkout: Cli) -> None:
    checkout.micro("--backend", "fake", code=8)
    outcome = verdict(checkout)
    assert outcome["state"] == "NOT_JUDGED" and outcome["next_step"].startswith(
        "specgate ab --base main --scenario tiny"
    )
    assert "specgate ab --base main" in (checkout.newest() / "report.html").read_text()
    assert checkout.run("runs", "verify", checkout.newest(), pair=False).returncode == 0


@pytest.mark.slow("engine processes for a comparison")
def test_a_comparison_with_the_branch_makes_a_run_green_until_it_is_changed(checkout: Cli) -> None:
    checkout.run(*AB, "--same", code=0)
    assert checkout.micro("--backend", "fake").returncode == 8
    assert "compared this build with a build without a commit" in verdict(checkout)["message"]

    checkout.run_apart(*AB, "--base", "main", code=0)
    assert checkout.micro("--backend", "fake").returncode == 0
    assert verdict(checkout)["state"] == "PASS"
    run = checkout.newest()
    assert checkout.run("runs", "verify", run, pair=False).returncode == 0

    assert checkout.micro("--backend", "fake", "-o", "draft_ns=90000").returncode == 8  # another subject

    name = verdict_of(run)["evidence"]["comparison"]
    result = run.parent / name / "ab.json"
    result.write_text(result.read_text().replace('"SAME"', '"FASTER"'))
    manifest = run.parent / name / "MANIFEST.sha256"
    manifest.write_text(manifest.read_text() + "\n")
    assert checkout.micro("--backend", "fake").returncode == 8  # it is believed no more


def verdict_of(run: Path) -> dict[str, Any]:
    (result,) = (v for v in json.loads((run / "gates.json").read_text())["verdicts"] if v["gate"] == "builds")
    return dict(result)

"""Three greens, then another plug-in, another package, another host: `full` is refused, and what changed is named."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from specgate.files.run_folder import RunFolder
from specgate.machine import host
from specgate.promotion.ledger import Ledger
from tests.conftest import Killed
from tests.support.command import NOT_SCORED, Cli
from tests.support.outside import on_the_path, write_counting, write_distribution
from tests.support.stored_runs import as_if_killed

MICRO = ("micro", "--scenario", "gate.yaml", "--policy", "policy.yaml", "--backend", "counting")
FULL = ("full", "--scenario", "full.yaml", *MICRO[3:])
STATUS = ("full", "--status", *FULL[1:])


@pytest.fixture
def plugin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the back end `counting`, which requires a package that is installed too."""
    cli.scenario(kind="full", budget="new_tokens: 10, ignore_eos: false")
    (cli.folder / "tiny.yaml").rename(cli.folder / "full.yaml")
    (place := cli.folder / "outside").mkdir()
    with on_the_path(monkeypatch, place):
        write_distribution(place, "my-kernels", "1.5")
        yield write_counting(place, requires=("my-kernels",))


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Path:
    """The folder of runs with one green micro run and its ledger."""
    cli = Cli(tmp_path_factory.mktemp("green"), *pair)
    (place := cli.folder / "outside").mkdir()
    with pytest.MonkeyPatch.context() as patch, on_the_path(patch, place):
        write_distribution(place, "my-kernels", "1.5")
        write_counting(place, requires=("my-kernels",))
        done = cli.run(*MICRO)
    assert done.returncode == 0, done.stdout + done.stderr
    return cli.folder / "runs"


def three_greens(cli: Cli, green: Path) -> None:
    """Three green micro runs in the ledger, of which one was measured."""
    ledger = Ledger(shutil.copytree(green, cli.folder / "runs"))
    (first,) = ledger.read().entries
    for n in (1, 2):
        shutil.copytree(cli.folder / "runs" / first.run, cli.folder / "runs" / f"again-{n}")
        ledger.append(replace(first, run=f"again-{n}", pid=first.pid + n))
    allowed = cli.run(*STATUS, "--json")
    assert json.loads(allowed.stdout)["full_allowed"], allowed.stdout


def edit(cli: Cli, patch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text(file.read_text() + "# edited\n")


def upgrade(cli: Cli, patch: pytest.MonkeyPatch, file: Path) -> None:
    metadata = file.parent / "my_kernels-1.5.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.5", "Version: 1.6"))


def uninstall(cli: Cli, patch: pytest.MonkeyPatch, file: Path) -> None:
    (file.parent / "my_kernels-1.5.dist-info" / "METADATA").unlink()


def other_interpreter(cli: Cli, patch: pytest.MonkeyPatch, file: Path) -> None:
    patch.setattr(sys, "version", "3.99.0 (main, Jan  1 2030, 00:00:00) [GCC 99]")


def other_host(cli: Cli, patch: pytest.MonkeyPatch, file: Path) -> None:
    (cli.folder / "machine-id").write_text("another")
    patch.setattr(host, "MACHINE_IDS", (str(cli.folder / "machine-id"),))


def weaker_checks(cli: Cli, patch: pytest.MonkeyPatch, file: Path) -> None:
    policy = cli.folder / "policy.yaml"
    cli.write("policy.yaml", policy.read_text().replace(NOT_SCORED, "checks: {text: sampled, rescored_by: none}\n"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit, "plugin:backend:counting was specgate-example-backend 0.1.0, SHA-256 "),
        (upgrade, "my-kernels was 1.5, is 1.6"),
        (uninstall, "my-kernels was 1.5, is absent"),
        (other_interpreter, "is CPython 3.99.0 (main, Jan 1 2030, 00:00:00) [GCC 99]"),
        (other_host, "host was "),
        (weaker_checks, "policy_sha256 was "),
    ],
)
def test_three_greens_count_for_nothing_after_a_change_and_it_is_named(
    cli: Cli, plugin: Path, green: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None], message: str
) -> None:
    three_greens(cli, green)
    change(cli, monkeypatch, plugin)
    refused = cli.run(*FULL, code=5)
    assert "green 0 of 3" in refused.stderr and "starts anew: " in refused.stderr and message in refused.stderr
    output = cli.run(*STATUS).stdout
    assert "green micro runs in a row: 0 of 3" in output and message in " ".join(output.split())
    assert all(len(line) <= 80 for line in output.splitlines() if not line.startswith(("  run: ", "ledger ")))
    again = cli.run(*MICRO)
    assert "runs in a row: 1 of 3 (this run: one more)" in again.stdout
    (named,) = (line for line in again.stdout.splitlines() if line.startswith("  starts anew: "))
    assert message in named


def test_what_did_not_change_is_not_named(cli: Cli, plugin: Path, green: Path) -> None:
    three_greens(cli, green)
    plugin.touch()
    again = cli.run(*MICRO)
    assert "runs in a row: 3 of 3" in again.stdout and "the same process was counted before" in again.stdout
    assert "starts anew" not in again.stdout
    cli.run(*FULL, code=0)


def test_the_run_folder_has_the_fingerprint_and_a_changed_package_is_told_once(cli: Cli, plugin: Path) -> None:
    assert cli.run(*MICRO).returncode == 0
    first = cli.newest()
    run = RunFolder.open(first).read_run()
    assert run.fingerprint["package:my-kernels"] == "1.5" and run.fingerprint["host"] == host.identity()
    before, key = version("numpy"), "plugin:backend:counting"
    write_distribution(plugin.parent, "numpy", "1.0.0")
    plugin.write_text(plugin.read_text() + "# edited\n")
    assert cli.run(*MICRO).returncode == 0
    second = RunFolder.open(cli.newest()).read_run()
    assert second.last_green is not None
    assert second.last_green.differences == (
        ("fingerprint.package:numpy", before, "1.0.0"),
        (f"fingerprint.{key}", run.fingerprint[key], second.fingerprint[key]),
    )
    compared = cli.run("runs", "compare", first, cli.newest(), "--plain", pair=False).stdout
    assert f"  fingerprint\tpackage:numpy\t{before}\t1.0.0\n" in compared
    assert "  fingerprint\tplugin:backend:counting\tspecgate-example-backend 0.1.0, SHA-256 " in compared
    assert "packages.numpy" not in compared
    assert "plugin:backend:counting" in (cli.newest() / "report.html").read_text()


@pytest.mark.parametrize(
    "before", ["        self.firsts = []\n\n\nBACKEND", "        began = perf_counter_ns()\n        self.firsts"]
)
def test_a_plug_in_that_changes_while_the_run_goes_on_makes_it_invalid(cli: Cli, plugin: Path, before: str) -> None:
    """Where it is closed, and where it prefills."""
    code = plugin.read_text()
    assert before in code
    rewrite = "        with open(__file__, 'a') as file:\n            file.write('#')\n"
    plugin.write_text(code.replace(before, rewrite + before))
    done = cli.run(*MICRO, code=6)
    assert f"the software changed while the run went on: plugin:backend:counting: {plugin}" in done.stdout
    (entry,) = Ledger(cli.folder / "runs").read().entries
    assert (entry.state, entry.exit_code) == ("INVALID", 6)
    run = RunFolder.open(cli.newest()).read_run()
    assert run.status == "partial" and str(plugin) in run.failures["run"]


def test_a_run_is_not_continued_on_other_software(cli: Cli, killed: Killed) -> None:
    as_if_killed(cli.newest(), blocks=9)

    def resumed(**changes: Any) -> str:
        file = cli.newest() / "run.json"
        record = json.loads(file.read_text())
        fingerprint = {**record["fingerprint"], **changes}
        changed = {**record, "fingerprint": {key: value for key, value in fingerprint.items() if value != "dropped"}}
        file.write_text(json.dumps(changed))
        done = cli.run("micro", "--resume", cli.newest(), pair=False)
        file.write_text(json.dumps(record))
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    numpy = version("numpy")
    assert f"numpy was 1.0, is {numpy}" in resumed(**{"package:numpy": "1.0"})
    assert f"numpy was absent, is {numpy}" in resumed(**{"package:numpy": "dropped"})
    assert "triton-ascend was 3.0, is absent" in resumed(**{"package:triton-ascend": "3.0"})
    assert "interpreter was CPython 2.7, is CPython 3" in resumed(interpreter="CPython 2.7")
    assert f"host was {'0' * 16}, is {host.identity()}" in resumed(host="0" * 16)

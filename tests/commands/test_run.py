"""The whole command line as a user runs it: verdicts, exit codes, bad input, interruption and resumption."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.cli import main
from specgate.errors import ExitCode
from specgate.files.run_folder import RunFolder
from specgate.planning.request import Request
from specgate.run.session import began_isolated
from tests.conftest import Killed
from tests.pairs.tiny import write_random_pair
from tests.sandbox import needs_bubblewrap
from tests.support import in_process
from tests.support.command import POLICY, ROOT, Cli
from tests.support.stored_runs import as_if_killed

FILES = {"run.json", "config.resolved.yaml", "env.json", "gates.json", "metrics.csv", "summary.csv", "report.html"}


def last_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.strip().splitlines()[-3:]


@pytest.mark.slow("a run in processes of its own")
def test_a_run_leaves_every_file_and_prints_page_and_verdict_last(cli: Cli) -> None:
    done = cli.micro_apart("--backend", "fake", drawn=True, code=0)
    run = cli.newest()
    assert {p.name for p in run.iterdir()} >= FILES
    assert last_lines(done) == [
        f"page runs/{run.name}/report.html",
        f"next: specgate runs explain runs/{run.name}",
        "verdict PASS (exit 0), tokens and speed not judged",
    ]
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "complete"
    assert record["schema"] == "specgate.result/v2"
    speculation = record["eagle_speculation"]["tiny/fake/c24/b2/spec-3"]
    assert speculation["num_drafts"] == 8 * 2 * 6
    assert speculation["disabled_multitoken_other"] == 0
    assert not any(key.endswith("baseline") for key in record["eagle_speculation"])
    gates = json.loads((run / "gates.json").read_text())
    assert gates["exit_code"] == 0
    assert {v["rule"] for v in gates["verdicts"]} == {"records", "tokens", "acceptance"}
    assert "<title>" in (run / "report.html").read_text()
    subprocess.run(["sha256sum", "--check", "--quiet", "MANIFEST.sha256"], cwd=run, check=True)


def test_an_unmet_floor_is_a_fail_with_code_1(cli: Cli) -> None:
    cli.write("policy.yaml", POLICY.replace("MIN", "3.9"))
    done = cli.micro("--backend", "fake", code=1)
    assert last_lines(done)[-1] == "verdict FAIL (exit 1), tokens and speed not judged"


def test_a_wrong_token_is_invalid_and_its_speed_is_withheld(cli: Cli) -> None:
    cli.micro("--backend", "fake", "-o", "wrong_token_at=5", code=6)
    record = json.loads((cli.newest() / "run.json").read_text())
    (spec3,) = [c for c in record["comparisons"] if c["cell"]["role"]["k"] == 3]
    assert spec3["speedup"]["value"] is None
    assert spec3["speedup"]["reason_code"] == "token_mismatch"
    assert spec3["tokens"]["divergences"][0]["position"] == 5
    (cell,) = [c for c in record["cells"] if c["cell"]["role"]["k"] == 3]
    assert cell["values"]["decode_tok_s"]["value"] is None


@pytest.mark.parametrize(
    ("fault", "message"),
    [("no_drafts=true", "speculation was silently off"), ("lost_tokens=1", "steps + accepted - truncated")],
)
def test_counters_that_cannot_be_right_are_invalid_and_still_reported(cli: Cli, fault: str, message: str) -> None:
    done = cli.micro("--backend", "fake", "-o", fault, code=6)
    assert message in done.stdout
    assert message in (cli.newest() / "report.html").read_text()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("draft_error=fc.weight is missing", "fc.weight is missing"),
        ("draft_dies_after_blocks=20", "of 96 request-steps decoded plainly"),
    ],
)
def test_a_draft_that_could_not_be_used_is_invalid_and_marked_in_every_report(
    cli: Cli, fault: str, message: str
) -> None:
    cli.micro("--backend", "fake", "-o", fault, code=6)
    run = cli.newest()
    verdicts = json.loads((run / "gates.json").read_text())["verdicts"]
    result = {(v["cell"].rpartition("/")[2], v["reason_code"]) for v in verdicts if v["rule"] == "records"}
    assert result == {("baseline", "complete"), ("spec-2", "draft_unusable"), ("spec-3", "draft_unusable")}
    record = RunFolder(run).read_run()
    assert [bool(record.draft_trouble(r)) for r in record.cells] == [False, True, True]
    assert record.status == "complete"
    assert any(message in warning for warning in record.warnings) is fault.startswith("draft_error")
    marked = [line for line in cli.details().splitlines() if "draft unusable: " in line and message in line]
    assert [" spec-2: ok (" in line or " spec-3: ok (" in line for line in marked] == [True, True]
    assert (run / "report.html").read_text().count("draft unusable: ") == 2
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    plain = {
        r["role"]: (float(r["value"]) > 0, r["reason_code"]) for r in rows if r["metric"] == "disabled_draft_error"
    }
    assert plain == dict.fromkeys(("spec-2", "spec-3"), (True, "draft_unusable"))


def test_a_near_tie_within_the_policys_margin_passes_and_is_listed(cli: Cli) -> None:
    cli.write("policy.yaml", POLICY.replace("MIN", "1.0").replace("near_tie_margin: 0.0", "near_tie_margin: 0.01"))
    cli.micro("--backend", "fake", "-o", "wrong_token_at=5", "-o", "margin=0.005", code=0)
    verdicts = json.loads((cli.newest() / "gates.json").read_text())["verdicts"]
    assert "near_tie_divergence" in {v["reason_code"] for v in verdicts}


def test_a_killed_engine_keeps_finished_blocks_and_resume_completes_the_run(cli: Cli, killed: Killed) -> None:
    assert killed.done.returncode == 7
    assert "SIGKILL" in killed.done.stdout
    run = cli.newest()
    kept = (run / "samples" / "blocks.jsonl").read_text()
    # It died after twenty decode runs; one of them was the untimed text of the first prompt set that had both orders.
    assert (kept.count("\n"), (run / "samples" / "texts.jsonl").read_text().count("\n")) == (19, 1)
    cli.run("micro", "--resume", run, pair=False, code=0)
    assert (run / "samples" / "blocks.jsonl").read_text().startswith(kept)
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["failures"]) == ("complete", {})
    assert all(c["status"] == "ok" and c["blocks"] == 8 for c in record["cells"])


@pytest.mark.slow("a run in processes of its own")
def test_killing_the_command_itself_loses_no_finished_block(cli: Cli) -> None:
    assert cli.signalled_after_seven_blocks(signal.SIGKILL) == -signal.SIGKILL
    run = cli.newest()
    assert (run / "samples" / "blocks.jsonl").read_text().count("\n") == 7
    assert json.loads((run / "run.json").read_text())["status"] == "running"


@pytest.mark.slow("a run in processes of its own")
def test_an_interrupt_is_saved_and_marked(cli: Cli) -> None:
    assert cli.signalled_after_seven_blocks(signal.SIGINT) == 130
    assert json.loads((cli.newest() / "run.json").read_text())["status"] == "interrupted"
    for words, code in ((("verify",), 0), (("check", "--policy", "policy.yaml"), 3)):
        done = cli.run("runs", *words, cli.newest(), pair=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert done.stdout.endswith(f"the run was cut short\nnext: specgate micro --resume {cli.newest()}\n")


def test_ctrl_c_while_modules_are_imported_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with in_process.interruptible():
        command = [sys.executable, "-c", "from specgate.__main__ import main; main()"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_full_run_counts_whole_requests(cli: Cli) -> None:
    cli.scenario(kind="full", budget="new_tokens: 10, ignore_eos: false")
    full = ("full", "--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake")
    cli.run(*full, "--override-order", "the harness is what is tested", code=0)
    values = json.loads((cli.newest() / "run.json").read_text())["cells"][0]["values"]
    assert values["mean_e2e_ms"]["value"] > values["mean_ttft_ms"]["value"] > 0


def of_another_pair(draft: Path, **sizes: Any) -> None:
    """Put the draft of a pair with other sizes in place of `draft`."""
    other = write_random_pair(draft.parent / "other", seed=1, **sizes)[1]
    shutil.rmtree(draft)
    shutil.copytree(other, draft)


def truncate(draft: Path) -> None:
    file = draft / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("breakage", "code", "message"),
    [
        (truncate, 7, "model.safetensors"),
        (lambda d: of_another_pair(d, hidden=128), 7, "hidden"),
        (lambda d: of_another_pair(d, vocab=999), 7, "vocab"),
        (lambda d: (d / "model.safetensors").unlink(), 7, "model.safetensors"),
        (lambda d: shutil.rmtree(d), 2, "no such folder"),
    ],
    ids=["truncated", "wrong width", "other target", "no weights", "no folder"],
)
def test_a_bad_draft_is_explained_without_a_traceback(
    cli: Cli, tmp_path: Path, breakage: Callable[[Path], object], code: int, message: str
) -> None:
    shutil.copytree(cli.draft, tmp_path / "bad")
    cli.draft = tmp_path / "bad"
    breakage(cli.draft)
    done = cli.micro()
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--backend", "refrence"), 2, "did you mean 'reference'"),
        (("--only", "nothing*"), 2, "no scenario left"),
        (("--policy", "cpuu"), 2, "cpu"),
        (("-o", "device"), 2, "KEY=VALUE"),
        (("-o", "device=tpu"), 2, "auto, cpu, cuda"),
        (("--out", "/proc/nowhere"), 4, "/proc/nowhere"),
        (("--nonsense",), 2, "nonsense"),
        (("--resume", "runs"), 2, "--resume with --scenario, --policy, --target, --draft"),
        (("--resume", "runs", "http://127.0.0.1:9"), 2, "--resume with http://127.0.0.1:9\n  leave it out"),
    ],
)
def test_a_bad_command_line_says_what_would_be_right(
    cli: Cli, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = cli.micro(*arguments)
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert message in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (lambda c: c.scenario(budget="stepz: 6"), ("tiny.yaml", "stepz", "steps")),
        (lambda c: c.scenario(context=5000), ("5000", "positions")),
        (lambda c: c.scenario(kind="full", budget="new_tokens: 4"), ("full", "tiny.yaml")),
    ],
    ids=["unknown key", "context too long", "other command"],
)
def test_a_bad_scenario_is_refused_before_anything_is_measured(
    cli: Cli, change: Callable[[Cli], None], texts: tuple[str, ...]
) -> None:
    change(cli)
    done = cli.micro(code=2)
    assert all(word in done.stderr for word in texts), done.stderr
    assert not (cli.folder / "runs").exists()


def test_a_configuration_with_a_credential_is_refused_before_anything_is_written(cli: Cli) -> None:
    key = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    done = cli.micro("--backend", "fake", "-o", f"fault={key}")
    assert done.returncode == 2 and key not in done.stdout + done.stderr
    scenario = (cli.folder / "tiny.yaml").read_text()
    cli.write("tiny.yaml", scenario.replace("# Does the whole path run?", f"# Does {key} run?"))
    done = cli.micro("--backend", "fake")
    assert done.returncode == 2 and "scenarios.tiny.question: a credential would be written" in done.stderr
    assert key not in done.stdout + done.stderr and not list((cli.folder / "runs").glob("*"))


def test_resuming_on_other_weights_is_refused(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(cli.draft, tmp_path / "draft")
    cli.draft = tmp_path / "draft"
    cli.micro("--measurement-runs", "1", code=0)
    as_if_killed(cli.newest(), blocks=7)
    other, _ = write_random_pair(tmp_path / "other", seed=9)
    shutil.copy(other.parent / "draft" / "model.safetensors", cli.draft)
    done = cli.run("micro", "--resume", cli.newest(), pair=False, code=2)
    assert "draft_sha256: it was" in done.stderr


def test_a_run_that_is_being_written_is_left_alone(cli: Cli, killed: Killed) -> None:
    run = cli.newest()
    with RunFolder(run).lock():
        done = cli.run("micro", "--resume", run, pair=False)
    assert done.returncode == 4
    assert "another specgate is writing" in done.stderr


@pytest.mark.slow("a run in processes of its own")
def test_a_cancelled_job_saves_what_it_has(cli: Cli) -> None:
    assert cli.signalled_after_seven_blocks(signal.SIGTERM) == 130
    assert json.loads((cli.newest() / "gates.json").read_text())["exit_code"] == 130


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_cancels_a_job_is_left_ignored_where_it_was_ignored(
    name: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nohup specgate …` outlives its terminal."""
    monkeypatch.setattr(sys, "argv", ["specgate", "--version"])
    with in_process.handlers_kept():
        for before, after in ((signal.SIG_IGN, signal.SIG_IGN), (signal.SIG_DFL, signal.default_int_handler)):
            signal.signal(name, before)
            with pytest.raises(SystemExit):
                main()
            assert signal.getsignal(name) is after


def test_a_reader_that_has_gone_is_no_fail(cli: Cli) -> None:
    command = f"{sys.executable} -m specgate scenarios list --plain | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(["bash", "-c", command], cwd=cli.folder, env=environment).returncode in (0, 141)


def test_an_output_on_a_full_disk_is_the_machines_and_no_internal_error(cli: Cli) -> None:
    command = [sys.executable, "-m", "specgate", "scenarios", "list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=cli.folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == ExitCode.ENV_REJECTED
    assert done.stderr == b"error: standard output: cannot be written: No space left on device\n"


def test_resuming_on_changed_source_is_refused(cli: Cli, killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specgate.machine.software.source_tree_sha256", lambda: "0" * 64)
    done = cli.run("micro", "--resume", cli.newest(), pair=False, code=2)
    assert "source_tree_sha256" in done.stderr


def test_an_own_scenario_that_is_slower_than_plain_decoding_fails_under_the_shipped_policy(cli: Cli) -> None:
    cli.run("micro", "--scenario", "tiny.yaml", "--policy", "cpu", "--backend", "fake", "-o", "slowdown=5", code=1)
    record = json.loads((cli.newest() / "run.json").read_text())
    red = {v["rule"] for v in record["verdicts"] if v["state"] == "FAIL" and v["required"]}
    assert red == {"other-speed"} and record["not_judged"] == []


@needs_bubblewrap
def test_a_run_in_sandboxes_says_so_and_goes_on_in_them(cli: Cli) -> None:
    done = cli.micro("--backend", "fake", "--isolate")
    assert done.returncode == 0 and "engines run in bubblewrap" in done.stdout
    isolated_run = cli.newest()
    assert "bubblewrap" in (isolated_run / "report.html").read_text()
    again = Request(kind="micro", argv=(), plain=True, out=isolated_run.parent, resume=isolated_run)
    assert began_isolated(again)
    assert cli.run("runs", "verify", isolated_run, pair=False).returncode == 0
    assert cli.micro("--backend", "fake").returncode == 0
    assert not began_isolated(replace(again, resume=cli.newest()))
    assert "--isolate holds it" in (cli.newest() / "report.html").read_text()
    status = cli.run("full", "--status", "--isolate", "--policy", "policy.yaml", "--backend", "fake")
    assert "sandbox" not in status.stdout, status.stdout


def test_without_a_sandbox_a_run_that_wants_one_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specgate.sandbox.isolation.installed", lambda: None)
    done = cli.micro("--backend", "fake", "--isolate")
    assert done.returncode == 4 and "install bubblewrap" in done.stderr
    assert not (cli.folder / "runs").exists() or not list((cli.folder / "runs").glob("2*"))

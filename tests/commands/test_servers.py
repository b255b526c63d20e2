"""The command line on a server back end: a run with its evidence, and faults that lose nothing that was measured."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from html import escape
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from tokenizers import Tokenizer, models

from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.facts.engine import check_request
from specgate.backends.servers.options import Options
from specgate.commands.servers import Urls
from specgate.contract import Block, State
from specgate.errors import UsageError
from specgate.files.run_folder import RunFolder
from tests.backends.servers.helpers import program, request_of, running_stub
from tests.backends.servers.test_process import eventually
from tests.sandbox import needs_bubblewrap
from tests.support import in_process
from tests.support.command import UNDRAWN, Cli, scenario_text

KEY = "sk-not-to-be-written"
ECHOED = 'horse&battery"staple<9>'
OTHER = "correct-horse-of-another-7"


@pytest.mark.slow("starts servers")
def test_a_run_on_servers_is_judged_and_can_be_verified(cli: Cli) -> None:
    cli.micro("--backend", "vllm", "-o", f"program={program(cli.folder, 'vllm', '--rate 500')}", "--plain", code=0)
    run = RunFolder.open(cli.newest()).read_run()
    lengths = {c.cell.role.name: c.acceptance and c.acceptance.acceptance_length for c in run.cells}
    # 6 tokens after the first, by cycles that accept 3, 1, 2 … drafts, cut to k: 2 + 1 + 2 in 3 steps, 3 + 1 in 2.
    assert lengths == {"baseline": None, "spec-2": 1 + 5 / 3, "spec-3": 1 + 4 / 2}
    assert all(c.tokens.identical for c in run.comparisons)
    # The stub logs a cache of 65,536 tokens, and an eighth less where it drafts. Each role's server is a process.
    figures = {c.cell.role.name: c.values for c in run.cells}
    assert [of["kv_capacity_tokens"].value for of in figures.values()] == [65536, 57344, 57344]
    assert figures["spec-2"]["kv_capacity_loss"].value == figures["spec-3"]["kv_capacity_loss"].value == 0.125
    assert all((of["peak_host_memory_bytes"].value or 0) > 1 << 20 for of in figures.values())
    assert "extra_host_memory_bytes" in figures["spec-3"] and "extra_host_memory_bytes" not in figures["baseline"]
    assert "KV cache for baseline 65,536, spec-2 57,344 (-12.5 %), spec-3 57,344 (-12.5 %) tokens" in cli.details()
    assert sorted(p.name for p in (cli.newest() / "logs").glob("vllm-*")) == [
        "vllm-baseline.log",
        "vllm-spec-2.log",
        "vllm-spec-3.log",
    ]
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
    explained = " ".join(cli.run("runs", "explain", cli.newest(), pair=False).stdout.split())
    assert "with 3.00 tokens per step: a step with drafts costs " in explained, "what a server's run can say"
    assert explained.count("tokens per step; at this cost 2× would take ") == 2


@pytest.mark.slow("starts servers")
def test_the_command_that_an_export_of_a_planted_pair_prints_measures_it(cli: Cli) -> None:
    """Its weights are files now, whatever the section says that they were made from."""
    import torch

    from specgate.backends.eagle3.lib.pair import load_target
    from specgate.backends.eagle3.pair_tools.export.command import Wish, export
    from specgate.backends.eagle3.pair_tools.plant.geometries import tiny
    from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
    from specgate.pairs.resolve import resolve_pair
    from tests.eagle3.lib.planted.recipes import RECIPE_A

    shape, seeded = tiny(), cli.folder / "seeded"
    write_target(seeded / "target", shape.target, RECIPE_A, {}, written=False)
    sha256 = load_target(seeded / "target", torch.float32, "cpu").sha256
    write_draft(seeded / "draft", shape, RECIPE_A, {}, False, sha256)
    _, printed = export(resolve_pair(str(seeded), None, None), Wish("hf", cli.folder / "out")).commands[-1]
    words = shlex.split(printed.replace("\\\n", ""))
    server = ["-o", f"program={program(cli.folder, words[3], '--rate 500')}"]
    files = ["--scenario", "tiny.yaml", "--policy", "policy.yaml", "--plain"]
    done = cli.run(*words[1:], *files, *server, pair=False)
    assert words[:2] == ["specgate", "micro"] and done.returncode == 0, done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    assert run.pair.acceptance == "planted" and all(c.acceptance for c in run.cells if c.cell.role.speculative)
    request = request_of((seeded / "target", seeded / "draft"), cli.folder, {})
    with pytest.raises(UsageError, match=r"seeded/target: its weights are made from a seed"):
        check_request(adapter_named("vllm"), request, Options())


def write_words(file: Path) -> None:
    """A tokenizer of 256 words."""
    words = {f"w{i}": i for i in range(255)} | {"a": 255}
    Tokenizer(models.WordLevel(words, unk_token="a")).save(str(file))


@pytest.mark.slow("starts servers")
def test_servers_whose_weights_are_not_here_are_named_as_they_name_themselves(cli: Cli) -> None:
    """Never as the demo pair, and with no hash: what they serve is their own word."""
    write_words(cli.folder / "tok.json")
    served = ["--model-name", "qwen-prod", "--rate", "500"]
    with running_stub("vllm", 0, *served) as plain, running_stub("vllm", 2, *served) as two:
        scenario = (cli.folder / "tiny.yaml").read_text().replace("[2, 3]", "[2]")
        cli.write("tiny.yaml", scenario)
        urls = ["--backend", "vllm", "-o", f"url.baseline={plain}", "-o", f"url.spec-2={two}", "-o", "build=wheel-7"]
        command = ["micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml", "--plain", *urls]
        nameless = cli.run(*command, pair=False)
        done = cli.run(*command, "--tokenizer", "tok.json", pair=False)
    assert nameless.returncode == 2 and "the tokenizer of qwen-prod is not on this machine" in nameless.stderr
    assert "--tokenizer FILE|DIR" in nameless.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    (facts,) = run.engines.values()
    assert (run.pair.name, run.pair.weights, run.pair.draft, facts.target_sha256) == ("served", "server", None, None)
    assert run.fingerprint["engine:build"] == "wheel-7" and run.fingerprint["engine:attention"] == "unknown"
    capacities = [c.values["kv_capacity_tokens"].value for c in run.cells]
    assert capacities == [65536, 57344]  # from /metrics; and the listening process is on this machine
    assert all((c.values["peak_host_memory_bytes"].value or 0) > 1 << 20 for c in run.cells)
    details = cli.details()
    assert "qwen-prod, as the server says" in details and "build wheel-7, as the command line says" in details
    page = (cli.newest() / "report.html").read_text()
    assert "qwen-prod, as the server says" in page and "attention, moe, cuda graphs" in page
    assert "demo" not in (cli.newest() / "summary.md").read_text()
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("kind", ["micro", "full"])
def test_one_server_with_speculation_on_is_measured_by_itself(kind: str, cli: Cli) -> None:
    """What needs a baseline is skipped with that reason, and nobody may take the run for green."""
    write_words(cli.folder / "tok.json")
    budget = "steps: 6" if kind == "micro" else "new_tokens: 7"
    text = scenario_text(kind=kind, budget=budget, spec=[2])
    cli.write("alone.yaml", text + ("goodput: {ttft_ms: 60000}\n" if kind == "full" else ""))
    speed = "  - {id: speed, gate: speed, required: true, role: spec-*, min: 1.0}\n"
    policy = (cli.folder / "policy.yaml").read_text().replace("rules:\n", "rules:\n" + speed)
    cli.write("policy.yaml", "".join(line for line in policy.splitlines(True) if "kind: speed" not in line))
    with running_stub("vllm", 2, "--rate", "500") as two:
        command = [kind, "--scenario", "alone.yaml", "--policy", "policy.yaml", "--plain", "--backend", "vllm"]
        command += ["-o", f"url.spec-2={two}", "--tokenizer", "tok.json", "--no-baseline"]
        override = ["--override-order", "a test"] if kind == "full" else []
        done = cli.run(*command, *override, pair=False)
    assert done.returncode == 8, done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    (result,) = run.cells
    assert (result.cell.role.name, run.comparisons) == ("spec-2", ())
    assert result.acceptance is not None and result.acceptance.acceptance_length == pytest.approx(1 + 5 / 3)
    assert {"p50_itl_ms", "p99_tpot_ms", "p50_ttft_ms", "decode_tok_s"} <= result.values.keys()
    assert ("goodput_share" in result.values) == (kind == "full")
    states = {v.rule: (v.state.value, v.reason_code) for v in run.verdicts}
    assert states["tokens"] == states["speed"] == ("SKIPPED", "no_baseline") and states["acceptance"][0] == "PASS"
    for sentence in (
        done.stdout,
        (cli.newest() / "report.html").read_text(),
        (cli.newest() / "summary.md").read_text(),
    ):
        assert "No baseline was measured: no speed-up is claimed" in sentence
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


@pytest.mark.slow("starts servers")
def test_an_honest_server_whose_method_need_not_draft_is_green_with_all_of_its_steps(cli: Cli, tmp_path: Path) -> None:
    """By hand: steps of 1, 3, 1 and 2 tokens make 6 behind the first, one is cut off, and two had no draft: 7 / 4."""
    script = ["--rate", "500", "--lengths", "0:0,12:2,0:0,5:1"]
    ids = ",".join(map(str, range(5, 29)))
    cli.write("tiny.yaml", (cli.folder / "tiny.yaml").read_text().replace("[2, 3]", "[16]"))
    with running_stub("vllm", 0, *script) as plain, running_stub("vllm", 16, *script) as url:
        smoked = cli.run(
            "smoke", "--prompt-ids", ids, "--tokens", "64", "--json", "--backend", "vllm", "-o", f"url={url}"
        )
        urls = ["-o", f"url.spec-16={url}", "-o", f"url.baseline={plain}"]
        done = cli.micro("--backend", "vllm", *urls, "--perf-mode", "--plain")
    seen = json.loads(smoked.stdout)
    assert (smoked.returncode, seen["role"], seen["causes"]) == (0, "spec-16", []), smoked.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    (spec,) = (c for c in run.cells if c.cell.role.speculative)
    assert spec.acceptance is not None and spec.values["acceptance_length"].value == pytest.approx(7 / 4)
    assert spec.acceptance.skipped == spec.acceptance.steps and spec.values["skipped_steps"].value
    (i3,) = (i for i in run.certificates[spec.cell.key] if i.id == "I3")
    assert i3.reason_code == "no_promise"
    (valid,) = (v for v in run.verdicts if v.gate == "validity" and v.cell == spec.cell.key)
    assert "had no draft, as they may; 2.50 tokens a step with one" in valid.message
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


@needs_bubblewrap
@pytest.mark.slow("starts servers")
def test_servers_that_are_started_here_run_in_the_engines_sandbox(cli: Cli) -> None:
    server = program(cli.folder, "vllm", "--rate 500")
    cli.micro_apart("--backend", "vllm", "-o", f"program={server}", "--isolate", "--spec", "3", code=0)
    figures = {c.cell.role.name: c.values for c in RunFolder.open(cli.newest()).read_run().cells}
    # Processes have other numbers in a sandbox, and their memory is seen all the same.
    assert all((of["peak_host_memory_bytes"].value or 0) > 1 << 20 for of in figures.values())
    assert (cli.newest() / "logs" / "vllm-baseline.log").stat().st_size


@needs_bubblewrap
@pytest.mark.slow("starts servers")
def test_an_engine_in_a_sandbox_reaches_a_server_that_runs_already(cli: Cli) -> None:
    with running_stub("vllm", 3, "--rate", "500") as url:
        done = cli.run_apart("smoke", "--backend", "vllm", "--isolate", "-o", f"url.spec-3={url}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow("starts servers")
def test_a_server_that_dies_costs_its_point_and_no_finished_block(cli: Cli) -> None:
    server = program(cli.folder, "vllm", "--rate 500 --fault die_after=12")
    done = cli.micro("--backend", "vllm", "-o", f"program={server}", "--plain", code=7)
    assert "the server ended with exit code 9" in done.stdout + done.stderr
    folder = RunFolder.open(cli.newest())
    assert len(folder.lines(Block)) > 3 and {c.status for c in folder.read_run().cells} <= {"partial", "failed"}


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_or_interrupted_leaves_no_server_behind(cli: Cli, signal_: signal.Signals) -> None:
    server = program(cli.folder, "vllm", "--fault", "hang")
    command = [sys.executable, "-m", UNDRAWN, "micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml", "--plain"]
    command += ["--backend", "vllm", "-o", f"program={server}", "-o", "stop_s=0.3"]
    command += ["--target", str(cli.target), "--draft", str(cli.draft)]
    with in_process.interruptible(), subprocess.Popen(command, cwd=cli.folder, env=cli.environment()) as run:
        harness = psutil.Process(run.pid)
        assert eventually(lambda: any(log.stat().st_size for log in cli.folder.glob("runs/*/logs/worker-0.log")))
        assert eventually(lambda: any(is_stub(p) for p in harness.children(recursive=True)))
        started = harness.children(recursive=True)
        run.send_signal(signal_)
    _, left = psutil.wait_procs(started, timeout=60)  # it ends as soon as none is left
    assert not left


def is_stub(process: psutil.Process) -> bool:
    try:
        return "tests.backends.servers.stub" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("faults", ["--fault echoes", "--fault echoes --fault status=401"], ids=["green", "refused"])
def test_a_key_that_a_server_repeats_is_nowhere(cli: Cli, monkeypatch: pytest.MonkeyPatch, faults: str) -> None:
    """Neither as it is nor in another form, in any file of the run, in the ledger or on the console."""
    monkeypatch.setenv("SERVER_KEY", ECHOED)
    monkeypatch.setenv("SOME_OTHER_TOKEN", OTHER)
    monkeypatch.setenv("SPECGATE_NOTES", OTHER)
    server = program(cli.folder, "vllm", f"--rate 500 --fault log={OTHER} {faults}")
    options = ("-o", f"program={server}", "-o", "api_key_env=SERVER_KEY", "--spec", "3")
    done = cli.micro_apart("--backend", "vllm", *options)
    output = done.stdout + done.stderr
    assert done.returncode == (7 if "401" in faults else 0), output
    if "401" in faults:
        assert "refused: Bearer ***" in output
    assert not set("\x1b\x07\u202e") & set(output)
    texts = {file: file.read_text() for file in (cli.folder / "runs").rglob("*") if file.is_file()}
    assert any(file.parent.name == "logs" and "***" in text for file, text in texts.items())
    assert any("0.33.0 for Bearer ***" in text for text in texts.values())
    assert not set("\x1b\x07\u202e") & set("".join(texts.values()))
    forms = {form for key in (ECHOED, OTHER) for form in (key, quote(key, safe=""), escape(key), json.dumps(key)[1:-1])}
    leaks = [str(file) for file, text in {Path("console"): output, **texts}.items() if any(f in text for f in forms)]
    assert not leaks
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
    monkeypatch.delenv("SERVER_KEY")
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


@pytest.mark.parametrize("option", [f"api_key={KEY}", f"url=http://me:{KEY}@127.0.0.1:8000", f"args=--api-key {KEY}"])
def test_a_secret_on_the_command_line_is_refused_before_anything_is_written(cli: Cli, option: str) -> None:
    done = cli.micro("--backend", "vllm", "-o", option)
    assert done.returncode == 2 and KEY not in done.stdout + done.stderr
    assert not (cli.folder / "runs").exists()


def test_a_server_elsewhere_needs_leave(cli: Cli) -> None:
    done = cli.micro("--backend", "sglang", "-o", "url=http://192.0.2.1:30000")
    assert done.returncode == 2 and "-o allow_remote=on" in done.stderr


def test_a_missing_gguf_file_is_missed_before_anything_is_written(cli: Cli) -> None:
    done = cli.micro("--backend", "llamacpp")
    assert done.returncode == 2 and "option target_gguf is missing" in done.stderr
    assert not (cli.folder / "runs").exists()


# ── a URL is enough ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow("starts servers")
def test_two_urls_give_a_speed_verdict_and_one_of_them_the_acceptance(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server's own tokenizer, and the prompts that come along."""
    monkeypatch.setenv("SPECGATE_CACHE", str(cli.folder / "cache"))
    with running_stub("vllm", 0, "--rate", "50") as plain, running_stub("vllm", 2, "--rate", "50") as two:
        smoked = cli.run("smoke", f"{two}/v1", "--json", pair=False)
        by_ids = cli.run("smoke", two, "--prompt-ids", "5,6,7", pair=False)
        done = cli.run("micro", f"{two},{plain}", "--steps", "12", "--measurement-runs", "1", "--plain", pair=False)
    assert smoked.returncode == 0 and json.loads(smoked.stdout)["role"] == "spec-2", smoked.stderr
    assert by_ids.returncode == 0 and "tokenizer: " in smoked.stderr and "tokenizer: " not in by_ids.stderr
    run = RunFolder.open(cli.newest()).read_run()
    assert [c.cell.role.name for c in run.cells] == ["baseline", "spec-2"], done.stdout + done.stderr
    speedup, acceptance = run.comparisons[0].speedup.value, run.cells[1].acceptance
    # accepted drafts of steps: 2, 1, 2, 0, 2, 2, again and again
    assert acceptance is not None and acceptance.acceptance_length == pytest.approx(1 + 9 / 6, rel=0.1)
    # As many times as tokens come per step, but for who else uses the CPU.
    assert speedup is not None and speedup > 1
    (speed,) = (v.state for v in run.verdicts if v.gate == "speed" and v.cell.endswith("spec-2"))
    assert done.returncode == {State.PASS: 0, State.INCONCLUSIVE: 3}[speed], done.stdout + done.stderr
    assert "served-tokenizer" not in done.stderr and "the server's own" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("http://a:1",), "two sides are needed"),
        (("http://a:1", "http://a:2", "--base", "main"), "two sides are needed, said in one way"),
    ],
)
def test_two_sides_of_servers_are_said_in_one_way(arguments: tuple[str, ...], sentence: str, cli: Cli) -> None:
    done = cli.run("ab", *arguments, pair=False)
    assert done.returncode == 2 and sentence in done.stderr


@pytest.mark.parametrize(
    ("argument", "right"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("cpu-1k-single", "--scenario cpu-1k-single"),
        ("vllm", "--backend vllm"),
        ("questions.jsonl", "--prompts questions.jsonl"),
        ("nonsense", "http://HOST:PORT"),
        ("https//x", "http://HOST:PORT"),
        ("http://", "http://HOST:PORT"),
    ],
)
def test_an_argument_that_is_no_url_is_refused_with_what_would_be_right(argument: str, right: str) -> None:
    with pytest.raises(UsageError) as error:
        Urls().convert(argument, None, None)
    assert error.value.hint is not None and error.value.hint.startswith(right)


@pytest.mark.parametrize("argument", ["user:pass-word-1@host:80", "host:80?key=sk-abcdefghijklmnopqrstuv"])
def test_an_argument_that_may_hold_a_key_is_not_repeated(argument: str, cli: Cli, tmp_path: Path) -> None:
    for text in (argument, f"http://{argument}"):
        done = cli.run("micro", text, pair=False, code=2)
        assert "pass-word-1" not in done.stdout + done.stderr and "sk-abc" not in done.stdout + done.stderr

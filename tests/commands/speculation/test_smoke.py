"""`specgate smoke`: what it prints and ends with, on real engines: reference, scripted, servers of the stub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specgate.analysis.speculation.evidence import Finding
from specgate.commands.smoke import lines
from tests.backends.offline.helpers import STAND_INS
from tests.backends.servers.helpers import program, running_stub
from tests.support.command import Cli

IDS = ",".join(map(str, range(5, 29)))


def smoked(cli: Cli, *arguments: str) -> tuple[int, dict[str, Any]]:
    """(exit code, the JSON) of a smoke run on the tiny pair."""
    done = cli.run("smoke", "--prompt-ids", IDS, "--tokens", "24", "--ignore-eos", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


def test_an_engine_that_drafts_is_active(cli: Cli) -> None:
    done = cli.run("smoke", "--backend", "fake", "--prompt-ids", IDS, "--tokens", "64", "--baseline", code=0)
    assert done.stdout.startswith("active: fake, spec-3: several draft tokens per step are proposed and accepted\n")
    assert "acceptance length       3.000 tokens per step" in done.stdout and "not a measurement" in done.stdout
    assert not list(cli.folder.glob("runs"))


def test_the_figures_are_those_of_the_engines_script(cli: Cli) -> None:
    code, result = smoked(cli, "--backend", "fake", "-o", "accept=2,0")
    figures = result["figures"]
    # 23 tokens after the first: 2 + 1, 0 + 1 …, of which the eleventh step emits the last three
    assert (code, result["active"], result["state"]) == (0, True, "active")
    assert (figures["num_drafts"], figures["accepted"], figures["steps_with_2"]) == (11, 12, 6 / 11)
    assert result["causes"] == ["made_up"] and result["schema"] == "specgate.smoke/v1"


@pytest.mark.parametrize(
    ("option", "state", "cause"),
    [
        ("no_drafts=true", "no drafts", "silently_off"),
        ("accept=0", "next to nothing accepted", "zero_acceptance"),
        ("draft_error=the weights are gone", "no drafts", "draft_not_loaded"),
        ("left_multi_token=100", "no drafts", "silently_off"),
    ],
)
def test_speculation_that_is_off_is_named_with_its_cause(cli: Cli, option: str, state: str, cause: str) -> None:
    code, result = smoked(cli, "--backend", "fake", "-o", option)
    assert (code, result["state"]) == (1, state) and result["causes"][0] == cause
    assert {f["cause"] for f in result["findings"]} >= {"vocabulary", "auxiliary_layers", "memory"}


def test_the_random_draft_of_a_tiny_pair_is_found_out(cli: Cli) -> None:
    """The reference engine decodes it for real; a draft that was never trained is accepted by chance at most."""
    code, result = smoked(cli, "--backend", "reference")
    assert code == (0 if result["active"] else 1) and result["figures"]["num_drafts"] > 0
    assert not {"vocabulary", "wrong_target", "positions", "draft_not_loaded"} & set(result["causes"])


def smoked_with(cli: Cli, edit: Callable[[Path], object]) -> tuple[int, dict[str, Any]]:
    """Smoke the pair on the reference engine after `edit` changed a copy of its draft's folder."""
    other = cli.folder / "other"
    shutil.copytree(cli.draft, other)
    edit(other)
    arguments = ["smoke", "--backend", "reference", "--prompt-ids", IDS, "--json"]
    done = cli.run(*arguments, "--target", str(cli.target), "--draft", str(other), pair=False)
    return done.returncode, json.loads(done.stdout)


def edited(**keys: object) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))

    return edit


def test_contradictions_of_a_head_are_warnings_and_what_it_drafts_is_the_same(cli: Cli) -> None:
    code, plain = smoked_with(cli, edited())
    shutil.rmtree(cli.folder / "other")
    odd_code, odd = smoked_with(cli, edited(num_hidden_layers=40, rope_theta=7e5, rope_parameters={"rope_theta": 1e4}))
    assert (odd_code, odd["figures"]["accepted"], odd["figures"]["num_drafts"]) == (
        code, plain["figures"]["accepted"], plain["figures"]["num_drafts"],
    )  # fmt: skip
    assert plain["warnings"] == [] and len(odd["warnings"]) == 2
    assert "num_hidden_layers = 40 (the weights: 1)" in odd["warnings"][0]


def test_a_draft_of_another_target_is_named_as_the_cause(cli: Cli) -> None:
    code, data = smoked_with(cli, edited(trained_for={"num_hidden_layers": 99}))
    assert (code, data["causes"]) == (1, ["wrong_target"])
    assert "the draft of another target" in data["error"]


def test_a_head_that_the_engine_does_not_run_is_one_cause(cli: Cli) -> None:
    code, data = smoked_with(cli, edited(hidden_act="gelu"))
    assert (code, data["causes"]) == (1, ["draft_not_loaded"])


def test_a_map_that_nobody_filled_does_not_rule_out_the_vocabulary(cli: Cli) -> None:
    from safetensors.numpy import load_file, save_file

    def unfill(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors["t2d"]
        save_file({**tensors, "d2t": 0 * tensors["d2t"]}, folder / "model.safetensors")

    _, data = smoked_with(cli, unfill)
    assert "vocabulary" in data["causes"] and data["warnings"] == []


def test_what_an_error_advises_stands_below_it() -> None:
    evidence = SimpleNamespace(backend="b", role="spec-3", drafting=None, error="D: empty\n  fill it", warnings=())
    done: Any = SimpleNamespace(evidence=evidence, failed=True, active=False, causes=(), findings=())
    assert list(lines(done, every=False))[1:3] == ["error: D: empty", "  fill it"]
    done.causes = (Finding("draft_not_loaded", "found", "D: empty", "fill it", "tensors"),)
    assert list(lines(done, every=False))[2:4] == ["  seen: D: empty", "  do: fill it"], "once"


def test_an_engine_that_fails_is_an_engine_error(cli: Cli) -> None:
    code, result = smoked(cli, "--backend", "fake", "-o", "fail_open=no GPU left")
    assert (code, result["state"], result["figures"]) == (7, "engine error", None)
    assert "no GPU left" in result["error"]


def test_a_turbomind_that_takes_no_draft_is_named_with_the_line_of_its_log(cli: Cli) -> None:
    options = ("engine=turbomind", f"pythonpath={STAND_INS}", "env.STAND_IN_FAULT=released")
    code, result = smoked(cli, "--backend", "lmdeploy-pipeline", *(word for o in options for word in ("-o", o)))
    assert code == 1 and {"switched_off", "silently_off"} <= set(result["causes"])
    by_cause = {f["cause"]: f for f in result["findings"]}
    assert "speculative decoding is not supported by turbomind" in by_cause["switched_off"]["seen"]
    assert "--backend turbomind" in by_cause["silently_off"]["todo"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "a", "--context", "8"], "give one of them"),
        (["--prompt-ids", "1,x"], "token ids with commas"),
        (["--prompt-ids", "999999999"], "ids are 0 to"),
        (["--backend", "fake", "-o", "no_draft=true"], "no_drafts"),
        (["--backend", "nothing"], "nothing"),
        (["--logs", "."], "is not empty"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(cli: Cli, arguments: list[str], message: str) -> None:
    default = [] if "--prompt-ids" in arguments or "--prompt" in arguments else ["--prompt-ids", IDS]
    done = cli.run("smoke", "--backend", "fake", *default, *arguments)
    assert done.returncode == 2 and message in done.stderr


def test_a_draft_without_numbers_is_found_by_looking_at_its_weights(cli: Cli) -> None:
    from safetensors.torch import load_file, save_file

    broken = cli.folder / "broken"
    broken.mkdir()
    for file in cli.draft.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = load_file(cli.draft / "model.safetensors")
    save_file({**weights, "fc.weight": weights["fc.weight"] * float("nan")}, broken / "model.safetensors")
    arguments = ["smoke", "--backend", "fake", "-o", "accept=0", "--prompt-ids", IDS, "--json"]
    done = cli.run(*arguments, "--target", str(cli.target), "--draft", str(broken), pair=False)
    data = json.loads(done.stdout)
    assert done.returncode == 1 and {"weights", "zero_acceptance"} <= set(data["causes"])
    assert next(f["seen"] for f in data["findings"] if f["cause"] == "weights") == "not finite: fc.weight"


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize(
    ("faults", "code", "cause"),
    [
        ("--fault no_drafts", 1, "silently_off"),
        ("--fault no_metrics", 1, "counters_off"),
        ("--fault log='WARNING speculative decoding is disabled'", 1, "switched_off"),
    ],
)
def test_a_server_that_is_started_is_looked_into(cli: Cli, faults: str, code: int, cause: str) -> None:
    server = program(cli.folder, "vllm", f"--rate 500 {faults}")
    ended, result = smoked(cli, "--backend", "vllm", "-o", f"program={server}")
    assert ended == code, result
    assert result["causes"] == [cause]


@pytest.mark.slow("starts a server")
def test_a_server_without_speculation_is_told_from_one_that_drafts_nothing(cli: Cli) -> None:
    with running_stub("vllm", 0, "--rate", "500") as url:
        code, result = smoked(cli, "--backend", "vllm", "-o", f"url={url}")
        arguments = ["smoke", "--backend", "vllm", "--prompt-ids", IDS, "--tokens", "24", "--json"]
        tokenizer = ["--tokenizer", str(cli.target), "-o", f"url={url}"]
        unnamed = cli.run(*arguments, *tokenizer, pair=False)
    assert code == 1 and result["causes"] == ["baseline_server"]
    assert unnamed.returncode == 1 and json.loads(unnamed.stdout)["causes"] == ["baseline_server"], unnamed.stderr


@pytest.mark.slow("starts a server")
def test_only_the_server_of_the_role_is_started(cli: Cli) -> None:
    server = program(cli.folder, "vllm", "--rate 500")
    logs = cli.folder / "logs"
    code, result = smoked(cli, "--backend", "vllm", "-o", f"program={server}", "--logs", str(logs))
    assert code == 0 and result["engine_version"] == "0.33.0"
    assert [file.name for file in logs.iterdir() if file.name != "worker-0.log"] == ["vllm-spec-3.log"]


@pytest.mark.slow("starts a server")
def test_flags_that_ask_for_another_draft_length_end_before_a_server_is_started(cli: Cli) -> None:
    server = program(cli.folder, "sglang", "--rate 500")
    arguments = ["smoke", "--backend", "sglang", "--prompt-ids", IDS, "-o", f"program={server}"]
    done = cli.run(*arguments, "-o", "args.spec-3=--speculative-num-steps 5")
    assert done.returncode == 2 and "--speculative-num-steps = 5, the role asks for 3" in done.stderr


def test_a_prompt_that_is_empty_or_said_twice_is_refused_before_a_server_is_asked(cli: Cli) -> None:
    for words, says in (("--prompt=", "--prompt '': empty"), ("--prompt=a --context=9", "together")):
        done = cli.run("smoke", "http://127.0.0.1:9", *words.split(), pair=False)
        assert done.returncode == 2 and says in done.stderr


def test_a_folder_for_logs_that_cannot_be_made_names_its_option(cli: Cli) -> None:
    cli.write("taken", "")
    done = cli.run("smoke", "--backend", "fake", "--prompt-ids", IDS, "--logs", "taken/logs")
    assert done.returncode == 4 and "taken/logs: cannot be written: Not a directory" in done.stderr
    assert "choose another --logs" in done.stderr

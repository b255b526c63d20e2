"""Own prompts and questions on the command line, from a file to a verified run, with the reference engine."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from specgate.errors import ExitCode, UsageError
from specgate.planning.ad_hoc import Question
from specgate.planning.forced_acceptance import Forced, forced_of
from specgate.planning.prompt_files.formats import prompts_in
from specgate.planning.request import Request
from tests.support.command import Cli

POLICY = ("--policy", "policy.yaml")
QUESTION = ("--batch", "2", "--spec", "2", "--prompt-sets", "4", "--steps", "4")


def prompts(cli: Cli, count: int = 12) -> Path:
    lines = [
        {"ids": [(7 * n + i) % 200 for i in range(3 + n)], "category": ("even", "odd")[n % 2]} for n in range(count)
    ]
    return cli.write("mine.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def run_json(cli: Cli) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((cli.newest() / "run.json").read_text())
    return read


def test_own_prompts_are_measured_shown_and_verified(cli: Cli) -> None:
    prompts(cli)
    done = cli.run("micro", "--prompts", "mine.jsonl", *QUESTION, *POLICY)
    assert "8 of 12 prompts from mine.jsonl (lines), as ids: " in cli.details(), done.stdout + done.stderr
    run, folder = run_json(cli), cli.newest()
    (scenario,) = run["scenarios"].values()
    ((key, about),) = run["prompts"].items()
    longest = scenario["grid"]["context"][0]
    assert scenario["name"] == "own-mine.b2.s2.p4.st4" and f"/c{longest}/b2" in key
    blocks = [json.loads(line) for line in (folder / "samples" / "blocks.jsonl").read_text().splitlines()]
    assert all(b["prompt_tokens"] == about["lengths"][b["prompt_set"]] for b in blocks if not b["warmup"])
    assert {max(b["prompt_tokens"]) for b in blocks} != {longest}, "prompts of one length would show little"
    spec = next(c for c in run["cells"] if c["cell"]["role"]["k"] == 2)
    counted = {name: spec["values"][f"acceptance_length[{name}]"]["n"] for name in ("even", "odd")}
    assert counted == {name: sum(of.count(name) for of in about["categories"]) for name in ("even", "odd")}
    assert "acceptance_length[odd]" in (folder / "metrics.csv").read_text()
    page = (folder / "report.html").read_text()
    assert "8 of 12 prompts from mine.jsonl" in page and "Acceptance by category" in page
    verified = cli.run("runs", "verify", folder, pair=False)
    assert verified.returncode == done.returncode and "all as stored" in verified.stdout
    lengths = {name: spec["values"][name]["value"] for name in ("acceptance_length", "acceptance_length[odd]")}
    assert [of.k for of in map(forced, (f"{folder}", f"{folder}[odd]"))] == [2, 2]
    assert forced(f"{folder}").length == pytest.approx(lengths["acceptance_length"])
    assert forced(f"{folder}[odd]").length == pytest.approx(lengths["acceptance_length[odd]"])
    for value, says in (
        (f"{folder}[red]", "0 cells have the category 'red'"),
        (str(cli.folder), "neither a number nor a run folder"),
    ):
        with pytest.raises(UsageError, match=says):
            forced(value)
    with pytest.raises(UsageError, match="one acceptance length is forced, and the run has no spec cell with a draft"):
        forced(f"{folder}", 3)


def forced(value: str, *spec: int) -> Forced:
    request = Request("load", (), True, Path(), options={"force_al": value}, question=Question(spec=spec or None))
    result = forced_of(request)
    assert result is not None
    return result


CHATS = [{"conversations": [{"from": "human", "value": "a" * n}, {"from": "gpt", "value": "b"}]} for n in range(3, 13)]
GPT_FIRST = [{"conversations": [{"from": "gpt", "value": "b"}, {"from": "human", "value": "a"}]}] * 2
TEXTS = [{"prompt": "a" * n} for n in range(3, 15)]


@pytest.mark.parametrize(
    ("lines", "template", "options", "says"),
    [
        (
            CHATS + GPT_FIRST,
            "chat_template.json",
            (),
            "8 of 10 prompts from own.jsonl (sharegpt), as chats (template: chat_template.json): … tokens (shortest, "
            "median, longest); 10 of 12 conversations; 2 left out: first turn is the assistant's",
        ),
        (
            CHATS,
            None,
            (),
            "8 of 10 prompts from own.jsonl (sharegpt), as text (the target's tokenizer has no chat template): … ",
        ),
        (
            CHATS,
            "chat_template.json",
            ("--no-chat",),
            "8 of 10 prompts from own.jsonl (sharegpt), as text (chat: false): … tokens",
        ),
        (
            TEXTS,
            "chat_template.json",
            (),
            "8 of 12 prompts from own.jsonl (lines), as text (--chat makes chats of it): … tokens",
        ),
        (
            TEXTS,
            "chat_template.json",
            ("--chat",),
            "8 of 12 prompts from own.jsonl (lines), as chats (template: chat_template.json): … tokens",
        ),
    ],
)
def test_plan_run_and_page_say_chats_or_text_and_what_was_left_out(
    lines: list[Any], template: str | None, options: tuple[str, ...], says: str, cli: Cli
) -> None:
    cli.write("own.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    cli.target = shutil.copytree(cli.target, cli.folder / "target")
    if template:
        cli.write(f"target/{template}", json.dumps({"chat_template": "<{{ messages[0].content }}>"}))
    question = ("--backend", "fake", "--prompts", "own.jsonl", *options, *QUESTION)
    plan = cli.run("scenarios", "plan", *question)
    done = cli.run("micro", *question, *POLICY)
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("run folder ") and second.startswith("prompts: ")
    page = html.unescape((cli.newest() / "report.html").read_text())
    pattern = re.escape(says).replace("…", r"\d+, [\d.]+, \d+")
    for text in (plan.stdout, second, page):
        assert re.search(pattern, text), (text[:2000], done.stderr)


def test_prefill_is_counted_in_the_tokens_that_the_prompts_have(cli: Cli) -> None:
    prompts(cli)
    cli.run("micro", "--backend", "fake", "--prompts", "mine.jsonl", *QUESTION, *POLICY)
    run = run_json(cli)
    values = run["cells"][0]["values"]
    assert values["prefill_tok_s"]["value"] == pytest.approx(1e9 / 1000), "the fake takes 1,000 ns per prompt token"


def test_a_run_goes_on_only_with_the_same_prompts(cli: Cli) -> None:
    file = prompts(cli)
    question = ("--prompts", "mine.jsonl", *QUESTION, *POLICY)
    failed = cli.run("micro", "--backend", "fake", "-o", "fail_open=no room", *question)
    assert failed.returncode == ExitCode.BACKEND_ERROR
    folder, kept = cli.newest(), file.read_text()
    prompts_in.cache_clear()  # a process of its own would have read nothing yet
    file.write_text(kept + '{"ids": [1]}\n')
    refused = cli.run("micro", "--resume", folder, pair=False)
    assert refused.returncode == ExitCode.USAGE and "mine.jsonl: its SHA-256 is" in refused.stderr
    file.unlink()
    assert "mine.jsonl: no such file" in cli.run("micro", "--resume", folder, pair=False).stderr
    file.write_text(kept)
    again = cli.run("micro", "--resume", folder, pair=False)
    assert again.returncode == ExitCode.BACKEND_ERROR and "no room" in again.stdout
    output = cli.run("micro", "--resume", folder, "--prompts", "mine.jsonl", pair=False)
    assert output.returncode == ExitCode.USAGE and "--resume with --prompts" in output.stderr


def test_a_scenario_names_its_prompts_relative_to_itself(cli: Cli) -> None:
    (cli.folder / "deep").mkdir()
    prompts(cli).rename(cli.folder / "deep" / "mine.jsonl")
    cli.scenario()
    text = (cli.folder / "tiny.yaml").read_text().replace("context: [24], ", "")
    text = text.replace("source: random", "file: mine.jsonl, max_tokens: 9")
    cli.write("deep/tiny.yaml", text)
    cli.write("outer.yaml", "# Does it?\nextends: deep/tiny.yaml\nworkload: {prompt_sets: 4}\n")
    output = cli.run("scenarios", "check", "outer.yaml", pair=False).stdout
    assert "fine: micro scenario outer, context own, batch 2, spec-2..3, 12 prompts from mine.jsonl (lines)" in output
    shown = cli.run("scenarios", "show", "outer.yaml", pair=False).stdout
    cli.write("copy.yaml", shown)
    assert "context: own" in shown
    assert cli.run("scenarios", "show", "copy.yaml", pair=False).stdout == shown
    assert cli.run("scenarios", "plan", "--scenario", "outer.yaml").stderr.count("prompts are needed") == 1, (
        "7 prompts are that short"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{file: none.jsonl, prompt_sets: 4}", "tiny.yaml:7: workload.file: .*none.jsonl: no such file"),
        (
            "{file: mine.jsonl, prompt_sets: 4, min_tokens: 9, max_tokens: 8}",
            "tiny.yaml:7: workload.max_tokens: 8: less",
        ),
        ("{file: mine.jsonl, prompt_sets: 4, format: csv}", "tiny.yaml:7: workload.format: 'csv': not one of"),
        ("{source: random, prompt_sets: 4, max_tokens: 8}", "tiny.yaml:7: workload.max_tokens: 8: it speaks of work"),
        ("{source: file, prompt_sets: 4}", "tiny.yaml:7: workload.source: 'file': no file: set workload.file"),
        (f"{{file: mine.jsonl, prompt_sets: 4, sha256: '{'0' * 64}'}}", "tiny.yaml:7: workload.sha256: .*that of .*is"),
    ],
)
def test_what_a_scenario_says_of_its_prompts_is_checked_with_file_and_line(line: str, says: str, cli: Cli) -> None:
    prompts(cli)
    text = (cli.folder / "tiny.yaml").read_text()
    old = next(row for row in text.splitlines() if row.startswith("workload:"))
    cli.write("tiny.yaml", text.replace(old, f"workload: {line}"))
    refused = cli.run("scenarios", "check", "tiny.yaml", pair=False)
    assert refused.returncode == ExitCode.USAGE
    assert re.search(says, refused.stderr), refused.stderr


def test_plan_shows_the_question_and_how_long_its_prompts_are(cli: Cli) -> None:
    prompts(cli)
    done = cli.run("scenarios", "plan", "--backend", "fake", "--prompts", "mine.jsonl", *QUESTION, code=0)
    assert "own-mine.b2.s2.p4.st4\t" in done.stdout and " tokens (shortest, median, longest)" in done.stdout
    other = cli.run(
        "scenarios", "plan", "--backend", "fake", "--context", "1K,2k", "--batch", "4,1", "--spec", "3,2", pair=False
    )
    rows = [line.split("\t")[:4] for line in other.stdout.splitlines() if line.startswith("own-")]
    assert rows == [
        ["own-c1024_2048.b1_4.s2_3", c, b, "baseline spec-2..3"] for c in ("1024", "2048") for b in ("1", "4")
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--context", "8Q"), ("--context", "0"), ("--batch", "1,,2"), ("--spec", "65"), ("--spec", "own")],
)
def test_an_axis_that_cannot_be_read_says_what_would_be_right(option: str, value: str, cli: Cli) -> None:
    refused = cli.run("scenarios", "plan", option, value, pair=False)
    assert refused.returncode == ExitCode.USAGE
    assert f"Invalid value for '{option}'" in refused.stderr and "whole numbers from 1 to" in refused.stderr


def test_an_axis_that_is_given_twice_has_the_numbers_of_both(cli: Cli) -> None:
    twice = ("--context", "1K", "--batch", "4", "--batch", "2,1", "--spec", "3", "--spec", "2", "--batch", "4")
    once = ("--context", "1K", "--batch", "1,2,4", "--spec", "2,3")
    outputs = [cli.run("scenarios", "plan", "--backend", "fake", *text, pair=False).stdout for text in (twice, once)]
    assert outputs[0] == outputs[1] and "own-c1024.b1_2_4.s2_3\t" in outputs[0]
    refused = cli.run("scenarios", "plan", "--context", "own", "--context", "1K", pair=False)
    assert refused.returncode == ExitCode.USAGE
    assert "'own' stands by itself, without numbers beside it" in refused.stderr


def test_the_resolved_question_can_be_kept_as_a_scenario(cli: Cli) -> None:
    shown = cli.run("scenarios", "show", "cpu-1k-single", "--context", "2K", pair=False).stdout
    cli.write("kept.yaml", shown)
    output = cli.run("scenarios", "check", "kept.yaml", pair=False).stdout
    assert "fine: micro scenario kept, context 2048, batch 1, spec-3" in output
    assert cli.run("scenarios", "show", pair=False).returncode == ExitCode.USAGE


def test_answers_are_scored_beside_speed_judged_shown_and_verified(cli: Cli) -> None:
    """The fake's texts hold no answer that is right, with or without speculation."""
    lines = [{"question": "a" * n, "answer": f"so it is\n#### {n}"} for n in range(3, 15)]
    cli.write("own.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    rule = "  - {id: quality, gate: quality, required: true, role: spec-*, max_loss: 0.5}\n"
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text() + rule)
    question = ("--prompts", "own.jsonl", "--batch", "2", "--spec", "2", "--prompt-sets", "4", "--new-tokens", "4")
    done = cli.run("full", "--backend", "fake", *question, *POLICY, "--override-order", "not what is tested")
    values = {c["cell"]["role"]["k"]: c["values"] for c in run_json(cli)["cells"]}
    assert values[0]["exact_match"]["value"] == 0.0 and values[0]["exact_match"]["n"] == 8, done.stdout + done.stderr
    change = values[2]["exact_match_change"]
    assert change["value"] == 0.0 and change["ci_low"] < 0 < change["ci_high"]
    gates = json.loads((cli.newest() / "gates.json").read_text())["verdicts"]
    (quality,) = (verdict for verdict in gates if verdict["gate"] == "quality")
    assert quality["state"] == "PASS" and "0 lost, 0 won" in quality["message"]
    sentence = "right answers of 8: baseline 0.0 %, spec-2 0.0 % (+0.0 points, "
    assert sentence in cli.details() and sentence in html.unescape((cli.newest() / "report.html").read_text())
    assert "exact_match_change" in (cli.newest() / "metrics.csv").read_text()
    verified = cli.run("runs", "verify", cli.newest(), pair=False)
    assert verified.returncode == done.returncode and "all as stored" in verified.stdout

"""docs/turbomind.md: every command of the page, run on a tiny pair against TurboMind's stand-in."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from safetensors.numpy import load_file, save_file

from specgate.files.run_folder import RunFolder
from tests.backends.offline.helpers import STAND_INS
from tests.pairs.tiny import write_random_pair
from tests.support import in_process
from tests.support.command import ROOT
from tests.support.engines.converted import convert_draft
from tests.support.fences import Block, blocks
from tests.support.traces import turbomind_loop

PAGE: Final = ROOT / "docs" / "turbomind.md"
GATES: Final = "micro-16k-b4,micro-32k-single"
SIZES: Final[Mapping[str, str]] = {
    "python=/opt/lmdeploy/bin/python": f"pythonpath={STAND_INS}",
    "/src/lmdeploy-main": "main",
    "/src/lmdeploy-eagle3": "eagle3",
    GATES: "micro-32k-single.yaml",
    "micro-32k-single": "micro-32k-single.yaml",
    "micro-16k-b4": "micro-32k-single.yaml",
    "baseline,single,batch,large-context,stress": "full-32k-single.yaml",
    "full-16k-b4,full-32k-single": "full-32k-single.yaml",
    "engine-gpt-oss-120b": "engine.yaml",
    "merge-gpt-oss-120b": "merge.yaml",
    "64,128,256": "64,256",
    "cupy": "reference",
    "servers=apart": "servers=together",  # apart starts a process per role of every block
}
"""What the page says → what is small enough, and without a GPU. All other words are run as they stand there."""
SCENARIO: Final = """\
# The page's question, in small.
schema: specgate.scenario/v1
extends: base/cpu
kind: KIND
family: single
grid: {context: [24], batch: [4], spec: [3]}
workload: {prompt_sets: 2, source: random}
budget: {BUDGET}
schedule: {rounds: 1, warmup_rounds: 1}
perf_mode: true
"""
ENGINE: Final = """\
# The page's policy, where a CPU's clock judges nothing.
schema: specgate.policy/v1
base: engine-gpt-oss-120b
checks: {rescored_by: none}
micro: [micro-32k-single.yaml]
not_judged:
  - {kind: speed, why: a shared CPU's clock is no judge}
without: [no-loss-since-green, speed, speed-16k-b4, speed-32k-single]
rules:
  - {id: machine-quiet, required: false, gpu: false}
"""
MERGE: Final = """\
schema: specgate.policy/v1
base: engine.yaml
rules:
  - {id: no-slower-build, gate: builds, required: true, base: main}
"""
FEW_PAIRS: Final = ("--processes", "3", "--steps", "24", "--plain")
RECORDER: Final = "#!/bin/sh\nprintf '%s\\0' \"$@\" ';' >> \"$LOG\"\n"
"""Stands for .venv/bin/specgate: writes down its words."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as run_suite.sh leaves it, the pair as the page names it, and what the fork and nsys have written."""
    shutil.copy(ROOT / "run_suite.sh", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    for name, text in ((".venv/bin/python", "#!/bin/sh\n"), (".venv/bin/specgate", RECORDER)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / ".installed-torch").touch()
    target, draft = write_random_pair(tmp_path / "pair", seed=8)
    models = tmp_path / "models"
    models.mkdir()
    (models / "gpt-oss-120b").symlink_to(target)
    (models / "gpt-oss-120b-eagle3").symlink_to(draft)
    convert_draft(draft, models / "gpt-oss-120b-eagle3-tm-draft")
    for build in ("main", "eagle3"):
        shutil.copytree(STAND_INS, tmp_path / build)
    trtllm = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "models/gpt-oss-120b-eagle3"}
    files = {
        "trtllm.yaml": json.dumps({"speculative_config": trtllm}),
        "prompt.json": json.dumps({"ids": [5, 6, 7, 8, 9, 10, 11, 12]}),
        "micro-32k-single.yaml": SCENARIO.replace("KIND", "micro").replace("BUDGET", "steps: 24"),
        "full-32k-single.yaml": SCENARIO.replace("KIND", "full").replace("BUDGET", "new_tokens: 64"),
        "engine.yaml": ENGINE,
        "merge.yaml": MERGE,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    turbomind_loop(steps=5).write_nsys(tmp_path / "eagle3.sqlite")
    return tmp_path


def typed(shell: list[Block], folder: Path) -> list[list[str]]:
    """The words of each `specgate` that the last of these blocks starts, by a shell that ran the blocks before it."""
    before, (last,) = "".join(block.text for block in shell[:-1]), shell[-1:]
    script = in_small(f"export LOG=/dev/null\n{before}\nexport LOG=log\n{last.text}")
    (folder / "log").write_text("")
    environment = {"PATH": f"{folder}/.venv/bin:{os.environ['PATH']}", "HOME": str(folder)}
    subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, check=True, capture_output=True, timeout=60)
    words = (folder / "log").read_text().split("\0")[:-1]
    return [list(group) for ends, group in itertools.groupby(words, lambda word: word == ";") if not ends]


def in_small(text: str) -> str:
    """The text with its words replaced by SIZES."""
    return re.sub(r"[^\s=]*[^\s]*", lambda word: small(word[0]), text)


def small(word: str) -> str:
    """A word of the page as the test types it: the word, or what stands behind a `=` of it."""
    key, equals, value = word.rpartition("=")
    return SIZES.get(word) or f"{key}{equals}{SIZES.get(value, value)}"


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow("runs a page of commands")
def test_every_command_of_the_page_does_what_the_page_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "accepts=2")
    monkeypatch.setenv("TM_EAGLE3_FMHA_KV_TILE", "32")
    for name, value in (("halving.LAST_PAIRS", 1), ("session.FINAL_PAIRS", 3), ("session.FINAL_LOOKS", (3,))):
        monkeypatch.setattr(f"specgate.sweep.{name}", value)
    shell: list[Block] = []
    output, ran, disturbed = "", 0, False
    for block in blocks(PAGE):
        if block.language == "":
            assert disturbed or [line for line in block.text.splitlines() if flat(line) not in output] == [], output
        if block.language != "sh":
            continue
        shell.append(block)
        output, disturbed = "", False
        for words in typed(shell, folder):
            ran += 1
            # Green runs of one process count once, and a user starts one for each.
            monkeypatch.setattr("specgate.promotion.admission.os", SimpleNamespace(getpid=lambda pid=ran: pid))
            done = in_process.command(folder, [*words, *(FEW_PAIRS if words[0] == "ab" else [])])
            output += flat(done.stdout + done.stderr) + " "
            # Words of builds and settings are about a CPU that others use; an uneven one is refused with 6.
            codes = (0, 1, 3, 6) if words[0] == "ab" or words[:2] == ["engine", "sweep"] else (0,)
            disturbed |= words[0] in ("engine", "ab") and (done.returncode != 0 or "the default stays" in done.stdout)
            assert done.returncode in codes or "|| echo" in block.text, f"{words}: {done.stdout}{done.stderr}"
            if "--dump" in words:
                write_forks_dump(folder)
    assert ran == 22
    assert_what_the_files_hold(folder)


def write_forks_dump(folder: Path) -> None:
    """Write the stages that the fork shows, as step 8 writes them: here the reference engine's own."""
    ours = load_file(folder / "ours.safetensors")
    names = (
        "prompt_ids",
        *(f"draft.{name}" for name in ("fc_out", "attn_out", "ffn_out", "pre_head_hidden", "logits")),
    )
    save_file({name: ours[name] for name in names}, folder / "turbomind.safetensors")


def assert_what_the_files_hold(folder: Path) -> None:
    *_, tuned = sorted((folder / "runs").glob("*-sweep-*/sweep.json"), key=lambda file: file.stat().st_mtime_ns)
    sweep = json.loads(tuned.read_text())
    (trial,) = sweep["trials"]
    (file,) = trial["config"].values()
    assert trial["made_by"] == {"env.TM_GEMM_TUNE": "1"} and Path(file).expanduser().read_text() == "8"
    assert sweep["best"] is None or sweep["best"]["low"] < sweep["best"]["ratio"]  # others may use the CPU unevenly
    results = sorted((folder / "results").rglob("*speculative_batch4_context24_3tokens*.json"))
    speculation = json.loads(results[0].read_text())
    # Each step has two accepted drafts. One of them stands in the place of the step's own token.
    assert speculation["eagle_speculation"]["mean_acceptance_length"] == 3.0
    green = max((folder / "runs").glob("*Z-micro-*"))
    run = RunFolder.open(green).read_run()
    assert run.cells[1].values["acceptance_length"].value == 2.0
    messages = {v.rule: v.message for v in run.verdicts if v.cell.endswith("spec-3")}
    assert messages["perf-mode"] == "I3 I5 I7 hold; not observable here: I1 I2 I4 I6"
    emitted = "acceptance length 3.000 ≥ 3 by the engine's count, 2.000 emitted per cycle"
    assert messages["acceptance-32k-single"] == emitted
    assert {facts.details["env LMDEPLOY_EAGLE_MICRO_STEPS"] for facts in run.engines.values()} == {"24"}

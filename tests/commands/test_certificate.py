"""From a fault in the loop to the exit code, through the whole harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import Cli

RULE = "  - {id: perf-mode, gate: invariants, required: true, accept_unseen: none}\n"


def perf_mode(cli: Cli, *options: str) -> tuple[int, dict[str, list[dict[str, str]]], Path]:
    policy = cli.folder / "policy.yaml"
    cli.write("policy.yaml", policy.read_text() + RULE)
    arguments = [part for option in options for part in ("-o", option)]
    done = cli.micro("--backend", "fake", "--perf-mode", *arguments)
    folder = cli.newest()
    return done.returncode, json.loads((folder / "run.json").read_text())["certificates"], folder


def test_a_clean_loop_is_certified_and_its_traces_are_kept(cli: Cli) -> None:
    code, certificates, folder = perf_mode(cli)
    assert code == 0
    assert {i["held"] for found in certificates.values() for i in found} == {"held"}
    assert len((folder / "samples" / "traces.jsonl").read_text().splitlines()) == len(certificates) > 1
    assert "PERF_MODE certificate" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("fault", "id_", "code"),
    [
        ("fallback_kernel=cutlass_gemm", "I1", "fallback_kernel"),
        ("untuned_launches=1", "I2", "untuned_kernel"),
        ("left_multi_token=2", "I3", "left_multi_token_mode"),
        ("kv_integrity_failures=1", "I4", "kv_integrity"),
        ("sync_in_loop=true", "I6", "sync_in_loop"),
        ("d2h_in_loop=true", "I6", "d2h_in_loop"),
        ("alloc_in_loop=true", "I6", "alloc_in_loop"),
    ],
)
def test_a_fault_in_the_loop_makes_the_cell_invalid(cli: Cli, fault: str, id_: str, code: str) -> None:
    exit_code, certificates, folder = perf_mode(cli, fault)
    assert exit_code == 6
    spec = next(found for key, found in certificates.items() if "spec" in key)
    assert [(i["id"], i["reason_code"]) for i in spec if i["held"] != "held"] == [(id_, code)]
    verdicts = json.loads((folder / "gates.json").read_text())["verdicts"]
    assert code in {v["reason_code"] for v in verdicts if v["gate"] == "invariants"}
    assert {v["state"] for v in verdicts if v["gate"] != "invariants"} == {"PASS"}


@pytest.mark.slow("three runs of the reference engine under a profiler")
def test_a_cpus_loop_cannot_be_seen_and_a_policy_has_to_accept_that(cli: Cli) -> None:
    policy = (cli.folder / "policy.yaml").read_text()
    cli.write("policy.yaml", policy + RULE.replace("none", "I1 I2 I4 I6"))
    done = cli.micro("--backend", "reference", "-o", "device=cpu", "--perf-mode")
    assert "not observable here: I1 I2 I4 I6" in done.stdout
    cli.write("policy.yaml", policy + RULE)
    strict = cli.micro("--backend", "reference", "-o", "device=cpu", "--perf-mode")
    assert "I1 cannot be seen here: no CUDA device" in strict.stdout and strict.returncode == 6

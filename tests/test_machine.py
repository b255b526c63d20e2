"""The environment record: JSON, without secrets, and a source hash that sees every change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import specgate
from specgate import machine


def test_the_environment_is_json_and_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", "/somewhere")
    monkeypatch.setenv("MY_TOKEN", "secret")
    text = json.dumps(machine.environment(), allow_nan=False)
    record = json.loads(text)
    assert record["packages"]["torch"]
    assert record["host"]["memory_bytes"] > 0
    assert record["variables"]["SPECGATE_CACHE"] == "/somewhere"
    assert "secret" not in text


def test_the_source_hash_changes_with_any_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "specgate"
    shutil.copytree(Path(specgate.__file__).parent, copy, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    monkeypatch.setattr(specgate, "__file__", str(copy / "__init__.py"))
    before = machine.source_tree_sha256()
    assert machine.source_tree_sha256() == before
    for name in ("gates/policies/cpu.yaml", "backends/reference/ops.py"):
        (copy / name).write_text((copy / name).read_text() + "\n")
        after = machine.source_tree_sha256()
        assert after != before
        before = after

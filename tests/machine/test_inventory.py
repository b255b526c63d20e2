"""The environment record: JSON, without secrets, and a source hash that sees every change."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import specgate
from specgate.machine import inventory
from tests.support.fake_nvml import LIBRARY_NOT_FOUND, Driver, driver


def test_the_environment_is_json_and_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", "/somewhere")
    monkeypatch.setenv("MY_TOKEN", "secret")
    text = json.dumps(inventory.environment(), allow_nan=False)
    record = json.loads(text)
    assert record["packages"]["torch"]
    assert record["host"]["memory_bytes"] > 0
    assert record["variables"]["SPECGATE_CACHE"] == "/somewhere"
    assert "secret" not in text


def test_of_the_environment_only_variables_of_known_names_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPECGATE_NOTES", "OMP_SECRET_PLAN", "CUDA_VISIBLE_PASSWORD", "PATH"):
        monkeypatch.setenv(name, "anything")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("SPECGATE_CACHE", "https://me:horse9@host/cache")
    stored = inventory.environment()["variables"]
    assert isinstance(stored, dict) and set(stored) <= set(inventory.VARIABLES)
    assert stored["CUDA_VISIBLE_DEVICES"] == "1" and stored["SPECGATE_CACHE"] == "https://***@host/cache"


@pytest.mark.engine
def test_the_source_hash_changes_with_any_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "specgate"
    shutil.copytree(Path(specgate.__file__).parent, copy, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    monkeypatch.setattr(specgate, "__file__", str(copy / "__init__.py"))
    before, engines = inventory.source_tree_sha256(), inventory.backend_trees()
    assert inventory.source_tree_sha256() == before
    for name in ("gates/policies/cpu.yaml", "backends/eagle3/reference/ops.py"):
        (copy / name).write_text((copy / name).read_text() + "\n")
        after = inventory.source_tree_sha256()
        assert after != before
        before = after
    changed = {name for name, tree in inventory.backend_trees().items() if tree != engines[name]}
    assert changed == {"eagle3"} and len(engines) > 3
    kernel, engines = copy / "backends/eagle3/cupy/kernels/include/block.cuh", inventory.backend_trees()
    for text, same in (("// A comment\n  ", True), ("int more;", False)):
        kernel.write_text(text + kernel.read_text())
        assert (inventory.backend_trees() == engines) is same
    before = inventory.source_tree_sha256()
    checkpoint = copy / "backends/eagle3/pairs/more"
    checkpoint.mkdir()
    for name in ("config.json", "model.safetensors"):
        (checkpoint / name).touch()
    assert inventory.source_tree_sha256() == before  # a checkpoint has hashes of its own
    file = copy / "errors.py"
    was = file.stat()
    file.write_text(file.read_text().replace("e", "f", 1))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # as long as before, and as old by its own word
    assert file.stat().st_size == was.st_size
    assert inventory.source_tree_sha256() != before


@pytest.mark.parametrize(
    ("visible", "result"),
    [
        (None, (7, 5)),
        ("1", (9, 0)),
        ("1,0", (9, 0)),
        ("GPU-b", (9, 0)),
        ("2", None),
        ("3", None),
        ("", None),
        ("-1", None),
        ("MIG-b1", None),
    ],
)
def test_the_compute_capability_is_the_first_visible_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, result: tuple[int, int] | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver({"GPU-a1": (7, 5), "GPU-b1": (9, 0), "GPU-c1": None}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert inventory.compute_capability() == result


def test_a_gpu_is_recorded_with_its_compute_capability_or_that_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver({"GPU-a1": (12, 1), "GPU-c1": None}))
    assert [(g["uuid"], g["compute_capability"], g["driver"]) for g in inventory.gpus()] == [
        ("GPU-a1", "12.1", "570.1"),
        ("GPU-c1", None, "570.1"),
    ]


def test_a_machine_without_a_driver_has_no_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver([], init_error=LIBRARY_NOT_FOUND))
    assert inventory.gpus() == []
    assert inventory.compute_capability() is None

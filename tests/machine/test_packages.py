"""Versions that stand in the fingerprint: from metadata and files, without an import."""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from specgate.machine import packages
from specgate.machine.checkout import git
from specgate.machine.packages import cuda_toolkit, interpreter, torch_cuda
from specgate.machine.software import plugin_commits, software
from tests.support.command import ROOT
from tests.support.outside import on_the_path, write_counting, write_distribution


def test_packages_of_figures_and_cuda_libraries_are_listed_with_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cupy-cuda13x", "nvidia-cublas-cu12", "nvidia_nccl", "cudax", "my-kernels"):
        write_distribution(tmp_path, name, "12.3.4.5")
    (tmp_path / "nvidia_gone-1.0.dist-info").mkdir()  # what a broken uninstallation leaves
    monkeypatch.syspath_prepend(tmp_path)
    result = packages.packages(["My_Kernels", "nobody-has-this"])
    assert result["torch"] == version("torch") and result["numpy"] == version("numpy")
    ours = {name for name, stated in result.items() if stated == "12.3.4.5"}
    assert ours == {"cupy-cuda13x", "nvidia-cublas-cu12", "nvidia-nccl", "my-kernels"}
    assert not {"pytest", "nobody-has-this", "nvidia-gone"} & set(result)


def test_nothing_heavy_is_imported_to_find_out() -> None:
    script = (
        "import sys; from specgate.machine.software import software; software(['fake'], ['tokens'])\n"
        "print(*({'torch', 'cupy', 'numpy', 'transformers', 'specgate.backends.fake.engine'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_interpreter_says_implementation_version_and_build() -> None:
    assert interpreter().startswith(f"{sys.implementation.name.replace('cp', 'CP')} {sys.version.split()[0]} (")
    assert "\n" not in interpreter()


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0"),
        ("__version__ = '2.4'\ncuda = '12.1'\n", "12.1"),
        ("cuda: Optional[str] = None\n", None),
        ("def cuda(", None),
        (None, None),
    ],
)
def test_torchs_cuda_version_is_read_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, stated: str | None
) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(packages, "find_spec", lambda name: spec)
    assert torch_cuda() == stated


def test_torchs_cuda_version_is_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    assert torch_cuda() == torch.version.cuda
    assert software(["fake"], []).facts["torch_cuda"] == (torch.version.cuda or "none")


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (json.dumps({"cuda": {"version": "13.0.1"}, "cuda_nvrtc": {"version": "13.0.88"}}), "13.0.1, NVRTC 13.0.88"),
        ("{}", None),
        ("[1]", None),
        ("no JSON", None),
        ('{"cuda": 1}', None),
    ],
)
def test_a_toolkit_says_its_version_and_its_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, stated: str | None
) -> None:
    (tmp_path / "version.json").write_text(text)
    monkeypatch.setattr(packages, "TOOLKIT", str(tmp_path / "nowhere"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert cuda_toolkit() == stated


def test_what_a_plug_in_requires_is_part_of_the_software(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_the_path(monkeypatch, tmp_path):
        file = write_counting(tmp_path, requires=("my-kernels>=1",))
        write_distribution(tmp_path, "my-kernels", "1.5")
        result = software(["counting"], ["tokens"])
        assert result.facts["package:my-kernels"] == "1.5"
        assert list(result.files["plugin:backend:counting"]) == [str(file)]
        assert "package:my-kernels" not in software(["fake"], ["tokens"]).facts


def test_a_plug_in_has_the_commit_of_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_the_path(monkeypatch, tmp_path):
        file = write_counting(tmp_path)
        assert plugin_commits(software(["counting"], ["tokens"])) == {}
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        for command in (("init", "-q"), ("add", file.name), (*who, "commit", "-qm", "one")):
            assert git(tmp_path, *command) is not None
        result = plugin_commits(software(["counting"], ["tokens"]))["plugin:backend:counting"]
        head = git(tmp_path, "rev-parse", "HEAD")
        assert result == {"repository": tmp_path.name, "commit": head, "dirty": False}

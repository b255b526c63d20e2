"""The command line of a sandbox, and the paths that are seen in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.sandbox import view as views
from specgate.sandbox.bubblewrap import bubblewrap
from specgate.sandbox.view import View


@pytest.fixture
def view(tmp_path: Path) -> View:
    for name in ("runs", "weights", "logs"):
        (tmp_path / name).mkdir()
    return View((tmp_path / "runs",), (tmp_path / "weights",), (tmp_path / "logs",))


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specgate.sandbox.bubblewrap.gpu_devices", lambda: ["/dev/nvidia0", "/dev/dri"])


def test_bubblewrap_hides_processes_and_files_and_dies_as_a_whole(view: View, tmp_path: Path) -> None:
    words = " ".join(bubblewrap(view, tmp_path, ["true"]))
    for part in (
        "--unshare-pid",
        "--die-with-parent",
        "--cap-drop ALL",
        "--ro-bind / /",
        "--unshare-net",
        "/proc/sys /proc/sys",
    ):
        assert part in words
    assert f"--tmpfs {tmp_path / 'runs'} " in words
    assert f"--ro-bind {tmp_path / 'weights'} {tmp_path / 'weights'} " in words
    assert f"--bind {tmp_path / 'logs'} {tmp_path / 'logs'} " in words
    assert "--dev-bind /dev/nvidia0 /dev/nvidia0 --dev-bind /dev/dri /dev/dri" in words
    assert "--unshare-net" not in bubblewrap(View(network=True), tmp_path, ["true"])


def test_of_nested_folders_the_inner_one_counts(tmp_path: Path) -> None:
    inner = tmp_path / "runs" / "code"
    inner.mkdir(parents=True)
    places = View((tmp_path / "runs",), (tmp_path, inner)).mounts()
    kinds = dict(places)
    assert (kinds[tmp_path], kinds[tmp_path / "runs"], kinds[inner]) == ("shown", "empty", "shown")
    assert [path for path, _ in places] == sorted(kinds, key=lambda path: len(path.parts))


def test_what_lies_in_no_empty_folder_is_seen_anyway(tmp_path: Path) -> None:
    assert Path("/usr") not in dict(View(shown=(Path("/usr"),)).mounts())
    assert all(path in dict(View().mounts()) for path in views.private_folders() if path.is_dir())


def test_a_sandbox_is_started_by_its_path_since_an_engines_own_path_may_lack_it(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bubblewrap(view, tmp_path, ["true"])[0] == str(program)

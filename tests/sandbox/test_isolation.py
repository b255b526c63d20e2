"""`--isolate` takes a sandbox that holds, and refuses one that does not, with what it shows."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from specgate.errors import EnvironmentRefused, ExitCode
from specgate.sandbox import isolation, kinds
from specgate.sandbox.isolation import chosen, current, isolated, leak_of, own_sources
from specgate.sandbox.kinds import Sandbox, bubblewrap, installed
from specgate.sandbox.view import View
from tests.sandbox import needs_bubblewrap


def without(*words: str) -> Sandbox:
    """Return bubblewrap without some words of its command line."""

    def wrap(name: str, view: View, folder: Path, env: Mapping[str, str], command: Sequence[str]) -> list[str]:
        return [word for word in bubblewrap(name, view, folder, env, command) if word not in words]

    return Sandbox("leaky", "bwrap", "1", wrap)


def bare(name: str, view: View, folder: Path, env: Mapping[str, str], command: Sequence[str]) -> list[str]:
    return list(command)


@needs_bubblewrap
def test_bubblewrap_holds() -> None:
    assert leak_of(next(each for each in installed() if each.name == "bubblewrap")) is None


@needs_bubblewrap
@pytest.mark.parametrize(
    ("sandbox", "reason"),
    [
        (without("--unshare-pid", "--die-with-parent"), "shows "),
        (without("--ro-bind", "/", "--tmpfs"), "does not start"),
        (Sandbox("none", "true", "1", bare), "shows "),
        (Sandbox("broken", "false", "1", lambda *_: ["false"]), "does not start: it printed nothing"),
        (Sandbox("loud", "ls", "1", lambda *_: ["ls", "/nowhere-at-all"]), "does not start: ls: "),
    ],
    ids=["shows processes", "shows nothing", "none", "fails", "fails with a message"],
)
def test_a_sandbox_that_leaks_or_fails_is_refused_with_its_reason(sandbox: Sandbox, reason: str) -> None:
    assert (leak_of(sandbox) or "").startswith(reason)


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="nobody but root can write the kernel's settings")
def test_a_sandbox_in_which_root_can_write_the_kernels_settings_is_refused() -> None:
    leaky = without("--ro-bind-try", *kinds.KERNEL_SETTINGS)
    assert leak_of(leaky) == "lets /proc/sys/kernel/core_pattern be written"


def test_each_thing_that_a_process_must_not_see_or_do_is_a_reason() -> None:
    fine = {"processes": 2, "hidden": [], "written": []}
    assert isolation.leak_in(fine, "", survives=False) is None
    for seen, survives, word in (
        ({**fine, "processes": 90}, False, "processes"),
        ({**fine, "hidden": ["ledger"]}, False, "hidden"),
        ({**fine, "written": ["a.py"]}, False, "written"),
        (fine, True, "behind"),
    ):
        assert word in (isolation.leak_in(seen, "", survives=survives) or "")


def test_without_a_sandbox_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "installed", list)
    with pytest.raises(EnvironmentRefused, match="no sandbox is installed") as caught:
        chosen()
    assert "apt-get install bubblewrap" in str(caught.value.hint)
    assert caught.value.exit_code == ExitCode.ENV_REJECTED
    broken = Sandbox("broken", "false", "1", lambda *_: ["false"])
    monkeypatch.setattr(isolation, "installed", lambda: [broken])
    with pytest.raises(EnvironmentRefused, match="no installed sandbox holds: broken 1: does not start"):
        chosen()


def test_a_folder_of_runs_that_holds_the_code_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match="choose another --out"), isolated(True, Path(sys.prefix)):
        pass


def test_unless_it_is_wanted_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "chosen", lambda: pytest.fail("is not asked"))
    with isolated(False, Path("/")):
        assert current() is None and isolation.facts() == {}


def test_the_preferred_sandbox_comes_first_and_says_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(kinds, "version_of", lambda program: "9.1")
    assert [str(each) for each in installed()] == ["bubblewrap 9.1", "podman 9.1", "systemd-run 9.1"]


def test_own_sources_are_those_of_the_package_and_of_its_links() -> None:
    sources = own_sources()
    assert {"specgate/cli.py", "specgate/backends/fake/engine.py", "specgate/gates/speed.py"} <= sources.keys()

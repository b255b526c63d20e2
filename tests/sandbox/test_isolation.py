"""`--isolate` takes a sandbox that holds, and refuses one that does not, with what it shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specgate.errors import EnvironmentRefused, ExitCode
from specgate.sandbox import box, isolation
from specgate.sandbox.bubblewrap import KERNEL_SETTINGS, bubblewrap
from specgate.sandbox.isolation import chosen, current, isolated, leak, own_sources
from specgate.sandbox.view import View
from tests.sandbox import needs_bubblewrap

Made = Callable[[View, Path, Sequence[str]], list[str]]
"""As `bubblewrap`: the command line of a sandbox."""


def without(*words: str) -> Made:
    """Return bubblewrap without some words of its command line."""
    return lambda *call: [word for word in bubblewrap(*call) if word not in words]


@needs_bubblewrap
def test_bubblewrap_holds() -> None:
    assert leak() is None


@needs_bubblewrap
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (without("--unshare-pid", "--die-with-parent"), "shows "),
        (without("--ro-bind", "/", "--tmpfs"), "does not start"),
        (lambda _, __, command: list(command), "shows "),
        (lambda *_: ["false"], "does not start: it printed nothing"),
        (lambda *_: ["ls", "/nowhere-at-all"], "does not start: ls: "),
    ],
    ids=["shows processes", "shows nothing", "none", "fails", "fails with a message"],
)
def test_a_sandbox_that_leaks_or_fails_is_refused_with_its_reason(
    made: Made, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "bubblewrap", made)
    assert (leak() or "").startswith(reason)


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="nobody but root can write the kernel's settings")
def test_a_sandbox_in_which_root_can_write_the_kernels_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "bubblewrap", without("--ro-bind-try", *KERNEL_SETTINGS))
    assert leak() == "lets /proc/sys/kernel/core_pattern be written"


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
    monkeypatch.setattr(isolation, "installed", lambda: None)
    with pytest.raises(EnvironmentRefused, match="bubblewrap is not installed") as caught:
        chosen()
    assert "apt-get install bubblewrap" in str(caught.value.hint)
    assert caught.value.exit_code == ExitCode.ENV_REJECTED
    monkeypatch.setattr(isolation, "installed", lambda: "bubblewrap 1")
    monkeypatch.setattr(box, "bubblewrap", lambda *_: ["false"])
    with pytest.raises(EnvironmentRefused, match="bubblewrap 1 does not hold here: it does not start"):
        chosen()


def test_a_folder_of_runs_that_holds_the_code_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match="choose another --out"), isolated(True, Path(sys.prefix)):
        pass


def test_unless_it_is_wanted_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "chosen", lambda: pytest.fail("is not asked"))
    with isolated(False, Path("/")):
        assert current() is None and isolation.facts() == {}


def test_own_sources_are_those_of_the_package_and_of_its_links() -> None:
    sources = own_sources()
    assert {"specgate/cli.py", "specgate/backends/fake/engine.py", "specgate/gates/speed.py"} <= sources.keys()

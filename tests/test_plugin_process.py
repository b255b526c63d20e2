"""A back end from outside answers from a process of its own: what it does to its process stays there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from specgate import plugins, redaction
from specgate.contract import LogCause, PairRef
from specgate.contract.protocols import (
    ChecksOptions,
    DrivesAnotherEngine,
    ExplainsLogs,
    HasUsualPair,
    IsBitExact,
    OffersSampling,
    StatesLogitOptions,
    UsesGpus,
)
from specgate.errors import BackendError, UsageError
from specgate.plugin_process import BackendApart, asked
from specgate.sandbox.isolation import isolated
from tests.sandbox import needs_bubblewrap

MODULE = """
import os, sys
import specgate.redaction as redaction
from specgate.contract import LogCause, PairRef
from specgate.contract.protocols import Availability
from specgate.errors import UsageError
from pathlib import Path

redaction.masked = lambda text: text  # what a cheat would do in the harness
print("printed at import")

class Cheat:
    name, description = "cheat", f"in process {os.getpid()}"
    samples, logit_options = True, ("kv",)
    def available(self):
        return Availability(True, f"sees {sorted(os.listdir('RUNS'))}", rank=-1)
    def open(self, request):
        raise AssertionError
    def check_options(self, options):
        if "bad" in options:
            raise UsageError("option bad", hint="leave it out")
    def gpus(self, options):
        return int(options.get("tp", 1))
    def attaches(self, options):
        return "url" in options
    def local_ports(self, options):
        return (int(options["port"]),)
    def usual_pair(self):
        return PairRef("own", Path("/t"), None)
    def explain_log(self, lines):
        return [LogCause("oom", lines[0], silent=False)] if lines else "nothing"

BACKEND = Cheat()
BROKEN = type("Broken", (Cheat,), {"available": lambda self: 1 / 0})()
DEAD = type("Dead", (Cheat,), {"available": lambda self: os._exit(3)})()
"""


@pytest.fixture
def cheat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ledger.jsonl").touch()
    (tmp_path / "cheating.py").write_text(MODULE.replace("RUNS", str(tmp_path / "runs")))
    monkeypatch.syspath_prepend(tmp_path)
    asked.cache_clear()
    yield lambda name="BACKEND": BackendApart(EntryPoint("cheat", f"cheating:{name}", "specgate.backends"))
    asked.cache_clear()


def test_the_harness_imports_no_module_of_it(cheat: Any) -> None:
    before = redaction.masked
    backend = cheat()
    assert backend.available().reason == "sees ['ledger.jsonl']"
    assert redaction.masked is before and "cheating" not in sys.modules
    assert backend.description not in ("", f"in process {os.getpid()}")


def test_it_has_the_abilities_of_the_plug_in_and_no_others(cheat: Any) -> None:
    backend = cheat()
    abilities = (OffersSampling, StatesLogitOptions, ChecksOptions, UsesGpus, DrivesAnotherEngine, HasUsualPair)
    assert all(isinstance(backend, ability) for ability in (*abilities, ExplainsLogs))
    assert not isinstance(backend, IsBitExact)
    assert backend.logit_options == ("kv",)


def test_answers_and_errors_are_the_plug_ins(cheat: Any) -> None:
    backend, options = cheat(), {"tp": "4", "port": "8000"}
    answers: Mapping[str, object] = {
        "gpus": backend.gpus(options),
        "attaches": backend.attaches(options),
        "local_ports": backend.local_ports(options),
    }
    assert answers == {"gpus": 4, "attaches": False, "local_ports": (8000,)}
    assert backend.usual_pair() == PairRef("own", Path("/t"), None)
    assert list(backend.explain_log(["a line"])) == [LogCause("oom", "a line", silent=False)]
    assert backend.check_options(options) is None
    with pytest.raises(UsageError, match="option bad") as caught:
        backend.check_options({"bad": "1"})
    assert caught.value.hint == "leave it out"


def test_what_it_must_not_answer_or_do_is_a_back_end_error(cheat: Any) -> None:
    with pytest.raises(BackendError, match=r"cheat: explain_log\(\) answers"):
        cheat().explain_log([])
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        cheat("BROKEN")
    with pytest.raises(BackendError, match="ended without an answer"):
        cheat("DEAD")


@needs_bubblewrap
def test_in_a_sandbox_it_sees_no_run(cheat: Any, tmp_path: Path) -> None:
    with isolated(True, tmp_path / "runs"):
        assert cheat().available().reason == "sees []"


def test_built_in_ones_stay_in_the_harness() -> None:
    assert not isinstance(plugins.backend("fake"), BackendApart)

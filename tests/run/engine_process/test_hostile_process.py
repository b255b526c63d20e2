"""An engine's process that breaks the protocol costs an error with a reason. It is given little, and reaches less."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from specgate.contract import BASELINE, Budget
from specgate.errors import BackendError, SpecgateError, WorkerLost
from specgate.run.engine_process.frames import HEADER, MARK
from specgate.run.engine_process.logs import LIMIT
from tests.run.engine_process.conftest import OpenedApart

pytestmark = pytest.mark.slow("starts a process per test")

LINES = "import os, signal, sys\nfrom tests.support.engines.lying import harness\n"


def error_of(apart: OpenedApart, run: str, timeout_s: float = 60) -> SpecgateError:
    """Return the harness's error if an engine carries out `run` in the place of a block."""
    with apart(run=LINES + run) as worker:
        worker.prefill([[1, 2], [3]], draft=False)
        worker.timeout_s = timeout_s
        with pytest.raises(SpecgateError) as error:
            worker.decode(BASELINE, Budget(steps=4), ())
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
    return error.value


class Opener:
    """A pickle that writes a file where it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.file), "w")


@pytest.mark.parametrize("framed", [True, False])
def test_a_pickled_object_on_the_socket_is_not_loaded(apart: OpenedApart, tmp_path: Path, framed: bool) -> None:
    poison, mark = pickle.dumps((False, Opener(tmp_path / "patched"))), tmp_path / "patched"
    pickle.loads(poison)[1].close()
    assert mark.exists(), "it does what it does"
    mark.unlink()
    error = error_of(apart, f"harness().sendall({(HEADER.pack(MARK, len(poison)) if framed else b'') + poison!r})")
    assert type(error) is BackendError and "malformed answer to decode" in error.message
    assert not mark.exists()


IN_ADVANCE = b'{"id":9,"kind":"answer"}'
HALF = f"harness().sendall({HEADER.pack(MARK, 1000)!r} + b'half')"
STAYS = "if os.fork() == 0:\n    harness().recv(1)\n    os._exit(0)\n"
"""Another process keeps the socket open."""


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        pytest.param(b"Segmentation fault\n", "begins with b'Segm'", id="garbage"),
        pytest.param(HEADER.pack(MARK, 1 << 40), "announces 1099511627776 bytes", id="larger than any block"),
        pytest.param(HEADER.pack(MARK, len(IN_ADVANCE)) + IN_ADVANCE, "malformed answer to decode", id="in advance"),
    ],
)
def test_what_is_no_answer_is_neither_read_nor_believed_and_named_as_what_it_is(
    apart: OpenedApart, sent: bytes, message: str
) -> None:
    error = error_of(apart, f"harness().sendall({sent!r})")
    assert type(error) is BackendError and message in error.message


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("os._exit(3)", "ended with exit code 3 during decode"),
        (f"{HALF}; os._exit(4)", "ended with exit code 4"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV during decode"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", "was ended by signal 37 during decode"),
        (f"{STAYS}os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
def test_a_process_that_ends_in_a_call_is_lost_with_its_reason(apart: OpenedApart, run: str, message: str) -> None:
    error = error_of(apart, run)
    assert type(error) is WorkerLost and message in error.message


@pytest.mark.parametrize("run", [HALF, ""])
def test_a_process_that_sends_half_an_answer_or_none_is_ended_in_time(apart: OpenedApart, run: str) -> None:
    error = error_of(apart, f"{run}\nsignal.pause()", timeout_s=0.3)
    assert type(error) is WorkerLost and "no answer to decode within 0.3 s" in error.message


def test_a_call_after_the_process_was_ended_says_that_it_is_gone(apart: OpenedApart) -> None:
    with apart(run=LINES + "os._exit(3)") as worker:
        worker.prefill([[1]], draft=False)
        for _ in range(2):
            with pytest.raises(WorkerLost, match="exit code 3"):
                worker.decode(BASELINE, Budget(steps=4), ())


# ── what the process has ─────────────────────────────────────────────────────────────────────────────────────────────

LOOKS_AROUND = """
import json, os
seen = {
    "environment": dict(os.environ),
    "arguments": open("/proc/self/cmdline").read().split("\\0"),
    "folder": os.getcwd(),
    "open": [os.readlink(link) for fd in range(3, 256) if os.path.lexists(link := f"/proc/self/fd/{fd}")],
    "streams": [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)],
    "logs": str(request.logs),
}
(request.logs / "seen.json").write_text(json.dumps(seen))
"""


def test_the_process_has_no_handle_on_the_run_folder_and_no_credentials(
    apart: OpenedApart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-value-that-nobody-may-see"
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SPECGATE_SECRET", "UNRELATED", "CUDA_LICENSE_KEY"):
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("SPECGATE_PASS_ENV", "MINE, MY_TOKEN")
    wanted = {"MINE": "1", "MY_TOKEN": "2", "SERVER_KEY": "3", "VLLM_CPU_KVCACHE_SPACE": "4", "OMP_NUM_THREADS": "1"}
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "run.lock").open("w"), apart(exec_at_open=LOOKS_AROUND, api_key_env="SERVER_KEY") as worker:
        worker.prefill([[1]], draft=False)
    seen = json.loads((tmp_path / "run" / "logs" / "seen.json").read_text())
    assert wanted.items() <= seen["environment"].items()
    assert secret not in json.dumps(seen)
    # What was copied into the run folder names the scratch folder as it is called there.
    assert seen.pop("logs") == str(tmp_path / "run" / "logs")
    assert str(tmp_path / "run") not in json.dumps(seen)
    assert [place.partition(":")[0] for place in seen["streams"]] == ["/dev/null", "pipe", "pipe"]
    assert {place.partition(":")[0] for place in seen["open"]} == {"socket"}


def test_an_engine_that_prints_without_end_fills_no_disk(apart: OpenedApart, tmp_path: Path) -> None:
    prints = "for _ in range(40): print('x' * (1 << 20))\nprint('the last words', flush=True); os._exit(3)"
    error = error_of(apart, prints)
    log = tmp_path / "run" / "logs" / "worker-0.log"
    assert "the last words" in str(error.hint) and str(log) in str(error.hint)
    text = log.read_text()
    assert LIMIT - (2 << 20) < len(text) < LIMIT + 100 and text.endswith("the last words\n")
    assert "bytes of this log are left out here" in text


def test_what_a_program_of_the_engine_wrote_is_in_the_run_folder_when_an_error_names_it(
    apart: OpenedApart, tmp_path: Path
) -> None:
    fails = "from specgate.errors import BackendError\nlog = request.logs / 'server.log'\n"
    fails += "log.write_text('out of memory\\n')\nraise BackendError('it ended', hint=f'log: {log}')"
    log = tmp_path / "run" / "logs" / "server.log"
    with pytest.raises(BackendError) as error, apart(exec_at_open=fails):
        pass
    assert error.value.hint == f"log: {log}" and log.read_text() == "out of memory\n"

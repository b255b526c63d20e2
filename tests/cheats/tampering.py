"""An engine that tampers, as a plug-in: tokens that no model has chosen, and code that is to hide it.

When its module is imported, it takes the second engine's questions out of its process. When it is opened, it looks for
the run, for the harness and for whatever it could rewrite, and leaves a process behind that goes on trying. It rewrites
nothing, and writes down what it could have done.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import specgate
from specgate.contract.protocols import OpenRequest
from specgate.run import rescoring
from tests.cheats.engines import NoModel
from tests.support.engines.plugged import Plugged

rescoring.Rescorer.run = lambda self, points, journal, evidence: None  # type: ignore[method-assign]  # what a cheat does


class Tampering(NoModel):
    def __init__(self, request: OpenRequest) -> None:
        super().__init__(request)
        source = Path(specgate.__file__).parent / "backends" / "eagle3" / "reference" / "engine.py"
        attempts: dict[str, Callable[[], object]] = {
            "foresees the draw": lambda: next(Path("runs").glob("2*")),
            "rewrites the second engine": lambda: source.open("r+b").close(),
            "has the kernel start a program": lambda: open("/proc/sys/kernel/core_pattern", "r+b").close(),
            "rewrites its weights": lambda: next(request.pair.target.glob("*.safetensors")).open("r+b").close(),
            "stops the harness": lambda: os.kill(os.getppid(), 0) if os.getppid() > 1 else os.kill(1 << 30, 0),
        }
        done = [name for name, attempt in attempts.items() if works(attempt)]
        if os.fork() == 0:
            os.setsid()
            signal.pause()
        assert request.logs is not None
        (request.logs / "tampering.json").write_text(json.dumps(done))


def works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, StopIteration):
        return False
    return True


BACKEND = Plugged(Tampering, "tampers")

"""A back end from outside that answers like the fake one, except where its options say otherwise.

An option names what to change, its value is the Python expression to change it to: `decode.elapsed_ns=None` for a field
of an answer, `decode=None` for the answer itself, and so on for `facts`, `prefill`, `trace`, `activity` and `top2`.
Expressions see `honest`, which is the engine's own answer or field. With `extend`, `logits`, `spans`, `score`,
`draw` or `distribution` the engine has that method too, and `honest` is what it was asked. With `run` and
`exec_at_open`, statements are carried out in the engine's process: in every decode, or when it opens.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from specgate import contract as core
from specgate.backends.fake.engine import BACKEND as HONEST
from specgate.contract import Budget, EngineFacts, Role, draws
from specgate.contract import protocols as api
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Activity, Availability, Decoded, OpenRequest
from specgate.contract.samples import spans


class LyingBackend:
    name = "lying"
    description = "answers with what its options say"

    def available(self) -> Availability:
        return Availability(True, "needs nothing", rank=-1)

    def open(self, request: OpenRequest) -> LyingEngine:
        exec(request.options.get("exec_at_open", ""), {"request": request})
        return LyingEngine(request)


class LyingEngine:
    def __init__(self, request: OpenRequest) -> None:
        self.lies = request.options
        self.honest: Any = HONEST.open(replace(request, options={}))
        for optional in ("extend", "logits", "spans", "score", "draw", "distribution"):
            if optional in self.lies:
                setattr(self, optional, partial(self.said_to, optional))

    def said(self, call: str, answer: Any) -> Any:
        """Return the answer to `call` in the place of the honest `answer`."""
        lies = {name.partition(".")[2]: text for name, text in self.lies.items() if name.partition(".")[0] == call}
        if not lies:
            return answer
        import numpy as np

        known = {
            "np": np,
            "replace": replace,
            "api": api,
            "core": core,
            "draws": draws,
            "spans": spans,
            "inf": float("inf"),
            "nan": float("nan"),
        }
        if "" in lies:
            return eval(lies[""], {**known, "honest": answer})
        changed = {field: eval(text, {**known, "honest": getattr(answer, field)}) for field, text in lies.items()}
        return replace(answer, **changed)

    def said_to(self, call: str, *request: object) -> Any:
        """Return the answer to a call that is optional, and that the honest engine does not have."""
        return self.said(call, request)

    def facts(self) -> EngineFacts:
        facts: EngineFacts = self.said("facts", self.honest.facts())
        return facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        elapsed: int = self.said("prefill", self.honest.prefill(prompts, draft=draft))
        return elapsed

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        exec(self.lies.get("run", ""), {})
        decoded: Decoded = self.said("decode", self.honest.decode(role, budget, stop_token_ids))
        return decoded

    def serve(
        self,
        role: Role,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        offered: OfferedLoad,
        stop_token_ids: Sequence[int],
    ) -> Decoded:
        decoded: Decoded = self.said("serve", self.honest.serve(role, prompts, budget, offered, stop_token_ids))
        return decoded

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        decoded, activity = self.honest.trace(role, budget)
        seen: tuple[Decoded, Activity] = self.said("trace", (decoded, self.said("activity", activity)))
        return seen

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        logits: tuple[float, float] | None = self.said("top2", self.honest.top2(slot, continuation))
        return logits

    def close(self) -> None:
        self.honest.close()


BACKEND = LyingBackend()


def harness() -> socket.socket:
    """The socket to the harness, for an engine that finds it among the open files of its process."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    return socket.socket(fileno=os.dup(next(number for number in numbers if stat.S_ISSOCK(os.fstat(number).st_mode))))


def install(folder: Path) -> None:
    """Make `folder` a package with the back end `lying`, as an installation would. It has yet to be on `sys.path`."""
    about = folder / "lying_engine-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lying-engine\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[specgate.backends]\nlying = {__name__}:BACKEND\n")

"""The clock of a run on a scripted engine: it goes on by what the script says, whatever the machine does meanwhile.

A real engine's clock sees a machine that stands still for a second. That of a scripted one does not, so that the
harness's clock would contradict it. Nor need anybody wait for a script.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final


@dataclass
class Call:
    """A call of an engine, and how long the engine says that it took."""

    said_ns: int = 0


class ScriptedTime:
    """In place of the module `time`: the real clocks, but for how far they were set forward by sleeping, and back where
    a call took longer than its engine says.
    """

    def __init__(self) -> None:
        self._ahead_ns = 0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self._ahead_ns

    def here_ns(self, real_ns: int) -> int:
        """Return this clock's time when the real monotonic one shows `real_ns`."""
        return real_ns + self._ahead_ns

    def perf_counter_ns(self) -> int:
        return time.perf_counter_ns() + self._ahead_ns

    def time_ns(self) -> int:
        return time.time_ns() + self._ahead_ns

    def sleep(self, seconds: float) -> None:
        """Be there at once."""
        self._ahead_ns += round(seconds * 1e9)

    @contextmanager
    def calling(self) -> Iterator[Call]:
        """Around a call of a scripted engine. When it ends, it has taken `OVERHEAD_NS` longer than it says at most."""
        call, began = Call(), self.monotonic_ns()
        yield call
        self._ahead_ns -= max(0, self.monotonic_ns() - began - call.said_ns - OVERHEAD_NS)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


OVERHEAD_NS: Final = 1_000_000
"""What a call to an engine costs beside the engine's own time: the pipe of a real one takes about as long."""

TIME: Final = ScriptedTime()
"""One for the whole process: runs may be nested."""

"""Hands a run's points out as tasks, and takes in what comes back.

Only the coordinator writes to the run folder. A task that is lost is handed out again, as a whole. One that came back
is never measured again, however the run ends.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate.contract import EngineFacts, Plan, Point
from specgate.errors import BackendError, EnvironmentRefused, InvalidResult, SpecgateError
from specgate.files.json_text import from_plain, parse_json, to_plain
from specgate.files.run_folder import RunFolder
from specgate.files.writing import as_json, disk, json_text
from specgate.fleet.machines import Files, Machines, NodeLost, Slot
from specgate.fleet.merging import engines_of, merge
from specgate.fleet.tasks import DONE, GENERATIONS, TASK, Done, Task, parcelled
from specgate.terminal import echo

BEGUN: Final = ("config.resolved.yaml", "env.json", "run.json")
"""What a node needs to know of the run."""
TRIES: Final = 3
"""How often a task is handed out before its points are given up."""
LOSSES: Final = 2
"""How often in a row a slot may lose its task before it gets no more."""
LOG: Final = "fleet-{}.jsonl"
"""The log of a coordinator, by the number of its first engine process: which points were measured where, by which
engine processes, and what was lost.
"""
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run."""
WAIT_S: Final = 0.5
"""Seconds until a Ctrl-C is noticed, at most."""


@dataclass(slots=True, eq=False)
class Waiting:
    """Points that are to be measured in one task. `lost`: how it was lost before, and in which slots."""

    points: tuple[str, ...]
    lost: dict[str, str] = field(default_factory=dict)
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A task that a slot has ended, at `at` on the monotonic clock."""

    slot: Slot
    waiting: Waiting
    task: Task
    files: Files | NodeLost
    began: float
    at: float


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that end this process until after the body: a journal must not be left half written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, frame: came.append(n)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


class Coordinator:
    """Hands tasks out and takes their samples in. `failures`: point key → why it is missing or incomplete."""

    def __init__(
        self,
        machines: Machines,
        folder: RunFolder,
        plan: Plan,
        admit: Callable[[EngineFacts], None],
        first_generation: int,
    ) -> None:
        self.machines, self.folder, self.plan, self.admit = machines, folder, plan, admit
        self.failures: dict[str, str] = {}
        self._begun = {name: (folder.path / name).read_bytes() for name in BEGUN}
        self._generation = first_generation
        numbers = itertools.count(first_generation)
        self._log = next(log for n in numbers if not (log := folder.log(LOG.format(n))).exists())
        self._waiting: deque[Waiting] = deque()
        self._idle: dict[Slot, float | None] = dict.fromkeys(machines.slots)
        """Slot → since when it is idle; None where it has measured nothing yet."""
        self._busy: set[Slot] = set()
        self._in_a_row: Counter[Slot] = Counter()
        self._ended: queue.Queue[Ended] = queue.Queue()
        self._whole: deque[tuple[Ended, Files, Done]] = deque()
        """What came back and is not merged yet: slots do not wait for that."""
        self._engines = engines_of(folder)
        self._points = self._measured = self._tasks = self._lost = 0
        self._idle_s = self._busy_s = 0.0
        self._why_retired: dict[str, str] = {}

    def measure(self, points: Sequence[Point]) -> None:
        """Have `points` measured. Raises what a node was stopped by, EnvironmentRefused where no machine is like the
        one that the run began on, and BackendError where all were lost.
        """
        self._points = len(points)
        self._waiting.extend(map(Waiting, parcelled(points, len(self.machines.slots))))
        try:
            while self._waiting or self._busy or self._whole:
                self._hand_out()
                if not self._busy and not self._whole:
                    raise self._nobody_left()
                if (ended := self._next()) is not None:
                    self._take_in(ended)
                elif self._whole:
                    self._merge(*self._whole.popleft())
        except (KeyboardInterrupt, SpecgateError):
            self.machines.stop()
            with contextlib.suppress(SpecgateError):
                while self._whole:  # points that are whole need not be measured again
                    self._merge(*self._whole.popleft())
            raise
        finally:
            self.machines.stop()

    def said(self) -> str:
        """Summary of the fleet's work in one line."""
        lost = f", {self._lost} tasks lost" if self._lost else ""
        idle = self._idle_s / (self._idle_s + self._busy_s) if self._busy_s else 0.0
        return (
            f"fleet: {len(self.machines.slots)} slots measured {self._measured} of {self._points} points in "
            f"{self._tasks} tasks{lost}; slots waited for a task for {idle:.2%} of their time"
        )

    def _hand_out(self) -> None:
        while (match := next(self._matches(), None)) is not None:
            waiting, slot = match
            self._waiting.remove(waiting)
            since, now = self._idle.pop(slot), time.monotonic()
            self._idle_s += now - since if since is not None else 0.0
            task = Task(waiting.points, self._generation, str(self.folder.path.absolute().parent))
            self._generation += GENERATIONS
            self._busy.add(slot)
            threading.Thread(target=self._carried_out, args=(slot, waiting, task, now), daemon=True).start()

    def _matches(self) -> Iterator[tuple[Waiting, Slot]]:
        """Tasks and idle slots for them. A task that was lost goes to a slot that has not lost it, even if that one is
        busy still.
        """
        for waiting in self._waiting:
            idle = [slot for slot in self._idle if slot.name not in waiting.lost]
            if not idle and not any(slot.name not in waiting.lost for slot in self._busy):
                idle = list(self._idle)
            yield from ((waiting, slot) for slot in idle)

    def _carried_out(self, slot: Slot, waiting: Waiting, task: Task, began: float) -> None:
        """In a thread of the slot."""
        files = {**self._begun, TASK: json_text(to_plain(Task, task)).encode()}
        try:
            left: Files | NodeLost = self.machines.carry_out(slot, files)
        except NodeLost as lost:
            left = lost
        except Exception as error:  # else nobody would ever hear of this task again, and the run would wait for it
            left = NodeLost(f"{type(error).__name__}: {error}")
        self._ended.put(Ended(slot, waiting, task, left, began, time.monotonic()))

    def _next(self) -> Ended | None:
        """The next task that ended; None where there is something to merge meanwhile, or where none ended for a moment,
        so that a Ctrl-C is noticed.
        """
        try:
            return self._ended.get(block=not self._whole, timeout=WAIT_S)
        except queue.Empty:
            return None

    def _take_in(self, ended: Ended) -> None:
        self._busy.discard(ended.slot)
        self._busy_s += ended.at - ended.began
        self._tasks += 1
        if isinstance(ended.files, NodeLost):
            self._lost_again(ended, str(ended.files))
            return
        try:
            done = from_plain(Done, parse_json(ended.files[DONE]), Path(DONE))
        except (ValueError, InvalidResult) as error:
            self._lost_again(ended, f"{DONE}: {error}")
            return
        if done.unlike:
            self._leave_out(ended, "unlike", f"it is not like the others: {'; '.join(done.unlike)}")
            return
        refused = done.stopped is not None and isinstance(done.stopped.raised(), EnvironmentRefused)
        if done.stopped is not None and refused:  # a full disk, say, which the other machines do not have
            self._leave_out(ended, "refused", f"it refused: {done.stopped.message}")
            return
        self._in_a_row[ended.slot] = 0
        self._idle[ended.slot] = ended.at
        if done.stopped is not None:
            self._note(ended, "stopped", done.stopped.message)
            raise done.stopped.raised()
        self._whole.append((ended, ended.files, done))

    def _merge(self, ended: Ended, files: Files, done: Done) -> None:
        try:
            with uninterrupted():
                blocks = merge(ended.task, files, done, self.folder, self.plan, self.admit, self._engines)
        except NodeLost as lost:
            self._again(ended, str(lost))
            return
        self._note(ended, "measured")
        self.failures.update(done.failures)
        self._measured += len(ended.task.points)
        echo(f"[{self._measured}/{self._points} points] {ended.slot.name}: {ended.task.name}, {blocks} blocks")

    def _leave_out(self, ended: Ended, how: str, why: str) -> None:
        """Give the slot no more, and its task to another one."""
        self._why_retired[ended.slot.name] = why
        self._note(ended, how, why)
        echo(f"{ended.slot.name} is left out, {why}")
        self._waiting.appendleft(ended.waiting)

    def _lost_again(self, ended: Ended, why: str) -> None:
        slot = ended.slot
        self._in_a_row[slot] += 1
        # The only slot that is left goes on as long as a task may.
        others = len(self.machines.slots) - len(self._why_retired) > 1
        if self._in_a_row[slot] < (LOSSES if others else TRIES):
            self._idle[slot] = ended.at
        else:
            self._why_retired[slot.name] = why
        self._again(ended, why)

    def _again(self, ended: Ended, why: str) -> None:
        """Have the points of a lost task measured again, after those that have not been tried yet."""
        waiting, slot = ended.waiting, ended.slot
        waiting.tries += 1
        waiting.lost[slot.name] = why
        self._lost += 1
        self._note(ended, "lost", why)
        if waiting.tries < TRIES:
            echo(f"{slot.name} lost {ended.task.name}: {why}; it is measured again")
            self._waiting.append(waiting)
            return
        echo(f"{slot.name} lost {ended.task.name}: {why}; given up after {TRIES} tries")
        reasons = "; ".join(f"{name}: {how}" for name, how in waiting.lost.items())
        self.failures.update(
            dict.fromkeys(waiting.points, f"lost {TRIES} times by the machines of the fleet: {reasons}")
        )

    def _nobody_left(self) -> SpecgateError:
        retired = "; ".join(f"{name}: {why}" for name, why in self._why_retired.items())
        left = sum(len(waiting.points) for waiting in self._waiting)
        if self._lost:
            hint = "measured points are kept: --resume measures the rest"
            return BackendError(f"every machine of the fleet was lost, {left} points are left: {retired}", hint=hint)
        hint = "begin the run on one of the machines that are to measure"
        return EnvironmentRefused(f"no machine of the fleet can measure: {retired}", hint=hint)

    def _note(self, ended: Ended, how: str, why: str | None = None) -> None:
        generations = ended.task.generations
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "slot": ended.slot.name,
            "identity": ended.slot.identity,
            "ended": how,
            "why": why,
            "points": ended.task.points,
            "engine_processes": [generations.start, generations.stop - 1],
        }
        with disk(self._log), self._log.open("a", encoding="utf-8") as log:
            log.write(as_json(line) + "\n")

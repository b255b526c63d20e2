"""Ask a server to profile itself, and one untimed block under that profiler.

vLLM (0.25.1: `config/profiler.py`, `entrypoints/serve/profile/api_router.py`) has its endpoints only if it was started
with `--profiler-config`. SGLang (0.5.17: `ProfileReq` in `managers/io_struct.py`) always has them, and is told the
folder when it begins. Both write when they are asked to stop, before they answer.

Such a server hands over what a request has got since its last output. Where it is late, that is the tokens of several
steps, of which its counters know the last only. How many steps there were cannot be told from outside.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from specgate.analysis.requests.arrivals import step_sizes
from specgate.analysis.traces.families import fallen_back
from specgate.analysis.traces.steps import Loop, loop_of, observed_in
from specgate.analysis.traces.trace_file import read_trace
from specgate.backends.servers.answers import Answer
from specgate.backends.servers.exchange import Json, SpecCounts
from specgate.contract import Finding, Finish
from specgate.contract.protocols import Activity
from specgate.contract.traces import Observed
from specgate.contract.types import fields_of
from specgate.errors import BackendError, UsageError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client


START: Final = "/start_profile"
STOP: Final = "/stop_profile"
WRITING_S: Final = 240.0
"""Seconds that a server may take to answer: it writes its trace before it does."""
APPEARING_S: Final = 20.0
"""Seconds after its answer until the file must be there, and have stopped growing."""
POLL_S: Final = 0.1

Files = Mapping[Path, tuple[int, int]]
"""Trace file → its size, and the time of its last change in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """A server's own profiler.

    `flags`: command-line flags of a server that is to write its traces into a folder; () where it needs none.
    `body`: what is posted to begin; None for nothing.
    `needs_flags`: whether a server that was started without them cannot be profiled.
    `folder_key`: what the server calls the folder.
    """

    name: str
    flags: Callable[[Path], tuple[str, ...]]
    body: Callable[[Path], Json | None]
    needs_flags: bool
    folder_key: str

    def start(self, client: Client, folder: Path) -> str | None:
        """Begin a profile. Returns the reason if the server refuses, else None."""
        status, answer = client.post(START, self.body(folder), WRITING_S)
        if status == 200:
            return None
        hint = " (it has to be started with --profiler-config)" if self.needs_flags else ""
        return f"{self.name} refuses {START}: HTTP {status}: {answer}{hint}"

    def stop(self, client: Client) -> str | None:
        """End the profile; the server writes it. Returns the reason if that fails, else None."""
        status, answer = client.post(STOP, None, WRITING_S)
        return None if status == 200 else f"{self.name} refuses {STOP}: HTTP {status}: {answer}"


def vllm_flags(folder: Path) -> tuple[str, ...]:
    """The front end is left out: its own trace has no kernels. So are stacks and tables, which take minutes."""
    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }
    return "--profiler-config", json.dumps(config)


def sglang_body(folder: Path) -> Json:
    return {"output_dir": str(folder), "activities": ["CPU", "GPU"], "with_stack": False, "record_shapes": False}


PROFILERS: Final[Mapping[str, Profiler]] = {
    "vllm": Profiler("vLLM's own torch profiler", vllm_flags, lambda folder: None, True, "torch_profiler_dir"),
    "sglang": Profiler("SGLang's own torch profiler", lambda folder: (), sglang_body, False, "output_dir"),
}
"""Adapter name → its server's profiler, for those that have one."""


def traces_in(folder: Path) -> Files:
    """The trace files of a folder."""
    files = {}
    for file in sorted(folder.glob("*.json*")):
        try:
            stat = file.stat()
        except OSError:  # it has just been renamed
            continue
        files[file] = stat.st_size, stat.st_mtime_ns
    return files


def new_trace(folder: Path, before: Files) -> tuple[Path, int]:
    """The trace that has been written to `folder` since `before`, and how many there are of it: one per rank.

    The first rank's is taken. A front end's own (vLLM's `async_llm`) counts for nothing. Raises BackendError where none
    appears in time.
    """
    deadline = time.monotonic() + APPEARING_S
    last: Files = {}
    while True:
        written = {file: state for file, state in traces_in(folder).items() if before.get(file) != state}
        ranks = [file for file in written if "async_llm" not in file.name]
        if ranks and written == last:
            return ranks[0], len(ranks)
        if time.monotonic() > deadline:
            raise BackendError(f"{folder}: no trace came within {APPEARING_S:g} s of {STOP}")
        last = written
        time.sleep(POLL_S)


def joined_outputs(k: int, counts: SpecCounts, answers: Sequence[Answer]) -> int:
    """Count the outputs that hold the tokens of several steps, at least. 0 if the counters explain all outputs, or do
    not count outputs.

    An output of one step has as many tokens as the step emitted. Only the last one of a request may be cut. So the
    counted steps must be the outputs' sizes, and each last output needs a step of its size or more. An output of more
    than K + 1 tokens is never a single step's.
    """
    sizes = [step_sizes(answer.times) for answer in answers]
    whole = [size for one in sizes for size in one[:-1]]
    last = sorted(one[-1] for one in sizes if one)
    # A step that emitted the end token alone brings no output: the token is kept back.
    hidden = counts.steps - len(whole) - len(last)
    if not counts.hist or not 0 <= hidden <= sum(answer.finish is not Finish.LENGTH for answer in answers):
        return 0
    steps = Counter({accepted + 1: times for accepted, times in enumerate(counts.hist)})
    unexplained = (Counter(whole) - steps).total()
    left = sorted((steps - Counter(whole)).elements())
    fits = not unexplained and all(step >= size for step, size in zip(left[hidden:], last, strict=True))
    return max(sum(size > k + 1 for size in (*whole, *last)), unexplained, 0 if fits else 1)


OFF: Final = "the engine runs behind a server, in a process of its own"
ATTENTION_FLAGS: Final = ("--attention-backend", "--decode-attention-backend")
NO_RANGES: Final = "the trace has no ranges that tell its decode steps from its prefill"

D = TypeVar("D")


def traced(profiler: Profiler, client: Client, folder: Path, decode: Callable[[], D]) -> tuple[D, Activity]:
    """Run `decode` under the server's profiler; return its result and the profiled activity. The traces come into
    `folder`.

    If nothing can be profiled, `decode` is called all the same, and `Activity.unseen` gives the reason.
    """
    before = traces_in(folder)
    if (why := profiler.start(client, folder)) is not None:
        return decode(), Activity(unseen=why)
    try:
        decoded = decode()
    except BaseException:
        with suppress(BackendError):  # what went wrong before matters more
            profiler.stop(client)
        raise
    if (why := profiler.stop(client)) is not None:
        return decoded, Activity(unseen=why)
    return decoded, activity_since(profiler, folder, before)


def activity_since(profiler: Profiler, folder: Path, before: Files) -> Activity:
    """Read the trace that was written since `before`. An unreadable trace gives an `Activity` with the reason in
    `unseen`.
    """
    try:
        file, ranks = new_trace(folder, before)
        loop = loop_of(read_trace(file))
    except (BackendError, UsageError) as error:
        return Activity(unseen=f"{profiler.name}: {error.message}")
    activity = activity_of(loop)
    others = [f"{ranks} ranks have written a trace: this is the first one's"] if ranks > 1 else []
    return replace(activity, notes=(f"{profiler.name}: {file.name}", *loop.notes, *others))


def activity_of(loop: Loop) -> Activity:
    """A loop whose decode steps ranges tell. Without them, prefill is in it, and nothing follows."""
    unseen = loop.unseen
    if unseen is None and (loop.window.thread is None or not loop.steps):
        unseen = NO_RANGES
    return Activity(server_profiler=True, steps=loop.steps or 0, **fields_of(Observed, observed_in(loop, unseen)))


def attention_findings(flags: Sequence[str], reported: str | None, activity: Activity) -> Iterator[Finding]:
    """Yield a finding if another attention back end runs than the flags name, or than the engine reports
    (`reported`).
    """
    claims = [(f"{flag} {value}", value) for flag, value in values_of(flags, ATTENTION_FLAGS)]
    if reported:
        claims.append((f"the engine says that its attention is {reported}", reported.split()[0]))
    for where, value in claims if activity.unseen is activity.partial is None else []:
        if (instead := fallen_back(value, activity.kernels)) is not None:
            yield Finding(
                invariant="I1",
                reason_code="attention_fallback",
                breaks=True,
                count=1,
                where=where,
                text=instead,
                meaning="another attention back end runs than was asked for",
            )


def values_of(flags: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(flag, value) of those of `names` that are given, as `--flag value` or `--flag=value`."""
    for position, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name in names and equals:
            yield name, value
        elif name in names and position + 1 < len(flags):
            yield name, flags[position + 1]

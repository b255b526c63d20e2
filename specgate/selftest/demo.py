"""A first look without a download or a GPU: two scripted engines, measured and judged as any engine is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.analysis.verdict import overall
from specgate.contract import Run, State
from specgate.files.run_folder import RunFolder
from specgate.planning.request import Request
from specgate.selftest.faults import FOLDER, carried_out, newest

WRONG_TOKEN_AT: Final = 40


@dataclass(frozen=True, slots=True)
class DemoEngine:
    """A scripted engine: options of the back end `fake`, and the state that its run must end with."""

    name: str
    options: Mapping[str, str]
    state: State


ENGINES: Final = (
    DemoEngine("an honest engine", {}, State.PASS),
    DemoEngine("one wrong token", {"wrong_token_at": str(WRONG_TOKEN_AT)}, State.INVALID),
)


@dataclass(frozen=True, slots=True)
class DemoRun:
    """The run of one scripted engine. `page`: its report, for a browser. `expected`: whether it ended as it must."""

    engine: DemoEngine
    state: State
    answer: str
    page: Path
    expected: bool


def demo_runs(folder: Path) -> Iterator[DemoRun]:
    """Measure each engine of `ENGINES`. Its run folder is created in `folder`, and what the run prints is discarded."""
    for engine in ENGINES:
        carried_out(request_of(engine, folder))
        path = newest(folder)
        run = RunFolder.open(path).read_run()
        yield demo_run(engine, run, path / "report.html")


def request_of(engine: DemoEngine, folder: Path) -> Request:
    """Return what `specgate micro` would be asked for, with the policy of engines that are not specgate's own."""
    return Request(
        kind="micro",
        argv=("demo",),
        plain=True,
        out=folder,
        backend="fake",
        scenarios=(str(FOLDER / "demo.yaml"),),
        policy="engine",
        options=engine.options,
    )


def demo_run(engine: DemoEngine, run: Run, page: Path) -> DemoRun:
    """Return the state of a run, and in one sentence what decided it. A wrong token must be found at its place."""
    state, _ = overall(run)
    differing = [d for c in run.comparisons for d in c.tokens.defects]
    if differing:
        first = min(differing, key=lambda d: (d.prompt_set, d.round, d.position))
        answer = (
            f"tokens differ: prompt {first.prompt_set}, token {first.position}: {first.got} instead of {first.expected}"
        )
        return DemoRun(engine, state, answer, page, state is engine.state and first.position == WRONG_TOKEN_AT)
    if state is State.PASS:
        return DemoRun(engine, state, speed_of(run), page, state is engine.state)
    objections = [v.message for v in run.verdicts if v.required and v.state is state]
    return DemoRun(engine, state, (*run.failures.values(), *objections, "nothing was judged")[0], page, False)


def speed_of(run: Run) -> str:
    """Return speed-up, acceptance length and number of compared tokens of a run that passed."""
    (comparison,), speedup = run.comparisons, run.comparisons[0].speedup
    (length,) = (r.values["acceptance_length"].value for r in run.cells if r.cell.role.speculative)
    return (
        f"speculation pays: {speedup.value:.2f}×, 95 % {speedup.ci_low:.2f} to {speedup.ci_high:.2f}; "
        f"acceptance length {length:.2f}; {comparison.tokens.compared_tokens:,} tokens equal"
    )

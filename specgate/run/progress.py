"""Show progress while a run measures: a bar on a terminal, one line per block elsewhere.

Nothing is drawn while a block is being timed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from specgate.analysis.cell_names import cell_name
from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.paired_blocks import speed
from specgate.contract import Block, Scenario
from specgate.redaction import visible
from specgate.run.early_stop import Look
from specgate.terminal import echo

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Silent:
    """Hears of what a run measures, and shows nothing."""

    def __call__(self, block: Block, done: int, planned: int, side: str = "") -> None:
        """Hear of a finished block, of the number of blocks done, and of those planned, up to the next looks. `side`:
        the build that it is of, if two are compared.
        """

    def still_open(self, look: Look, left_s: float) -> None:
        """Hear what a look has left open, and how many seconds of measuring are left."""

    def refused(self, look: Look) -> None:
        """Hear what a look that ends a point has refused for good."""

    def checking(self, point: str, engine: str, dtype: str) -> None:
        """Hear that the back end `engine` now scores the tokens of the point with the key `point`, in `dtype`."""


class Lines(Silent):
    """One line per finished block, and one per look that leaves a point open."""

    def __init__(self, scenarios: Mapping[str, Scenario]) -> None:
        self.scenarios = scenarios

    def __call__(self, block: Block, done: int, planned: int, side: str = "") -> None:
        self._print(f"[{done}/{planned}] {side and side + ': '}{block_line(block, self.scenarios)}")
        self.say_length(block, done, planned)

    def say_length(self, block: Block, done: int, planned: int) -> None:
        """After the first block of a load of so many clients, show how long all of them should take: a block lasts
        about as long at every level.
        """
        scenario = self.scenarios[block.point.scenario]
        closed = scenario.load is not None and scenario.load.duration_s is None and block.point.rate is None
        if done == 1 and closed and not scenario.until_decided and block.span_ns is not None:
            seconds = (block.span_ns[1] - block.span_ns[0]) / 1e9
            self._print(f"about {spoken(planned * seconds)} in all, if every block takes as long as this one")

    def still_open(self, look: Look, left_s: float) -> None:
        for line in open_lines(look, left_s, self.scenarios):
            self._print(line)

    def refused(self, look: Look) -> None:
        for v in look.refused:
            which = cell_name(v.cell, self.scenarios)
            self._print(f"ended after {look.rounds} rounds: {v.rule} {which}: more rounds cannot mend it: {v.message}")

    def checking(self, point: str, engine: str, dtype: str) -> None:
        self._print(f"checking {cell_name(point, self.scenarios)}: {engine} in {dtype} scores its tokens")

    def _print(self, line: str) -> None:
        with suppress(BrokenPipeError):  # if the reader of a pipe has gone, keep measuring
            echo(line)


class DrawnBar(Lines):
    """A bar on a terminal, drawn between blocks."""

    def __init__(self, scenarios: Mapping[str, Scenario], bar: Bar) -> None:
        super().__init__(scenarios)
        self.bar, self.task = bar, bar.add_task("starting the engine", total=None)
        bar.refresh()

    def __call__(self, block: Block, done: int, planned: int, side: str = "") -> None:
        """Draw the bar after a finished block."""
        text = (
            f"{side and side + ': '}{cell_name(block.cell.key, self.scenarios)}: {tokens_per_second(block):,.1f} tok/s"
        )
        self.bar.update(self.task, completed=done, total=planned, description=visible(text))
        self.bar.refresh()
        self.say_length(block, done, planned)

    def _print(self, line: str) -> None:
        self.bar.console.print(visible(line), markup=False, highlight=False)


@contextmanager
def progress(plain: bool, scenarios: Mapping[str, Scenario]) -> Iterator[Lines]:
    """Yield what the runner passes every finished block to. `plain`: print lines instead of drawing a bar."""
    if plain:
        yield Lines(scenarios)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    done = (MofNCompleteColumn(), TimeElapsedColumn())
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column()),  # wrapped first; counts stay whole
        BarColumn(12),
        *done,
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # auto_refresh would draw from a thread of its own while a block is being timed.
    with Bar(*columns, auto_refresh=False, transient=True) as bar:
        yield DrawnBar(scenarios, bar)


def open_lines(look: Look, left_s: float, scenarios: Mapping[str, Scenario]) -> Iterator[str]:
    """Yield one line per rule and cell that a look has left open: its interval, its floor, and the time that it should
    take, out of the time that is left. Cells of which a rule says the same share a line.
    """
    left = f"{max(0, left_s):.0f} s left"
    if not look.open:
        yield f"open after {look.rounds} rounds: the machine was too disturbed for a verdict; {left}"
    cells: dict[tuple[str, str, str], list[str]] = {}
    for v in look.open:
        numbers = [v.evidence.get(key) for key in ("ratio", "ci_low", "ci_high", "min")]
        ratio, low, high, least = (n if isinstance(n, float) else None for n in numbers)
        now = v.message.partition(":")[0]
        if ratio is not None and low is not None and high is not None and least is not None:
            ratio_text, *ends = (told_from(least, value, 2) for value in (ratio, low, high))
            now = f"{ratio_text}x ({'–'.join(ends)}), floor {least:g}x"
        step = "".join(re.findall(r"about [\d,]+ s more", v.next_step or ""))
        cells.setdefault((v.rule, now, step), []).append(cell_name(v.cell, scenarios))
    for (rule, now, step), names in cells.items():
        which = names[0] if len(names) == 1 else f"{len(names)} cells"
        yield f"open after {look.rounds} rounds: {rule} {which}: {now}; {step + ' of ' if step else ''}{left}"


def block_line(block: Block, scenarios: Mapping[str, Scenario]) -> str:
    """Return the cell of a block, its place in the plan, and its speed."""
    when = "warm-up" if block.warmup else f"prompt set {block.prompt_set}, round {block.round + 1}"
    return f"{cell_name(block.cell.key, scenarios)}, {when}: {tokens_per_second(block):,.1f} tok/s"


def spoken(seconds: float) -> str:
    """A length of time: in seconds below two minutes, in minutes above."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def tokens_per_second(block: Block) -> float:
    """Return the tokens per second that the block emitted while decoding, summed over all slots. Of a server under load
    they are those of the whole block. 0 if no time was recorded.
    """
    if block.served is not None and len(block.tokens) > block.point.batch:
        return speed(block, whole_requests=True)
    return block.emitted / (block.elapsed_ns / 1e9) if block.elapsed_ns else 0.0

"""Show progress while a run measures: a bar on a terminal, one line per block elsewhere.

Nothing is drawn while a block is being timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from specgate.analysis.cell_names import cell_name
from specgate.analysis.paired_blocks import speed
from specgate.contract import Block, Scenario
from specgate.redaction import visible
from specgate.run.runner import Progress
from specgate.terminal import echo


@contextmanager
def progress(plain: bool, scenarios: Mapping[str, Scenario]) -> Iterator[Progress]:
    """Yield the callback to which the runner passes every finished block, the number of blocks done, and the number
    planned. `plain`: print lines instead of drawing a bar.
    """
    if plain:

        def print_line(block: Block, done: int, planned: int) -> None:
            with suppress(BrokenPipeError):  # if the reader of a pipe has gone, keep measuring
                echo(f"[{done}/{planned}] {block_line(block, scenarios)}")

        yield print_line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    done = (MofNCompleteColumn(), TimeElapsedColumn())
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(None),
        *done,
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # auto_refresh would draw from a thread of its own while a block is being timed.
    with Bar(*columns, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting the engine", total=None)
        bar.refresh()

        def advance(block: Block, done: int, planned: int) -> None:
            text = f"{cell_name(block.cell.key, scenarios)}: {tokens_per_second(block):,.1f} tok/s"
            bar.update(task, completed=done, total=planned, description=visible(text))
            bar.refresh()

        yield advance


def block_line(block: Block, scenarios: Mapping[str, Scenario]) -> str:
    """Return the cell of a block, its place in the plan, and its speed."""
    when = "warm-up" if block.warmup else f"prompt set {block.prompt_set}, round {block.round + 1}"
    return f"{cell_name(block.cell.key, scenarios)}, {when}: {tokens_per_second(block):,.1f} tok/s"


def tokens_per_second(block: Block) -> float:
    """Return the tokens per second that the block emitted while decoding, summed over all slots. Of a server under load
    they are those of the whole block. 0 if no time was recorded.
    """
    if block.served is not None and len(block.tokens) > block.point.batch:
        return speed(block, whole_requests=True)
    return block.emitted / (block.elapsed_ns / 1e9) if block.elapsed_ns else 0.0

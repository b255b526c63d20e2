"""`python -m tests.fuzz --inputs 100000`: odd inputs in number, each with a time limit, and a table of what they did.

An input that ends badly is kept in `corpus/<target>/`, where the ordinary suite replays it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.attempt import Ready, Target, attempt
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
LARGEST_KEPT = 100_000
"""Bytes of an input that is kept."""


class Hang(BaseException):
    """An input took longer than the limit."""


@dataclass
class Tally:
    """Outcomes of the inputs of one target."""

    target: str
    inputs: int = 0
    bad: dict[str, bytes] = field(default_factory=dict)
    """The last line of what was wrong → the first input that did it."""
    outcome: Counter[str] = field(default_factory=Counter)
    hangs: int = 0
    slowest_s: float = 0.0
    slowest: bytes = b""
    seconds: float = 0.0


def fuzz(target: Target, inputs: int, number: int, limit_s: float) -> Tally:
    """Try `inputs` inputs on one target."""
    tally, began = Tally(target.name), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = target.prepare(Path(scratch))

        @seed(number)
        @settings(
            max_examples=inputs,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(ready.inputs)
        def each(data: bytes) -> None:
            count(tally, ready, data, limit_s)

        each()
    tally.seconds = time.monotonic() - began
    return tally


def count(tally: Tally, ready: Ready, data: bytes, limit_s: float) -> None:
    """Try one input, and note what it did."""
    began = time.monotonic()
    try:
        with limited(limit_s):
            wrong = attempt(ready, data, tally.outcome)
    except Hang:
        wrong = f"hang: more than {limit_s:g} s"
        tally.hangs += 1
    took = time.monotonic() - began
    tally.inputs += 1
    if took > tally.slowest_s:
        tally.slowest_s, tally.slowest = took, data
    if wrong is not None:
        last = wrong.strip().splitlines()[-1][:160]
        if last not in tally.bad:
            tally.bad[last] = data
            keep(tally.target, data)
            print(f"\n--- {tally.target}\n{wrong[-3000:]}", flush=True)


def keep(target: str, data: bytes) -> None:
    """Store an input that ended badly."""
    if len(data) <= LARGEST_KEPT:
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Hang in the block after so many seconds; end the process where even that does not stop it."""
    import faulthandler

    def over(signum: int, frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, over)
    faulthandler.dump_traceback_later(10 * seconds, exit=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


@click.command()
@click.option("--inputs", default=100_000, show_default=True, help="Inputs over all targets.")
@click.option("--target", "names", multiple=True, type=click.Choice([t.name for t in TARGETS]), help="Only these.")
@click.option("--seed", "number", default=1, show_default=True, help="Same seed, same inputs.")
@click.option("--limit", default=5.0, show_default=True, help="Seconds for one input.")
def main(inputs: int, names: tuple[str, ...], number: int, limit: float) -> None:
    """Try odd inputs on every reader. Exit code 1 if one of them ended badly."""
    chosen = [t for t in TARGETS if not names or t.name in names]
    # Inputs are shared out by how many the suite gives each target: those whose inputs take long get fewer.
    shares = sum(t.inputs for t in chosen)
    click.echo(f"seed {number}, {inputs} inputs, {limit:g} s each")
    click.echo(f"{'target':20}{'inputs':>8}{'read':>7}{'bad':>6}{'hangs':>7}{'slowest':>10}{'seconds':>9}")
    tallies = []
    for target in chosen:
        tally = fuzz(target, -(-inputs * target.inputs // shares), number, limit)
        tallies.append(tally)
        figures = f"{tally.inputs:>8}{tally.outcome['read']:>7}{len(tally.bad):>6}{tally.hangs:>7}"
        figures += f"{tally.slowest_s:>8.2f} s{tally.seconds:>9.0f}"
        click.echo(f"{tally.target:20}{figures}", color=False)
        sys.stdout.flush()
    bad = sum(len(t.bad) for t in tallies)
    worst = max(tallies, key=lambda t: t.slowest_s)
    click.echo(
        f"{sum(t.inputs for t in tallies)} inputs, {bad} kinds of bad ends, {sum(t.hangs for t in tallies)} hangs"
    )
    click.echo(f"slowest: {worst.slowest_s:.2f} s, {worst.target}: {worst.slowest[:300]!r}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

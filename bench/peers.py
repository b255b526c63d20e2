"""Compare the built-in engine with other ways to decode the same sizes on the same GPU, in one run.

    python -m bench.peers --context 32768 --batch 1 --spec 3 --budget-seconds 240

Peers run one after another, each in a process of its own. A peer that fails, hangs or runs out of memory is reported
and does not end the run.

Peers have random weights of the pair's sizes. With two `--layers` counts, the time of a step is extrapolated linearly
to all layers. A peer's slot gets one token per step. A slot of the built-in engine gets, when it speculates, as many as
the pair's acceptance gives.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from bench.peer_runs import RUNS, Measured, Setup


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR")
@click.option("--context", default=32768, show_default=True, type=click.IntRange(2))
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1))
@click.option("--spec", default=3, show_default=True, type=click.IntRange(1))
@click.option("--steps", default=32, show_default=True, type=click.IntRange(8), help="Timed steps.")
@click.option(
    "--layers", multiple=True, default=(4, 12), show_default=True, type=click.IntRange(1), help="One count or two."
)
@click.option("--all-layers", is_flag=True, help="Measure the whole depth: nothing is extrapolated.")
@click.option("--peer", "names", multiple=True, type=click.Choice(list(RUNS)), help="Only these.")
@click.option("--device", default="cuda", show_default=True, type=click.Choice(["cuda", "cpu"]))
@click.option("--budget-seconds", default=240.0, show_default=True, help="Peers that do not fit are left out.")
@click.option("--result", type=click.Path(path_type=Path), hidden=True, help="Measure --peer here; write JSON there.")
def main(
    pair: str,
    context: int,
    batch: int,
    spec: int,
    steps: int,
    layers: tuple[int, ...],
    all_layers: bool,
    names: tuple[str, ...],
    device: str,
    budget_seconds: float,
    result: Path | None,
) -> None:
    """Print milliseconds per step and per token, and ratios."""
    if len(layers) > 2 or len(set(layers)) < len(layers):
        raise click.UsageError("--layers: one count, or two that differ")
    setup = Setup(pair, context, batch, spec, steps, () if all_layers else tuple(sorted(layers)), device)
    if result is not None:
        result.write_text(json.dumps([asdict(m) for m in RUNS[names[0]](setup)]))
        return
    whole, deadline = setup.geometry.layers, time.monotonic() + budget_seconds
    counted = " and ".join(map(str, setup.layers)) or "all"
    note = ", extrapolated to all by a line" if len(setup.layers) == 2 else ""
    click.echo(f"{pair}, context {context}, batch {batch}; peers at {counted} of {whole} layers{note}")
    measurements = list[Measured]()
    for name in names or RUNS:
        began = time.monotonic()
        measured, reason = measure(name, deadline - began)
        measurements += measured
        for m in measured:
            click.echo(f"{m.name:44} {m.ms_per_step:9.3f} ms/step {m.ms_per_token:9.3f} ms/token", nl=False)
            click.echo(f"   ({time.monotonic() - began:.0f} s)")
        if reason:
            click.echo(f"{name:44} {reason}")
    for line in ratios(measurements):
        click.echo(line)


def measure(name: str, seconds: float) -> tuple[list[Measured], str]:
    """(what peer `name` measured in a process of its own, the reason where there is nothing)."""
    if seconds <= 0:
        return [], "left out: the budget is spent"
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", "bench.peers", *without_peers(sys.argv[1:]), "--peer", name]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--result", str(result)], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the workers of its compiler too
                process.wait()
                return [], f"ended after {seconds:.0f} s: the budget is spent"
        if code == 0 and result.is_file():
            return [Measured(**{**m, "layers": tuple(m["layers"])}) for m in json.loads(result.read_text())], ""
        return [], f"failed (exit status {code}): {cause(log.read_text(errors='replace'))}"


def cause(log: str) -> str:
    """The last line that names an exception, or else the last line."""
    lines = log.strip().splitlines() or ["said nothing"]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Refused|Unsupported)\b", line)]
    return (named or lines)[-1][:300]


def without_peers(arguments: Sequence[str]) -> Iterator[str]:
    """The given command line without the choice of peers."""
    words = iter(arguments)
    for argument in words:
        if argument == "--peer":
            next(words, None)
        elif not argument.startswith("--peer="):
            yield argument


def ratios(measurements: Sequence[Measured]) -> Iterator[str]:
    """Return the speed-up of the built-in engine over each peer, per token."""
    ours = [m for m in measurements if m.name.startswith("specgate")]
    theirs = [m for m in measurements if m not in ours]
    for peer in theirs:
        figures = ", ".join(f"{m.name.rpartition(' ')[2]} {peer.ms_per_token / m.ms_per_token:.2f}×" for m in ours)
        if figures:
            yield f"speed over {peer.name}: {figures}"
    if len(ours) == 2:
        plain, speculating = ours
        yield f"speculating over its own baseline: {plain.ms_per_token / speculating.ms_per_token:.2f}×"


if __name__ == "__main__":
    main()

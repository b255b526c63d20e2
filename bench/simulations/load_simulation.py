"""How often a sweep finds the break-even of a server that is known: blocks, pairs and interval as `load` makes them.

    python -m bench.simulations.load_simulation --servers 40

Every server has its own step time, cost per token of a verify pass, cost of a draft, acceptance and noise. Requests are
served by the fake engine's event loop. The truth is where the ratio of throughputs crosses 1 without any noise, between
neighbouring numbers of clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import click
import numpy as np

from specgate.analysis.load.figures import in_words
from specgate.analysis.load.sweeps import break_evens
from specgate.backends.fake.script import Script
from specgate.contract.load import BreakEven
from specgate.planning.plan import build_plan
from tests.support.factories import run_of
from tests.support.loaded import load_scenario, served_blocks

LEVELS = (1, 2, 4, 8, 16, 32)
Draw = np.random.Generator


def drawn_server(source: Draw) -> Script:
    """Return the script of a server on which speculation pays with few clients."""
    step = source.uniform(5e6, 40e6)
    return Script(
        accept=tuple(int(n) for n in source.integers(0, 4, size=12)),
        step_ns=round(step),
        draft_ns=round(step * source.uniform(0.01, 0.08)),
        row_ns=round(step * math.exp(source.uniform(math.log(0.004), math.log(0.06)))),
        jitter=0.0,
    )


def true_break_even(script: Script) -> float | None:
    """Return the number of clients at which the ratio of throughputs crosses 1; None outside the levels."""
    low, high = LEVELS[0], LEVELS[-1]
    if not exact_gain(script, low) > 0 >= exact_gain(script, high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exact_gain(script, middle) > 0 else (low, middle)
    before, after = exact_gain(script, low), exact_gain(script, high)
    return low + before / (before - after)


def exact_gain(script: Script, clients: int) -> float:
    """Return the log-ratio of the throughputs without noise."""
    (level,) = swept(script, (clients,), rounds=2, pace=lambda one: one).levels
    assert level.ratio is not None
    return math.log(level.ratio)


def swept(script: Script, levels: tuple[int, ...], rounds: int, pace: Callable[[Script], Script]) -> BreakEven:
    plan = build_plan([load_scenario(levels, rounds=rounds)], "fake")
    run = run_of(plan, served_blocks(plan, script, pace), kind="load")
    (break_even,) = break_evens(run.scenarios, run.comparisons, {})
    return break_even


def noisy(source: Draw, sd: float) -> Callable[[Script], Script]:
    """Return a pace that differs from block to block, half of it by a state that lasts for several blocks."""
    state = 0.0

    def of_block(script: Script) -> Script:
        nonlocal state
        state = 0.7 * state + math.sqrt(1 - 0.7**2) * source.normal()
        factor = math.exp(sd * (state + source.normal()) / math.sqrt(2))
        return replace(script, step_ns=round(script.step_ns * factor), row_ns=round(script.row_ns * factor))

    return of_block


@click.command()
@click.option("--servers", default=40, show_default=True)
@click.option("--seed", default=11, show_default=True)
@click.option("--sd", default=0.02, show_default=True, help="Of the pace of a block.")
def main(servers: int, seed: int, sd: float) -> None:
    """Print a line per server, and how many intervals hold the truth."""
    source, right, widths = np.random.default_rng(seed), 0, []
    for number in range(1, servers + 1):
        truth = None
        while truth is None:
            script = drawn_server(source)
            truth = true_break_even(script)
        result = swept(script, LEVELS, 4, noisy(source, sd))
        low, high = result.low or 0.0, result.high or math.inf
        inside = low <= truth <= high and result.outcome not in ("everywhere", "nowhere")
        right += inside
        widths += [high / low] if result.low and result.high else []
        print(f"{number:3} {'right' if inside else 'WRONG'} {truth:5.1f} clients: {in_words(result)}", flush=True)
    median = f"{float(np.median(widths)):.2f}" if widths else "-"
    print(
        f"{right} of {servers} intervals hold the true break-even; {len(widths)} have two ends, median ratio {median}"
    )


if __name__ == "__main__":
    main()

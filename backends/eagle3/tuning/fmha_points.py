"""Configurations of attention that a sweep tries, and its scenarios, pairs and prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Final

from specgate.backends.eagle3.nouns.fmha import GRID_SCHEMA, AttentionConfig
from specgate.contract import Budget, PairRef, Point, Scenario
from specgate.contract.protocols import OpenRequest
from specgate.contract.reading import Problem
from specgate.contract.types import Length
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.yaml_schema import parse, refusal
from specgate.files.yamlfile import load
from specgate.pairs.resolve import resolve_pair, target_limits
from specgate.planning.plan import positions_needed
from specgate.planning.prompts import build_prompts
from specgate.planning.scenario import find

DEMO: Final = ("micro-16k-b4", "micro-32k-single")
PLANTED: Final = ("micro-8b-16k-b4", "micro-8b-32k-single")
"""Scenarios that are swept by default: on the demo pair if it is installed, else on planted pairs. In either case one
has batch 4 and one a single request, since the engine's default tiles differ between the two.
"""


MOST_CONFIGURATIONS: Final = 10_000
"""Of attention in one sweep: a day of work."""


@dataclass(frozen=True, slots=True)
class GridFile:
    """A grid file: knob → values to try."""

    grid: Annotated[Mapping[str, Annotated[tuple[int, ...], Length(1)]], Length(1)]


def read_grid(file: Path) -> tuple[AttentionConfig, ...]:
    """All combinations of the values that a YAML file lists per knob. Raises UsageError with file and line."""
    grid = parse(GridFile, document := load(file), GRID_SCHEMA).grid
    if (count := prod(map(len, grid.values()))) > MOST_CONFIGURATIONS:
        raise refusal(document, [Problem(("grid",), f"{count} combinations; at most {MOST_CONFIGURATIONS}")])
    return tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def scenarios(names: Sequence[str]) -> Iterator[tuple[Scenario, PairRef | None]]:
    """(scenario, pair) to sweep.

    Without `names`, these are the two scenarios of the demo pair if it is installed, else two of planted pairs of 8B
    size. The pair is None if it is still to be resolved from the scenario.
    """
    if names:
        yield from ((find(name), None) for name in names)
        return
    try:
        demo = resolve_pair(None, None, None)
    except EnvironmentRefused:
        yield from ((find(name), None) for name in PLANTED)
        return
    yield from ((find(name), demo) for name in DEMO)


def shortened(scenario: Scenario, steps: int | None) -> Scenario:
    """The scenario with a budget of at most `steps` steps.

    Raises UsageError if the scenario's own budget is in tokens and no `steps` are given.
    """
    own = scenario.budget.steps
    if own is None and steps is None:
        raise UsageError(f"scenario {scenario.name}: its budget is of tokens", hint="give --steps, or a micro scenario")
    return replace(scenario, budget=Budget(steps=min(n for n in (own, steps) if n is not None)))


def points(scenario: Scenario) -> Iterator[Point]:
    """The points of a scenario: every context with every batch. They name no back end.

    Raises UsageError where it has no contexts, because its prompts keep their lengths.
    """
    if not scenario.grid.context:
        why = "its prompts are as long as they are, and a sweep needs contexts"
        raise UsageError(f"scenario {scenario.name}: grid.context: {why}", hint="give it contexts, or name another one")
    for context, batch in product(scenario.grid.context, scenario.grid.batch):
        yield Point(scenario.name, "", context, batch)


def pair_of(scenario: Scenario, named: str | None, default: PairRef | None) -> PairRef:
    """Return the pair to sweep: the one that is `named`, else `default`, else the scenario's own.

    A pair that was named gets no RoPE scaling from the scenario, unless it is the scenario's own.
    """
    if named is not None and named != scenario.pair:
        return resolve_pair(named, None, None)
    return replace(default or resolve_pair(scenario.pair, None, None), rope=scenario.rope_keys)


def request_of(scenario: Scenario, point: Point, pair: PairRef, options: Mapping[str, str]) -> OpenRequest:
    """The request for an engine that can decode one point."""
    return OpenRequest(
        pair=pair,
        dtype=scenario.dtype,
        max_batch=point.batch,
        max_positions=positions_needed(scenario, point),
        max_k=max(scenario.grid.spec),
        perf_mode=False,
        options=options,
    )


def prompts_of(scenario: Scenario, point: Point, pair: PairRef) -> tuple[tuple[int, ...], ...]:
    """The token ids of the scenario's first measured prompt set, one tuple per slot.

    They are random for a planted pair, whose tokens have no meaning, and for a pair without a tokenizer.
    """
    file = pair.target / "tokenizer.json"
    if pair.acceptance == "planted" or not file.is_file():
        scenario = replace(scenario, workload=replace(scenario.workload, source="random"))
    scenario = replace(scenario, workload=replace(scenario.workload, prompt_sets=1, warmup_sets=0))
    _, vocab = target_limits(pair, pair.rope)
    built = build_prompts(scenario, point.context, point.batch, file if file.is_file() else None, vocab)
    return built.measured[0].token_ids

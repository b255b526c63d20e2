"""Which configurations a sweep tries, and on which prompts: scenarios, pairs, grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from specgate.api import OpenRequest
from specgate.core import Budget, PairRef, Point, Scenario
from specgate.core.fmha import AttentionConfig
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.yaml_schema import Form, parse
from specgate.files.yamlfile import load
from specgate.pairs.resolve import resolve_pair, target_limits
from specgate.planning.plan import positions_needed
from specgate.planning.prompts import build_prompts
from specgate.planning.scenario import find

DEMO: Final = ("micro-16k-b4", "micro-32k-single")
PLANTED: Final = ("micro-8b-16k-b4", "micro-8b-32k-single")
"""Batch 4 and one request, which are cut otherwise by default."""


class GridForm(Form):
    schema_: Annotated[Literal["specgate.fmha-grid/v1"], Field(alias="schema")]
    grid: Annotated[dict[str, Annotated[list[int], Field(min_length=1)]], Field(min_length=1)]


def read_grid(file: Path) -> tuple[AttentionConfig, ...]:
    """Every combination of the values that a YAML file gives to knobs. Raises UsageError with file and line."""
    form = parse(GridForm, load(file))
    return tuple(dict(zip(form.grid, values, strict=True)) for values in product(*form.grid.values()))


def scenarios(names: Sequence[str]) -> Iterator[tuple[Scenario, PairRef | None]]:
    """The scenarios of `names`; without any, both regimes of the demo pair where it is at hand, else of a planted pair
    of 8B size. The pair is None where it has yet to be found.
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
    """With a budget of at most `steps` steps. Raises UsageError for one of tokens, unless `steps` are given."""
    own = scenario.budget.steps
    if own is None and steps is None:
        raise UsageError(f"scenario {scenario.name}: its budget is of tokens", hint="give --steps, or a micro scenario")
    return replace(scenario, budget=Budget(steps=min(n for n in (own, steps) if n is not None)))


def points(scenario: Scenario) -> Iterator[Point]:
    for context, batch in product(scenario.grid.context, scenario.grid.batch):
        yield Point(scenario.name, "", context, batch)


def pair_of(scenario: Scenario, named: str | None, found: PairRef | None) -> PairRef:
    """The pair `named`, else the scenario's, under the scenario's RoPE scaling where it is the scenario's own."""
    if named is not None and named != scenario.pair:
        return resolve_pair(named, None, None)
    return replace(found or resolve_pair(scenario.pair, None, None), rope=scenario.rope)


def request_of(scenario: Scenario, point: Point, pair: PairRef, options: Mapping[str, str]) -> OpenRequest:
    """Of an engine for one point. Raises UsageError where the target knows fewer positions."""
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
    """The scenario's first measured set; random tokens for a pair whose tokens mean nothing."""
    file = pair.target / "tokenizer.json"
    if pair.acceptance == "planted" or not file.is_file():
        scenario = replace(scenario, workload=replace(scenario.workload, source="random"))
    scenario = replace(scenario, workload=replace(scenario.workload, prompt_sets=1, warmup_sets=0))
    _, vocab = target_limits(pair, pair.rope)
    built = build_prompts(scenario, point.context, point.batch, file if file.is_file() else None, vocab)
    return built.measured[0].token_ids

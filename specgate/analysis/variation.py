"""Settings that differ in a variant of a role (`spec-3+kv-fp8`) from the plain role, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from specgate.contract import Cell, Run, Sampling, Scenario


def variation(run: Run, cell: Cell) -> str:
    """Setting that differs in a variant's cell: `kv=fp8`. Empty for a cell of the plain role."""
    if not cell.point.variant or cell.point.scenario not in run.scenarios:
        return ""
    return what_varies(run.scenarios[cell.point.scenario], run.scenarios.get(cell.point.unvaried))


def what_varies(scenario: Scenario, plain: Scenario | None) -> str:
    """Settings of `scenario` that differ from `plain`, the scenario that it is a variant of: `kv=fp8, temperature 1`.
    With None, whatever it sets.
    """
    before: Mapping[str, str] = plain.options if plain else {}
    options = [f"{name}={value}" for name, value in scenario.options.items() if before.get(name) != value]
    sampling = [] if plain and plain.sampling == scenario.sampling else list(sampling_in_words(scenario.sampling))
    return ", ".join((*options, *sampling))


def sampling_in_words(sampling: Sampling | None) -> Iterator[str]:
    """The settings that tokens are drawn with, as far as they are not the defaults; the temperature always."""
    if sampling is None:
        return
    yield f"temperature {sampling.temperature:g}"
    usual = asdict(Sampling())
    for name, value in asdict(sampling).items():
        if name != "temperature" and value != usual[name]:
            yield f"{name} {value}"

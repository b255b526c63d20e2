"""Names of cells as a person would say them: `32K · batch 1 · spec-3`. Console, page and tables share them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from specgate.contract import VARIANT_MARK, Scenario

_KEY: Final = re.compile(
    r"(?P<name>.*?)(/[^/]*)?/c(?P<context>\d+)/b(?P<batch>\d+)(/q(?P<rate>[^/]+))?(/(?P<role>.*))?"
)


def cell_name(key: str, scenarios: Mapping[str, Scenario] | None = None) -> str:
    """Return the name of the cell or point with `key`, a `Cell.key` or a `Point.key`, also without its back end.

    `scenarios`: those of its run. If the run has only one, the name leaves it out. Without them a name says nothing
    of files and clients. A key of another form is its own name.
    """
    if (parts := _KEY.fullmatch(key)) is None:
        return key
    name, context, batch, rate, role = parts.group("name", "context", "batch", "rate", "role")
    plain, mark, variant = name.partition(VARIANT_MARK)
    scenario = scenarios.get(name) if scenarios else None
    alone = scenarios is not None and len({known.partition(VARIANT_MARK)[0] for known in scenarios}) == 1
    load = scenario is not None and scenario.load is not None
    level = f"{rate} requests/s" if rate else clients(int(batch)) if load else f"batch {batch}"
    length = length_name(int(context), short=True)
    if not int(context) and not int(batch):  # of another tool
        length = level = ""
    if scenario is not None and scenario.workload.own:
        file = scenario.workload.file
        length = f"{file.name if file else 'own prompts'}, up to {length_name(int(context))}"
    return " · ".join(filter(None, (None if alone else plain, length, level, role or mark + variant)))


def length_name(tokens: int, *, short: bool = False) -> str:
    """Return a prompt length: `32K tokens`, `1,000 tokens`. If `short`, the word is left out after a K."""
    if tokens and tokens % 1024 == 0:
        return f"{tokens // 1024}K" + ("" if short else " tokens")
    return f"{tokens:,} token{'s' * (tokens != 1)}"


def clients(count: int) -> str:
    """Return `1 client`, `8 clients`."""
    return f"{count:,} client{'s' * (count != 1)}"

"""What a result of `benchmark_speculative.py` measured, by its object `scenario` and by its name.

`scenario` holds name, sizes, `num_spec_tokens`, `use_speculation` and `micro_run`, or is a name alone. Names such as
`Speculative_Batch4_Context16K_3tokens` tell scenario and draft length: full-16k-b4, spec-3; with `micro_run`,
micro-16k-b4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specgate.archive.other_tools.speculation import LONGEST_DRAFT
from specgate.errors import InvalidResult, UsageError
from specgate.files.json_text import shown

_NAME = re.compile(
    r"(?:baseline|speculative)_(?:single|batch(?P<batch>\d{1,9}))_context(?P<kilo>\d{1,9})k", re.IGNORECASE
)
_TOKENS = re.compile(r"_(\d{1,9})_?tokens", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Script:
    """`scenario` and `k` (the draft length) are None if nothing tells them; `k` is 0 for a baseline."""

    name: str
    scenario: str | None
    k: int | None
    micro: bool


def script_of(file: str, data: Mapping[str, Any], key: str) -> Script:
    """Return what the result `data` measured. `key`: its name in the file, if it has none of its own.

    Raises UsageError for values of another type, InvalidResult where the result contradicts itself.
    """
    about = data["scenario"] if isinstance(data.get("scenario"), dict) else {}
    names = (about.get("name"), *(data.get(k) for k in ("scenario", "scenario_name", "name")))
    name = next((text_of(value) for value in names if value is not None and not isinstance(value, dict)), key)
    where = f"{file}: {name}"
    speculation = data.get("eagle_speculation")
    if speculation is not None and not isinstance(speculation, dict):
        raise UsageError(f"{where}: eagle_speculation: a mapping was expected")
    if speculation is not None and "num_drafts" not in speculation:
        raise UsageError(f"{where}: eagle_speculation.num_drafts is missing: the number of draft steps was expected")
    if (used := _flag(where, about, "use_speculation")) is not None and used != (speculation is not None):
        block = "there" if speculation else "missing: the engine decoded without its draft"
        raise InvalidResult(
            f"{where}: scenario.use_speculation is {str(used).lower()}, but eagle_speculation is {block}"
        )
    in_name = _TOKENS.search(name)
    stated = [of[k] for of in (about, data) for k in ("num_spec_tokens", "num_speculative_tokens") if k in of]
    stated = [tokens for tokens in stated if isinstance(tokens, int) and not isinstance(tokens, bool)]
    stated += [int(in_name[1])] if in_name else []
    if speculation is not None and len(set(stated)) > 1:
        raise InvalidResult(f"{where}: num_spec_tokens = {stated[0]}, but its name says {stated[-1]}")
    if stated and not 0 <= stated[0] <= LONGEST_DRAFT:
        raise UsageError(f"{where}: num_spec_tokens: {shown(stated[0])}: 0 to {LONGEST_DRAFT} was expected")
    micro = _flag(where, about, "micro_run") is True
    k = 0 if speculation is None else stated[0] if stated else None
    return Script(name, scenario_of(name, about, micro=micro, where=where), k, micro)


def _flag(where: str, about: Mapping[str, Any], name: str) -> bool | None:
    """Return a flag of the object `scenario`; None if it has none. Raises UsageError for anything else."""
    if (value := about.get(name)) is not None and not isinstance(value, bool):
        raise UsageError(f"{where}: scenario.{name}: {shown(value)}: true or false was expected")
    return value


def text_of(value: object) -> str:
    """Return a name as the file has it; for anything else than printable text, as Python would write it."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 200 else shown(value, 200)


def scenario_of(name: str, about: Mapping[str, Any], *, micro: bool, where: str) -> str | None:
    """Return the scenario that a benchmark stands for: `Speculative_Batch4_Context16K` → `full-16k-b4`.

    It is a full scenario, since the benchmarks measure whole requests, unless it is `micro`. None if neither the name
    nor the sizes in `about` tell. Raises InvalidResult where the two contradict each other.
    """
    match = _NAME.search(name)
    named = None if match is None else (int(match["kilo"]) * 1024, int(match["batch"] or 1))
    context, batch_size = (about.get(key) for key in ("context_length", "batch_size"))
    sizes = (context, batch_size) if type(context) is int and type(batch_size) is int else None
    if named and sizes and named != sizes:
        raise InvalidResult(f"{where}: scenario: context_length, batch_size = {sizes}, but its name says {named}")
    shape = sizes or named
    if shape is None or shape[0] % 1024 or min(shape) < 1:
        return None
    kind, batch = "micro" if micro else "full", "single" if shape[1] == 1 else f"b{shape[1]}"
    return f"{kind}-{shape[0] // 1024}k-{batch}"

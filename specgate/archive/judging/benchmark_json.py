"""Read the benchmark JSON of the EAGLE-3 scripts and of `vllm bench serve`, and check that counts and means agree.

A result of the scripts holds `throughput_tokens_per_sec: {mean: …}`. A speculative one also holds an
`eagle_speculation` block with `num_drafts`, `total_draft_tokens`, `total_accepted_tokens`, `mean_acceptance_rate` and
`mean_acceptance_length`. A file may hold one result, a list of results (also under `results`), or a mapping from names
to results. Its `scenario` is an object with name, sizes, `num_spec_tokens` and `micro_run`, or a name alone. Names such
as `Speculative_Batch4_Context16K_3tokens` tell scenario and draft length (here full-16k-b4, spec-3; with `micro_run`,
micro-16k-b4).

A result of `vllm bench serve --save-result` holds `output_throughput` and, from vLLM 0.19 on and for a server that
speculates, `spec_decode_num_drafts` and its like at the top level. It names no scenario. Files of other tools are
refused by name (`other_tools.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from specgate.archive.judging.other_tools import leniently, made_by
from specgate.contract import Role
from specgate.errors import InvalidResult, UsageError
from specgate.files.json_text import parse_json, read_bytes, shown
from specgate.redaction import visible

TOLERANCE: Final = 5e-3
"""Absolute tolerance for means, which the file stores rounded."""
LONGEST_DRAFT: Final = 1000
"""Draft tokens per cycle."""
LARGEST: Final = 1e15
"""Of any count or rate: beyond it, not every whole number is a float."""
_NAME = re.compile(
    r"(?:baseline|speculative)_(?:single|batch(?P<batch>\d{1,9}))_context(?P<kilo>\d{1,9})k", re.IGNORECASE
)
_TOKENS = re.compile(r"_(\d{1,9})_?tokens", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Names:
    """A tool's names of the counts and means of speculation. `block`: what they stand in, for messages. `percent`: the
    rate is in percent.
    """

    block: str
    drafts: str
    drafted: str
    accepted: str
    length: str
    rate: str
    percent: bool = False


SCRIPTS: Final = Names(
    "eagle_speculation",
    "num_drafts",
    "total_draft_tokens",
    "total_accepted_tokens",
    "mean_acceptance_length",
    "mean_acceptance_rate",
)
VLLM: Final = Names(
    "vllm bench serve",
    "spec_decode_num_drafts",
    "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens",
    "spec_decode_acceptance_length",
    "spec_decode_acceptance_rate",
    percent=True,
)
VLLM_RESULT: Final = frozenset({"output_throughput", "total_token_throughput", "completed"})
"""Keys of every result of `vllm bench serve` about text, since 0.9."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One result.

    `scenario` and `k` (the draft length) are None if the file does not tell them; `k` is 0 for a baseline. `tok_s`:
    mean tokens per second. `speculation`: the counts and means, None for a baseline; `names`: their keys. `guessed`:
    `k` is the mean number of drafts of a step, which may be smaller than the draft length. `micro`: of few steps.
    """

    name: str
    scenario: str | None
    k: int | None
    tok_s: float
    speculation: Mapping[str, Any] | None
    names: Names = SCRIPTS
    guessed: bool = False
    micro: bool = False


def read(file: Path) -> object:
    """The JSON in `file`, or the list of its lines' (`vllm bench serve --append-result`). Raises UsageError if the file
    cannot be read, or is not JSON.
    """
    try:
        content = read_bytes(file)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from error
    try:
        return parse_json(content)
    except ValueError as error:
        for value in leniently(content.decode("utf-8", errors="replace")):
            refuse_other_tool(file, value)
        lines = content.split(b"\n")
        try:
            return [parse_json(line) for line in lines if line.strip()] if len(lines) > 1 else parse_json(content)
        except ValueError:
            raise UsageError(f"{file}: not JSON: {error}") from error


def refuse_other_tool(file: Path, value: object) -> None:
    """Raise UsageError where another tool made the file that holds `value`."""
    if (tool := made_by(value)) is not None:
        raise UsageError(
            f"{file}: a result of {tool.name}, which {tool.lacks}: a run.json of specgate is read, and a JSON of "
            "`vllm bench serve --save-result` or with throughput_tokens_per_sec.mean"
        )


def benchmarks(file: Path, data: object, name: str = "") -> Iterator[Benchmark]:
    """Every result in `data`. Raises UsageError if there is none, InvalidResult if one lacks a figure."""
    results = list(_benchmarks(file, data, name))
    if not results:
        refuse_other_tool(file, data)
        hint = "it must be a run.json of specgate, a JSON of `vllm bench serve --save-result`, or one with "
        hint += "throughput_tokens_per_sec.mean"
        raise UsageError(f"{file}: holds no result that is known", hint=hint)
    yield from results


def _benchmarks(file: Path, data: object, name: str) -> Iterator[Benchmark]:
    if isinstance(data, list):
        for i, item in enumerate(data):
            yield from _benchmarks(file, item, f"{name}[{i}]")
    elif isinstance(data, dict) and "throughput_tokens_per_sec" in data:
        yield _benchmark(file, data, name)
    elif isinstance(data, dict) and data.keys() >= VLLM_RESULT and not made_by(data):
        yield _of_vllm(file, data, name)
    elif isinstance(data, dict):
        for key, item in data.items():
            if isinstance(item, dict | list):
                yield from _benchmarks(file, item, visible(str(key)))


def _benchmark(file: Path, data: Mapping[str, Any], key: str) -> Benchmark:
    about = data["scenario"] if isinstance(data.get("scenario"), dict) else {}
    names = (about.get("name"), *(data.get(k) for k in ("scenario", "scenario_name", "name")))
    name = next((text_of(value) for value in names if value is not None and not isinstance(value, dict)), key)
    where = f"{file}: {name}"
    tok_s = _throughput(where, data["throughput_tokens_per_sec"])
    speculation = data.get("eagle_speculation")
    if speculation is not None and not isinstance(speculation, dict):
        raise InvalidResult(f"{where}: eagle_speculation: a mapping was expected")
    if (used := _flag(where, about, "use_speculation")) is not None and used != (speculation is not None):
        block = "there" if speculation else "missing: the engine decoded without its draft"
        raise InvalidResult(
            f"{where}: scenario.use_speculation is {str(used).lower()}, but eagle_speculation is {block}"
        )
    in_name = _TOKENS.search(name)
    counts = [of[k] for of in (about, data) for k in ("num_spec_tokens", "num_speculative_tokens") if k in of]
    counts = [tokens for tokens in counts if isinstance(tokens, int) and not isinstance(tokens, bool)]
    counts += [int(in_name[1])] if in_name else []
    if speculation is not None and len(set(counts)) > 1:
        raise InvalidResult(f"{where}: num_spec_tokens = {counts[0]}, but its name says {counts[-1]}")
    k = _draft_length(where, counts[0]) if counts else None
    micro = _flag(where, about, "micro_run") is True
    scenario = scenario_of(name, about, micro=micro, where=where)
    return Benchmark(name, scenario, 0 if speculation is None else k, tok_s, speculation, micro=micro)


def _flag(where: str, about: Mapping[str, Any], name: str) -> bool | None:
    """A flag of the object `scenario`; None if it has none. Raises InvalidResult for anything else."""
    if (value := about.get(name)) is not None and not isinstance(value, bool):
        raise InvalidResult(f"{where}: scenario.{name}: {shown(value)}: true or false was expected")
    return value


def _throughput(where: str, throughput: object) -> float:
    """The mean, which is that of the single values if these are there. Raises InvalidResult."""
    tok_s = _number(f"{where}: throughput_tokens_per_sec", throughput, "mean")
    if tok_s == 0:
        raise InvalidResult(f"{where}: throughput_tokens_per_sec.mean: 0: nothing was generated")
    values = throughput.get("values") if isinstance(throughput, dict) else None
    if isinstance(values, list) and values:
        each = [_number(f"{where}: throughput_tokens_per_sec", {"values": value}, "values") for value in values]
        if not math.isclose(tok_s, sum(each) / len(each), rel_tol=TOLERANCE):
            raise InvalidResult(
                f"{where}: throughput_tokens_per_sec.mean = {tok_s:g}, but its values are {shown(values)}"
            )
    return tok_s


def _of_vllm(file: Path, data: Mapping[str, Any], key: str) -> Benchmark:
    """The result of one `vllm bench serve`. Its draft length is the number of positions that it has a rate of, or else
    what each draft had.
    """
    name = text_of(data["label"]) if data.get("label") else key or VLLM.block
    where = f"{file}: {name}"
    tok_s = _number(where, data, "output_throughput")
    if tok_s == 0:
        raise InvalidResult(f"{where}: output_throughput: 0: nothing was generated")
    if VLLM.drafts not in data:
        return Benchmark(name, None, 0, tok_s, None, VLLM)
    drafts, drafted = (_number(where, data, count) for count in (VLLM.drafts, VLLM.drafted))
    rates = data.get(AT_POSITIONS)
    k = len(rates) if isinstance(rates, list) and rates else drafted / drafts if drafts else 0
    stated = _draft_length(where, int(k)) if k and k == int(k) else None
    return Benchmark(name, None, stated, tok_s, data, VLLM, guessed=not rates)


AT_POSITIONS: Final = "spec_decode_per_position_acceptance_rates"


def _draft_length(where: str, k: int) -> int:
    if not 0 <= k <= LONGEST_DRAFT:
        raise InvalidResult(f"{where}: num_spec_tokens: {shown(k)}: 0 to {LONGEST_DRAFT} was expected")
    return k


def text_of(value: object) -> str:
    """A name as the file has it; for anything else than printable text, as Python would write it."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 200 else shown(value, 200)


def scenario_of(name: str, about: Mapping[str, Any], *, micro: bool, where: str) -> str | None:
    """The scenario that a benchmark stands for: `Speculative_Batch4_Context16K` → `full-16k-b4`.

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


def with_answers(result: Benchmark, scenario: str | None, role: str | None, file: Path) -> Benchmark:
    """The result, completed by what the command line says: its scenario, and its role for the draft length.

    Raises UsageError if one of the two is still unknown, or if the role contradicts what the result says.
    """
    try:
        k = Role.parse(role).k if role else result.k
    except ValueError as error:
        raise UsageError(f"--role: {error}") from error
    if k and result.k and k != result.k and not (result.guessed and k > result.k):
        message = f"--role {role}, but {result.name or 'the result'} is of spec-{result.k}"
        raise UsageError(f"{file}: {message}", hint=f"--role spec-{result.k}, or no --role")
    if not k:
        raise UsageError(f"{file}: {result.name or 'the result'}: draft length unknown", hint="add --role spec-N")
    if scenario is None and result.scenario is None:
        raise UsageError(f"{file}: {result.name or 'the result'}: scenario unknown", hint="add --scenario NAME")
    return replace(result, k=k, scenario=scenario or result.scenario)


def acceptance_length(file: Path, result: Benchmark) -> float | None:
    """The acceptance length, 1 + accepted / drafts, computed from the counts. None if nothing was drafted.

    Raises InvalidResult if the counts contradict each other or the stated means. The stated mean acceptance length may
    count the bonus token or leave it out.
    """
    assert result.speculation is not None and result.k
    names = result.names
    where = f"{file}: {result.name}: {names.block}"
    counts = (names.drafts, names.drafted, names.accepted)
    drafts, drafted, accepted = (_number(where, result.speculation, name) for name in counts)
    if drafts == 0:
        return None
    if not accepted <= drafted <= drafts * result.k:
        order = f"{names.accepted} ≤ {names.drafted} ≤ {names.drafts} · {result.k}"
        raise InvalidResult(f"{where}: {order} does not hold: {accepted:g}, {drafted:g}, {drafts:g} · {result.k}")
    length, rate = 1 + accepted / drafts, accepted / drafted if drafted else 0.0
    stated = _stated(where, result.speculation, names.length)
    if stated is not None and not any(math.isclose(stated, right, abs_tol=TOLERANCE) for right in (length, length - 1)):
        raise InvalidResult(f"{where}: {names.length} = {stated}, but 1 + accepted / drafts = {length:.4f}")
    stated = _stated(where, result.speculation, names.rate)
    if stated is not None and not math.isclose(stated / (100 if names.percent else 1), rate, abs_tol=TOLERANCE):
        raise InvalidResult(f"{where}: {names.rate} = {stated}, but accepted / drafted = {rate:.4f}")
    check_positions(where, result.speculation.get(AT_POSITIONS), accepted / drafts)
    return length


def check_positions(where: str, rates: object, per_step: float) -> None:
    """The acceptance rates by position fall, and add up to the drafts that a step accepts. Raises InvalidResult."""
    if not isinstance(rates, list) or not rates:
        return
    values = [_number(where, {AT_POSITIONS: rate}, AT_POSITIONS) for rate in rates]
    if not math.isclose(sum(values), per_step, abs_tol=TOLERANCE) or values != sorted(values, reverse=True):
        raise InvalidResult(
            f"{where}: {AT_POSITIONS} = {shown(rates)} add up to {sum(values):.4f} and may not grow, but accepted / "
            f"drafts = {per_step:.4f}"
        )


def _number(where: str, data: object, key: str) -> float:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise InvalidResult(f"{where}.{key}: {shown(value)}: a number, 0 to {LARGEST:g}, was expected")
    return float(value)


def _stated(where: str, data: Mapping[str, Any], key: str) -> float | None:
    return None if data.get(key) is None else _number(where, data, key)

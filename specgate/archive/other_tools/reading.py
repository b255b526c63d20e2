"""A file of another tool, or a folder of them, as results. Forms are told by what a file holds, never by its name."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from specgate.archive.other_tools.declarations import SCRIPTS, TOOLS, Figure, Tool, at, tool_of
from specgate.archive.other_tools.numbers import Numbers
from specgate.archive.other_tools.scripts import script_of, text_of
from specgate.archive.other_tools.speculation import TOLERANCE, Drafting, drafting_of
from specgate.errors import InvalidResult, UsageError
from specgate.files.json_text import parse_json, read_bytes, shown
from specgate.redaction import visible

SUFFIXES: Final = (".json", ".jsonl", ".csv")
"""Of the files in a folder that are looked at."""
RATES: Final = ("output_tok_s", "decode_tok_s", "prefill_tok_s")
"""The figures of which every result has one."""
READ: Final = ", ".join(dict.fromkeys(tool.name for tool in TOOLS))


@dataclass(frozen=True, slots=True)
class Result:
    """One result.

    `figures`: metric → a number per repetition. `asked`: setting → value of what was asked. `settings`, `sizes`: what
    tells results of one side apart besides; the latter are mean lengths in tokens. `drafting`: its counts of
    speculation. `length`: its acceptance length; None where nothing tells it.
    `k`: the draft length: 0 for a baseline, None where nothing tells it. `least_k`: true if the drafts may have been
    longer. `speculates`: None where nothing tells it. `scenario`: None if the file names none. `micro`: of few steps.
    """

    tool: Tool
    name: str
    figures: Mapping[str, Sequence[float]]
    asked: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)
    drafting: Drafting | None = None
    length: float | None = None
    k: int | None = None
    least_k: bool = False
    speculates: bool | None = None
    scenario: str | None = None
    micro: bool = False
    failed: int = 0

    @property
    def tok_s(self) -> Sequence[float]:
        """Return the tokens per second, a number per repetition: of output, else of decoding."""
        return next(self.figures[name] for name in RATES if name in self.figures)


def results_at(path: Path) -> list[Result]:
    """Return the results in a file, or in the files of a folder that are known, in the order of their names.

    Raises UsageError where nothing can be read, InvalidResult where a result contradicts itself.
    """
    return results_in(path, contents(path)) if not path.is_dir() else list(results_below(path))


def results_below(folder: Path) -> Iterator[Result]:
    """Yield the results of the files in `folder` and in its folders."""
    files = [f for f in sorted((*folder.glob("*"), *folder.glob("*/*"))) if f.suffix in SUFFIXES and f.is_file()]
    values = {file: contents(file) for file in files if file.suffix != ".csv" or is_rows(file)}
    known = {file: value for file, value in values.items() if any(True for _ in items_in(value))}
    if not known:
        message = f"{folder} is not a run folder (it has no config.resolved.yaml), and holds no result that is known"
        raise UsageError(message, hint=f"results are read of {READ}")
    for file, value in known.items():
        yield from results_in(file, value)


def is_rows(file: Path) -> bool:
    """Tell whether a CSV file holds rows of llama-bench; other tools write theirs beside JSON with more in it."""
    with file.open("rb") as stream:
        return b"avg_ts" in stream.readline(1 << 16)


RIGHT: Final = "a run folder, or a file of another tool"


def contents(file: Path) -> object:
    """Return the JSON in `file`, the list of its lines', or the rows of a CSV file. Raises UsageError.

    NaN and Infinity, which JSON has not and some tools write, are None.
    """
    try:
        content = read_bytes(file)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", hint=RIGHT) from error
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from error
    try:
        return parse_json(content, constants=True)
    except ValueError as error:
        of_whole = error
    head, values, number = content.lstrip().partition(b"\n")[0], list[object](), 0
    try:
        if b"avg_ts" in head and b"," in head and not head.startswith(b"{"):
            return rows_of(content.decode("utf-8"))
        for line in content.split(b"\n"):
            number += 1
            if line.strip():
                values.append(parse_json(line, constants=True))
    except ValueError as error:
        if values:
            raise UsageError(f"{file}:{number}: not JSON: {error}") from error
    if not values:
        raise UsageError(f"{file}: not JSON: {of_whole}", hint=RIGHT) from of_whole
    return values


def rows_of(text: str) -> list[object]:
    """Return the rows of a CSV text as mappings, with numbers where they are some."""
    return [{k: number_or_text(v) for k, v in row.items() if k} for row in csv.DictReader(io.StringIO(text))]


def number_or_text(text: str | None) -> object:
    try:
        value = float(text or "")
    except ValueError:
        return text
    return value if math.isfinite(value) else None


def results_in(file: Path, data: object) -> list[Result]:
    """Return every result in `data`. Raises UsageError if there is none, InvalidResult if one contradicts itself."""
    results = [result_of(file, tool, item, name) for tool, item, name in items_in(data)]
    if results:
        return results
    hint = f"results are read of {READ}; a run of specgate is named by its folder"
    raise UsageError(f"{file}: holds no result that is known", hint=hint)


def items_in(data: object, name: str = "") -> Iterator[tuple[Tool, Mapping[str, Any], str]]:
    """Yield every result in `data` with its tool, and its name in the file."""
    if isinstance(data, list):
        for i, item in enumerate(data):
            yield from items_in(item, f"{name}[{i}]")
    elif isinstance(data, dict):
        if tool := tool_of(data):
            yield tool, data, name
        else:
            for key, item in data.items():
                if isinstance(item, dict | list):
                    yield from items_in(item, f" {visible(str(key))}")


def result_of(file: Path, tool: Tool, data: Mapping[str, Any], key: str) -> Result:
    """Return the result `data` of `tool`."""
    script = script_of(str(file), data, key.strip()) if tool is SCRIPTS else None
    name = script.name if script and script.name else text_of(data["label"]) if data.get("label") else tool.name + key
    numbers = Numbers(f"{file}: {name}", data)
    figures = {metric: values for metric, f in tool.figures.items() if (values := repetitions(numbers, metric, f))}
    if not any(rate in figures for rate in RATES):
        rate = next(figure.at for metric, figure in tool.figures.items() if metric in RATES)
        if numbers.of(rate) == 0:
            raise InvalidResult(f"{numbers.where}: {rate}: 0: nothing was generated")
    positions = at(data, tool.counts.positions) if tool.counts and tool.counts.positions else None
    stated = next((int(n) for p in tool.draft_length if (n := numbers.optional(p)) is not None), None)
    k = script.k if script else len(positions) if isinstance(positions, list) and positions else stated
    drafting = drafting_of(tool.counts, numbers, k) if tool.counts else None
    length = drafting.length if drafting else numbers.optional(tool.length) if tool.length else None
    speculates = True if drafting or length or k else False if tool.always else None
    least_k = k is None and drafting is not None and bool(drafting.drafted)
    if least_k and drafting:
        k = math.ceil(drafting.drafted / drafting.steps - 1e-9)
    return Result(
        tool=tool,
        name=name,
        figures={**figures, **dict(acceptance(drafting, length))},
        asked=stated_at(tool.asked, data),
        settings=stated_at(tool.settings, data),
        sizes=dict(sizes_of(tool, numbers)),
        drafting=drafting,
        length=length,
        k=0 if speculates is False else k,
        least_k=least_k,
        speculates=speculates,
        scenario=script.scenario if script else None,
        micro=bool(script and script.micro),
        failed=int((numbers.optional(tool.failed) if tool.failed else 0) or 0),
    )


def acceptance(drafting: Drafting | None, length: float | None) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield acceptance length and rate as figures."""
    if length is not None:
        yield "acceptance_length", (length,)
    if drafting and drafting.drafted:
        yield "draft_acceptance_rate", (drafting.accepted / drafting.drafted,)


def repetitions(numbers: Numbers, metric: str, figure: Figure) -> Sequence[float]:
    """Return the number of each repetition, or the one that there is; none if nothing is there, or 0 was measured.

    Raises InvalidResult where the stated mean is not theirs.
    """
    mean = numbers.optional(figure.at)
    each = at(numbers.data, figure.each) if figure.each else None
    values = [numbers.checked(figure.each, v) for v in each] if isinstance(each, list) else []
    if not mean:
        return ()
    if values and not math.isclose(mean, statistics.fmean(values), rel_tol=TOLERANCE):
        raise InvalidResult(f"{numbers.where}: {figure.at} = {mean:g}, but its values are {shown(each)}")
    scale = figure.scale if isinstance(figure.scale, float) else figure.scale(numbers.of)
    return [scale * value for value in values or [mean]]


def stated_at(paths: Sequence[str], data: object) -> Mapping[str, str]:
    """Return what stands at some paths, such as `{"request_rate": "inf", "max_concurrency": "8"}`."""
    stated = (part for path in paths for part in flat(path.rpartition(".")[2], at(data, path)))
    return {name: text_of(value if isinstance(value, str) else f"{value}") for name, value in stated}


def sizes_of(tool: Tool, numbers: Numbers) -> Iterator[tuple[str, float]]:
    """Yield (name, mean length in tokens) of the requests."""
    for name, paths in tool.sizes.items():
        total, *requests = (numbers.optional(path) for path in paths)
        if total and all(requests):
            yield name, total / math.prod(filter(None, requests))


def flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (name, value) of a value that is stated; of a mapping, those of its entries."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(str(key), inner)
    elif isinstance(value, str | int | float):
        yield name, value

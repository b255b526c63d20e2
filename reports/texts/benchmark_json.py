"""The report `benchmark_json`: each cell in the JSON form of `benchmark_speculative.py`, a file per cell.

Scripts that read that form, such as `check_perf_gates.py`, read a run then. The figures are those that the run judges:
of decoding alone in a micro run, of whole requests in a full one. A speed that may not be quoted has `mean: null`.
`runs check` reads the files back.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specgate.analysis.rows import withheld
from specgate.contract import CellResult, Policy, Run
from specgate.files.writing import json_text

GB: Final = 1e9
KILO: Final = 1024


class BenchmarkJson:
    """A `protocols.Report` that is also `protocols.Separate`."""

    name = "benchmark_json"
    filename = None

    def render(self, run: Run, policy: Policy) -> str:
        return json_text(dict(named_results(run)))

    def render_each(self, run: Run) -> Mapping[str, str]:
        return {f"{name.lower()}.json": json_text(result) for name, result in named_results(run)}


def named_results(run: Run) -> Iterator[tuple[str, dict[str, object]]]:
    """(name, result) of every cell with figures. Of cells that would have one name, the scenario stands behind it."""
    measured = [result for result in run.cells if result.status != "failed"]
    names = [name_of(result) for result in measured]
    for name, result in zip(names, measured, strict=True):
        point = result.cell.point
        unique = name if names.count(name) == 1 else f"{name}_{point.scenario}"
        yield unique, result_of(run, result, unique)


def name_of(result: CellResult) -> str:
    """`Speculative_Batch4_Context16K_3tokens`, with the rate of an open loop and the role's variant behind it."""
    point, role = result.cell.point, result.cell.role
    batch = f"Batch{point.batch}" if point.batch > 1 else "Single"
    context = f"{point.context // KILO}K" if point.context % KILO == 0 else str(point.context)
    start, end = ("Speculative", f"_{role.k}tokens") if role.speculative else ("Baseline", "")
    variant = role.name.partition("+")[2]
    rate = "" if point.rate is None else f"_{point.rate:g}_per_second"
    return f"{start}_{batch}_Context{context}{end}{rate}" + (f"_{variant}" if variant else "")


def result_of(run: Run, result: CellResult, name: str) -> dict[str, object]:
    """The result of one cell."""
    cell, scenario = result.cell, run.scenarios[result.cell.point.scenario]
    budget, engine = scenario.budget, run.engines.get(cell.point.key)
    speculation, measures = speculation_of(result), "requests" if scenario.whole_requests else "decoding"
    return {
        "latency_ms_per_token": spread([1e3 / speed for speed in speeds(run, result)]),
        "throughput_tokens_per_sec": spread(speeds(run, result)),
        "memory_gb": memory(run, result),
        "total_runs": result.blocks,
        **({"eagle_speculation": speculation} if speculation else {}),
        "scenario": {
            "name": name,
            "batch_size": cell.point.batch,
            "context_length": cell.point.context,
            "max_new_tokens": budget.new_tokens if budget.new_tokens is not None else budget.steps,
            "use_speculation": cell.role.speculative,
            "num_spec_tokens": cell.role.k,
            "perf_mode": scenario.perf_mode,
            "micro_run": run.kind == "micro",
        },
        "system": {
            "gpu_name": gpu(run, "name"),
            "gpu_memory_total_gb": in_gb(gpu(run, "memory_bytes")),
            "timestamp": run.started,
            "turbomind_build_id": engine.engine_version if engine else None,
        },
        "specgate": {"run": run.id, "cell": cell.key, "measures": measures},
    }


def speeds(run: Run, result: CellResult) -> list[float]:
    """Tokens per second of all requests together: of every block where only decoding counts, else their median. None
    where no speed may be quoted.
    """
    if withheld(run, result.cell):
        return []
    if run.scenarios[result.cell.point.scenario].whole_requests:
        whole = result.values.get("output_tok_s")
        return [whole.value] if whole is not None and whole.value is not None else []
    return [result.cell.point.batch * 1e3 / ms for _, _, ms in result.series_ms if ms]


def spread(values: Sequence[float]) -> dict[str, object]:
    """The mean of the values, the least, the largest, and each; None of none."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "values": list(values),
    }


def memory(run: Run, result: CellResult) -> dict[str, object]:
    """The most GPU memory that the engine held, in GB; else what was in use on the GPU at all; None on a CPU."""
    peaks = (result.values.get(name) for name in ("peak_gpu_memory_bytes", "peak_device_memory_bytes"))
    peak_gb = in_gb(next((peak.value for peak in peaks if peak is not None and peak.value is not None), None))
    total = in_gb(gpu(run, "memory_bytes"))
    share = 100 * peak_gb / total if peak_gb is not None and total else None
    return {"mean": peak_gb, "max": peak_gb, "utilization_pct": share}


def in_gb(size: object) -> float | None:
    return size / GB if isinstance(size, int | float) else None


def gpu(run: Run, key: str) -> object:
    """A fact of the first GPU; None where there is none."""
    gpus = run.environment.get("gpus")
    first = gpus[0] if isinstance(gpus, list) and gpus else None
    return first.get(key) if isinstance(first, Mapping) else None


def speculation_of(result: CellResult) -> dict[str, object] | None:
    """The block `eagle_speculation`; None of a baseline, and where nothing was drafted. Accepted tokens are counted as
    the engine's own script does, whose floors are of that count. Steps that need not have a draft are among its steps,
    since the acceptance length is over them.
    """
    record = result.acceptance
    if record is None or not record.steps:
        return None
    steps, share = record.counted_steps, record.multi_token_share
    reported = result.values.get("reported_acceptance_length")
    accepted = record.accepted
    if reported is not None and reported.value is not None:
        accepted = round((reported.value - 1) * record.steps)
    return {
        "enabled": True,
        "num_drafts": steps,
        "total_draft_tokens": record.drafted,
        "total_accepted_tokens": accepted,
        "mean_acceptance_rate": accepted / record.drafted,
        "mean_acceptance_length": 1 + accepted / steps,
        "num_spec_tokens": record.k,
        "fraction_steps_accept_ge2": None if share is None else share * record.steps / steps,
    }


REPORT = BenchmarkJson()

"""The reports `metrics_csv` and `summary_csv`.

metrics.csv is in long form: one row per value, with columns that stay the same in later versions. summary.csv is in
wide form: one row per cell.

Both are UTF-8 with `\\n` line ends and `.` as decimal sign; an empty field is a missing value. Text that a spreadsheet
would take for a formula gets a leading apostrophe.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from specgate.analysis.grouping import grouped
from specgate.analysis.intervals.other_prompts import SPEEDUP_LIKE_THESE
from specgate.analysis.rows import Row, Scalar, identity, withheld
from specgate.contract import BASELINE, Cell, CellResult, Comparison, Policy, Run, State, Value, Verdict
from specgate.contract.load import BreakEven, MaxGoodput
from specgate.contract.metrics import PER_REQUEST, STATISTICS, TIMES_OVER, metric, per_request
from specgate.contract.protocols import visible

SCHEMA = "specgate.metrics/v1"


def _figures(*names: str) -> Mapping[str, str]:
    """Return metric → its definition."""
    return {name: metric(name).definition for name in names}


_IDENTITY: Mapping[str, str] = {
    "run_id": "the run",
    "kind": "`micro`, `full` or `load`",
    "scenario": "the scenario, without its variant",
    "backend": "the back end",
    "role": "`baseline` or `spec-K`, with the variant",
    "context_len": "prompt length, tokens",
    "batch": "prompts decoded together; clients under load",
    "k": "draft tokens per cycle; 0 for the baseline",
}
_RATE: Mapping[str, str] = {"rate": "requests per second of an open loop"}
_SOURCE: Mapping[str, str] = {
    "acceptance_source": "`real`, `planted`, `stand-in`, `forced` or `scripted`, in rows of spec cells"
}
METRIC_COLUMNS: Mapping[str, str] = {
    "schema": "`specgate.metrics/v1`",
    **_IDENTITY,
    "pair": "number of the pair, in rows with `stat` `block` or `pair`",
    "slot": "the block's position in its round",
    "block": "the block's number",
    "metric": "name of the figure",
    "stat": "how it was taken from the samples",
    "value": "the figure",
    "unit": "its unit",
    "direction": "what is better: `higher`, `lower`, `equal` or `none`",
    "n": "how many samples it comes from",
    "ci_low": "lower end of its interval",
    "ci_high": "upper end of its interval",
    "baseline": "the same figure of the baseline cell",
    "ratio": "the figure over the baseline's; none of times beside refused requests",
    "margin": "the bound that the worst verdict on it applied",
    "verdict": "the worst verdict on it",
    "reason_code": "the verdict's reason, or why there is no figure",
    **_SOURCE,
    **_RATE,
}
"""Column of metrics.csv → meaning."""
SUMMARY_COLUMNS: Mapping[str, str] = {
    **_IDENTITY,
    "status": "`ok`, or why the cell has no figures",
    "blocks": "measured blocks",
    **_SOURCE,
    "acceptance_ci_low": "lower end of the interval of `acceptance_length`",
    "acceptance_ci_high": "upper end of it",
    **_figures("acceptance_length", "draft_acceptance_rate", "emitted_per_step", "output_tok_s"),
    **_figures("output_tok_s_per_user", "step_ms", "prefill_tok_s"),
    **_figures("repeated_8gram_share", "joules_per_token", "speedup_vs_ar_ratio"),
    "speedup_ci_low": "lower end of the interval of the speed-up that the run judges",
    "speedup_ci_high": "upper end of it",
    "like_these_ci_low": "lower end of the interval of `speedup_like_these_ratio`, over prompt sets",
    "like_these_ci_high": "upper end of it",
    "pairs": "pairs of blocks behind that speed-up",
    "compared_tokens": "tokens that were compared with the baseline's",
    "mismatches": "first tokens that differ and are no near ties",
    "near_ties": "first tokens that differ and are near ties",
    "verdict": "the worst verdict on the cell",
    "reason_code": "its reason",
    **_figures("decode_tok_s", "decode_tok_s_per_user"),
    **_figures(*(per_request(statistic, quantity) for quantity in PER_REQUEST for statistic in STATISTICS)),
    **_figures("goodput_share", "goodput_req_s", *TIMES_OVER[1:]),
    **_figures("joint_decode_tok_s", "joint_tpot_ms", "joint_decode_share"),
    **_RATE,
}
"""Column of summary.csv → meaning. New columns are added at the end."""
FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")
"""First characters of a formula. The last four are full-width forms, which some spreadsheets treat alike."""
_SEVERITY = (
    State.INVALID, State.ENV_REJECTED, State.FAIL, State.INCONCLUSIVE, State.NOT_JUDGED, State.PASS, State.IMPROVED,
    State.SKIPPED,
)  # fmt: skip


def metric_rows(run: Run) -> Iterator[Row]:
    """The rows of metrics.csv: one per value of each cell, then one per sample; and one per break-even of a sweep."""
    verdicts = grouped(run.verdicts, lambda verdict: verdict.cell)
    for result in run.cells:
        comparison = run.comparison(result.cell.key)
        baseline = run.result(Cell(result.cell.point, BASELINE).key)
        mine = verdicts[result.cell.key]
        ratios = [comparison.speedup, *comparison.beside] if comparison else []
        values = [*result.values.values(), *ratios]
        for value in values:
            yield {
                **identity(run, result.cell),
                **columns_of(value),
                **against(value, result, baseline),
                **judged(mine, value),
            }
        yield from sample_rows(run, result, comparison)
    yield from sweep_rows(run)


def sweep_rows(run: Run) -> Iterator[Row]:
    """The break-even and the greatest load within limits of every sweep, without `batch` and `rate`, since they speak
    of all levels.
    """
    cells = {result.cell.key: result.cell for result in run.cells}
    sweeps: list[tuple[str, BreakEven | MaxGoodput, int]] = [
        *(("break_even_level", sweep, sum(level.pairs for level in sweep.levels)) for sweep in run.break_even),
        *(("max_goodput_level", most, sum(level.requests for level in most.levels)) for most in run.max_goodput),
    ]
    for name, of, samples in sweeps:
        value = Value(name, of.value, of.outcome, samples, of.low, of.high)
        yield {**identity(run, cells[of.levels[0].cell]), "batch": None, "rate": None, **columns_of(value)}


def sample_rows(run: Run, result: CellResult, comparison: Comparison | None) -> Iterator[Row]:
    """The samples behind a cell's figures: the time per token of every block, and the speed-up of every pair."""
    head = identity(run, result.cell)
    if not withheld(run, result.cell):
        for i, (pair, slot, ms) in enumerate(result.series_ms):
            yield {
                **head,
                "pair": pair,
                "slot": slot,
                "block": i,
                **columns_of(Value("decode_ms_per_token", ms, "block")),
            }
        for pair, log_ratio in zip(comparison.turns, comparison.log_ratios, strict=True) if comparison else ():
            assert comparison is not None
            value = Value(comparison.speedup.metric, math.exp(log_ratio), "pair")
            yield {**head, "pair": pair, **columns_of(value)}


def columns_of(value: Value) -> Row:
    """The columns of one value."""
    kind = metric(value.metric)
    return {
        "schema": SCHEMA,
        "metric": value.metric,
        "stat": value.stat,
        "value": value.value,
        "unit": kind.unit,
        "direction": kind.direction,
        "n": value.n,
        "ci_low": value.ci_low,
        "ci_high": value.ci_high,
        "reason_code": value.reason_code,
    }


def against(value: Value, result: CellResult, baseline: CellResult | None) -> Row:
    """The columns that compare a value of `result` with the baseline's; none if the baseline has no such value. Times
    beside refused requests have no ratio.
    """
    other = baseline.values.get(value.metric) if baseline else None
    if baseline is None or other is None or other.value is None:
        return {}
    columns: dict[str, Scalar] = {"baseline": other.value, "ratio": None}
    unfair = metric(value.metric).unit == "ms" and (result.refused or baseline.refused)
    if value.value is None or not other.value or unfair:
        return columns
    return {**columns, "ratio": value.value / other.value}


def judged(verdicts: Iterable[Verdict], value: Value) -> Row:
    """The columns of the worst of a cell's `verdicts` that name this metric in their evidence, with the bound that it
    applied.
    """
    verdict = worst(v for v in verdicts if value.metric in v.evidence)
    if verdict is None:
        return {}
    columns: dict[str, Scalar] = {
        "margin": verdict.evidence.get("min", verdict.evidence.get("max")),
        "verdict": verdict.state.value,
    }
    return columns if value.reason_code else {**columns, "reason_code": verdict.reason_code}


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The first verdict of the gravest state; None if there are no verdicts."""
    return min(verdicts, key=lambda v: _SEVERITY.index(v.state), default=None)


def summary_rows(run: Run) -> Iterator[Row]:
    """The rows of summary.csv: one per cell."""
    verdicts = grouped(run.verdicts, lambda verdict: verdict.cell)
    for result in run.cells:
        verdict = worst(verdicts[result.cell.key])
        yield {
            **summary_row(run, result),
            "verdict": verdict.state.value if verdict else None,
            "reason_code": verdict.reason_code if verdict else None,
        }


def summary_row(run: Run, result: CellResult) -> Row:
    """Return the figures of a cell, with None for those that it has not."""
    length = result.values.get("acceptance_length")
    return {
        **dict.fromkeys(SUMMARY_COLUMNS),
        **identity(run, result.cell),
        "status": result.status,
        "blocks": result.blocks,
        "acceptance_ci_low": length.ci_low if length else None,
        "acceptance_ci_high": length.ci_high if length else None,
        **{name: value.value for name, value in result.values.items() if name in SUMMARY_COLUMNS},
        **_paired(run.comparison(result.cell.key)),
    }


def _paired(comparison: Comparison | None) -> Row:
    if comparison is None:
        return {}
    speedup, tokens = comparison.speedup, comparison.tokens
    others = next((v for v in comparison.beside if v.metric == SPEEDUP_LIKE_THESE), None)
    return {
        **{ratio.metric: ratio.value for ratio in (speedup, *comparison.beside)},
        "speedup_ci_low": speedup.ci_low,
        "speedup_ci_high": speedup.ci_high,
        "like_these_ci_low": others.ci_low if others else None,
        "like_these_ci_high": others.ci_high if others else None,
        "pairs": speedup.n,
        "compared_tokens": tokens.compared_tokens,
        "mismatches": len(tokens.mismatches),
        "near_ties": len(tokens.divergences) - len(tokens.mismatches),
    }


def table(rows: Iterable[Row], columns: Sequence[str] | None = None) -> str:
    """Return `rows` as CSV text with these columns; by default with those of the rows. What a row lacks is empty."""
    cells = [{column: inert(value) for column, value in row.items()} for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(dict.fromkeys(chain(*cells))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue()


def inert(value: Scalar) -> Scalar:
    """`value` with control characters as escapes, and with a leading apostrophe if it begins like a formula: a
    spreadsheet must not run what it opens.
    """
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if value[:1] in FORMULA_STARTS else value)


@dataclass(frozen=True, slots=True)
class CsvReport:
    """An `protocols.Report` that is one table. It is also `protocols.Combined`: the column `run_id` tells several runs
    apart.
    """

    name: str
    filename: str
    rows: Callable[[Run], Iterator[Row]]
    columns: Mapping[str, str]

    def render(self, run: Run, policy: Policy) -> str:
        return self.render_all([run])

    def render_all(self, runs: Sequence[Run]) -> str:
        return table((row for run in runs for row in self.rows(run)), tuple(self.columns))


METRICS = CsvReport("metrics_csv", "metrics.csv", metric_rows, METRIC_COLUMNS)
SUMMARY = CsvReport("summary_csv", "summary.csv", summary_rows, SUMMARY_COLUMNS)

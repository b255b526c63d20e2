"""A stored run as pandas tables, for notebooks and scripts (`specgate.open_run`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate import plugins
from specgate.analysis.rows import BLOCKS, REQUESTS, VERDICTS, Row, block_rows, request_rows, verdict_rows
from specgate.archive.stored_runs import StoredRun
from specgate.contract import Block, Run
from specgate.contract.protocols import Tabular
from specgate.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

TEXTS: Final = (
    *("schema", "run_id", "kind", "scenario", "backend", "role", "acceptance_source", "status", "finish"),
    *("rule", "gate", "state", "verdict", "reason_code", "message", "next_step"),
    *("metric", "stat", "unit", "direction"),
)
COUNTS: Final = (
    *("context_len", "batch", "k", "blocks", "pairs", "pair", "slot", "block", "n", "compared_tokens", "mismatches"),
    *("near_ties", "prompt_set", "round", "position_in_round", "session", "prompt", "prompt_tokens", "output_tokens"),
    *("requests", "emitted", "prefix_hit_tokens", "num_drafts", "undrafted"),
    *("total_draft_tokens", "total_accepted_tokens"),
)
FLAGS: Final = ("required", "set_aside")
"""Columns by what they hold. All others are numbers."""
DTYPES: Final = {**dict.fromkeys(TEXTS, "string"), **dict.fromkeys(COUNTS, "Int64"), **dict.fromkeys(FLAGS, "boolean")}


@dataclass(frozen=True)
class RunTables:
    """A stored run as tables. Each is computed when it is first read; nothing in the run's folder is written.

    A column is of dtype `string`, `Int64`, `boolean` or, for any other number, `float64`. What is missing is `pd.NA` in
    the first three, NaN in the last. No time is stated where tokens are wrong, and no block of a cell whose records
    contradict themselves. Texts are as they were stored: other programs wrote some of them.

    Every table but `verdicts` begins with the columns that name a cell: `run_id`, `kind` (`micro`, `full` or `load`),
    `scenario`, `backend`, `role` (`baseline`, `spec-3`, `spec-3+VARIANT`), `context_len` (prompt tokens), `batch` and
    `k` (draft tokens of a step), and has `acceptance_source` and `rate` (requests per second of an open loop).
    """

    stored: StoredRun

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.stored.path

    @property
    def run(self) -> Run:
        """The run as gates and reports see it."""
        return self.stored.run

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell, with the columns of summary.csv.

        `status` and `blocks`, how much of it was measured. Figures by their names in `specgate.contract.metrics`, which
        has units and definitions: `*_ms` in milliseconds, `*_tok_s` in tokens per second, ratios and shares as numbers.
        `acceptance_ci_low`, `acceptance_ci_high` and `speedup_ci_low`, `speedup_ci_high` are ends of 95 % intervals,
        `pairs` how many block pairs the speed-up rests on. `compared_tokens`, `mismatches` and `near_ties` are of the
        token check, `verdict` and `reason_code` of the worst verdict. A figure that may not be quoted is NaN.
        """
        return self._report("summary_csv")

    @cached_property
    def figures(self) -> pd.DataFrame:
        """One row per figure of a cell, with the columns of metrics.csv: the cells in long form.

        `metric`, `stat`, `value`, `unit`, `direction`, `n` samples, 95 % interval `ci_low` to `ci_high`; then what it
        was compared with (`baseline`, `ratio`, `margin`, `verdict`) and why there is no value (`reason_code`). Rows
        with a `block` or a `pair` are the samples behind it.
        """
        return self._report("metrics_csv")

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """One row per measured block, without warm-up: one decode run of one role on one prompt set.

        `prompt_set`, `round`, `position_in_round`, `session` (engine process): when it ran. `set_aside`: its times are
        in no figure, since the host was disturbed. `requests` in it, tokens `emitted` after the first of each,
        `prefill_ms` and `elapsed_ms` (decoding), `decode_tok_s`, and for whole requests `output_tok_s`. Of speculation:
        `num_drafts` (request-steps with a draft), `undrafted` (without), `total_draft_tokens`, `total_accepted_tokens`.
        """
        return frame(block_rows(self.run, self._blocks), BLOCKS)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per answered request of a measured block, named as in `blocks`.

        `slot` in the batch, `prompt` of the prompt set, `prompt_tokens`, `output_tokens`, `finish` (`steps`, `length`,
        `eos`, `stop`). `ttft_ms`, `tpot_ms` and `e2e_ms` as docs/definitions.md has them; the first and the last are
        missing where a request has no prefill of its own. `prefix_hit_tokens`: prompt tokens from a prefix cache, where
        a server tells. Counts of drafts as in `blocks`; missing where a server counts requests together.
        """
        return frame(request_rows(self.run, self._blocks), REQUESTS)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per verdict: the cell (missing where it is on the whole run), `rule`, `gate`, `state`, `required`,
        `reason_code`, `message` and `next_step`.
        """
        return frame(verdict_rows(self.run), VERDICTS)

    @cached_property
    def _blocks(self) -> list[Block]:
        return self.stored.blocks()

    def _report(self, name: str) -> pd.DataFrame:
        report = plugins.report(name)
        if not isinstance(report, Tabular):
            raise UsageError(f"report {name} is not a table: it has no rows and columns")
        return frame(report.rows(self.run), report.columns)


def frame(rows: Iterable[Row], columns: Sequence[str]) -> pd.DataFrame:
    """Return `rows` as a table with these columns, each with its dtype. What a row lacks is missing."""
    import pandas as pd

    table = pd.DataFrame(map(dict, rows), columns=list(columns), dtype=object)
    return table.astype({column: DTYPES.get(column, "float64") for column in columns})

"""The engines that stand side by side: what each run was made with."""

from __future__ import annotations

from collections.abc import Sequence

from specgate.contract.matrix import Column
from specgate.reports.common import figures, provenance
from specgate.reports.common.parts import Table

HEAD = ("engine", "version", "device", "dtype", "capture layers", "acceptance", "commit", "run")


def engine_table(columns: Sequence[Column]) -> Table:
    rows = [[str(value or figures.NONE) for value in list(facts(c).values())[: len(HEAD)]] for c in columns]
    return Table(HEAD, rows, texts=len(HEAD))


def facts(column: Column) -> dict[str, object]:
    """Return the facts of an engine: first the columns of the table, then what only files have."""
    engine, run = column.engine, column.run
    return {
        "engine": column.label,
        "version": engine.engine_version or engine.details.get(f"{engine.backend} version") if engine else None,
        "device": engine.device if engine else None,
        "dtype": engine.dtype if engine else None,
        "capture_rule": engine.capture_rule if engine else None,
        "acceptance_source": run.acceptance,
        "commit": provenance.commit(run),
        "run_id": run.id,
        "target_sha256": engine.target_sha256 if engine else None,
        "draft_sha256": engine.draft_sha256 if engine else None,
        "warnings": list(column.warnings),
        "cut_short": column.cut_short,
    }

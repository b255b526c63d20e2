"""Checks of a run's tokens beside its timed blocks, in words and as a table."""

from __future__ import annotations

from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.contract import Comparison, Run, ScoreCheck
from specgate.reports.common.figures import NONE, in_minutes
from specgate.reports.common.parts import Table

_NAMES: Final = {
    "text": "the baseline's text",
    "logits": "logits",
    "rescoring": "a second engine",
    "draws": "drawn texts",
}
"""Key of `Run.check_seconds` → what took that long."""
_MINUTES: Final = {"starts": "starting", "first": "first answers", "warmup": "untimed blocks", "measured": "measured"}
"""Key of `Run.check_seconds` → what took that long, beside the checks."""


def table(run: Run) -> Table:
    """One row per cell: what its tokens and logits were compared with, and what a second engine says of them."""
    head = ("cell", "compared", "of", "logits equal", "scored by", "scored", "greedy", "near ties", "wrong")
    rows = []
    for result in run.cells:
        score, comparison = result.rescored, run.comparison(result.cell.key)
        if score is not None or comparison is not None:
            rows.append([cell_name(result.cell.key, run.scenarios), *compared(comparison), *scored(score)])
    return Table(head, rows)


def compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return [NONE] * 3
    check = comparison.tokens
    logits = f"{check.logits.compared - check.logits.different} of {check.logits.compared}" if check.logits else NONE
    return [f"{check.compared_tokens:,}", f"{check.emitted_tokens:,}", logits]


def scored(score: ScoreCheck | None) -> list[str]:
    if score is None or score.unscored is not None:
        return ["nobody", *[NONE] * 4]
    unknown = score.law.unknown if score.law else 0
    greedy = score.scored - score.near_ties - score.wrong - unknown
    return [score.engine, *map(str, (score.scored, greedy, score.near_ties, score.wrong))]


def own_word(run: Run) -> str | None:
    """Return the reasons why nobody else scored the tokens of some cells; None if all were scored."""
    whys = {r.rescored.unscored.splitlines()[0]: None for r in run.cells if r.rescored and r.rescored.unscored}
    return f"the tokens are the engine's own word: {'; '.join(whys)}" if whys else None


def cost(run: Run) -> str | None:
    """Return where the time of a run went, in one sentence; None if no start and no check took any."""
    spent = {name: run.check_seconds.get(key, 0.0) for key, name in _NAMES.items()}
    took = [f"{name} {seconds:.1f} s" for name, seconds in spent.items() if seconds >= 0.05]
    if "starts" in run.check_seconds:
        parts = {name: run.check_seconds[key] for key, name in _MINUTES.items()} | {"checks": sum(spent.values())}
        words = ", ".join(f"{in_minutes(seconds)} {name}" for name, seconds in parts.items() if seconds >= 0.1)
        return f"measuring took {in_minutes(sum(parts.values()))}: {words}" + (
            f" ({', '.join(took)})" if len(took) > 1 else ""
        )
    blocks = run.check_seconds.get("blocks", 0.0)
    return f"checked beside the blocks, which took {blocks:.1f} s: {', '.join(took)}" if took else None


def sampled(run: Run) -> str | None:
    """Return a note if the run compared only a sample of its texts; None if it compared them whole."""
    if run.sampled_after is None:
        return None
    return f"texts are compared whole for one prompt set of every point, as after the green run {run.sampled_after}"

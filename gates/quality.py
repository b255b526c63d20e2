"""Gate `quality`: does a lossy method answer as many questions rightly as plain decoding?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from specgate.analysis.quality.scores import CHANGE, CUT, LOST, SCORE, WON, Pairs
from specgate.contract import CellResult, Rule, RunView, State, Verdict
from specgate.gates.select import CellGate, verdict

ERROR: Final = 0.005
"""The chance that a cell passes whose true loss is the margin, and that one fails."""
KEYS: Final = "prompts with an answer key (gsm8k, math, choices, or `answer` beside `text`) in a full run"


class Quality(CellGate):
    """`max_loss`: the largest loss of `exact_match` against the baseline, as a share of all questions: 0.02 allows two
    of a hundred.

    PASS where the whole 99 % interval of the change lies above the loss, FAIL where it lies below, else INCONCLUSIVE.
    """

    name = "quality"
    kinds = ("quality",)
    only_speculative = True
    needs = "the answers to questions with a key"
    params: Mapping[str, type] = {"max_loss": float}

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a loss that is no share."""
        if not 0 <= float(rule.params["max_loss"]) < 1:
            yield "max_loss", "a share of the questions: at least 0 and below 1"

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, most = result.cell.key, float(rule.params["max_loss"])
        if run.acceptance == "forced":
            message = "acceptance was forced: the text is wrong by design"
            return verdict(rule, key, State.SKIPPED, "forced_acceptance", message)
        if (pairs := pairs_of(result)) is None:
            message = "no question was answered by baseline and spec whose right answer is known"
            return verdict(rule, key, State.NOT_JUDGED, "no_answers", message, next_step=KEYS)
        low, high = pairs.interval(ERROR)
        base = (pairs.both + pairs.lost) / pairs.questions
        evidence = {
            "exact_match_change": pairs.change,
            "max_loss": most,
            "ci_low": low,
            "ci_high": high,
            "questions": pairs.questions,
            "baseline": base,
            "lost": pairs.lost,
            "won": pairs.won,
        }
        message = (
            f"{100 * (base + pairs.change):.1f} % of {pairs.questions} answers are right, {100 * base:.1f} % without "
            f"speculation: {pairs.lost} lost, {pairs.won} won, {100 * pairs.change:+.1f} points, 99 % interval "
            f"{100 * low:+.1f} to {100 * high:+.1f}"
        )
        cut = result.values.get(CUT)
        if cut is not None and cut.value:
            message += f"; {cut.value:.0f} texts ended at the token budget"
        if low >= -most:
            return verdict(rule, key, State.PASS, "loss_within_margin", message, evidence)
        if high < -most:
            step = "a stricter setting of the method, or a margin that its speed is worth"
            return verdict(rule, key, State.FAIL, "loss_beyond_margin", message, evidence, step)
        step = (
            f"more questions ({needed(pairs, low, most)}): the interval has to leave the loss of {100 * most:g} points"
        )
        return verdict(rule, key, State.INCONCLUSIVE, "loss_not_excluded", message, evidence, step)


def pairs_of(result: CellResult) -> Pairs | None:
    """The questions that both answered, from the figures of a spec cell; None where there are none."""
    lost, won, score = (result.values.get(name) for name in (LOST, WON, SCORE))
    change = result.values.get(CHANGE)
    if lost is None or won is None or score is None or change is None or None in (lost.value, won.value, score.value):
        return None
    spec = round((score.value or 0.0) * score.n)
    a, b = round(lost.value or 0.0), round(won.value or 0.0)
    return Pairs(spec - b, a, b, change.n - spec - a)


def needed(pairs: Pairs, low: float, most: float) -> str:
    """The number of questions that would decide if the change stays: the interval shrinks with their root."""
    gap = abs(pairs.change + most)
    if not gap:
        return "many"
    return f"about {max(pairs.questions + 1, round(pairs.questions * ((pairs.change - low) / gap) ** 2)):,} in all"


GATE = Quality()

"""Describe the result of a sweep in words: the same sentence in a verdict and in every report."""

from __future__ import annotations

from specgate.contract.load import BreakEven, LevelRatio

CLIENTS = "clients"
RATE = "requests/s"


def unit_of(open_loop: bool) -> str:
    """Unit of the levels of a sweep."""
    return RATE if open_loop else CLIENTS


def in_words(break_even: BreakEven) -> str:
    """The break-even of a sweep, and the levels of which it says nothing, since their ratio has no interval."""
    unit = unit_of(break_even.open_loop)
    judged = [level for level in break_even.levels if level.ci_low is not None]
    known = [level.level for level in judged]
    without = ", ".join(f"{level.level:g}" for level in break_even.levels if level not in judged)
    if not known:
        return f"speculation is not told from the baseline at any level: nothing is known of {without} {unit}"
    first, last = known[0], known[-1]
    whole, level = f"from {first:g} to {last:g} {unit}", "known level" if without else "level"
    at = "the estimate lies outside" if break_even.value is None else f"the estimate is {break_even.value:.3g}"
    low, high = bound(break_even.low, f"below {first:g}"), bound(break_even.high, f"beyond {last:g}")
    interval = f"{100 * break_even.confidence:.4g} % interval {low} to {high}"
    stops = f"speculation stops paying at {bound(break_even.value, '?')} {unit}, {interval}"
    sentence = {
        "everywhere": f"speculation pays at every {level} {whole}",
        "nowhere": f"speculation costs at every {level} {whole}",
        "crosses": stops,
        "beyond": f"speculation pays up to {low} {unit} at least; where it stops is not told ({at})",
        "below": f"speculation costs from {high} {unit} on; where it begins to is not told ({at})",
        "mixed": f"speculation costs at one level and pays at a greater one, {whole}",
        "partly": f"speculation is told from the baseline at some levels only, {whole}",
        "unclear": f"speculation is not told from the baseline at any {level} {whole}",
    }[break_even.outcome]
    return f"{sentence}; nothing is known of {without} {unit}" if without else sentence


def bound(value: float | None, none: str) -> str:
    return none if value is None else f"{value:.3g}"


def level_in_words(level: LevelRatio, unit: str) -> str:
    """The ratio at one level, with its interval."""
    span = "" if level.ci_low is None or level.ci_high is None else f" ({level.ci_low:.3f}–{level.ci_high:.3f})"
    ratio = "no ratio" if level.ratio is None else f"{level.ratio:.3f}x"
    return f"{ratio}{span} at {level.level:g} {unit}"

"""The view `variants`: a row per role and variant, what each gives and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from specgate.analysis.machine.memory import size_in_words
from specgate.analysis.rows import Row
from specgate.analysis.tradeoff import MEMORY, Group, Mode
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table
from specgate.reports.common.tables import speedup_entry
from specgate.reports.common.variants import BESIDE
from specgate.reports.sheets.formats import SheetView
from specgate.reports.sheets.sheet import Section, Sheet
from specgate.reports.texts.csv import summary_row

PLACE = ("scenario", "context", "batch")
SPEED = ("tok/s", "of plain", "over own baseline", "acceptance length", "target passes per token")
BYTES = ("cache read per token", "cache held", "memory", "equal to own baseline", "equal to plain")
CHOICES = (
    *(*PLACE, "cache in a plain step", "half of it from"),
    *("fastest with plain decoding's text", "fastest of all", "reads the least cache per token"),
)
EQUAL_SAID = (
    "Equal: the share of tokens before the first one that is another, of the role's own baseline (same cache, same "
    "sampling) and of plain decoding without the variant, as far as both texts go. Behind it texts are different ones, "
    "so the share falls with their length. A dash where tokens are drawn, or not all could be compared."
)
READ_SAID = (
    "Cache read: bytes of the target's keys and values that its passes must read, over the tokens emitted, by the "
    "engine's own traffic and counts. Held: keys and values of target and draft at the end of the longest block, all "
    "requests together. Memory: the most that the engine's processes held."
)
CHOICES_SAID = (
    "What is cached is read for every token, and what is saved of it saves time only where it is much of a step's "
    "bytes: the share is that of plain decoding at this context, and from the stated context on it is more than half."
)


def sheet(groups: Sequence[Group]) -> Sheet:
    count = sum(len(group.modes) for group in groups)
    ids = ", ".join(dict.fromkeys(group.run.id for group in groups))
    return Sheet(
        title="Trade-offs",
        subtitle=f"{count} roles at {len(groups)} points of {ids}",
        ending=None,
        banners=list(banners(groups)),
        sections=[
            Section("Speed and acceptance", table(groups, SPEED, speeds)),
            Section("Cache, memory and text", table(groups, BYTES, bytes_and_text), f"{READ_SAID} {EQUAL_SAID}"),
            Section("What to choose", Table(CHOICES, [choice_row(g) for g in groups]), CHOICES_SAID),
        ],
    )


def table(groups: Sequence[Group], head: Sequence[str], of: Callable[[Group, Mode], list[str | Entry]]) -> Table:
    """A row per role: where it was measured, what it is, and what `of` says of it under `head`."""
    rows = [
        [*place(group), Entry(mode.cell.role_name, mode.varies or None), *of(group, mode)]
        for group in groups
        for mode in group.modes
    ]
    return Table((*PLACE, "role", *head), rows, texts=4)


def banners(groups: Sequence[Group]) -> Iterator[str]:
    """Yield warnings that a reader of the figures needs."""
    modes = [mode for group in groups for mode in group.modes]
    if any(mode.cell.point.variant for mode in modes):
        yield BESIDE
    else:
        yield "No role has a variant here: `variants:` in a scenario measures some beside each other."
    lossy = dict.fromkeys(mode.cell.role_name for mode in modes if mode.lossy)
    if lossy:
        yield f"Tokens of {', '.join(lossy)} may differ from the baseline's, by the engine's own word."
    sources = dict.fromkeys(group.run.acceptance for group in groups)
    if any(source != "real" for source in sources):
        yield f"Acceptance is {', '.join(sources)}: it says nothing of a trained pair."


def place(group: Group) -> list[str]:
    return [group.scenario, f"{group.context:,}", str(group.batch)]


def speeds(group: Group, mode: Mode) -> list[str | Entry]:
    comparison = mode.comparison
    return [
        figures.of(mode.result, *figures.SPEED),
        times(group.times_plain(mode)),
        speedup_entry(comparison.speedup if comparison is not None else None),
        figures.of(mode.result, "acceptance_length"),
        passes(mode),
    ]


def bytes_and_text(group: Group, mode: Mode) -> list[str | Entry]:
    return [
        size(mode.read_bytes),
        size(mode.held_bytes),
        figures.of(mode.result, *MEMORY),
        figures.percent(mode.equal_to_own),
        figures.percent(mode.equal_to_plain),
    ]


def size(value: float | None) -> str:
    return figures.NONE if value is None else size_in_words(value)


def times(ratio: float | None) -> str:
    return figures.NONE if ratio is None else figures.ratio(ratio)


def passes(mode: Mode) -> str | Entry:
    counts = mode.passes
    if counts is None:
        return figures.NONE
    if not counts.partial:
        return f"{counts.full:.2f}"
    return Entry(f"{counts.full + counts.partial:.2f}", f"{counts.full:.2f} full, {counts.partial:.2f} partial")


def choice_row(group: Group) -> list[str | Entry]:
    fast = best(group.modes, lambda mode: mode.tok_s)
    return [
        *place(group),
        figures.percent(group.cache_share),
        figures.NONE if group.even_at is None else f"{group.even_at:,} positions",
        named(group, best(group.exact, lambda mode: mode.tok_s)),
        named(group, fast, "" if fast is None else text_of(group, fast)),
        named(group, best(group.modes, lambda mode: None if mode.read_bytes is None else -mode.read_bytes)),
    ]


def best(modes: Sequence[Mode], worth: Callable[[Mode], float | None]) -> Mode | None:
    """The mode that is worth most; None where nothing is known of any."""
    known = [(value, mode) for mode in modes if (value := worth(mode)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def named(group: Group, mode: Mode | None, note: str = "") -> str | Entry:
    if mode is None:
        return figures.NONE
    ratio = times(group.times_plain(mode))
    return Entry(mode.cell.role_name, ", ".join(filter(None, (f"{ratio} of plain", note))))


def text_of(group: Group, mode: Mode) -> str:
    """Return the share of a mode's text that is plain decoding's, in words."""
    if mode in group.exact:
        return "plain decoding's text"
    share = mode.equal_to_plain
    return "its tokens are drawn" if share is None else f"{figures.percent(share)} of the text"


def rows(groups: Sequence[Group]) -> Iterator[Row]:
    """Yield a row per role: what was measured, then what it is held against. Sizes are in bytes, shares from 0 to 1."""
    for group in groups:
        for mode in group.modes:
            values, passes = mode.result.values, mode.passes
            yield {
                **summary_row(group.run, mode.result),
                "variant": mode.cell.point.variant or None,
                "varies": mode.varies or None,
                "lossy": "yes" if mode.lossy else "no",
                "tok_s": mode.tok_s,
                "times_plain": group.times_plain(mode),
                **{name: values[name].value if name in values else None for name in MEMORY},
                "full_passes_per_token": passes.full if passes is not None else None,
                "partial_passes_per_token": passes.partial if passes is not None else None,
                "cache_read_bytes_per_token": mode.read_bytes,
                "cache_held_bytes": mode.held_bytes,
                "equal_to_own": mode.equal_to_own,
                "equal_to_plain": mode.equal_to_plain,
                "plain_cache_share": group.cache_share,
                "cache_half_from": group.even_at,
            }


VIEW: SheetView[Sequence[Group]] = SheetView("variants", sheet, lambda groups: {"roles": rows(groups)})

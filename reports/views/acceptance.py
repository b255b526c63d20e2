"""The view `acceptance`: acceptance over many requests, as a whole and by engine, class, context and position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.rows import Row
from specgate.analysis.speculation.summary import Acceptance, AcceptanceSummary, Group, Key, Layout, SummedRun
from specgate.analysis.tokens.repetition import LOOPS
from specgate.contract import Role, Value
from specgate.reports.common.figures import NONE, counted, percent
from specgate.reports.common.parts import Entry, Table
from specgate.reports.sheets.formats import SheetView, Tables
from specgate.reports.sheets.sheet import Section, Sheet

COUNTS: Final = (
    *("runs", "cells", "prompts", "requests", "num_drafts", "undrafted", "total_draft_tokens"),
    "total_accepted_tokens",
)
"""Counts of a summary that files have as they are."""
MOST: Final = f"{100 * LOOPS:.0f} %"
"""The largest share of repeats in a text that does not loop."""
FIGURES: Final = ("length", "cycles", "asked", "repeats")
WHOLE: Final = ("pair", "length", "per request", "of drafts", *FIGURES[1:])
"""Columns of tables by a key, and of the whole."""
NAMES: Final[Mapping[Key, str]] = {"engine": "engine", "class": "class", "context": "context_len"}
"""Key of a layout → its column."""
COUNTED: Final = (
    "Length: 1 + accepted / cycles that had a draft, or may have none; bonus token included, prefill token not. "
    "Below it: its 95 % interval on prompts like these, where there are three or more. Per request: the mean with one "
    "weight per request ± standard deviation. Of drafts: accepted / draft tokens. Asked: requests, and on how many "
    "prompts; rounds repeat the same text. Repeats: the share of 8-grams that occurred before in their text."
)
POSITIONS: Final = (
    "Accepted: of the cycles that proposed the draft. Given: of those that also accepted the draft before it. Below: "
    "95 % intervals on prompts like these."
)


def sheet(acceptance: Acceptance) -> Sheet:
    """The page: the whole, a table per key, then the runs."""
    requests = sum(run.requests for run in acceptance.runs)
    whole = acceptance.layouts[0].rows
    of = f" · {group_in_words(whole[0].group)}" if len(whole) == 1 else ""
    return Sheet(
        title="Acceptance",
        subtitle=f"{counted(requests, 'request')} of {counted(len(acceptance.runs), 'run')}{of} · no gate",
        ending=None,
        banners=list(banners(acceptance)),
        sections=[
            section(acceptance.layouts[0], several=len(whole) > 1),
            *looping(whole),
            *(section(layout, several=len(whole) > 1) for layout in acceptance.layouts[1:]),
            Section("Runs", runs(acceptance.runs), folded=True),
        ],
    )


def group_in_words(group: Group) -> str:
    """`demo, spec-3`; where acceptance is not a trained pair's, also where it comes from; and what is not greedy
    decoding with whole chains.
    """
    source = () if group.acceptance == "real" else (group.acceptance,)
    return ", ".join((group.pair, Role(group.k).name, *source, *([group.decoding] if group.decoding else [])))


def banners(acceptance: Acceptance) -> Iterator[str]:
    """Yield warnings that a reader of the figures needs."""
    rows = acceptance.layouts[0].rows
    looping, prompts = sum(s.looping_prompts for s in rows), sum(s.prompts for s in rows)
    if looping:
        yield (
            f"{looping} of {prompts} prompts have a text of which more than {MOST} of the 8-grams are repeats. Loops "
            "are easy to draft and inflate acceptance: read the lengths without them."
        )
    if len({s.group.acceptance for s in rows}) > 1 or rows[0].group.acceptance != "real":
        sources = " and ".join(dict.fromkeys(s.group.acceptance for s in rows))
        yield f"Acceptance is {sources}: figures of one source may be compared, those of two may not."
    for layout in acceptance.layouts:
        for unlike in layout.unlike:
            yield f"Engines were asked other prompts, so their rows are not like for like: {unlike}."
    for run in acceptance.runs:
        if run.cut_short:
            yield f"{run.id} was cut short: {run.cut_short}"
        yield from (f"Left out: {cell_name(cell)} of {run.id}: {why}" for cell, why in run.left_out.items())
        yield from (f"Another text than the baseline's: {cell_name(cell)} of {run.id}." for cell in run.other_text)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def section(layout: Layout, *, several: bool) -> Section:
    """One table. `several`: whether there is more than one pair, draft length or source of acceptance, so that rows say
    theirs.
    """
    if layout.by_position:
        return positions_section(layout)
    if layout.by is None:
        return Section("All requests", Table(WHOLE, [[name_of(s), *whole_figures(s)] for s in layout.rows]), COUNTED)
    loops = any(s.looping_prompts for s in layout.rows)
    head = (layout.by, *FIGURES, *(("without loops",) if loops else ()))
    rows = [[name_of(s, several), *figures_of(s), *([unlooped(s)] if loops else [])] for s in layout.rows]
    return Section(f"By {layout.by}", Table(head, rows))


def looping(whole: Sequence[AcceptanceSummary]) -> Iterator[Section]:
    """The groups with texts that loop, with and without these; nothing where none does."""
    rows: list[list[str | Entry]] = [
        [
            name_of(s),
            f"{s.looping_prompts} of {s.prompts}",
            percent(s.repeated_8gram_share),
            in_tokens(s.values.get("acceptance_length")),
            unlooped(s),
        ]
        for s in whole
        if s.looping_prompts
    ]
    if rows:
        head = ("pair", "prompts that loop", "repeats", "length", "without loops")
        note = f"A text loops if more than {MOST} of its 8-grams are repeats. The last column leaves these out."
        yield Section("Texts that loop", Table(head, rows), note)


def positions_section(layout: Layout) -> Section:
    """The table by draft position: two rows per group."""
    deepest = max((s.positions for s in layout.rows), default=0)
    rows = [row for s in layout.rows if s.positions for row in position_rows(s, deepest)]
    uncounted = [group_in_words(s.group) for s in layout.rows if s.num_drafts and not s.positions]
    note = f"{POSITIONS} Not counted by position: {'; '.join(uncounted)}." if uncounted else POSITIONS
    head = ("pair", "share", *(f"draft {i}" for i in range(1, deepest + 1)))
    return Section("By draft position", Table(head, rows, texts=2), note)


def name_of(s: AcceptanceSummary, several: bool = True) -> Entry:
    """The first column: the value of the row's key, and below it the group if there are several."""
    value = s.group.value
    if value is None:
        return Entry(s.group.pair, group_in_words(s.group).removeprefix(f"{s.group.pair}, "))
    return Entry(f"{value:,}" if isinstance(value, int) else value, group_in_words(s.group) if several else None)


def whole_figures(s: AcceptanceSummary) -> list[str | Entry]:
    """The columns of WHOLE behind the name."""
    mean, spread = s.request_mean_acceptance_length, s.request_stdev
    of_requests = Entry(NONE if mean is None else f"{mean:.2f}", None if spread is None else f"± {spread:.2f}")
    length, *others = figures_of(s)
    return [length, of_requests, percent(s.value("draft_acceptance_rate")), *others]


def figures_of(s: AcceptanceSummary) -> list[str | Entry]:
    """The columns FIGURES."""
    return [
        in_tokens(s.values.get("acceptance_length")),
        Entry(f"{s.num_drafts:,}", f"{s.undrafted:,} without" if s.undrafted else None),
        Entry(f"{s.requests:,}", f"on {s.prompts:,}" + (" sets" if s.together else "")),
        Entry(percent(s.repeated_8gram_share), f"{s.looping_prompts} loop" if s.looping_prompts else None),
    ]


def unlooped(s: AcceptanceSummary) -> Entry:
    """The acceptance length of the requests whose text does not loop, or why there is none."""
    if s.without_loops is None:
        return Entry(NONE, "all loop" if s.looping_prompts else None)
    length = in_tokens(s.without_loops)
    return length if length.note else Entry(length.text, counted(s.without_loops.n, "prompt"))


def in_tokens(length: Value | None) -> Entry:
    """An acceptance length, and its interval."""
    if length is None or length.value is None:
        return Entry(NONE)
    low, high = length.ci_low, length.ci_high
    return Entry(f"{length.value:.2f}", None if low is None or high is None else f"{low:.2f}–{high:.2f}")


def position_rows(s: AcceptanceSummary, deepest: int) -> Iterator[list[str | Entry]]:
    for n, (share, figure) in enumerate((("accepted", "acceptance_at_pos"), ("given", "cond_acceptance_at_pos"))):
        entries = [in_percent(s.values[f"{figure}[{i}]"]) for i in range(1, s.positions + 1)]
        yield ["" if n else name_of(s), share, *entries, *[NONE] * (deepest - s.positions)]


def in_percent(share: Value) -> Entry:
    """A share, and its interval."""
    low, high = share.ci_low, share.ci_high
    return Entry(percent(share.value), None if low is None or high is None else f"{100 * low:.1f}–{100 * high:.1f}")


def runs(summed: Sequence[SummedRun]) -> Table:
    head = ("run", "engine", "pair", "acceptance", "requests")
    return Table(head, [[r.id, r.engine, r.pair, r.acceptance, f"{r.requests:,}"] for r in summed], texts=4)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(acceptance: Acceptance) -> Iterator[Row]:
    """Yield a row per row of a table, or per draft position of it."""
    for layout in acceptance.layouts:
        for s in layout.rows:
            whole = {"by": layout.by or "all", **of_group(s, layout.by), "position": None, **of_summary(s)}
            shares = [at_position(s, i) for i in range(1, s.positions + 1)] if layout.by_position else [at_position(s)]
            yield from ({**whole, **share} for share in shares)


def of_group(s: AcceptanceSummary, by: Key | None) -> Row:
    group = s.group
    return {
        "pair": group.pair,
        "acceptance_source": group.acceptance,
        "k": group.k,
        "decoding": group.decoding,
        **{column: group.value if key == by else None for key, column in NAMES.items()},
    }


def of_summary(s: AcceptanceSummary) -> Row:
    return {
        **{name: getattr(s, name) for name in COUNTS},
        **interval("acceptance_length", "acceptance", s.values.get("acceptance_length")),
        "draft_acceptance_rate": s.value("draft_acceptance_rate"),
        "request_mean_acceptance_length": s.request_mean_acceptance_length,
        "request_stdev": s.request_stdev,
        "repeated_8gram_share": s.repeated_8gram_share,
        "looping_prompts": s.looping_prompts,
        **interval("acceptance_length_without_loops", "without_loops", s.without_loops),
    }


def at_position(s: AcceptanceSummary, i: int | None = None) -> Row:
    """Return the columns of draft position `i`; without one, the same columns with nothing in them."""
    return {
        "position": i,
        "accepted_share": s.accepted_at_pos[i - 1] if i and s.accepted_at_pos else None,
        **interval("acceptance_at_pos", "at_pos", s.values.get(f"acceptance_at_pos[{i}]")),
        **interval("cond_acceptance_at_pos", "cond", s.values.get(f"cond_acceptance_at_pos[{i}]")),
    }


def interval(name: str, short_name: str, value: Value | None) -> Row:
    ends = (value.value, value.ci_low, value.ci_high) if value else (None, None, None)
    return dict(zip((name, f"{short_name}_ci_low", f"{short_name}_ci_high"), ends, strict=True))


def tables(acceptance: Acceptance) -> Tables:
    """Return every figure, then the runs, and which engines were asked other prompts."""
    unlike = ({"by": of.by, "unlike_prompts": words} for of in acceptance.layouts for words in of.unlike)
    return {"rows": rows(acceptance), "runs": map(asdict, acceptance.runs), "unlike_prompts": unlike}


VIEW = SheetView("acceptance", sheet, tables)

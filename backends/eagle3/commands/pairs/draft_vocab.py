"""`specgate engine draft-vocab`: which tokens a draft can propose, what each size covers and costs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.commands.numbers import CONTEXT, Real
from specgate.errors import UsageError
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.backends.eagle3.pair_tools.draft_vocab.command import Choice, VocabReport, Wish
    from specgate.backends.eagle3.pair_tools.draft_vocab.coverage import Cost, Tail
    from specgate.contract import PairRef

FOLDER = click.Path(path_type=Path)
WIDTH = 80
COLUMNS = (8, 10, 16, 9, 10, 7)
"""Widths of the table's columns; a mark at the end takes the rest."""
CORPUS_HELP = "Texts as of `train-draft`: python, a pinned or installed package, or a folder; their train share."


@command("draft-vocab", short_help="Choose a draft's vocabulary by what really occurs.")
@click.option("--pair", metavar="NAME|DIR", help="Pair by name, or its folder (default: demo).")
@click.option("--target", type=FOLDER, metavar="DIR", help="Hugging Face folder of the target.")
@click.option("--draft", type=FOLDER, metavar="DIR", help="Hugging Face folder of its EAGLE-3 draft.")
@click.option("--prompts", type=FOLDER, multiple=True, metavar="FILE", help="Prompts: JSON lines, or a data set.")
@click.option("--text", "texts", type=FOLDER, multiple=True, metavar="FILE", help="Plain text in UTF-8.")
@click.option("--corpus", "corpora", multiple=True, metavar="NAME|DIR", help=CORPUS_HELP)
@click.option("--run", "runs", type=FOLDER, multiple=True, metavar="RUN", help="Tokens that a stored run emitted.")
@click.option("--size", type=CONTEXT, help="Tokens of the new vocabulary.")
@click.option("--cover", type=Real(0, 100, min_open=True), help="Per cent of the counted tokens that it is to hold.")
@click.option("--target-rows", is_flag=True, help="Rows that the draft's LM head lacks come from the target's.")
@click.option("--out", type=FOLDER, metavar="DIR", help="Write the draft with the new vocabulary.")
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
def draft_vocab(
    pair: str | None,
    target: Path | None,
    draft: Path | None,
    prompts: tuple[Path, ...],
    texts: tuple[Path, ...],
    corpora: tuple[str, ...],
    runs: tuple[Path, ...],
    size: int | None,
    cover: float | None,
    target_rows: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Count tokens, and say what a draft vocabulary of each size holds of them and what it reads. With --out, write the
    draft with the vocabulary of --size or --cover.

    \b
    Example: specgate engine draft-vocab --pair DIR --corpus python

    A draft can only propose tokens of its vocabulary, and its LM head is read at every draft step. Best are counts of
    what the target says (--run), since that is what is drafted.

    Sources may be named several times and mixed. Ends of text and special tokens are always kept. Of tokens that occur
    as often, the lower id is taken, so that equal counts give equal drafts.
    """
    from specgate.backends.eagle3.pair_tools.draft_vocab.command import Wish
    from specgate.backends.eagle3.pair_tools.draft_vocab.command import draft_vocab as run
    from specgate.backends.eagle3.pair_tools.draft_vocab.sources import TokenSources
    from specgate.pairs.resolve import refuse_two_names, resolve_pair

    refuse_two_names(pair, target, draft)
    sources = TokenSources(prompts, texts, corpora, runs)
    if not sources.any:
        raise UsageError("nothing to count", hint="name what: --prompts, --text, --corpus or --run")
    if size is not None and cover is not None:
        raise UsageError("--size together with --cover", hint="say the size in one way")
    if out is not None and size is None and cover is None:
        raise UsageError(f"--out {out}: of which size?", hint="say it with --size or --cover")
    ref = resolve_pair(pair, target, draft)
    wish = Wish(sources, size, None if cover is None else round(cover / 100, 12), target_rows, out and out.resolve())
    report = run(ref, wish)
    if as_json:
        return echo_json(as_data(ref, report, wish.out))
    for line in in_lines(ref, report, wish):
        echo(line)


def in_lines(ref: PairRef, report: VocabReport, wish: Wish) -> Iterator[str]:
    """The figures as text of 80 columns, and the commands that measure them."""
    counts = report.counts
    vocab, occurring, once = len(counts.of), int((counts.of > 0).sum()), int((counts.of == 1).sum())
    yield from wrapped(
        f"pair {ref.name}: {counts.total:,} tokens counted; {occurring:,} of {vocab:,} ids occur, {once:,} once"
    )
    for source in counts.sources:
        yield from wrapped(f"  {source.name}: {source.tokens:,} tokens")
    lacking = f"; this draft has no row for {report.lacking} more" if report.lacking else ""
    yield from wrapped(f"always kept: {report.own.special} ends of text and special tokens{lacking}")
    yield ""
    yield from table(report, wish.target_rows)
    yield ""
    for share, size in report.reached:
        most = f"not with this draft's rows ({report.own.share(len(report.own.ids)):.2%} at most)"
        yield f"{100 * share:4g} % of the counted tokens: {most if size is None else f'{size:,} draft tokens'}"
    yield ""
    yield from tail_lines("this draft as it is", report.present.own or 0.0, report.present_tail, report)
    if report.choice is not None:
        yield from choice_lines(report.choice, report)
    yield from measuring(ref, wish)


def table(report: VocabReport, target_rows: bool) -> Iterator[str]:
    """A line per size: what it covers, and what it reads."""
    own = "with target rows" if target_rows else "of its own rows"
    top = ("draft", "covered by", "covered by draft", "LM head", "draft step", "cycle")
    for row in (top, ("tokens", "any draft", own, "MB", "MB", "")):
        yield "  ".join(word.rjust(width) for word, width in zip(row, COLUMNS, strict=True)).rstrip()
    chosen = len(report.choice.ids) if report.choice else None
    for line in report.lines:
        mark = " <- chosen" if line.size == chosen else " <- now" if line.size == report.present.size else ""
        covered = "–" if line.own is None else f"{line.own:.2%}"
        yield (
            f"{line.size:>8,}  {line.any:>10.2%}  {covered:>16}  {line.cost.head / 1e6:>9.2f}  "
            f"{line.cost.step / 1e6:>10.2f}  {line.cost.cycle / report.present.cost.cycle:>6.3f}×{mark}"
        )
    yield from wrapped(
        "cycle: bytes that a cycle of 3 draft tokens reads, verification included, at batch 1 without the KV cache, "
        "over those of the draft as it is"
    )


def choice_lines(choice: Choice, report: VocabReport) -> Iterator[str]:
    """Yield the effects of the chosen vocabulary."""
    yield from tail_lines(f"{len(choice.ids):,} draft tokens", choice.share, choice.tail, report)
    before, after = report.present.cost, choice.cost
    yield from wrapped(
        f"read per draft step: {amounts(before, after)}; per cycle {before.cycle / 1e6:.2f} → "
        f"{after.cycle / 1e6:.2f} MB ({after.cycle / before.cycle - 1:+.1%}). Where bytes decide the time, it pays if "
        "the acceptance length (AL) falls by a smaller share"
    )
    if choice.from_target and choice.from_target < len(choice.ids):
        yield from wrapped(
            f"{choice.from_target:,} rows are the target's: this draft was not trained with them. Measure its AL, "
            "and train on with `specgate engine train --from`"
        )


def amounts(before: Cost, after: Cost) -> str:
    return (
        f"LM head {before.head / 1e6:.2f} → {after.head / 1e6:.2f} MB, all weights {before.step / 1e6:.2f} → "
        f"{after.step / 1e6:.2f} MB"
    )


def tail_lines(what: str, share: float, tail: Tail, report: VocabReport) -> Iterator[str]:
    """Yield the share of positions that can never be drafted, and the most frequent tokens there."""
    yield from wrapped(
        f"{what}: {share:.2%} covered. {tail.tokens:,} positions ({tail.tokens / report.counts.total:.2%}) hold a "
        f"token that it can never draft: {tail.distinct:,} ids, {tail.once:,} of them counted once"
    )
    if tail.most:
        named = (f"{i} {report.words.get(i, '')}".rstrip() + f" {n:,}×" for i, n in tail.most)
        yield from wrapped(f"  most often: {', '.join(named)}")


def measuring(ref: PairRef, wish: Wish) -> Iterator[str]:
    """The commands that measure acceptance before and after."""
    from specgate.backends.eagle3.pair_tools.export.starting import flags
    from specgate.backends.eagle3.pair_tools.export.starting import wrapped as in_shell

    if wish.out is None:
        return
    yield f"written: {wish.out}"
    own = [part for file in wish.sources.prompts[:1] for part in ("--prompts", str(file))]
    for what, draft in (("before", ref.draft), ("after", wish.out)):
        command = ["specgate", "micro", "--backend", "reference", "--target", str(ref.target), "--draft", str(draft)]
        yield f"\nacceptance length {what}, on the reference engine:"
        yield in_shell([*flags([*command, *own])])


def wrapped(text: str) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def as_data(ref: PairRef, report: VocabReport, out: Path | None) -> dict[str, object]:
    """All figures. Shares are fractions of the counted tokens, sizes are tokens."""
    choice = report.choice

    def costs(of: Cost) -> dict[str, object]:
        return {"head_bytes": of.head, "draft_step_bytes": of.step, "cycle_bytes": of.cycle}

    def tail(of: Tail) -> dict[str, object]:
        most = [{"id": i, "count": n, "text": report.words.get(i)} for i, n in of.most]
        return {"tokens": of.tokens, "ids": of.distinct, "counted_once": of.once, "most": most}

    return {
        "pair": ref.name,
        "vocab_size": len(report.counts.of),
        "counted": {
            "tokens": report.counts.total,
            "ids": int((report.counts.of > 0).sum()),
            "sha256": report.counts.sha256,
            "sources": [{"name": s.name, "tokens": s.tokens, "sha256": s.sha256} for s in report.counts.sources],
        },
        "always_kept": report.own.special,
        "always_kept_without_row": report.lacking,
        "curve": [
            {"size": n.size, "covered_by_any": n.any, "covered_by_own_rows": n.own, **costs(n.cost)}
            for n in report.lines
        ],
        "reached": [{"share": share, "size": size} for share, size in report.reached],
        "now": {
            "size": report.present.size,
            "covered": report.present.own,
            "tail": tail(report.present_tail),
            **costs(report.present.cost),
        },
        "chosen": None
        if choice is None
        else {
            "size": len(choice.ids),
            "covered": choice.share,
            "tail": tail(choice.tail),
            "rows_from_target": choice.from_target,
            "ids": choice.ids.tolist(),
            **costs(choice.cost),
        },
        "written": None if out is None else str(out),
    }

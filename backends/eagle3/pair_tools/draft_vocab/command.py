"""`specgate engine draft-vocab`: count tokens, choose those that the draft can propose, and write the draft."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specgate import __version__
from specgate.backends.eagle3.lib.pair import DraftFiles, TargetFiles, open_draft, open_target
from specgate.backends.eagle3.pair_tools.draft_vocab.coverage import (
    Cost,
    Ranking,
    Tail,
    cost,
    ranking,
    reached,
    tail_of,
)
from specgate.backends.eagle3.pair_tools.draft_vocab.sources import CountedTarget, Counts, TokenSources, count
from specgate.backends.eagle3.pair_tools.draft_vocab.write import (
    Heads,
    Papers,
    refuse_occupied,
    require_rows,
    write_draft,
)
from specgate.checkpoints.geometry import DraftGeometry
from specgate.checkpoints.tokenizer_file import read_tokenizer
from specgate.contract import PairRef
from specgate.errors import UsageError
from specgate.files.json_text import shown


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's request. `size`: tokens of the vocabulary; `cover`: the share of the counted tokens that it is to
    hold; at most one of the two. `target_rows`: tokens may be chosen that the draft has no row for. `out`: the folder
    for the new draft; None: nothing is written.
    """

    sources: TokenSources
    size: int | None = None
    cover: float | None = None
    target_rows: bool = False
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A draft vocabulary of `size`. `any`: the share of the counted tokens that the `size` most frequent are. `own`:
    that which this draft's vocabulary of that size would hold, None where it cannot have one. Bytes as in `Cost`.
    """

    size: int
    any: float
    own: float | None
    cost: Cost


@dataclass(frozen=True, slots=True)
class Choice:
    """The vocabulary that was asked for. `ids`: int64 [W], ascending. `from_target`: how many rows are the target's."""

    ids: Tensor
    share: float
    tail: Tail
    cost: Cost
    from_target: int


@dataclass(frozen=True, slots=True)
class VocabReport:
    """Results of the counts. `special`: special tokens, which every vocabulary holds; `lacking` of them have no row in
    this draft. `present`: the line of the draft as it is. `reached`: share → the smallest vocabulary that holds it.
    `words`: id → text, for the tokens that are named.
    """

    counts: Counts
    own: Ranking
    special: tuple[int, ...]
    lacking: int
    lines: tuple[Line, ...]
    present: Line
    reached: tuple[tuple[float, int | None], ...]
    present_tail: Tail
    choice: Choice | None
    words: dict[int, str]


def draft_vocab(ref: PairRef, wish: Wish) -> VocabReport:
    """Count, choose, and write if `wish.out` says where.

    Raises UsageError for what is wrong with the sources, the size or the folder, and for rows that neither head may
    give; CheckpointError for a pair that cannot be read.
    """
    assert ref.draft is not None
    target = open_target(ref.target)
    draft = open_draft(ref.draft, target.geometry)
    require_rows(draft, target, wish.target_rows)
    if wish.out is not None:
        refuse_occupied(wish.out)
    tokenizer = ref.target / "tokenizer.json"
    sha256 = target.sha256() if wish.sources.runs or wish.out else None
    counts = count(wish.sources, CountedTarget(target.geometry.vocab, tokenizer, sha256))
    special = special_ids(target, tokenizer)
    heads = Heads.of(target, draft)
    report = judged(target, draft, heads, counts, special, wish)
    if wish.out is not None:
        assert report.choice is not None and sha256 is not None
        write_draft(wish.out, target.geometry, draft, heads, report.choice.ids, papers(ref, draft, sha256, report))
    return report


def special_ids(target: TargetFiles, tokenizer_file: Path) -> tuple[int, ...]:
    """The tokens that every draft vocabulary holds: ends of text, and the tokenizer's special tokens. A corpus of text
    has few of them, and each answer of a chat ends with one.
    """
    ids = set(target.geometry.eos_token_ids)
    if tokenizer_file.is_file():
        added = read_tokenizer(tokenizer_file).get_added_tokens_decoder()
        ids |= {i for i, token in added.items() if token.special and i < target.geometry.vocab}
    return tuple(sorted(ids))


def judged(
    target: TargetFiles, draft: DraftFiles, heads: Heads, counts: Counts, special: tuple[int, ...], wish: Wish
) -> VocabReport:
    """Rank the tokens, and reckon every size."""
    every = ranking(counts.of)
    own = ranking(counts.of, special, None if wish.target_rows else heads.known)
    g, size = draft.geometry, chosen_size(own, wish)

    def line(n: int) -> Line:
        return Line(
            n,
            every.share(n),
            own.share(n) if own.least <= n <= len(own.ids) else None,
            cost(target.geometry, g, n, heads.dtype),
        )

    choice = None
    if size is not None:
        ids = own.chosen(size)
        choice = Choice(
            ids, own.share(size), tail_of(counts.of, ids), line(size).cost, heads.missing(ids) if heads.own else size
        )
    present = present_ids(g, draft)
    present_share = int(counts.of[present].sum()) / counts.total
    tails = tail_of(counts.of, present), *([choice.tail] if choice else [])
    return VocabReport(
        counts=counts,
        own=own,
        special=special,
        lacking=len(special) - own.special,
        lines=tuple(map(line, every.sizes(g.draft_vocab, *([size] if size else [])))),
        present=Line(g.draft_vocab, every.share(g.draft_vocab), present_share, line(g.draft_vocab).cost),
        reached=tuple(reached(own)),
        present_tail=tails[0],
        choice=choice,
        words=words(target, {i for tail in tails for i, _ in tail.most}),
    )


def present_ids(g: DraftGeometry, draft: DraftFiles) -> Tensor:
    """The target tokens that the draft can propose now, int64 [W]."""
    ids = torch.arange(g.draft_vocab)
    return ids if draft.d2t is None else ids + draft.d2t


def chosen_size(own: Ranking, wish: Wish) -> int | None:
    if wish.cover is None:
        return wish.size
    size = own.size_for(wish.cover)
    if size is None:
        most = own.share(len(own.ids))
        raise UsageError(
            f"--cover {100 * wish.cover:g}: all {len(own.ids)} tokens that this draft has rows for are "
            f"{most:.2%} of the counted ones",
            hint="ask for less, or take rows from the target's LM head: --target-rows",
        )
    return size


def words(target: TargetFiles, ids: set[int]) -> dict[int, str]:
    """The text of `ids`; none where the target has no tokenizer."""
    file = target.config.file.parent / "tokenizer.json"
    if not file.is_file():
        return {}
    tokenizer = read_tokenizer(file)
    return {i: shown(tokenizer.decode([i], skip_special_tokens=False), 24) for i in ids}


# ── papers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def papers(ref: PairRef, draft: DraftFiles, target_sha256: str, report: VocabReport) -> Papers:
    """The record and the card of the new draft."""
    assert ref.draft is not None and report.choice is not None
    choice, counts = report.choice, report.counts
    record: dict[str, object] = {
        "made_by": f"specgate {__version__}",
        "source": {
            "target": {"name": ref.target.name, "sha256": target_sha256},
            "draft": {"name": ref.draft.name, "sha256": draft.sha256(), "draft_vocab_size": report.present.size},
        },
        "draft_vocab_size": len(choice.ids),
        "rows": {"from_draft": len(choice.ids) - choice.from_target, "from_target": choice.from_target},
        "counts": {
            "tokens": counts.total,
            "sha256": counts.sha256,
            "sources": [{"name": s.short, "tokens": s.tokens, "sha256": s.sha256} for s in counts.sources],
        },
        "always_kept": report.own.special,
        "covered": choice.share,
        "covered_before": report.present.own,
        "head_bytes": choice.cost.head,
        "head_bytes_before": report.present.cost.head,
    }
    card = CARD.format(
        name=ref.draft.name,
        size=len(choice.ids),
        before=report.present.size,
        total=counts.total,
        sources="; ".join(s.short for s in counts.sources),
        sha256=counts.sha256,
        share=f"{choice.share:.2%}",
        share_before=f"{report.present.own:.2%}",
        rows=rows_in_words(choice),
    )
    return Papers(record, card)


def rows_in_words(choice: Choice) -> str:
    own = len(choice.ids) - choice.from_target
    if not choice.from_target:
        return "Every row of its LM head is one of that draft, bit for bit."
    if not own:
        return "Every row of its LM head is the target's, bit for bit, as that draft uses the target's LM head."
    return (
        f"{own} rows of its LM head are that draft's, bit for bit; {choice.from_target} are the target's, and the "
        "draft has not been trained with them."
    )


CARD = """\
# {name} with a draft vocabulary of {size} tokens

Made from an EAGLE-3 draft of {before} draft tokens. Only the LM head, `d2t`, `t2d` and `draft_vocab_size` differ.
{rows}

The tokens are the most frequent of {total} counted ones ({sources}), and special tokens, which are always kept.
They are {share} of the counted tokens; the draft it was made from holds {share_before}.
`DRAFT_VOCAB.json` has the sources; the counts have the SHA-256 `{sha256}`.

What a model card says of acceptance (`README.source.md`, where there is one) was measured before.
"""

"""The prompt of a smoke run: token ids of a text that comes along, of one's own text, or of an exact length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.contract import PairRef, Workload
from specgate.contract.protocols import ChatPrompt
from specgate.contract.scenarios.workload import FormatName
from specgate.contract.types import POSITIONS
from specgate.errors import UsageError
from specgate.pairs.resolve import target_limits
from specgate.planning.prompt_files.choosing import Chosen, Tokens
from specgate.planning.prompt_files.formats import PLAIN, Entry, prompts_in, recognise
from specgate.planning.prompts import SOURCES as KINDS
from specgate.planning.prompts import Prompt, Prompts, PromptSet, random_prompts, text_prompts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLANTED_LENGTH: Final = 64
"""Tokens of the prompt for a pair whose tokens have no meaning."""
TEXT: Final = '''\
# calendar.py: small helpers for dates, without the standard library

MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December"]


def is_leap(year: int) -> bool:
    """Whether February of `year` has 29 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(month: int, year: int) -> int:
    """Number of days of a month, 1 to 12."""
    if month == 2:
        return 29 if is_leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def day_of_year(day: int, month: int, year: int) -> int:
'''
"""A beginning that any language model goes on with, and does not soon repeat itself."""


@dataclass(frozen=True, slots=True)
class PromptWish:
    """Source of a prompt: `text`, or token `ids`, or the first prompt of the data set `prompts`, or `context` tokens of
    the texts that scenarios use. Without any of these, the text that comes along.
    """

    text: str | None = None
    ids: tuple[int, ...] | None = None
    context: int | None = None
    prompts: Path | None = None
    format: FormatName | None = None


def prompt_ids(wish: PromptWish, pair: PairRef) -> tuple[int, ...]:
    """The token ids of the prompt.

    A planted pair gets random ids, since its tokens have no meaning and it has no tokenizer. Raises UsageError for a
    file that cannot be read, for a target without a tokenizer, and for ids that are none.
    """
    _, vocab = target_limits(pair, None, any_architecture=True)
    if wish.prompts is not None:
        return first_of(wish.prompts, wish.format, pair, vocab).token_ids[: wish.context]
    if wish.ids is not None:
        return checked(wish.ids, vocab, "--prompt-ids")
    text = wish.text
    if pair.acceptance == "planted":
        if text is not None:
            raise UsageError(f"pair {pair.name!r} has no tokenizer", hint="its tokens have no meaning: --context N")
        return next(random_prompts("smoke", wish.context or PLANTED_LENGTH, vocab)).token_ids
    if not pair.tokenizer.is_file():
        hint = "--tokenizer FILE|DIR; or --prompt-ids ID,ID; or --prompts FILE with a server"
        raise UsageError(f"{pair.tokenizer}: no such file, and the prompt is text", hint=hint)
    tokens = Tokens(Workload(seed=0, prompt_sets=1, warmup_sets=0, format=PLAIN), pair.tokenizer, vocab)
    if wish.context is not None and text is None:
        assert tokens.tokenizer is not None
        return exact(wish.context, tokens.tokenizer)
    entry = Entry("the prompt" if text is None else "--prompt", 1, TEXT if text is None else text)
    return checked(tokens.of(entry).token_ids[: wish.context], vocab, entry.where)


def chats_of(wish: PromptWish, pair: PairRef) -> tuple[ChatPrompt, ...]:
    """Return the chat that the prompt is, for an engine that sends messages; () where it is none."""
    if wish.prompts is None or wish.context is not None:
        return ()
    _, vocab = target_limits(pair, None, any_architecture=True)
    first = first_of(wish.prompts, wish.format, pair, vocab)
    return tuple(Prompts("", 0, (PromptSet((Prompt(first.token_ids, (), chat=first.chat),)),), ()).chats)


def first_of(file: Path, format: FormatName | None, pair: PairRef, vocab: int) -> Chosen:
    """Return the first prompt of a data set, with its token ids."""
    kind = recognise(file, format or "auto")
    work = Workload(seed=0, prompt_sets=1, warmup_sets=0, file=file, format=kind.format, sha256=kind.sha256)
    tokens = Tokens(work, pair.tokenizer if pair.tokenizer.is_file() else None, vocab)
    first = tokens.of(prompts_in(file, *kind).entries[0])
    checked(first.token_ids, vocab, first.entry.where)
    return first


def exact(context: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    """A prompt of exactly `context` tokens, of the texts that scenarios use."""
    from specgate.pairs.corpus import wheel_corpus
    from specgate.pairs.fetch import TEXTS, require

    kinds = [
        [wheel_corpus(a.package, a.version, require(a), a.files) for a in TEXTS if a.kind == kind]
        for kind in KINDS["prose"]
    ]
    prompt = next(text_prompts(kinds, "warmup", 0, context, tokenizer), None)
    if prompt is None:
        raise UsageError(f"--context {context}: no text is that long", hint="a shorter one, or --prompts FILE")
    return prompt.token_ids


def checked(ids: Sequence[int], vocab: int, where: str) -> tuple[int, ...]:
    """`ids` as they are. Raises UsageError where there are none, too many, or one is no id of the vocabulary."""
    for at, number in enumerate(ids):
        if not 0 <= number < vocab:
            raise UsageError(f"{where}: token {at} = {number}", hint=f"ids are 0 to {vocab - 1}")
    if not 0 < len(ids) <= POSITIONS:
        raise UsageError(f"{where}: {len(ids)} tokens", hint=f"1 to {POSITIONS}")
    return tuple(ids)

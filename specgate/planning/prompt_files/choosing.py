"""Choice of the prompts of a file: those of the right length, in an order that only the seed and they decide.

Every prompt has a place in that order by a hash of the seed and of the prompt itself. So other prompts in the file, or
another order of its lines, change nothing about the places; and what a smaller batch measures, a larger one measures
too. Prompts are tokenised in that order until there are enough: most of a large file is never looked at twice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.checkpoints.tokenizer_file import opening_ids
from specgate.contract import Scenario, Workload
from specgate.errors import UsageError
from specgate.files.panics import refusing
from specgate.planning.contradictions import contradictions
from specgate.planning.prompt_files.chat import ChatTemplate
from specgate.planning.prompt_files.formats import FORMATS, Entry, entries_of, spelt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CATEGORIES: Final = 64
"""Most categories of the prompts of a point: each has figures of its own."""
LESS_LOAD: Final = "fewer clients (grid.batch), fewer requests of each (load.per_client, load.requests)"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A prompt of a file with its tokens. `how`: `ids`, `text` or `chat template`."""

    entry: Entry
    token_ids: tuple[int, ...]
    how: str


@dataclass(frozen=True, slots=True)
class Draw:
    """The prompts of one point. `reused`: warm-up repeats measured prompts, since the file has no others left."""

    measured: tuple[Chosen, ...]
    warmup: tuple[Chosen, ...]
    reused: bool

    @property
    def longest(self) -> Chosen:
        """The longest of all."""
        return max((*self.measured, *self.warmup), key=lambda c: len(c.token_ids))


class Tokens:
    """Entries → token ids, each once.

    `workload`: its `format` and `chat` say which texts go into a chat template. `tokenizer` is None where the target
    has none; then only ids are prompts. `vocab`: the size of the vocabulary.
    """

    def __init__(self, workload: Workload, tokenizer: Tokenizer | None, chat: ChatTemplate | None, vocab: int) -> None:
        self.workload, self.tokenizer, self.chat, self.vocab = workload, tokenizer, chat, vocab
        if tokenizer is not None:  # some tokenizer.json say that texts are cut, or filled up
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self.opening = tuple(opening_ids(tokenizer)) if tokenizer is not None else ()
        self._known: dict[int, Chosen] = {}

    def of(self, entry: Entry) -> Chosen:
        """The prompt with its tokens. Raises UsageError where it cannot have any."""
        if entry.number not in self._known:
            self._known[entry.number] = self._tokenised(entry)
        return self._known[entry.number]

    def _tokenised(self, entry: Entry) -> Chosen:
        match entry.content:
            case str() as text if not self._asks(entry):
                return Chosen(entry, (*self.opening, *self._encoded(text, entry)), "text")
            case str() as text:
                return self._chat(entry, ({"role": "user", "content": text},))
            case (int(), *_):
                return Chosen(entry, tuple(n for n in entry.content if isinstance(n, int)), "ids")
            case _:
                return self._chat(entry, tuple(t for t in entry.content if isinstance(t, Mapping)))

    def _asks(self, entry: Entry) -> bool:
        """Return whether a text goes into the chat template."""
        if self.workload.chat is None:
            return FORMATS[self.workload.format].question and self.chat is not None
        return self.workload.chat

    def _chat(self, entry: Entry, turns: Sequence[Mapping[str, str]]) -> Chosen:
        if self.chat is None:
            raise UsageError(
                f"{entry.where}: messages need a chat template, and the target's tokenizer has none",
                hint="give text, or put chat_template.jinja beside the target's tokenizer.json",
            )
        return Chosen(entry, tuple(self._encoded(self.chat.render(turns, entry.where), entry)), "chat template")

    def _encoded(self, text: str, entry: Entry) -> list[int]:
        if self.tokenizer is None:
            raise UsageError(
                f"{entry.where}: text, but the target has no tokenizer.json",
                hint="give token ids, or put it into the target's folder",
            )
        with refusing(lambda why: UsageError(f"{entry.where}: the tokenizer cannot encode it: {why}")):
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class OwnPrompts:
    """The prompts of a scenario's file, in the order of its seed.

    `tokenizer_file`: the target's `tokenizer.json`, or None where it has none. `vocab`: the size of its vocabulary.

    Raises UsageError where the file is another one than the scenario fixed, a record of it is wrong, an id is beyond
    the vocabulary, or the chat template that is asked for is missing.
    """

    def __init__(
        self, scenario: Scenario, tokenizer_file: Path | None, tokenizer: Tokenizer | None, vocab: int
    ) -> None:
        workload = scenario.workload
        assert workload.file is not None and workload.sha256 is not None
        self.scenario, self.file = scenario, workload.file
        # A path that was read back from a stored run has `~` in the place of the home folder.
        entries = entries_of(self.file.expanduser(), workload.sha256, workload.format)
        check_ids(entries, vocab)
        chat = (
            ChatTemplate.beside(tokenizer_file) if tokenizer_file is not None and workload.chat is not False else None
        )
        if workload.chat and chat is None:
            raise UsageError(
                f"{self.file}: chat: true, and the target's tokenizer has no chat template",
                hint="leave it out, or put chat_template.jinja beside the target's tokenizer.json",
            )
        self.tokens = Tokens(workload, tokenizer, chat, vocab)
        self.entries = len(entries)
        self.order = in_order(entries, scenario.workload.seed)

    @property
    def duplicates(self) -> int:
        """Prompts that are in the file twice, and count once."""
        return self.entries - len(self.order)

    def draw(self, above: int, context: int | None, batch: int) -> Draw:
        """The prompts of one point: those of more than `above` and at most `context` tokens, as many as it needs.

        Raises UsageError where there are too few.
        """
        workload = self.scenario.workload
        measuring, warming = workload.prompt_sets * batch, workload.warmup_sets * batch
        chosen = list(islice(self.fitting(above, context), measuring + warming))
        if len(chosen) < measuring:
            raise self._too_few(chosen, above, context, batch)
        measured, left = tuple(chosen[:measuring]), tuple(chosen[measuring:])
        if len(left) == warming:
            return Draw(measured, left, False)
        again = (left + measured * (warming // measuring + 1))[:warming]
        return Draw(measured, again, True)

    def fitting(self, above: int, context: int | None) -> Iterator[Chosen]:
        """The prompts of more than `above` and at most `context` tokens, in order."""
        least, most = self.lengths(above, context)
        for entry in self.order:
            chosen = self.tokens.of(entry)
            if least <= len(chosen.token_ids) and (most is None or len(chosen.token_ids) <= most):
                yield chosen

    def lengths(self, above: int, context: int | None) -> tuple[int, int | None]:
        """(least, most) tokens of a prompt of the class (above, context], the scenario's own limits included."""
        workload = self.scenario.workload
        most = min((n for n in (context, workload.max_tokens) if n is not None), default=None)
        return max(above + 1, workload.min_tokens, workload.shared_prefix + 1), most

    def _too_few(self, chosen: Sequence[Chosen], above: int, context: int | None, batch: int) -> UsageError:
        """Too few prompts have a length that is asked for."""
        least, most = self.lengths(above, context)
        sets = self.scenario.workload.prompt_sets
        every = [len(self.tokens.of(entry).token_ids) for entry in self.order]
        range_ = f"{least} tokens or more" if most is None else f"{least} to {most} tokens"
        fewer = replace(self.scenario, workload=replace(self.scenario.workload, prompt_sets=len(chosen) // batch))
        # Fewer sets that the scenario would be refused for are no way out.
        remedy = "" if any(contradictions(fewer)) else f"prompt_sets: {len(chosen) // batch}, or "
        load = self.scenario.load
        size, less = (f"batch {batch}", "a smaller batch") if load is None else (f"{batch} requests", LESS_LOAD)
        return UsageError(
            f"{self.file}: {sets} sets × {size} = {sets * batch} prompts are needed, and {len(chosen)} that "
            f"differ have {range_} (those in the file: {min(every)} to {max(every)})",
            hint=f"right would be {remedy}other lengths, {less} or more prompts",
        )


def check_ids(entries: Sequence[Entry], vocab: int) -> None:
    """Raises UsageError for a token id that the target does not have."""
    for entry in entries:
        if isinstance(entry.content, str) or not isinstance(entry.content[0], int):
            continue
        for index, number in enumerate(entry.content):
            if isinstance(number, int) and number >= vocab:
                why = f"the target's vocabulary has {vocab} tokens: 0 to {vocab - 1}"
                raise UsageError(f"{entry.where}: ids[{index}]: {number}: {why}")


def in_order(entries: Sequence[Entry], seed: int) -> tuple[Entry, ...]:
    """The entries that differ, in the order of the seed."""
    unique: dict[bytes, Entry] = {}
    for entry in entries:
        unique.setdefault(hashlib.sha256(str(seed).encode() + b" " + spelt(entry)).digest(), entry)
    return tuple(unique[place] for place in sorted(unique))


def check_categories(chosen: Sequence[Chosen], file: Path) -> None:
    """Raises UsageError for more categories than can have figures of their own."""
    counts = Counter(c.entry.category for c in chosen if c.entry.category is not None)
    if len(counts) > CATEGORIES:
        raise UsageError(
            f"{file}: category: {len(counts)} different ones among {len(chosen)} prompts; at most {CATEGORIES}",
            hint="leave the key out where it names no group of prompts",
        )

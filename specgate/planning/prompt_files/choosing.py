"""Choice of the prompts of a file: those of the right length, in an order that only the seed and they decide.

Every prompt has a place in that order by a hash of the seed and of the prompt itself. So other prompts in the file, or
another order of its lines, change nothing about the places; and what a smaller batch measures, a larger one measures
too. Prompts are tokenised in that order until there are enough: most of a large file is never looked at twice.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Final

from specgate.checkpoints.chat_template import Chat, chat_template
from specgate.checkpoints.tokenizer_file import read_tokenizer
from specgate.checkpoints.tokenizer_settings import read_settings
from specgate.contract import Scenario, Workload
from specgate.contract.scenarios.own_prompts import left_out_in_words
from specgate.errors import CheckpointError, UsageError
from specgate.files.json_text import shown
from specgate.files.panics import refusing
from specgate.planning.contradictions import MIN_PROMPTS, contradictions
from specgate.planning.prompt_files.formats import FORMATS, Entry, prompts_in, spelt
from specgate.planning.prompt_files.trace import HashedPrompt, Trace

CATEGORIES: Final = 64
"""Most categories of the prompts of a point: each has figures of its own."""
LESS_LOAD: Final = "fewer clients (grid.batch), fewer requests (load.per_client, load.requests, load.duration_s)"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A prompt of a file with its tokens. `how`: `ids`, `text` or `chat template`. `chat`: what that template made the
    tokens of.
    """

    entry: Entry
    token_ids: tuple[int, ...]
    how: str
    chat: Chat | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """The prompts of one point.

    `repeated`: the load takes more than the file has, so they are sent again. `reused`: warm-up repeats measured
    prompts, since the file has no others left. `passed_over`: prompts that had their turn and are shorter or longer
    than asked for.
    """

    measured: tuple[Chosen, ...]
    warmup: tuple[Chosen, ...]
    reused: bool
    passed_over: int
    repeated: bool = False

    @property
    def longest(self) -> Chosen:
        """The longest of all."""
        return max((*self.measured, *self.warmup), key=lambda c: len(c.token_ids))


class Tokens:
    """Entries → token ids, each once.

    `workload`: its `format` and `chat` say which texts go into a chat template. `tokenizer_file`: the target's
    `tokenizer.json` with its settings beside it, or None where it has none; then only ids are prompts. `vocab`: the
    size of the vocabulary. Raises UsageError where transformers would not read the tokenizer.
    """

    def __init__(self, workload: Workload, tokenizer_file: Path | None, vocab: int) -> None:
        self.workload, self.vocab = workload, vocab
        self.tokenizer, self.chat, self.no_chat = None, None, "the target has no tokenizer"
        if tokenizer_file is not None:
            try:
                self.tokenizer, settings = read_tokenizer(tokenizer_file), read_settings(tokenizer_file)
                settings.give_to(self.tokenizer)
            except CheckpointError as error:
                raise UsageError(error.message, hint=error.hint) from error
            self.tokenizer.no_truncation()  # some tokenizer.json say that texts are cut, or filled up
            self.tokenizer.no_padding()
            template = "chat: false" if workload.chat is False else chat_template(settings)
            self.chat, self.no_chat = (None, template) if isinstance(template, str) else (template, "")
        self._known: dict[tuple[int, int], Chosen] = {}

    @property
    def text_why(self) -> str:
        """The reason why a text is not a chat: there is no template, or the format's prompts are no questions."""
        return self.no_chat or "--chat makes chats of it"

    def of(self, entry: Entry) -> Chosen:
        """The prompt with its tokens. Raises UsageError where it cannot have any."""
        if (place := (entry.number, entry.turn)) not in self._known:
            self._known[place] = self._tokenised(entry)
        return self._known[place]

    def _tokenised(self, entry: Entry) -> Chosen:
        question = FORMATS[self.workload.format].question
        match entry.content:
            case str() as text if self.workload.chat or (question and self.chat is not None):
                return self._chat(entry, Chat(({"role": "user", "content": text},)))
            case str() as text:
                return Chosen(entry, self._encoded(text, entry, special=True), "text")
            case Chat() as chat if chat.ids:
                return Chosen(entry, chat.ids, "ids", chat)
            case Chat() as chat if question and self.chat is None:
                return Chosen(entry, self._encoded(chat.text, entry, special=True), "text")
            case Chat() as chat:
                return self._chat(entry, chat)
            case HashedPrompt() as prompt:
                return Chosen(entry, prompt.token_ids(self.vocab), "random tokens")
            case ids:
                return Chosen(entry, ids, "ids")

    def _chat(self, entry: Entry, chat: Chat) -> Chosen:
        if chat.ids:
            return Chosen(entry, chat.ids, "chat template", chat)
        if self.chat is None:
            raise UsageError(
                f"{entry.where}: messages need a chat template, and {self.no_chat}",
                hint="give text, or put chat_template.jinja beside the target's tokenizer.json",
            )
        text = self.chat.render(chat, entry.where)
        return Chosen(entry, self._encoded(text, entry, special=False), "chat template", chat)

    def _encoded(self, text: str, entry: Entry, *, special: bool) -> tuple[int, ...]:
        """The token ids of a text, with those that the tokenizer puts around it if `special`."""
        if self.tokenizer is None:
            raise UsageError(
                f"{entry.where}: text, but the target has no tokenizer.json",
                hint="give token ids, or put it into the target's folder",
            )
        with refusing(lambda why: UsageError(f"{entry.where}: the tokenizer cannot encode it: {why}")):
            ids = tuple(self.tokenizer.encode(text, add_special_tokens=special).ids)
        if (largest := max(ids, default=0)) >= self.vocab:
            token = shown(self.tokenizer.id_to_token(largest), 40)
            why = f"token {token} has the id {largest}, but the target's vocabulary has {self.vocab} tokens"
            raise UsageError(f"{entry.where}: {why}")
        return ids


class OwnPrompts:
    """The prompts of a scenario's file, in the order of its seed.

    `tokenizer_file`: the target's `tokenizer.json`, or None where it has none. `vocab`: the size of its vocabulary.

    Raises UsageError where the file is another one than the scenario fixed, a record of it is wrong, an id is beyond
    the vocabulary, or the chat template that is asked for is missing.
    """

    def __init__(self, scenario: Scenario, tokenizer_file: Path | None, vocab: int) -> None:
        workload = scenario.workload
        assert workload.file is not None and workload.sha256 is not None
        self.scenario, self.file = scenario, workload.file
        # A path that was read back from a stored run has `~` in the place of the home folder.
        content = prompts_in(self.file.expanduser(), workload.sha256, workload.format)
        self.entries, self.left_out, self.answered = len(content.entries), content.left_out, content.answered
        check_ids(content.entries, vocab)
        self.tokens = Tokens(workload, tokenizer_file, vocab)
        if workload.chat and self.tokens.chat is None:
            raise UsageError(
                f"{self.file}: chat: true, and {self.tokens.no_chat}",
                hint="leave it out, or put chat_template.jinja beside the target's tokenizer.json",
            )
        self.trace = None
        if scenario.load is not None and scenario.load.arrivals == "trace":
            self.trace = Trace.of([(entry.where, entry.number, entry.stamp) for entry in content.entries])
        self.order = content.entries if self.trace else in_order(content.entries, scenario.workload.seed)

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
        (least, most), chosen, passed_over = self.lengths(above, context), list[Chosen](), 0
        for prompt in map(self.tokens.of, self.order):
            if least <= len(prompt.token_ids) and (most is None or len(prompt.token_ids) <= most):
                chosen.append(prompt)
            else:
                passed_over += 1
            if len(chosen) == measuring + warming:
                break
        if repeated := len(chosen) < measuring:
            if self.scenario.load is None or self.trace is not None or len(chosen) < MIN_PROMPTS:
                raise self._too_few(chosen, above, context, batch)
            chosen = list(islice(cycle(chosen), measuring))
        measured, left = tuple(chosen[:measuring]), tuple(chosen[measuring:])
        if len(left) == warming:
            return Draw(measured, left, False, passed_over)
        again = (left + measured * (warming // measuring + 1))[:warming]
        return Draw(measured, again, True, passed_over, repeated)

    def due(self, entry: Entry) -> float:
        """When the request of a trace was sent (`Trace.due`); 0 where the file is none."""
        return self.trace.due[entry.number] if self.trace else 0.0

    def new_tokens(self, entry: Entry) -> int | None:
        """The tokens of its answer, where the file is a trace that says so."""
        return self.trace.new_tokens[entry.number] if self.trace else None

    def sets(self, most: int) -> int:
        """The prompt sets that every class of length has prompts for, up to `most`; two at least, and as many as hold
        `MIN_PROMPTS` at the smallest batch.
        """
        smallest, *_, largest = self.scenario.set_sizes * 2
        classes: list[tuple[int, int | None]] = [*pairwise((0, *self.scenario.grid.context))] or [(0, None)]
        least = max(2, -(-MIN_PROMPTS // smallest))
        return max(least, min(self._prompts_in(*bounds, most * largest) // largest for bounds in classes))

    def _prompts_in(self, above: int, context: int | None, most: int) -> int:
        """The prompts of a class of length; `most` where there are more."""
        shortest, longest = self.lengths(above, context)
        fits = (shortest <= len(self.tokens.of(entry).token_ids) <= (longest or math.inf) for entry in self.order)
        return sum(1 for _ in islice(filter(None, fits), most))

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
        range_ = f"have {range_}" if least > 1 or most is not None else "are in it"
        file = f"those in the file: {min(every)} to {max(every)} tokens"
        if self.left_out:
            file += f"; {left_out_in_words(self.left_out)}"
        enough = len(chosen) // batch
        fewer = replace(self.scenario, workload=replace(self.scenario.workload, prompt_sets=enough))
        # Fewer sets that the scenario would be refused for are no way out.
        remedy = "" if not enough or any(contradictions(fewer)) else f"prompt_sets: {enough} (--prompt-sets), or "
        load = self.scenario.load
        size, less = (f"batch {batch}", "a smaller batch") if load is None else (f"{batch} requests", LESS_LOAD)
        ways = [*(["other lengths"] if least > 1 or most is not None else []), *([less] if batch > 1 else [])]
        return UsageError(
            f"{self.file.name}: {sets} sets × {size} = {sets * batch} prompts are needed, and {len(chosen)} that "
            f"differ {range_} ({file})",
            hint=f"right would be {remedy}{', '.join(ways)}{' or ' if ways else ''}more prompts",
        )


def check_ids(entries: Sequence[Entry], vocab: int) -> None:
    """Raises UsageError for a token id that the target does not have."""
    for entry in entries:
        for index, number in enumerate(entry.content if isinstance(entry.content, tuple) else ()):
            if number >= vocab:
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
            f"{file.name}: category: {len(counts)} different ones among {len(chosen)} prompts; at most {CATEGORIES}",
            hint="leave the key out where it names no group of prompts",
        )

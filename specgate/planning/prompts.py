"""Prompts: real text of exactly the requested length, chosen by seed, no two alike, or a user's own from a file.
Warm-up prompts are others.

A prompt of text is a sequence of whole documents, each below a line with its path, cut off at `context` tokens. The
next prompt starts at the next document. The order of the documents depends only on the source and the seed, not on the
requested length. Prompts from a file (`prompt_files`) are whole and have lengths of their own.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.checkpoints.chat_template import Chat
from specgate.checkpoints.tokenizer_file import opening_ids, read_tokenizer
from specgate.contract import Scenario
from specgate.contract.protocols import ChatPrompt
from specgate.contract.samples.answers import AnswerKey
from specgate.contract.scenarios.workload import PromptSource
from specgate.contract.tape import sha256_of_ids
from specgate.errors import CheckpointError, UsageError
from specgate.files.json_text import to_plain
from specgate.planning.contradictions import MIN_PROMPTS
from specgate.planning.prompt_files.choosing import Draw, OwnPrompts, check_categories

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from specgate.pairs.corpus import Corpus, Pool

SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "code": ("code",),
    "docs": ("docs",),
    "prose": ("prose",),
    "mixed": ("code", "docs", "prose"),
}
"""Source of a workload → the kinds of text in it."""
RANDOM: Final[PromptSource] = "random"
"""The source of uniformly random token ids, for pairs whose tokens have no meaning."""

CHARACTERS_PER_TOKEN: Final = 16
"""A generous upper bound. This much text per missing token is tokenised first, and the whole document only if that is
too little.
"""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Origin of a part of a prompt: `tokens` tokens of a document, at index `offset` of the prompt.

    They are its first ones, unless `skipped` of them gave way to a prefix that the prompts of a set share.
    """

    corpus: str
    version: str
    path: str
    offset: int
    tokens: int
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt and the documents that it is made of, which one from a file does not have.

    `due`: of a trace, when it was sent: requests since the first one, at the trace's mean rate. `new_tokens`: of a
    trace that says so, the tokens of its answer; None: as the budget says. `chat`: what it is the rendering of, by the
    target's chat template.
    """

    token_ids: tuple[int, ...]
    excerpts: tuple[Excerpt, ...]
    due: float = 0.0
    new_tokens: int | None = None
    chat: Chat | None = None


@dataclass(frozen=True, slots=True)
class PromptSet:
    """`batch` prompts that are prefilled together."""

    prompts: tuple[Prompt, ...]

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of every prompt."""
        return tuple(p.token_ids for p in self.prompts)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Slot → tokens of its prompt."""
        return tuple(len(p.token_ids) for p in self.prompts)

    @property
    def sha256(self) -> str:
        """SHA-256 of all token ids of the set."""
        return sha256_of_ids(self.token_ids)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompt sets of one point."""

    source: str
    seed: int
    measured: tuple[PromptSet, ...]
    warmup: tuple[PromptSet, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else a result stores about them: of prompts from a file, which they are and how long."""

    @property
    def sha256(self) -> str:
        """SHA-256 of all measured token ids."""
        return sha256_of_ids(list(chain.from_iterable(s.token_ids for s in self.measured)))

    @property
    def chats(self) -> Iterator[ChatPrompt]:
        """Yield the chats among the prompts, for an engine that talks to a chat end point."""
        for prompt in chain.from_iterable(s.prompts for s in (*self.measured, *self.warmup)):
            if prompt.chat is not None:
                yield ChatPrompt(sha256_of_ids([prompt.token_ids]), json.dumps(prompt.chat.request, default=str))

    def describe(self) -> dict[str, object]:
        """Return what a result stores about its prompts: hashes and origins, but no text."""
        return {
            "source": self.source,
            "seed": self.seed,
            "pool": "measure",
            "sha256": self.sha256,
            "set_sha256": [s.sha256 for s in self.measured],
            "warmup_sha256": [s.sha256 for s in self.warmup],
            "sources": [[[origin(e) for e in p.excerpts] for p in s.prompts] for s in self.measured],
            **self.about,
        }


def origin(excerpt: Excerpt) -> dict[str, object]:
    """The excerpt as a result stores it."""
    return {key: value for key, value in asdict(excerpt).items() if key != "skipped" or value}


def build_prompts(scenario: Scenario, context: int, batch: int, tokenizer_file: Path | None, vocab: int) -> Prompts:
    """The prompt sets of one point: `prompt_sets` measured and `warmup_sets` warm-up sets of `batch` prompts each,
    every prompt of exactly `context` tokens. Prompts from a file have at most so many, and more than the context below
    it in the scenario's grid.

    `vocab`: the size of the target's vocabulary.

    Raises UsageError for an unknown source, a missing tokenizer, a tokenizer with a larger vocabulary, a source with
    fewer different prompts than asked for, a file of prompts that cannot be used, and a shared prefix that is as long
    as the prompts. Raises EnvironmentRefused where the text has not been fetched.
    """
    w = scenario.workload
    if w.own:
        return from_file(scenario, context, batch, OwnPrompts(scenario, tokenizer_file, vocab))
    if w.source == RANDOM:
        measured = random_prompts(f"{w.seed}/measure", context, vocab)
        warmup = random_prompts(f"{w.seed}/warmup", context, vocab)
    else:
        tokenizer = load_tokenizer(scenario, tokenizer_file, vocab)
        corpora = load_corpora(scenario)
        measured = text_prompts(corpora, "measure", w.seed, context, tokenizer)
        warmup = text_prompts(corpora, "warmup", w.seed, context, tokenizer)
    if w.shared_prefix >= context:
        raise UsageError(
            f"{scenario.source_file or scenario.name}: workload.shared_prefix: {w.shared_prefix}: prompts of {context} "
            "tokens would be the same",
            hint=f"at most {context - 1}",
        )
    return Prompts(
        w.source,
        w.seed,
        take_sets(scenario, measured, w.prompt_sets, batch, context),
        take_sets(scenario, warmup, w.warmup_sets, batch, context),
        {"shared_prefix": w.shared_prefix} if w.shared_prefix else {},
    )


def take_sets(
    scenario: Scenario, prompts: Iterator[Prompt], sets: int, batch: int, context: int
) -> tuple[PromptSet, ...]:
    """`sets` sets of `batch` prompts each; a load may repeat them. Raises UsageError where there are fewer prompts."""
    taken = list(islice(prompts, sets * batch))
    if scenario.load is not None and len(taken) >= MIN_PROMPTS:
        taken = list(islice(cycle(taken), sets * batch))
    if len(taken) < sets * batch:
        raise UsageError(
            f"scenario {scenario.name}: {sets} sets × batch {batch} = {sets * batch} prompts of {context} tokens asked "
            f"for, source {scenario.workload.source!r} has {len(taken)} that differ",
            hint="ask for fewer sets, a smaller batch, a shorter context, or source: mixed",
        )
    return in_sets(taken, batch, scenario.workload.shared_prefix)


def in_sets(prompts: Sequence[Prompt], batch: int, shared_prefix: int) -> tuple[PromptSet, ...]:
    """The prompts in sets of `batch`. All of a set begin with the first `shared_prefix` tokens of its first prompt."""
    sets = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
    return tuple(PromptSet(tuple(beginning_as(of[0], p, shared_prefix) for p in of)) for of in sets)


def beginning_as(first: Prompt, prompt: Prompt, tokens: int) -> Prompt:
    """`prompt` with its first `tokens` tokens replaced by those of `first`."""
    if not tokens or prompt is first:
        return prompt
    head = [replace(e, tokens=min(e.tokens, tokens - e.offset)) for e in first.excerpts if e.offset < tokens]
    tail = [e for e in prompt.excerpts if e.offset + e.tokens > tokens]
    ids = (*first.token_ids[:tokens], *prompt.token_ids[tokens:])
    return replace(prompt, token_ids=ids, excerpts=(*head, *(cut_before(e, tokens) for e in tail)))


def cut_before(excerpt: Excerpt, offset: int) -> Excerpt:
    """The part of an excerpt at `offset` and behind it."""
    lost = max(0, offset - excerpt.offset)
    return replace(excerpt, offset=excerpt.offset + lost, tokens=excerpt.tokens - lost, skipped=excerpt.skipped + lost)


# ── from a file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def from_file(scenario: Scenario, context: int, batch: int, own: OwnPrompts) -> Prompts:
    """The prompt sets of one point: see `build_prompts`."""
    above = max((c for c in scenario.grid.context if c < context), default=0)
    draw, prefix = own.draw(above, context, batch), scenario.workload.shared_prefix
    check_categories(draw.measured, own.file)
    measured, warmup = (
        in_sets(
            [Prompt(c.token_ids, (), own.due(c.entry), own.new_tokens(c.entry), c.chat) for c in chosen], batch, prefix
        )
        for chosen in (draw.measured, draw.warmup)
    )
    seed = scenario.workload.seed
    return Prompts(scenario.workload.source, seed, measured, warmup, about_own(own, draw, batch, prefix))


def about_own(own: OwnPrompts, draw: Draw, batch: int, shared_prefix: int) -> dict[str, object]:
    """Return what a result stores of prompts from a file: its hash, and of every prompt line, length, category and
    key of its answer. Neither text nor ids of lines are stored.
    """
    lengths = [len(c.token_ids) for c in draw.measured]
    categories = [c.entry.category for c in draw.measured]
    keys = [c.entry.answer and to_plain(AnswerKey, c.entry.answer) for c in draw.measured]
    later = sum(bool(c.entry.later) for c in draw.measured)
    rendered = Counter(c.how for c in draw.measured)

    def sets(values: Sequence[object]) -> list[Sequence[object]]:
        return [values[i : i + batch] for i in range(0, len(values), batch)]

    return {
        "file": {
            "name": own.file.name,
            "sha256": own.scenario.workload.sha256,
            "format": own.scenario.workload.format,
            "prompts": own.entries,
            "duplicates": own.duplicates,
            **({"left_out": dict(own.left_out)} if own.left_out else {}),
            **({"answered": own.answered} if own.answered else {}),
            **({"passed_over": draw.passed_over} if draw.passed_over else {}),
        },
        "rendered": dict(rendered),
        **({"template": own.tokens.chat.name} if own.tokens.chat and "chat template" in rendered else {}),
        **({"text_why": own.tokens.text_why} if "text" in rendered else {}),
        "length_tokens": length_summary(lengths),
        "lengths": sets(lengths),
        "lines": sets([c.entry.number for c in draw.measured]),
        **({"categories": sets(categories)} if any(categories) else {}),
        **({"answers": sets(keys)} if any(keys) else {}),
        **({"later_turns": later} if later else {}),
        **({"repeated": len({c.entry.number for c in draw.measured})} if draw.repeated else {}),
        **({"warmup": "repeats measured prompts: the file has no others"} if draw.reused else {}),
        **({"shared_prefix": shared_prefix} if shared_prefix else {}),
    }


def length_summary(lengths: Sequence[int]) -> dict[str, float]:
    """Shortest, median and longest of prompts' lengths, in tokens."""
    return {"min": min(lengths), "median": statistics.median(lengths), "max": max(lengths)}


# ── from text ────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_tokenizer(scenario: Scenario, file: Path | None, vocab: int) -> Tokenizer:
    """The tokenizer in `file`.

    Raises UsageError where it is missing, not a tokenizer, or has more tokens than the vocabulary.
    """
    if file is None:
        raise UsageError(
            f"scenario {scenario.name}: workload.source {scenario.workload.source!r} needs the target's tokenizer.json",
            hint=f"put it into the target's folder, or use source: {RANDOM}",
        )
    try:
        tokenizer = read_tokenizer(file)
    except CheckpointError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if tokenizer.get_vocab_size() > vocab:
        raise UsageError(f"{file}: {tokenizer.get_vocab_size()} tokens, but the target's vocabulary has {vocab}")
    return tokenizer


def load_corpora(scenario: Scenario) -> list[list[Corpus]]:
    """The corpora of each kind of text in the scenario's source."""
    from specgate.pairs.corpus import wheel_corpus
    from specgate.pairs.fetch import TEXTS, require

    source = scenario.workload.source
    if source not in SOURCES:
        known = ", ".join([*SOURCES, RANDOM])
        raise UsageError(f"scenario {scenario.name}: workload.source = {source!r}", hint=f"known: {known}")
    return [
        [wheel_corpus(a.package, a.version, require(a), a.files) for a in TEXTS if a.kind == kind]
        for kind in SOURCES[source]
    ]


def text_prompts(
    kinds: Sequence[Sequence[Corpus]], pool: Pool, seed: int, context: int, tokenizer: Tokenizer
) -> Iterator[Prompt]:
    """Prompts from each kind of text in turn, until the last one runs out."""
    streams = [prompts_of_kind(corpora, pool, seed, context, tokenizer) for corpora in kinds]
    while streams:
        for stream in list(streams):
            prompt = next(stream, None)
            if prompt is None:
                streams.remove(stream)
            else:
                yield prompt


def prompts_of_kind(
    corpora: Sequence[Corpus], pool: Pool, seed: int, context: int, tokenizer: Tokenizer
) -> Iterator[Prompt]:
    """Prompts of `context` tokens until the documents run out. No document is used twice."""
    start = opening_ids(tokenizer)
    ids, excerpts = list(start), list[Excerpt]()
    for corpus, path in shuffled(corpora, pool, seed):
        excerpt, piece = excerpt_of(corpus, path, len(ids), context - len(ids), tokenizer)
        if excerpt is None:
            continue
        ids += piece
        excerpts.append(excerpt)
        if len(ids) == context:
            yield Prompt(tuple(ids), tuple(excerpts))
            ids, excerpts = list(start), []


def shuffled(corpora: Sequence[Corpus], pool: Pool, seed: int) -> list[tuple[Corpus, str]]:
    """The documents of a pool, in the order that the seed gives."""
    from specgate.pairs.corpus import pool_of

    places = [(corpus, path) for corpus in corpora for path in corpus.paths if pool_of(corpus.name, path) == pool]
    random.Random(seed).shuffle(places)
    return places


def excerpt_of(
    corpus: Corpus, path: str, offset: int, missing: int, tokenizer: Tokenizer
) -> tuple[Excerpt | None, list[int]]:
    """At most `missing` tokens from the beginning of a document, with their origin; (None, []) where the file is no
    document.
    """
    from specgate.pairs.corpus import load

    document = load(corpus, path)
    if document is None:
        return None, []
    text = f"# {path}\n\n{document.text}\n\n"
    head = text[: missing * CHARACTERS_PER_TOKEN]
    ids = tokenizer.encode(head, add_special_tokens=False).ids
    if len(ids) < missing and len(head) < len(text):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    ids = ids[:missing]
    return Excerpt(corpus.name, corpus.version, path, offset, len(ids)), ids


# ── without text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def random_prompts(seed: str, context: int, vocab: int) -> Iterator[Prompt]:
    """Endless prompts of uniformly random token ids."""
    generator = random.Random(seed)
    while True:
        yield Prompt(tuple(generator.choices(range(vocab), k=context)), ())

"""Training text by name, token streams of it, the target's own continuations, and batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.backends.eagle3.pair_tools.train.recipe import Strand
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget
from specgate.backends.eagle3.reference.target import RopeTable
from specgate.errors import UsageError
from specgate.pairs.corpus import (
    TEXT_FILES,
    Corpus,
    Pool,
    documents,
    installed_corpus,
    matching,
    stdlib_corpus,
    wheel_corpus,
)
from specgate.pairs.fetch import TEXTS, require

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class TextCorpus:
    """A corpus and its `share` of the training chunks, relative to the shares of the others."""

    corpus: Corpus
    share: float

    @property
    def name(self) -> str:
        return f"{self.corpus.name} {self.corpus.version}".strip()


def parse_corpus(text: str) -> TextCorpus:
    """Parse `NAME` or `NAME=SHARE`. A name is `python` (the standard library), a package, or the path of a folder.

    Raises UsageError for a share that is not a positive number, and for a name that is none of these.
    """
    name, equals, share = text.partition("=")
    try:
        value = float(share) if equals else 1.0
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UsageError(f"--corpus {text}: share = {share!r}", hint="a positive number is needed, e.g. django=2")
    return TextCorpus(find_corpus(name), value)


def find_corpus(name: str) -> Corpus:
    if name == "python":
        return stdlib_corpus()
    for asset in TEXTS:
        if name == asset.package:
            return wheel_corpus(asset.package, asset.version, require(asset), asset.files)
    if Path(name).is_dir():
        return folder_corpus(Path(name))
    return installed_corpus(name)


def folder_corpus(folder: Path) -> Corpus:
    """The text files below `folder`. The corpus has the folder's name."""
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    return Corpus(folder.resolve().name, "", matching(names, TEXT_FILES), lambda path: (folder / path).read_bytes())


def texts(corpus: TextCorpus, pool: Pool) -> Iterator[str]:
    """The documents of one pool."""
    return (document.text for document in documents(corpus.corpus, pool))


TOKENISED_AT_ONCE: Final = 256


def token_stream(documents: Iterable[str], tokenizer: Tokenizer, separator: int) -> Tensor:
    """All documents as one stream, int32 [N], each followed by the `separator` token. Empty without documents."""
    parts = [torch.empty(0, dtype=torch.int32)]
    for texts in batched(documents, TOKENISED_AT_ONCE):
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            parts.append(torch.tensor([*encoding.ids, separator], dtype=torch.int32))
    return torch.cat(parts)


def batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class Corpora:
    """Token streams [N]. A chunk comes from each with a probability proportional to its share."""

    streams: tuple[Tensor, ...]
    shares: tuple[float, ...]

    def chunks(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        """`count` chunks at random places, int64 [count, length]. Raises UsageError where a stream is too short."""
        shortest = min(map(len, self.streams))
        if shortest <= length:
            raise UsageError(f"a corpus of {shortest} tokens", hint=f"sequences of {length} tokens need a longer one")
        which = torch.multinomial(torch.tensor(self.shares), count, replacement=True, generator=generator)
        uniform = torch.rand(count, generator=generator, dtype=torch.double)
        rows = []
        for index, fraction in zip(which.tolist(), uniform.tolist(), strict=True):
            stream = self.streams[index]
            start = int(fraction * (len(stream) - length))
            rows.append(stream[start : start + length])
        return torch.stack(rows).long()


@dataclass(frozen=True, slots=True)
class Batch:
    """Token sequences [B, T] with the target's RoPE rows.

    Tokens before position `learned_from` are context only: the draft does not learn from them.
    """

    tokens: Tensor
    rows: RopeTable
    learned_from: int


@dataclass(frozen=True, slots=True)
class Source:
    """Draws batches of `count` sequences of `length` tokens from `pool`: corpora, or ready sequences [M, length].

    A batch comes from this source with a probability proportional to `share`.
    """

    share: float
    pool: Corpora | Tensor
    count: int
    length: int
    learned_from: int
    rows: RopeTable

    def draw(self, generator: torch.Generator) -> Batch:
        if isinstance(self.pool, Corpora):
            tokens = self.pool.chunks(self.count, self.length, generator)
        else:
            picked = torch.randint(len(self.pool), (self.count,), generator=generator)
            tokens = self.pool[picked.to(self.pool.device)].long()
        return Batch(tokens, self.rows, self.learned_from)


def mixed_batches(sources: Sequence[Source], seed: int) -> Iterator[Batch]:
    """Endless batches, each from a single source. `seed` determines both the source and the content."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([s.share for s in sources])
    while True:
        yield sources[int(torch.multinomial(shares, 1, generator=generator))].draw(generator)


TOKENS_AT_ONCE = {"cpu": 16_384, "cuda": 1_048_576}
"""Tokens of prompts and continuations whose KV cache is held at a time, by device type."""


def own_sequences(
    target: FrozenTarget, corpora: Corpora, strand: Strand, rows: RopeTable, most_repeated: float, seed: int
) -> Tensor:
    """Sequences, int32 [M, strand.length], each a prompt and the target's continuation.

    `strand.sequences` are drawn. Those whose continuation repeats more than `most_repeated` of its 8-grams are dropped.
    """
    generator = torch.Generator().manual_seed(seed)
    device = corpora.streams[0].device
    at_once = max(1, TOKENS_AT_ONCE[device.type] // strand.length)
    sequences = [torch.empty(0, strand.length, dtype=torch.int32, device=device)]
    for start in range(0, strand.sequences, at_once):
        prompts = corpora.chunks(min(at_once, strand.sequences - start), strand.prompt, generator)
        text = target.continue_greedily(prompts, strand.own_tokens, rows)
        varied = repeated_share(text[:, strand.prompt :]) <= most_repeated
        sequences.append(text[varied].int())
    return torch.cat(sequences)


def repeated_share(tokens: Tensor) -> Tensor:
    """Share of the 8-grams in each row of `tokens` [B, T] that occurred earlier in the same row, float [B]."""
    return torch.tensor([repeated_ngram_share(row) for row in tokens.tolist()], device=tokens.device)

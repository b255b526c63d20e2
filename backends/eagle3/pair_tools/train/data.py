"""Token streams, and batches of sequences that are drawn from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.target import RopeTable
from specgate.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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

"""Tokens of answers whose token ids are missing: made of their texts, so that equal texts have equal tokens.

Chat end points and gateways often leave ids out. How many tokens there are is then known from the usage record, and
their texts from the stream. Three sources, the best one first:

    names    each token's own bytes, from log-probabilities; its id is a hash of them
    encoded  the target's tokenizer, if it makes as many tokens of the whole text as the server counts
    slices   the text cut into as many pieces as the server counts; a piece's id is a hash of its bytes

Texts that differ get ids that differ from about the place on where they part. Their positions are exact for `names`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

Encode = Callable[[str], Sequence[int]]
"""Text → the ids of its tokens, without special tokens around them."""
NAMED: Final = "by the bytes of each token"
ENCODED: Final = "by the target's tokenizer"
SLICED: Final = "as texts"


@dataclass(frozen=True, slots=True)
class Piece:
    """An event with text: when it `arrived` (ns), its `text`, and the bytes of its tokens where they are told."""

    arrived: int
    text: str
    names: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """Tokens made of a text, the times of its events (ns) and how many tokens each of them has. `how`: by what."""

    tokens: tuple[int, ...]
    times: tuple[int, ...]
    counts: tuple[int, ...]
    how: str


@dataclass(frozen=True, slots=True)
class TextTokens:
    """Makes tokens of texts. Every id is below `vocab`, and none of the `ends` that end a text.

    `encode`: the target's tokenizer, here or at the server; None where there is none.
    """

    vocab: int
    ends: tuple[int, ...] = ()
    encode: Encode | None = None

    def made(self, pieces: Sequence[Piece], count: int) -> Made:
        """Return the tokens of an answer in `pieces`, of which the server counts `count`: at least 1, and `pieces` is
        not empty. Of the last one there may be no text, because it ended the answer.
        """
        names = [name for piece in pieces for name in piece.names]
        if names and count - len(names) in (0, 1):
            named = [piece for piece in pieces if piece.names]
            ids = tuple(map(self.id_of, names))
            return Made(ids, tuple(p.arrived for p in named), tuple(len(p.names) for p in named), NAMED)
        text = "".join(piece.text for piece in pieces)
        encoded = tuple(self.encode(text)) if self.encode is not None else ()
        exact = bool(encoded) and count - len(encoded) in (0, 1)
        tokens = encoded if exact else tuple(map(self.id_of, slices(text.encode(), count)))
        times, counts = spread([p.arrived for p in pieces], [len(p.text.encode()) for p in pieces], len(tokens))
        return Made(tokens, times, counts, ENCODED if exact else SLICED)

    def id_of(self, name: bytes) -> int:
        """The id of a token with these bytes: the same in every process."""
        number = int.from_bytes(sha256(name).digest()[:8], "little") % self.vocab
        while number in self.ends:
            number = (number + 1) % self.vocab
        return number


def encoder(file: Path) -> Encode | None:
    """Return the encoding by the tokenizer in `file`; None without such a file. Raises CheckpointError where it is no
    tokenizer.
    """
    if not file.is_file():
        return None
    from specgate.checkpoints.tokenizer_file import read_tokenizer

    tokenizer = read_tokenizer(file)

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def slices(data: bytes, count: int) -> list[bytes]:
    """`data` in `count` pieces of nearly one length."""
    bounds = [round(i * len(data) / count) for i in range(count + 1)]
    return [data[a:b] for a, b in pairwise(bounds)]


def spread(times: Sequence[int], sizes: Sequence[int], count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(times, tokens) of the events that have a token, if `count` tokens are spread over events of these `sizes`. Every
    event has one, if there are enough, and the first just that: what prefill gives. The first and the last event have
    one each, if there are two.
    """
    events, total = len(times), sum(sizes) or 1
    if count < events:
        kept = [*range(count - 1), events - 1] if count > 1 else [0]
        return tuple(times[i] for i in kept), (1,) * count
    so_far = [0]
    for left, size in zip(range(events - 1, -1, -1), accumulate(sizes), strict=True):
        so_far.append(min(max(round(size * count / total), so_far[-1] + 1), count - left))
    if events > 1:
        so_far[1] = 1
    so_far[-1] = count
    return tuple(times), tuple(b - a for a, b in pairwise(so_far))

"""Look at a text of another engine: score its tokens, and run the pair's draft along it.

The caches keep the last text. A text that begins alike is computed from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.draft import EagleDrafter, draft_token
from specgate.backends.eagle3.reference.ops import check_finite, target_argmax
from specgate.backends.eagle3.reference.sampling import Sampler
from specgate.contract import Score, TopTokens
from specgate.errors import BackendError

SLOT: Final = slice(0, 1)
ROWS: Final = 1024
"""Rows of a text that the draft takes in at a time: its attention has a mask of rows by positions."""


class Passes(Protocol):
    """What is needed of the loop's target (`loop.Target`)."""

    device: str
    prefill_rows: int

    def forward(
        self,
        slots: slice,
        tokens: Tensor,
        positions: Tensor,
        boundaries: Sequence[int],
        rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run `tokens` [B, T]; see `loop.Target.forward`."""

    def logits(self, stream: Tensor) -> Tensor:
        """Float32 logits [..., V] of what `forward` returned."""


class ScoredText:
    """A prompt and its continuation, whose rows are in the caches of `model`, and of the pair's draft if there is one.

    `max_positions`: rows that the caches have.
    """

    def __init__(
        self, model: Passes, drafter: EagleDrafter | None, sampler: Sampler | None, max_positions: int
    ) -> None:
        self.model, self.drafter, self.sampler, self.max_positions = model, drafter, sampler, max_positions
        self.cached: list[int] = []
        """Tokens whose rows the caches hold."""
        self.prompt = 0
        self.streams: dict[int, Tensor] = {}
        """Row of the continuation → the draft's hidden state [Hd] there."""

    def score(self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]) -> tuple[Score, ...]:
        """As `protocols.ScoresTokens.score`, in one pass, chunk by chunk. Raises BackendError for a text too long."""
        scores = list[Score]()
        for rows, logits in self._logits(prompt, continuation, positions):
            emitted = torch.tensor([continuation[row + 1 - len(prompt)] for row in rows], device=self.model.device)
            best = target_argmax(logits)
            of = (best, logits.gather(1, best[:, None])[:, 0], logits.gather(1, emitted[:, None])[:, 0])
            scores += [Score(*row) for row in zip(*(column.tolist() for column in of), strict=True)]
        return tuple(scores)

    def token_logits(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        places: Sequence[tuple[int, Sequence[int]]],
        count: int,
    ) -> tuple[TopTokens, ...]:
        """As `protocols.ShowsTokenLogits.token_logits`. Raises BackendError for a text too long."""
        by_row = dict[int, Tensor]()
        for rows, logits in self._logits(prompt, continuation, [position for position, _ in places]):
            by_row |= dict(zip(rows, logits.cpu(), strict=True))
        shown = list[TopTokens]()
        for position, tokens in places:
            row = by_row[len(prompt) + position - 1]
            named = list(tokens) or row.topk(min(count, len(row))).indices.tolist()
            shown.append(TopTokens(tuple(row[named].tolist()), tuple(named)))
        return tuple(shown)

    def _logits(
        self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield (rows of the text, their logits [R, V]) chunk by chunk, of the rows that choose the tokens at
        `positions`.
        """
        wanted = sorted({len(prompt) + p - 1 for p in positions})
        tokens, device = [*prompt, *continuation], self.model.device
        end = len(tokens) - 1 if self.drafter else wanted[-1] + 1
        if not prompt or end >= self.max_positions:
            raise BackendError(f"a text of {end} rows is outside 1..{self.max_positions - 1} cached positions")
        # The draft's row of a token has the next one in it. So it is another one where the texts part.
        same = min(common(self.cached, tokens) - 1, wanted[0], len(prompt) - 1)
        self.prompt, self.cached = len(prompt), []
        for start in range(max(same, 0), end, self.model.prefill_rows):
            chunk = torch.tensor([tokens[start : min(start + self.model.prefill_rows, end)]], device=device)
            at = torch.arange(start, start + chunk.shape[1], device=device)[None]
            rows = [row for row in wanted if start <= row < start + chunk.shape[1]]
            boundaries = self.drafter.boundaries if self.drafter else ()
            stream, features = self.model.forward(SLOT, chunk, at, boundaries, [row - start for row in rows] or [-1])
            if features is not None:
                following = torch.tensor([tokens[start + 1 : start + 1 + chunk.shape[1]]], device=device)
                self._take_in(start, following, features, at)
            if rows:
                yield rows, self._chosen_from(prompt, continuation, rows, stream)
        self.cached = tokens[: end + 1]

    def _chosen_from(
        self, prompt: Sequence[int], continuation: Sequence[int], rows: Sequence[int], stream: Tensor
    ) -> Tensor:
        """What the tokens after `rows` [R] of the text are chosen from, [R, V], from what `forward` returned of
        these: logits, or scores of a draw.
        """
        logits, device = self.model.logits(stream)[0], self.model.device
        check_finite(logits, "the target's logits")
        if self.sampler:
            self.sampler.begin([prompt])
            before = (continuation[: row + 1 - len(prompt)] for row in rows)
            sampled = [self.sampler.drawn_scores(x, 0, text) for x, text in zip(logits, before, strict=True)]
            logits = torch.stack(sampled).to(device)
        return logits

    def _take_in(self, start: int, following: Tensor, features: Tensor, at: Tensor) -> None:
        """Extend the draft over the rows from `start` on: their next tokens `following` [1, T], the target's `features`
        [1, T, n·H] and their positions `at` [1, T].
        """
        assert self.drafter is not None
        for first in range(0, at.shape[1], ROWS):
            rows = slice(first, first + ROWS)
            stream = self.drafter.take_in(0, following[:, rows], features[:, rows], at[:, rows])
            kept = range(max(start + first, self.prompt - 1), start + first + len(stream))
            self.streams |= {row: stream[row - start - first] for row in kept}

    def drafted(self, starts: Sequence[int], k: int) -> tuple[int, ...]:
        """As `protocols.DraftsAlong.drafted`. Raises BackendError where there is no draft, or no text before."""
        if self.drafter is None or not self.cached:
            raise BackendError("drafts along a text: the engine has no draft of the pair, or has scored no text")
        text, counts = self.cached[self.prompt :], dict[int, int]()
        w, geometry = self.drafter.weights, self.drafter.geometry
        # The latest first: a chain leaves rows behind its start, where those of earlier cycles do not look.
        for i in sorted(set(starts), reverse=True):
            row, count = self.prompt - 1 + i, 0
            token, hidden = draft_token(w, geometry, self.streams[row][None])
            while count < min(k, len(text) - 1 - i) and int(token) == text[i + 1 + count]:
                count += 1
                if count < k:
                    position = torch.tensor([[row + count]], device=self.model.device)
                    stream = self.drafter.take_step(token[:, None], hidden[:, None], position)[:, 0]
                    token, hidden = draft_token(w, geometry, stream)
            counts[i] = count
        self.cached = self.cached[: self.prompt + min(starts, default=len(text))]
        return tuple(counts[i] for i in starts)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

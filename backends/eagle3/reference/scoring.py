"""Look at a text of another engine: score its tokens, and run the pair's draft along it.

The caches keep the last text. A text that begins alike is computed from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.draft import EagleDrafter, draft_token
from specgate.backends.eagle3.reference.ops import check_finite, target_argmax
from specgate.contract import Score
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.eagle3.reference.loop import SpeculativeLoop

SLOT: Final = slice(0, 1)
ROWS: Final = 1024
"""Rows of a text that the draft takes in at a time: its attention has a mask of rows by positions."""


class ScoredText:
    """A prompt and its continuation, whose rows are in the caches of `loop`: of the target, and of the pair's draft if
    it has one.
    """

    def __init__(self, loop: SpeculativeLoop) -> None:
        self.loop = loop
        self.drafter = loop.drafter if isinstance(loop.drafter, EagleDrafter) else None
        self.cached: list[int] = []
        """Tokens whose rows the caches hold."""
        self.prompt = 0
        self.streams: dict[int, Tensor] = {}
        """Row of the continuation → the draft's hidden state [Hd] there."""

    def score(self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]) -> tuple[Score, ...]:
        """As `protocols.ScoresTokens.score`, in one pass, chunk by chunk."""
        loop, row_tokens = self.loop, {len(prompt) + p - 1: continuation[p] for p in positions}
        tokens = [*prompt, *continuation]
        end = len(tokens) - 1 if self.drafter else max(row_tokens) + 1
        loop._check_fit([tokens[:end]], draft=False)
        loop.prompts, loop._last = [], None  # the caches hold another text from now on
        # The draft's row of a token has the next one in it. So it is another one where the texts part.
        same = min(common(self.cached, tokens) - 1, *row_tokens, len(prompt) - 1)
        self.prompt, self.cached, scores = len(prompt), [], list[Score]()
        for start in range(max(same, 0), end, loop.model.prefill_rows):
            chunk = torch.tensor([tokens[start : min(start + loop.model.prefill_rows, end)]], device=loop.device)
            at = torch.arange(start, start + chunk.shape[1], device=loop.device)[None]
            rows = [row for row in sorted(row_tokens) if start <= row < start + chunk.shape[1]]
            boundaries = self.drafter.boundaries if self.drafter else ()
            stream, features = loop.model.forward(SLOT, chunk, at, boundaries, [row - start for row in rows] or [-1])
            if features is not None:
                following = torch.tensor([tokens[start + 1 : start + 1 + chunk.shape[1]]], device=loop.device)
                self._take_in(start, following, features, at)
            if rows:
                scores += self._scores(prompt, continuation, rows, stream)
        self.cached = tokens[: end + 1]
        return tuple(scores)

    def _scores(
        self, prompt: Sequence[int], continuation: Sequence[int], rows: Sequence[int], stream: Tensor
    ) -> list[Score]:
        """The scores of the tokens after `rows` [R] of the text, from what `forward` returned of these."""
        loop = self.loop
        logits = loop.model.logits(stream)[0]
        check_finite(logits, "the target's logits")
        if loop.sampler:
            loop.sampler.begin([prompt])
            before = (continuation[: row + 1 - len(prompt)] for row in rows)
            sampled = [loop.sampler.drawn_scores(x, 0, text) for x, text in zip(logits, before, strict=True)]
            logits = torch.stack(sampled).to(loop.device)
        emitted = torch.tensor([continuation[row + 1 - len(prompt)] for row in rows], device=loop.device)
        best = target_argmax(logits)
        of = (best, logits.gather(1, best[:, None])[:, 0], logits.gather(1, emitted[:, None])[:, 0])
        return [Score(*row) for row in zip(*(column.tolist() for column in of), strict=True)]

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
                    position = torch.tensor([[row + count]], device=self.loop.device)
                    stream = self.drafter.take_step(token[:, None], hidden[:, None], position)[:, 0]
                    token, hidden = draft_token(w, geometry, stream)
            counts[i] = count
        self.cached = self.cached[: self.prompt + min(starts, default=len(text))]
        return tuple(counts[i] for i in starts)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

"""Tokens that a text has, for penalties. A row of a draft has those of the rows before it. Only committed tokens are
kept, so nothing is counted twice or left behind when a draft is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specgate.sampling.keys import Integers


@dataclass(frozen=True, slots=True)
class History:
    """`prompt` bool [V]: the tokens of the prompt. `output` int64 [V]: how often each token was emitted."""

    prompt: NDArray[np.bool_]
    output: Integers

    @classmethod
    def of(cls, prompt: Iterable[int], output: Iterable[int], vocabulary: int) -> History:
        """The history of a text."""
        in_prompt = np.zeros(vocabulary, bool)
        in_prompt[list(prompt)] = True
        return cls(in_prompt, np.bincount(np.asarray(list(output), np.int64), minlength=vocabulary))

    def rows(self, drafts: Iterable[int]) -> Iterator[History]:
        """The history before each of `drafts`, and the one after all of them: K + 1 of them.

        A draft token outside the vocabulary, which no target would emit, is not counted.
        """
        output = self.output
        yield self
        for token in drafts:
            output = output.copy()
            if 0 <= token < len(output):
                output[token] += 1
            yield History(self.prompt, output)

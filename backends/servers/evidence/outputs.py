"""Outputs of several steps, of a server that counts one step per output.

Such a server hands over what a request has got since its last output. Where it is late, that is the tokens of several
steps, of which its counters know the last only. How many steps there were cannot be told from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specgate.backends.servers.answers import Answer
from specgate.backends.servers.exchange import SpecCounts
from specgate.contract import Finish


def joined_outputs(k: int, counts: SpecCounts, answers: Sequence[Answer]) -> int:
    """Count the outputs that hold the tokens of several steps, at least. 0 if the counters explain all outputs, or do
    not count outputs.

    An output of one step has as many tokens as the step emitted. Only the last one of a request may be cut. So the
    counted steps must be the outputs' sizes, and each last output needs a step of its size or more. An output of more
    than K + 1 tokens is never a single step's.
    """
    sizes = [sizes_of(answer) for answer in answers]
    whole = [size for one in sizes for size in one[:-1]]
    last = sorted(one[-1] for one in sizes if one)
    # A step that emitted the end token alone brings no output: the token is kept back.
    hidden = counts.steps - len(whole) - len(last)
    if not counts.hist or not 0 <= hidden <= sum(answer.finish is not Finish.LENGTH for answer in answers):
        return 0
    steps = Counter({accepted + 1: times for accepted, times in enumerate(counts.hist)})
    unexplained = (Counter(whole) - steps).total()
    left = sorted((steps - Counter(whole)).elements())
    fits = not unexplained and all(step >= size for step, size in zip(left[hidden:], last, strict=True))
    return max(sum(size > k + 1 for size in (*whole, *last)), unexplained, 0 if fits else 1)


def sizes_of(answer: Answer) -> list[int]:
    """The tokens of each output that a decode step had a part in. The first token of a request is the prefill's."""
    first, *others = answer.times.chunk_tokens
    return [*([first - 1] if first > 1 else []), *others]

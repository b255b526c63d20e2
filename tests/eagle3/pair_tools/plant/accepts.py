"""Accept counts that a text of a planted pair implies for a faithful draft, cycle by cycle, without a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from specgate.backends.eagle3.pair_tools.plant.orbit import Orbit, chain_hits


def expected_accepts(orbit: Orbit, prompt: Sequence[int], tokens: Sequence[int], k: int) -> list[int]:
    """Accepted draft tokens per cycle of a chain of `k`, given the target's own `tokens` (the prefill token first).

    A cycle starts from the last token. It accepts draft tokens as long as they are what the target emits, at most `k`.
    The final cycle is left out where the text ends before it is decided.
    """
    text = [*prompt, *tokens]
    accepts, last = list[int](), len(prompt)
    while True:
        accepted = chain_hits(orbit, text, last, k)
        if last + accepted + 1 >= len(text):
            return accepts
        accepts.append(accepted)
        last += accepted + 1

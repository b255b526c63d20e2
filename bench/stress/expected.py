"""The text of a request that may end early, from the text that plain decoding writes when nothing ends it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specgate.contract import Finish


def cut(
    text: Sequence[int], stop: Collection[int], eos: Collection[int], new_tokens: int
) -> tuple[tuple[int, ...], str]:
    """The part of `text` up to its first EOS or stop token, that token included, and why it ends there."""
    for index, token in enumerate(text[:new_tokens]):
        if token in eos or token in stop:
            return tuple(text[: index + 1]), (Finish.EOS if token in eos else Finish.STOP).value
    return tuple(text[:new_tokens]), Finish.LENGTH.value

"""Select the texts of a server under load that are compared with the baseline's.

Where an engine is not bit-exact, many texts leave the baseline's at near ties, and each of these has to be asked about,
one request at a time. So a level compares a sample: the first requests of every prompt set, in its first round. They
are sent while all clients are busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from specgate.contract import Block, Scenario

COMPARED: Final = 8
"""Requests of every prompt set whose texts are compared."""


def compared(blocks: Sequence[Block], scenario: Scenario) -> list[Block]:
    """`blocks` of one point as their tokens are compared: as they are, or of a load scenario the sample of their texts.
    Blocks in which a server refused requests are left out, since their slots are other prompts.
    """
    if scenario.load is None:
        return list(blocks)
    return [
        replace(b, tokens=b.tokens[:COMPARED], truncated=b.truncated[:COMPARED], finish=b.finish[:COMPARED])
        for b in blocks
        if b.answered_all and b.round == 0
    ]

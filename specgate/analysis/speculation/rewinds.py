"""Tokens that an engine takes back in its KV cache, held against the draft tokens that its steps rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specgate.contract import Block
from specgate.contract.samples.counters import REWIND_STEPS, REWOUND, TREE_TOKENS
from specgate.errors import InvalidResult


def check_rewinds(blocks: Sequence[Block]) -> None:
    """What was rewound in the KV cache is what was rejected, in every block whose other counts hold. Raises
    InvalidResult.

    More: the engine has taken committed tokens back. Fewer: rejected drafts stay in the cache.
    """
    for block in blocks:
        for name, (least, most) in rewinds_of(block).items():
            if (reported := block.counters.get(name)) is not None and not least <= reported <= most:
                what = f"drafted - accepted over its steps gives {least if least == most else f'{least} to {most}'}"
                why = "committed tokens were rewound" if reported > most else "rejected drafts stay in the cache"
                where = f"{block.cell.key} set {block.prompt_set} round {block.round}"
                raise InvalidResult(f"{where}: {name} = {reported}, but {what}: {why}")


def rewinds_of(block: Block) -> Mapping[str, tuple[int, int]]:
    """Counter → (least, most) that follows from the drafts of a block.

    The two are the same where steps are known. A server shows sums, and its steps' own token may be a draft token.
    """
    if block.served is not None:
        record = block.served.acceptance
        if record is None:
            return {}
        rejected = block.counters.get(TREE_TOKENS, record.drafted) - record.accepted  # of a tree, every node
        return {REWOUND: (max(0, rejected - record.steps), rejected), REWIND_STEPS: (0, min(record.steps, rejected))}
    rejections = [
        d - a
        for accepts, drafts in zip(block.accepted, block.drafted, strict=True)
        for a, d in zip(accepts, drafts, strict=True)
        if a >= 0
    ]
    total, steps = sum(rejections), sum(count > 0 for count in rejections)
    return {REWOUND: (total, total), REWIND_STEPS: (steps, steps)}

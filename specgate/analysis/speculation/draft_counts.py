"""Draft tokens against K × steps: a chain of K drafts proposes K tokens in every step that has a draft.

More than K × steps is a contradiction: another draft length, a tree, or padding of other requests is counted. Fewer
are drafts that stop early, or that the engine does not count. Both change the acceptance rate, which is accepted over
drafted tokens; the acceptance length, which is over steps, stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.contract import Block
from specgate.contract.acceptance import AcceptanceRecord
from specgate.errors import InvalidResult

SHORTENS: Final[Mapping[str, str]] = {
    "vllm": "num_speculative_tokens_per_batch_size",
    "sglang": "--speculative-adaptive, --speculative-accept-threshold-single",
    "trtllm": "draft_len_schedule",
    "llamacpp": "--spec-draft-p-min above 0",
}
"""Engine → what makes its drafts shorter than K, as far as it is known (versions: `checkpoints/spec_config/formats`).
"""


def refuse_beyond_k(record: AcceptanceRecord, where: str) -> None:
    """Raise InvalidResult where more draft tokens are counted than K × steps."""
    whole = record.k * record.steps
    if record.drafted > whole:
        raise InvalidResult(
            f"{where}: {record.drafted:,} draft tokens in {record.steps:,} steps with a draft, where K × steps = "
            f"{whole:,}: another draft length, a tree of drafts, or padding is counted"
        )


def check_draft_counts(blocks: Sequence[Block]) -> None:
    """No server's block has more draft tokens than K × steps. Raises InvalidResult. (Engines that show their steps are
    held to it step by step.)
    """
    for block in blocks:
        record = block.served.acceptance if block.served is not None else None
        if record is not None:
            refuse_beyond_k(record, f"{block.cell.key} set {block.prompt_set} round {block.round}")


def short_of(record: AcceptanceRecord, requests: int) -> int:
    """Draft tokens that are missing from K × steps and that no end of a request explains: in the last step of each of
    `requests` there may be no room for K.
    """
    return max(0, record.k * record.steps - record.drafted - record.k * requests)


def shortness_in_words(record: AcceptanceRecord, backend: str) -> str:
    """Clause on the effect of drafts shorter than K on the acceptance rate."""
    whole, known = record.k * record.steps, SHORTENS.get(backend.removesuffix("-offline"))
    cause = f" (known to shorten drafts: {known})" if known else ""
    return (
        f"{record.drafted:,} of {whole:,} draft tokens (K × steps), {record.drafted / record.steps:.2f} a step{cause}: "
        f"the acceptance rate {100 * record.accepted / record.drafted:.1f} % is of those that were drafted, "
        f"{100 * record.accepted / whole:.1f} % are accepted of K × steps"
    )

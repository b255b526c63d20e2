"""Counters of speculative decoding beside acceptance: rewound draft tokens, and requests that stopped drafting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from specgate.contract import Finish

NO_DRAFT_COUNTERS: Final = "no_draft_counters"
"""The counter that is 1 in a spec block of a server which counts no drafts at all, not even none."""

ASKED_AGAIN: Final = "asked_again"
"""The counter of how often a server's block was asked for again, since its answers were seen in one piece."""

AS_TEXTS: Final = "answers_as_texts"
"""The counter of a server's answers without token ids: their tokens were made of their texts, to compare these."""

JOINED_OUTPUTS: Final = "joined_outputs"
"""The counter of a server's outputs that hold the tokens of several steps, at least, where it counts one step per
output: the other steps are lost, and with them what the block's acceptance would be.
"""
UNCOUNTED_TOKENS: Final = "uncounted_tokens"
"""Emitted tokens that the counted steps of a block with `JOINED_OUTPUTS` do not explain."""

TREE_TOKENS: Final = "tree_tokens"
"""The counter of draft tokens in trees. The acceptance record counts those of one path, K a step at most."""

ENDED_EARLY: Final = "chains_ended_early"
"""The counter of request-steps whose chain the engine ended before K tokens on purpose: the draft was unsure, or many
requests ran. Each of them drafted one token at least.
"""

REWOUND: Final = "rewound_tokens"
"""The counter of draft tokens whose place in the KV cache was taken back, since they were rejected."""
REWIND_STEPS: Final = "rewind_steps"
"""Request-steps that took at least one back."""
STEPS_ACCEPT_GE2: Final = "steps_accept_ge2"
"""Request-steps that accepted two draft tokens or more, by the engine's count."""
COMMITTED_EXTRAS: Final = "committed_extras"
"""Tokens that request-steps emitted beyond their first one, by the engine's count."""
REPORTED_ACCEPTED: Final = "reported_accepted_tokens"
"""Accepted draft tokens as an engine counts them that has each step's own token among them."""

TUNED_TOTAL: Final = "tuned_total"
"""Matrix products of a step, each of which looks up a tuned configuration. Those below are among them."""
TUNED_HITS: Final = "tuned_hits"
"""Products that run as they were tuned."""
TUNED_BY_RULE: Final = "tuned_by_rule"
"""Products that run more rows than a search knows, by a rule that starts from their weight's tuned configuration."""

SPECPV_PARTIAL: Final = "specpv_partial_passes"
"""The counter of request-steps of partial verification. Those below count in requests and tokens, too."""
SPECPV_FULL: Final = "specpv_full_passes"
"""Request-steps of full verification, those of `SPECPV_SHORT` among them."""
SPECPV_SHORT: Final = "specpv_short_passes"
"""Full verifications of requests so short that a partial one would leave nothing out."""
SPECPV_PARTIAL_ACCEPTED: Final = "specpv_partial_accepted"
"""Draft tokens that partial verifications accepted."""
SPECPV_FULL_ACCEPTED: Final = "specpv_full_accepted"
"""Draft tokens that full verifications accepted; where all is lossless, of what partial ones had let through."""
SPECPV_CHECKED: Final = "specpv_checked"
"""Emitted tokens of partial verifications that a full one has seen since."""
SPECPV_OVERRULED: Final = "specpv_overruled"
"""Those of `SPECPV_CHECKED` that the full verification would not have chosen, and that stay."""
SPECPV_READ: Final = "specpv_read_positions"
"""Cached positions that all of these passes read of each layer."""
SPECPV_CACHED: Final = "specpv_cached_positions"
"""Cached positions that there were for them."""
SPECPV_COUNTED: Final = (
    *(SPECPV_PARTIAL, SPECPV_FULL, SPECPV_SHORT, SPECPV_PARTIAL_ACCEPTED, SPECPV_FULL_ACCEPTED),
    *(SPECPV_CHECKED, SPECPV_OVERRULED, SPECPV_READ, SPECPV_CACHED),
)
"""All of these."""

FMHA_TILES: Final = {use: f"fmha_tiles_{use}" for use in ("total", "span_empty", "mask_empty", "executed")}
"""Use of the KV-cache tiles that attention kernels were launched for → its counter. `span_empty`: beyond a slot's
length. `mask_empty`: hidden as a whole by the length or the window. An engine that logs them states the last it has
logged, in every block: they are not to be summed over blocks.
"""


def speculation_counters(
    accepted: Sequence[Sequence[int]], finish: Sequence[str], drafted: Sequence[Sequence[int]] | int
) -> dict[str, int]:
    """Counters of one decode run, from `accepted` and `drafted` tokens per step and slot (negative: the slot was not
    running). A number: every step of every slot drafted so many.

    A rejected draft token is rewound. A slot leaves multi-token mode when it finishes; whether it did so for another
    reason (`disabled_multitoken_other`) is not for an engine to say: the harness counts it from the steps.
    """
    proposals = [(drafted,) * len(step) for step in accepted] if isinstance(drafted, int) else drafted
    rejected = [
        d - a
        for of, proposed in zip(accepted, proposals, strict=True)
        for a, d in zip(of, proposed, strict=True)
        if a >= 0
    ]
    ended = Counter(finish)
    return {
        REWOUND: sum(rejected),
        REWIND_STEPS: sum(count > 0 for count in rejected),
        "disabled_multitoken_eos": ended[Finish.EOS],
        "disabled_multitoken_stop": ended[Finish.STOP],
        "disabled_multitoken_length": ended[Finish.LENGTH],
    }

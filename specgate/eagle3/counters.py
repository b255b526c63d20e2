"""Counters of speculative decoding beside acceptance: rewound draft tokens, and requests that stopped drafting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from specgate.core import Finish

NO_DRAFT_COUNTERS: Final = "no_draft_counters"
"""The counter that is 1 in a spec block of a server which counts no drafts at all, not even none."""

ASKED_AGAIN: Final = "asked_again"
"""The counter of how often a server's block was asked for again, since its answers were seen in one piece."""


def speculation_counters(accepted: Sequence[Sequence[int]], finish: Sequence[str], k: int) -> dict[str, int]:
    """Counters of one decode run, from `accepted` draft tokens per step and slot (negative: the slot was not running).

    A rejected draft token is rewound. A slot leaves multi-token mode when it finishes; whether it did so for another
    reason (`disabled_multitoken_other`) is not for an engine to say: the harness counts it from the steps.
    """
    rows = [a for step in accepted for a in step if a >= 0]
    ended = Counter(finish)
    return {
        "rewound_tokens": sum(k - a for a in rows),
        "rewind_steps": sum(a < k for a in rows),
        "disabled_multitoken_eos": ended[Finish.EOS],
        "disabled_multitoken_stop": ended[Finish.STOP],
        "disabled_multitoken_length": ended[Finish.LENGTH],
    }

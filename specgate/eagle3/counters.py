"""What an engine counts beside acceptance: what was rewound, and why slots left multi-token mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specgate.core import Finish


def speculation_counters(accepted: Sequence[Sequence[int]], finish: Sequence[str], k: int) -> dict[str, int]:
    """Rewound draft tokens and steps, and why slots left multi-token mode (this engine leaves it at true ends only)."""
    rows = [a for step in accepted for a in step if a >= 0]
    ended = Counter(finish)
    return {
        "rewound_tokens": sum(k - a for a in rows),
        "rewind_steps": sum(a < k for a in rows),
        "disabled_multitoken_eos": ended[Finish.EOS],
        "disabled_multitoken_stop": ended[Finish.STOP],
        "disabled_multitoken_length": ended[Finish.LENGTH],
        "disabled_multitoken_other": 0,
    }

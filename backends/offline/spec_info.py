"""Counts of a request's `spec_info` as TurboMind's EAGLE-3 sums them up, in the terms of a block.

Its first draft token guesses the token that the step emits in any case. So a step that accepts L drafts emits max(1, L)
tokens, and `total_committed_extras` sums those beyond the first one. These are the accepted drafts of an acceptance
record. `num_accepted_tokens` has the step's own token in it, and so has the acceptance length that the fork prints.
Builds without `max_tokens_per_seq` sum up nothing but drafts, and `num_accepted_tokens` is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from specgate.backends.servers.exchange import SpecCounts
from specgate.contract.samples.counters import (
    COMMITTED_EXTRAS,
    REPORTED_ACCEPTED,
    REWIND_STEPS,
    REWOUND,
    STEPS_ACCEPT_GE2,
)

SUMS_STEPS: Final = "max_tokens_per_seq"
"""Key of the builds that sum up rewinds and committed tokens of every step. They leave out a key whose count is 0."""
OF_STEPS: Final[Mapping[str, str]] = {
    "num_rewound_tokens": REWOUND,
    "rewind_steps": REWIND_STEPS,
    "steps_accept_ge2": STEPS_ACCEPT_GE2,
    "total_committed_extras": COMMITTED_EXTRAS,
}
"""Key → the counter of a block; 0 where a build that has `SUMS_STEPS` leaves the key out."""
IF_TOLD: Final[Mapping[str, str]] = {
    "num_accepted_tokens": REPORTED_ACCEPTED,
    "num_tree_draft_tokens": "tree_draft_tokens",
    "num_tree_target_tokens": "tree_target_tokens",
    "num_tree_accepted_tokens": "tree_accepted_tokens",
}
PEAKS: Final = (SUMS_STEPS, "max_accepted_len")
"""Keys of the largest value of any step."""


def spec_counts(totals: Mapping[str, int]) -> SpecCounts:
    """The drafts of a request. Raises LookupError where a count is missing."""
    accepted = totals.get("total_committed_extras", 0) if SUMS_STEPS in totals else totals["num_accepted_tokens"]
    return SpecCounts(totals["num_drafts"], totals["num_draft_tokens"], accepted)


def counters_of(requests: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counters of a block whose requests have these totals. Those with `disabled_` keep their names."""
    counters: dict[str, int] = {}
    for totals in requests:
        known = {**{key: 0 for key in OF_STEPS if SUMS_STEPS in totals}, **totals}
        for key, count in known.items():
            if key in PEAKS:
                counters[key] = max(counters.get(key, 0), count)
            elif name := OF_STEPS.get(key) or IF_TOLD.get(key) or (key if key.startswith("disabled_") else None):
                counters[name] = counters.get(name, 0) + count
    return counters

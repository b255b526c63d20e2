"""Visibility of rows for slots at different positions: against the rule, position by position."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from specgate.backends.eagle3.reference.cache import whole_blocks
from specgate.backends.eagle3.transformers.ragged_cache import needs_no_mask, visible


@given(
    starts=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    rows=st.integers(1, 5),
    window=st.none() | st.integers(1, 12),
    exact=st.booleans(),
)
def test_a_row_sees_itself_and_what_is_before_it_in_its_window(
    starts: list[int], rows: int, window: int | None, exact: bool
) -> None:
    positions = torch.tensor(starts)[:, None] + torch.arange(rows)
    first = 0 if window is None else max(0, min(starts) - window + 1)
    stop = max(starts) + rows
    keys = range(first, stop if exact else whole_blocks(stop))
    rule = causal_mask_function if window is None else sliding_window_causal_mask_function(window)
    mask = visible(positions, rule, len(keys), first)
    expected = [
        [[key <= start + row and (window is None or key > start + row - window) for key in keys] for row in range(rows)]
        for start in starts
    ]
    assert mask[:, 0].tolist() == expected
    if needs_no_mask(positions, len(keys), first, window) and exact:
        # One row sees every key, and several see what `is_causal` of torch has.
        square = torch.ones(rows, len(keys), dtype=torch.bool).tril()
        assert torch.equal(mask[0, 0], torch.ones_like(square) if rows == 1 else square)

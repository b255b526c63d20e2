"""Each op against a slower statement of the same thing."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.reference.cache import KEY_BLOCK, view
from specgate.backends.eagle3.reference.ops import accept, attention, draft_argmax, matmul_rows, rms_norm, target_argmax


def test_rms_norm_follows_its_formula_in_float64() -> None:
    x, weight = torch.randn(3, 5, 64), torch.randn(64)
    wide = x.double()
    expected = wide * weight.double() / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected.float())


def test_matmul_rows_agrees_with_float64_for_every_row_count() -> None:
    weight = torch.randn(96, 64)
    for rows in (1, 2, 5, 16, 17, 40):
        x = torch.randn(1, rows, 64)
        expected = (x.double() @ weight.double().t()).float()
        torch.testing.assert_close(matmul_rows(x, weight), expected, rtol=1e-5, atol=1e-4)


def test_equal_logits_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 7.0, 7.0, 7.0], [2.0, 2.0, 2.0, 2.0]])
    assert target_argmax(logits).tolist() == [1, 0]
    assert draft_argmax(logits, torch.tensor([10, 20, 30, 40])).tolist() == [20, 10]


@given(
    st.integers(1, 5).flatmap(lambda k: st.tuples(*[st.lists(st.integers(0, 2), min_size=k + 1, max_size=k + 1)] * 2))
)
def test_accept_counts_the_agreeing_prefix(rows: tuple[list[int], list[int]]) -> None:
    drafts, targets = rows[0][:-1], rows[1]
    expected = 0
    while expected < len(drafts) and drafts[expected] == targets[expected]:
        expected += 1
    assert accept(torch.tensor([drafts]), torch.tensor([targets])).tolist() == [expected]


@given(
    starts=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    rows=st.integers(1, 5),
    window=st.one_of(st.none(), st.integers(1, 9)),
)
def test_a_row_sees_itself_and_what_is_before_it_within_the_window(
    starts: list[int], rows: int, window: int | None
) -> None:
    torch.manual_seed(0)
    cached, heads, kv_heads, dim = KEY_BLOCK, 4, 2, 8
    positions = torch.tensor(starts)[:, None] + torch.arange(rows)
    q = torch.randn(len(starts), heads, rows, dim)
    k, v = torch.randn(2, len(starts), kv_heads, cached, dim)
    seen = view(positions, window)
    span = slice(seen.start, seen.stop)
    got = attention(q, k[:, :, span], v[:, :, span], seen.mask, seen.causal)
    for slot in range(len(starts)):
        for row in range(rows):
            last = int(positions[slot, row])
            first = 0 if window is None else max(0, last - window + 1)
            for head in range(heads):
                keys, values = k[slot, head // 2, first : last + 1], v[slot, head // 2, first : last + 1]
                weights = (keys @ q[slot, head, row] / dim**0.5).softmax(0)
                expected = weights @ values
                torch.testing.assert_close(got[slot, row, head * dim : (head + 1) * dim], expected)


def test_without_a_mask_rows_are_the_last_of_the_positions() -> None:
    q, (k, v) = torch.randn(1, 4, 5, 16), torch.randn(2, 1, 2, 12, 16)
    seen = torch.ones(5, 12, dtype=torch.bool).tril(12 - 5)[None, None]
    torch.testing.assert_close(attention(q, k, v, None, causal=True), attention(q, k, v, seen))


def test_a_row_of_a_step_does_not_depend_on_how_many_rows_share_it() -> None:
    torch.manual_seed(1)
    weight, x = torch.randn(192, 64), torch.randn(1, 7, 64)
    q, (k, v) = torch.randn(1, 4, 7, 16), torch.randn(2, 1, 2, 2 * KEY_BLOCK, 16)
    positions = torch.arange(KEY_BLOCK - 3, KEY_BLOCK + 4)[None]
    together = view(positions, None)
    product = matmul_rows(x, weight)
    mixed = attention(q, k[:, :, : together.stop], v[:, :, : together.stop], together.mask)
    for row in range(7):
        alone = view(positions[:, row : row + 1], None)
        assert torch.equal(matmul_rows(x[:, row : row + 1], weight)[0, 0], product[0, row])
        one = attention(q[:, :, row : row + 1], k[:, :, : alone.stop], v[:, :, : alone.stop], alone.mask)
        assert torch.equal(one[0, 0], mixed[0, row])

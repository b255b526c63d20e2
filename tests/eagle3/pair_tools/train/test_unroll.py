"""The unrolled draft against an engine's way of computing the same logits: a cache, one slot at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.backends.eagle3.lib.weights import DraftWeights, pack_draft, pack_target
from specgate.backends.eagle3.pair_tools.train.target import rope_rows_upto
from specgate.backends.eagle3.pair_tools.train.unroll import blocks, grouped_blocks, ungrouped, unroll
from specgate.backends.eagle3.reference.cache import KVCache
from specgate.backends.eagle3.reference.draft import draft_layer, project_features
from specgate.backends.eagle3.reference.ops import matmul_rows, rms_norm
from specgate.checkpoints.geometry import DraftGeometry
from tests.eagle3.pair_tools.train.tiny_drafts import tiny_pair


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> tuple[DraftWeights, DraftGeometry]:
    target, checkpoint = tiny_pair(tmp_path_factory.mktemp("pair"))
    return pack_draft(checkpoint, pack_target(target)), checkpoint.geometry


def chain_as_an_engine_runs_it(
    w: DraftWeights, g: DraftGeometry, features: Tensor, tokens: Tensor, slot: int, steps: int
) -> list[Tensor]:
    """Logits of the chain drafted from `slot`: feature slots up to it, then its own hidden state, one by one."""
    batch, length = tokens.shape
    table = cos_sin_table(g.rope, length)
    cache = KVCache.allocate(1, batch, g.kv_heads, length, g.head_dim, torch.float32, "cpu")
    committed = torch.arange(slot + 1).expand(batch, -1)
    hidden = project_features(w, g, features[:, : slot + 1])
    stream = draft_layer(w, g, table, cache, tokens[:, : slot + 1], hidden, committed).stream[:, -1:]
    logits = []
    for position in range(slot + 1, slot + steps + 1):
        normed = rms_norm(stream, w.norm, g.rms_eps)
        logits.append(matmul_rows(normed, w.lm_head)[:, 0])
        feedback = normed if g.norm_output else stream
        here = torch.full((batch, 1), position)
        stream = draft_layer(w, g, table, cache, tokens[:, position : position + 1], feedback, here).stream
    return logits


@settings(deadline=None, max_examples=25)
@given(
    window=st.sampled_from([None, 5, 8, 16, 64]),
    length=st.integers(8, 24),
    steps=st.integers(1, 4),
    norm_output=st.booleans(),
    norm_before_residual=st.booleans(),
    data=st.data(),
)
def test_unrolled_logits_equal_those_of_an_engine_with_a_cache(
    draft: tuple[DraftWeights, DraftGeometry],
    window: int | None,
    length: int,
    steps: int,
    norm_output: bool,
    norm_before_residual: bool,
    data: st.DataObject,
) -> None:
    w, g = draft
    g = replace(g, window=window, norm_output=norm_output, norm_before_residual=norm_before_residual)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    slot = data.draw(st.integers(0, length - steps - 1))
    features = torch.randn(2, length, g.features * g.target_hidden, generator=generator)
    tokens = torch.randint(g.vocab, (2, length), generator=generator)

    unrolled = list(unroll(w, g, rope_rows_upto(g.rope, length, "cpu"), features, tokens, steps))
    expected = chain_as_an_engine_runs_it(w, g, features, tokens, slot, steps)

    for step in range(steps):
        torch.testing.assert_close(unrolled[step][:, slot + step], expected[step], rtol=1e-4, atol=1e-4)


def test_a_later_token_never_reaches_an_earlier_row(draft: tuple[DraftWeights, DraftGeometry]) -> None:
    w, g = draft
    g = replace(g, window=8)
    features, tokens = torch.randn(1, 20, g.features * g.target_hidden), torch.randint(g.vocab, (1, 20))
    changed = tokens.clone()
    changed[0, 12] = (tokens[0, 12] + 1) % g.vocab
    rows = rope_rows_upto(g.rope, 20, "cpu")
    for before, after in zip(
        unroll(w, g, rows, features, tokens, 3), unroll(w, g, rows, features, changed, 3), strict=True
    ):
        assert torch.equal(before[:, :12], after[:, :12])
        assert not torch.equal(before[:, 12], after[:, 12])


def test_ungrouping_undoes_grouping() -> None:
    x = torch.randn(2, 12, 6, 5)
    assert torch.equal(ungrouped(grouped_blocks(x, 4, 3), 3), x.flatten(2))


def test_blocks_keep_positions_together() -> None:
    x = torch.arange(12.0).view(1, 12, 1, 1)
    assert blocks(x, 4)[0, 1, 0, :, 0].tolist() == [4.0, 5.0, 6.0, 7.0]

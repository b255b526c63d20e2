"""The kernels that move and norm rows."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.launchers import (
    DraftInput,
    DraftToken,
    EmbedRows,
    FeatureCapture,
    FeatureNorm,
    FeatureRows,
    InputWeights,
)
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import counted, integers, normal, packed, poisoned, relative_error, rows_of, state

EPS = 1e-5
ACTIVE, SLOTS, ROWS, MAX_ROWS = [0, 2, 3], 5, 4, 6
NOT_FINITE = -1
"""A choice (`argmax.cuh`) of index 0 by NaN or infinity."""


def test_rows_are_the_embeddings_of_root_and_drafts(device: str) -> None:
    embedding, slots = normal(500, 576, device=device), state(ACTIVE, MAX_ROWS, SLOTS, device=device)
    slots.last_token.copy_(integers(500, SLOTS, device=device))
    slots.drafts.copy_(integers(500, SLOTS, MAX_ROWS, device=device))
    out, norm_weight = (
        poisoned(SLOTS * ROWS, 576, dtype=torch.float32, device=device),
        normal(576, seed=1, device=device),
    )
    pre_norm = PreNormRows(
        poisoned(SLOTS * ROWS, 576, device=device), poisoned(SLOTS * ROWS, 72, dtype=torch.float32, device=device)
    )
    operands = {"x": out, "embedding": embedding, "norm_weight": norm_weight}
    EmbedRows(576, ROWS, MAX_ROWS)(slots.rows(SLOTS, ROWS), pre_norm, slots, **operands)
    tokens = torch.cat((slots.last_token[ACTIVE, None], slots.drafts[ACTIVE, : ROWS - 1]), dim=1).flatten().long()
    assert torch.equal(out[:12], embedding[tokens].float())
    assert out[12:].isnan().all()
    scale = torch.rsqrt(pre_norm.squares[:12].double().sum(-1, keepdim=True) / 576 + EPS)
    assert relative_error(pre_norm.normed[:12] * scale, oracles.rms_norm(out[:12], norm_weight, EPS)) < 3e-3
    assert pre_norm.normed[12:].isnan().all() and pre_norm.squares[12:].isnan().all()
    assert device == "cpu" or int(slots.stamps[0, 1]) > 0  # there, the time stands still


def test_captured_streams_are_kept_by_slot_token_and_boundary(device: str) -> None:
    x = [normal(SLOTS * ROWS, 576, dtype=torch.float32, seed=i, device=device) for i in range(3)]
    features = poisoned(SLOTS, MAX_ROWS, 3 * 576, device=device)
    for chunk in range(3):
        rows = rows_of(ACTIVE, ROWS, SLOTS, device=device)
        FeatureCapture(576, 3, ROWS, MAX_ROWS)(rows, features=features, x=x[chunk], chunk=chunk)
    want = torch.cat([part[:12].bfloat16() for part in x], dim=-1).view(3, ROWS, -1)
    assert torch.equal(features[ACTIVE, :ROWS], want)
    assert features[[1, 4]].isnan().all() and features[:, ROWS:].isnan().all()


@pytest.mark.parametrize("norm", list(FeatureNorm))
def test_features_are_packed_and_normed_as_the_draft_wants_them(device: str, norm: FeatureNorm) -> None:
    slots, features = state(ACTIVE, MAX_ROWS, SLOTS, device=device), normal(SLOTS, MAX_ROWS, 3 * 192, device=device)
    slots.counts.copy_(counted([1, 9, 4, 2, 9], device=device))
    weight = None if norm is FeatureNorm.NONE else normal(3 * 192, seed=1, device=device)
    out = poisoned(SLOTS * ROWS, 3 * 192, device=device)
    operands = {"out": out, "features": features, "weight": weight, "eps": EPS}
    FeatureRows(192, 3, norm, ROWS, MAX_ROWS)(slots.rows(SLOTS, ROWS), slots, **operands)
    for a, (slot, count) in enumerate(zip(ACTIVE, [1, 4, 2], strict=True)):
        rows = features[slot, [min(t, count - 1) for t in range(ROWS)]]
        if norm is FeatureNorm.EACH_STREAM:
            assert weight is not None
            parts = zip(rows.chunk(3, dim=-1), weight.chunk(3), strict=True)
            want = torch.cat([oracles.rms_norm(part, w, EPS) for part, w in parts], dim=-1)
        else:
            want = rows.double() if weight is None else oracles.rms_norm(rows, weight, EPS)
        assert relative_error(out[a * ROWS : (a + 1) * ROWS], want) < 3e-3
    assert out[12:].isnan().all()


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_the_draft_reads_the_token_ahead_beside_its_feature(device: str, norm_before_residual: bool) -> None:
    hidden, slots = (
        normal(SLOTS * ROWS, 576, dtype=torch.float32, device=device),
        state(ACTIVE, MAX_ROWS, SLOTS, device=device),
    )
    weights = InputWeights(
        normal(500, 576, device=device), normal(576, seed=1, device=device), normal(576, seed=2, device=device)
    )
    slots.pending.copy_(integers(500, SLOTS, MAX_ROWS, device=device))
    slots.counts.copy_(counted([1, 9, 4, 2, 9], device=device))
    out, stream = poisoned(SLOTS * ROWS, 1152, device=device), poisoned(SLOTS, 576, dtype=torch.float32, device=device)
    operands = {"input": out, "stream": stream, "hidden": hidden, "eps": EPS}
    DraftInput(576, norm_before_residual, ROWS, MAX_ROWS)(slots.rows(SLOTS, ROWS), slots, weights, **operands)
    for a, (slot, count) in enumerate(zip(ACTIVE, [1, 4, 2], strict=True)):
        tokens = slots.pending[slot, [min(t, count - 1) for t in range(ROWS)]].long()
        mine = hidden[a * ROWS : (a + 1) * ROWS]
        want = oracles.draft_input(weights.embedding[tokens], mine, weights.embedding_norm, weights.feature_norm, EPS)
        assert relative_error(out[a * ROWS : (a + 1) * ROWS], want) < 3e-3
        newest = (
            oracles.rms_norm(mine[count - 1], weights.feature_norm, EPS) if norm_before_residual else mine[count - 1]
        )
        assert relative_error(stream[a], newest) < (3e-3 if norm_before_residual else 1e-9)
    assert out[12:].isnan().all() and stream[3:].isnan().all()


@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_a_choice_becomes_a_draft_token_and_is_embedded_at_once(
    device: str, norm_output: bool, norm_before_residual: bool
) -> None:
    vocab, slots = 1000, state(ACTIVE, MAX_ROWS, SLOTS, device=device)
    chosen = torch.tensor([vocab - 1, 77, 0, 5, 6], device=device)
    choices = packed(chosen)
    ids = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:vocab].sort().values.int().to(device)
    weights = InputWeights(
        normal(5000, 576, device=device), normal(576, seed=1, device=device), normal(576, seed=2, device=device)
    )
    stream = normal(SLOTS, 576, dtype=torch.float32, device=device)
    pre_norm = PreNormRows(
        normal(SLOTS, 576, seed=3, device=device),
        normal(SLOTS, 72, dtype=torch.float32, seed=4, device=device).square(),
    )
    before, out = stream.clone(), poisoned(SLOTS, 1152, device=device)
    kernel = DraftToken(
        576, vocab, norm_output=norm_output, norm_before_residual=norm_before_residual, max_rows=MAX_ROWS
    )
    groups = slots.rows(SLOTS, 1), slots, pre_norm, weights
    own = {"stream": stream, "target_ids": ids, "eps": EPS}
    kernel(*groups, input=out, choices=choices, index=2, **own)
    tokens = ids[chosen[:3]]
    assert not choices[:3].any() and torch.equal(choices[3:], packed(chosen[3:]))
    assert slots.drafts[ACTIVE, 2].tolist() == tokens.tolist()
    scale = torch.rsqrt(pre_norm.squares[:3].double().sum(-1, keepdim=True) / 576 + EPS)
    hidden = (pre_norm.normed[:3] * scale) if norm_output else before[:3]
    embedded = weights.embedding[tokens.long()]
    want = oracles.draft_input(embedded, hidden, weights.embedding_norm, weights.feature_norm, EPS)
    assert relative_error(out[:3], want) < 4e-3
    around = oracles.rms_norm(hidden, weights.feature_norm, EPS) if norm_before_residual else hidden
    assert relative_error(stream[:3], around) < (4e-3 if norm_before_residual or norm_output else 1e-9)
    assert torch.equal(stream[3:], before[3:]) and out[3:].isnan().all()
    assert not slots.fault.any() and slots.drafts.count_nonzero() <= 3

    before, choices = stream.clone(), packed(chosen)
    kernel(*groups, choices=choices, index=3, **own)
    assert slots.drafts[ACTIVE, 3].tolist() == tokens.tolist() and torch.equal(stream, before)
    kernel(*groups, input=out, choices=choices, index=4, **own)
    assert set(slots.drafts[ACTIVE, 4].tolist()) <= set(ids.tolist()) and not slots.fault.any()
    choices[2] = NOT_FINITE - 5
    kernel(*groups, choices=choices, index=5, **own)
    assert int(slots.drafts[ACTIVE[2], 5]) == int(ids[5])
    assert Fault(int(slots.fault)) is Fault.DRAFT_NOT_FINITE

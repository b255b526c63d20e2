"""Acceptance of a draft on held-out prompts, for every draft length in one pass, and the table of a pair.

A greedy engine emits the target's own tokens, and a chain counts only as far as it agrees with them. So accepted draft
tokens can be read off an unroll of the draft along the target's greedy text, with the target's tokens as input
(teacher-forced). The counts are exactly those of an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.weights import DraftWeights, pack_draft, pack_target
from specgate.backends.eagle3.pair_tools.train.data import (
    TOKENS_AT_ONCE,
    TextCorpus,
    repeated_share,
    texts,
    token_stream,
)
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget, rope_rows_upto
from specgate.backends.eagle3.pair_tools.train.unroll import unroll
from specgate.backends.eagle3.reference.ops import draft_argmax
from specgate.backends.eagle3.reference.target import RopeTable
from specgate.checkpoints.geometry import DraftGeometry
from specgate.contract.acceptance import AcceptanceRecord
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """One context length: acceptance for 1 … K draft tokens, and the share of repeated 8-grams in the new text."""

    context: int
    prompts: int
    records: tuple[AcceptanceRecord, ...]
    repeated: float

    def __str__(self) -> str:
        lengths = "  ".join(f"spec-{r.k} {r.acceptance_length or 0:.2f}" for r in self.records)
        return f"context {self.context:6d}  prompts {self.prompts:3d}  {lengths}  repeated {self.repeated:.0%}"


@torch.no_grad()
def acceptance_at(
    target: FrozenTarget,
    draft: DraftWeights,
    geometry: DraftGeometry,
    prompts: Tensor,
    new_tokens: int,
    most_drafts: int,
    target_rows: RopeTable,
    draft_rows: RopeTable,
) -> AcceptanceRow:
    """Continue `prompts` [B, P] by `new_tokens` greedy tokens, with 1 … `most_drafts` draft tokens per cycle.

    `target_rows` and `draft_rows` hold RoPE rows for at least P + new_tokens + most_drafts positions.
    """
    context = prompts.shape[1]
    # The last cycles compare draft tokens with target tokens that are no longer emitted.
    text = target.continue_greedily(prompts, new_tokens + most_drafts, target_rows)
    features, _ = target.features_and_stream(text, target_rows)
    right = agreement(draft, geometry, features, text, context - 1, most_drafts, draft_rows)
    records = tuple(count_cycles(right[:k], new_tokens) for k in range(1, most_drafts + 1))
    repeated = float(repeated_share(text[:, context : context + new_tokens]).mean())
    return AcceptanceRow(context, len(prompts), records, repeated)


def agreement(
    draft: DraftWeights,
    geometry: DraftGeometry,
    features: Tensor,
    text: Tensor,
    first_position: int,
    steps: int,
    draft_rows: RopeTable,
) -> Tensor:
    """Mark the draft tokens of the chains that the target agrees with: bool [steps, B, chains].

    Entry [j, b, i] is draft token j + 1 of the chain that starts from the features at position `first_position` + i of
    `text` [B, T]. Positions that no attention window of these chains reaches are left out of the unroll.
    """
    start = 0 if geometry.window is None else max(0, first_position + 1 - geometry.window)
    length = text.shape[1]
    rows = (draft_rows[0][:, start:length], draft_rows[1][:, start:length])
    logits = unroll(draft, geometry, rows, features[:, start:], text.roll(-1, dims=1)[:, start:], steps)
    expected = text.roll(-2, dims=1)[:, start:]
    chains = length - steps - 1 - first_position
    first = first_position - start
    agrees = [draft_argmax(x, draft.target_ids) == expected for x in logits]
    return torch.stack([x[:, first + j : first + j + chains] for j, x in enumerate(agrees)])


def count_cycles(right: Tensor, new_tokens: int) -> AcceptanceRecord:
    """Walk the cycles of every sequence until it has emitted `new_tokens` tokens, the prefill token included.

    `right` is bool [K, B, chains]. A cycle that starts from chain i accepts the leading trues of right[:, b, i], and
    the next one starts from chain i + accepted + 1.
    """
    k = len(right)
    accepted = right.long().cumprod(dim=0).sum(dim=0).tolist()
    hist, emitted, truncated = [0] * (k + 1), 0, 0
    for row in accepted:
        at, left = 0, new_tokens - 1
        while left > 0:
            hist[row[at]] += 1
            verified = row[at] + 1
            emitted += min(verified, left)
            truncated += max(0, verified - left)
            left -= verified
            at += verified
    return AcceptanceRecord(k, tuple(hist), (sum(hist),) * k, emitted, truncated)


def spread_prompts(stream: Tensor, context: int, most: int) -> Tensor:
    """Up to `most` prompts [B, context], evenly spaced over the token `stream` [N]. They overlap by at most half."""
    count = max(0, min(most, 2 * len(stream) // context - 1))
    starts = torch.linspace(0, len(stream) - context, count).long()
    return stream[starts[:, None] + torch.arange(context)].long()


def merged(rows: Sequence[AcceptanceRow]) -> AcceptanceRow:
    """Merge rows of one context length. Acceptance is weighted by tokens, repetition by prompts."""
    records = tuple(
        AcceptanceRecord(
            same_k[0].k,
            tuple(map(sum, zip(*(r.hist for r in same_k), strict=True))),
            tuple(map(sum, zip(*(r.drafted_at_pos for r in same_k), strict=True))),
            sum(r.emitted for r in same_k),
            sum(r.truncated for r in same_k),
        )
        for same_k in zip(*(row.records for row in rows), strict=True)
    )
    prompts = sum(row.prompts for row in rows)
    repeated = sum(row.repeated * row.prompts for row in rows) / prompts
    return AcceptanceRow(rows[0].context, prompts, records, repeated)


MOST_DRAFTS = 5


def acceptance_table(
    target_folder: Path,
    draft_folder: Path,
    corpora: Sequence[TextCorpus],
    contexts: Sequence[int],
    most_prompts: int,
    new_tokens: int,
    yarn: float | None,
    device: str,
) -> Iterator[AcceptanceRow]:
    """Yield a row for each of `contexts`, over up to `most_prompts` prompts per corpus.

    Computes in bfloat16 on CUDA and in float32 elsewhere. `yarn` lengthens the target's context by that factor. Raises
    UsageError where a context is longer than the target allows, or where no corpus is long enough for it.
    """
    from tokenizers import Tokenizer

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rope: dict[str, float | str] | None = None if yarn is None else {"rope_type": "yarn", "factor": yarn}
    checkpoint = load_target(target_folder, dtype, device, rope)
    draft = load_draft(draft_folder, checkpoint.geometry, dtype, device)
    positions = max(contexts) + new_tokens + MOST_DRAFTS
    if positions > checkpoint.geometry.max_positions:
        raise UsageError(
            f"a context of {max(contexts)} needs {positions} positions, the target has "
            f"{checkpoint.geometry.max_positions}",
            hint="choose a shorter context, or stretch the target with --yarn",
        )
    target = FrozenTarget(pack_target(checkpoint), checkpoint.geometry, draft.capture.boundaries)
    weights = pack_draft(draft, target.weights)
    target_rows = rope_rows_upto(checkpoint.geometry.rope, positions, device)
    draft_rows = rope_rows_upto(draft.geometry.rope, positions, device)
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    eos = checkpoint.geometry.eos_token_ids[0]
    streams = [token_stream(texts(corpus, "measure"), tokenizer, eos) for corpus in corpora]
    for context in contexts:
        rows = []
        for stream in streams:
            prompts = spread_prompts(stream, context, most_prompts)
            for part in torch.split(prompts.to(device), max(1, TOKENS_AT_ONCE[device] // context)):
                if len(part):
                    rows.append(
                        acceptance_at(
                            target, weights, draft.geometry, part, new_tokens, MOST_DRAFTS, target_rows, draft_rows
                        )
                    )
        if not rows:
            raise UsageError(f"no corpus holds {context} tokens to measure on", hint="name more with --corpus")
        yield merged(rows)

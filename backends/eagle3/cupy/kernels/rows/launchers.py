"""Launchers of the kernels that make the rows that products and attention work on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots

EMBED_THREADS = 512


@dataclass(frozen=True, slots=True)
class Replay:
    """Rows that begin with tokens which were emitted before: of chains of `drafts` tokens; a text has up to `capacity`
    tokens.
    """

    drafts: int
    capacity: int


class EmbedRows(Kernel):
    """x[r] = the embedding (bfloat16 [V, H]) of the last token or a draft of a slot: float32 [R, H].

    Also leaves the input of the norm with weight bfloat16 [H]. Ends the draft phase.

    With `replay`, the rows of a slot begin with the tokens of its text from position `verified` [S] on.
    """

    def __init__(self, hidden: int, rows_per_slot: int, max_rows: int, replay: Replay | None = None) -> None:
        again = {"replays": 1, "drafts": replay.drafts, "capacity": replay.capacity} if replay else {}
        super().__init__(
            "embed_rows", hidden=hidden, rows=rows_per_slot, max_rows=max_rows, threads=EMBED_THREADS, **again
        )
        self.hidden, self.replays = hidden, replay is not None

    def __call__(
        self,
        x: Tensor,
        pre_norm: PreNormRows,
        embedding: Tensor,
        norm_weight: Tensor,
        slots: Slots,
        rows: Rows,
        verified: Tensor | None = None,
    ) -> None:
        """Raises ValueError where `verified` is given to a launcher that replays nothing, or is missing."""
        operands = {"x": x, "embedding": embedding, "norm_weight": norm_weight, "verified": verified}
        self.launch((rows.most,), pre_norm, slots, rows, **operands)


FEATURE_CAPTURE_THREADS = 1024


class FeatureCapture(Kernel):
    """features[slot, t, chunk] = x[r]: float32 [R, H] → bfloat16 [S, T, n·H], for the draft's next extension."""

    def __init__(
        self, hidden: int, features: int, rows_per_slot: int, max_rows: int, replay: Replay | None = None
    ) -> None:
        """`replay`: rows before those of the last token and the drafts are left out."""
        again = {"replays": 1, "drafts": replay.drafts} if replay else {}
        super().__init__(
            "feature_capture",
            hidden=hidden,
            features=features,
            rows=rows_per_slot,
            max_rows=max_rows,
            threads=FEATURE_CAPTURE_THREADS,
            **again,
        )
        self.hidden, self.features, self.max_rows, self.replays = hidden, features, max_rows, replay is not None

    def __call__(
        self, features: Tensor, x: Tensor, rows: Rows, chunk: int, begins: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """`begins`: of rows that begin with emitted tokens, int32 [S] each: where the last token stands, and where they
        begin. Raises ValueError where it is missing or not asked for.
        """
        length, verified = begins or (None, None)
        self.launch((rows.most,), rows, features=features, x=x, chunk=chunk, length=length, verified=verified)


FEATURE_ROWS_THREADS = 1024


class FeatureNorm(IntEnum):
    """Norm of a draft's features before their projection (`fc`)."""

    NONE = 0
    EACH_STREAM = 1
    ALL_STREAMS = 2


class FeatureRows(Kernel):
    """Packs the features that the draft extends over: bfloat16 [S, T, n·H] → [R, n·H], normed with `weight` [n·H]."""

    def __init__(self, hidden: int, features: int, norm: FeatureNorm, rows_per_slot: int, max_rows: int) -> None:
        super().__init__(
            "feature_rows",
            hidden=hidden,
            features=features,
            norm=norm.value,
            rows=rows_per_slot,
            max_rows=max_rows,
            threads=FEATURE_ROWS_THREADS,
        )
        self.width, self.max_rows, self.norm = features * hidden, max_rows, norm

    def __call__(
        self, out: Tensor, features: Tensor, weight: Tensor | None, slots: Slots, rows: Rows, eps: float
    ) -> None:
        self.launch((rows.most,), slots, rows, out=out, features=features, weight=weight, eps=eps)


DRAFT_INPUT_THREADS = 1024


@dataclass(frozen=True, slots=True)
class InputWeights:
    """bfloat16: `embedding` [V, H], and the norms [H] of the embedded token and of the hidden state beside it."""

    embedding: Tensor
    embedding_norm: Tensor
    feature_norm: Tensor


class DraftInput(Kernel):
    """The draft's input [norm(embed(token)), norm(hidden)] for the rows to extend over, and the last row's stream.

    hidden float32 [R, H] → input bfloat16 [R, 2H] and stream float32 [S, H], whose row a is that of the a-th active
    slot.
    """

    def __init__(self, hidden: int, norm_before_residual: bool, rows_per_slot: int, max_rows: int) -> None:
        super().__init__(
            "draft_input",
            hidden=hidden,
            norm_before_residual=int(norm_before_residual),
            rows=rows_per_slot,
            max_rows=max_rows,
            threads=DRAFT_INPUT_THREADS,
        )
        self.hidden = hidden

    def __call__(
        self, out: Tensor, stream: Tensor, hidden: Tensor, weights: InputWeights, slots: Slots, rows: Rows, eps: float
    ) -> None:
        self.launch((rows.most,), slots, rows, weights, input=out, stream=stream, hidden=hidden, eps=eps)


DRAFT_TOKEN_THREADS = 512


class DraftToken(Kernel):
    """Draft token `index` of every active slot, as an id of the target; then the input of the draft's next step.

    `choices` int64 [S] are as the LM head leaves them, and cleared again; `target_ids` int32 [W]. With `out` (bfloat16
    [S, 2H]) the input of the next draft step is written, too. Its hidden state is `stream` (float32 [S, H]), or, in
    heads that feed their normed output back, what `pre_norm` becomes.
    """

    def __init__(
        self, hidden: int, draft_vocab: int, *, norm_output: bool, norm_before_residual: bool, max_rows: int
    ) -> None:
        super().__init__(
            "draft_token",
            hidden=hidden,
            draft_vocab=draft_vocab,
            norm_output=int(norm_output),
            norm_before_residual=int(norm_before_residual),
            max_rows=max_rows,
            threads=DRAFT_TOKEN_THREADS,
        )
        self.hidden, self.draft_vocab = hidden, draft_vocab

    def __call__(
        self,
        out: Tensor | None,
        stream: Tensor,
        choices: Tensor,
        target_ids: Tensor,
        pre_norm: PreNormRows,
        weights: InputWeights,
        slots: Slots,
        rows: Rows,
        *,
        index: int,
        eps: float,
    ) -> None:
        operands = {"input": out, "stream": stream, "choices": choices, "target_ids": target_ids}
        self.launch((rows.slots,), pre_norm, weights, slots, rows, index=index, eps=eps, **operands)

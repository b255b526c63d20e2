"""What the kernels can do, checked before anything is compiled."""

from __future__ import annotations

from pathlib import Path

from specgate.api import OpenRequest
from specgate.backends.cupy_eagle3.kernels.matmul.gemm_config import MAX_ROWS
from specgate.backends.eagle3.geometry import DraftGeometry, TargetGeometry
from specgate.errors import CheckpointError, UsageError

HEAD_DIMS = (64, 128)
MAX_GROUP = 8
MAX_QUERY_ROWS = 8


def check_request(request: OpenRequest) -> None:
    """Raise UsageError where the plan asks for what no checkpoint could give here."""
    if request.dtype != "bfloat16":
        raise UsageError(
            f"back end cupy: dtype = {request.dtype}: it computes in bfloat16 only",
            hint="use dtype: bfloat16 in the scenario, or --backend reference",
        )
    rows = request.max_k + 1
    if rows > MAX_QUERY_ROWS:
        raise UsageError(f"back end cupy: spec-{request.max_k}: at most spec-{MAX_QUERY_ROWS - 1} is supported")
    if request.max_batch * rows > MAX_ROWS:
        raise UsageError(
            f"back end cupy: batch {request.max_batch} at spec-{request.max_k} makes {request.max_batch * rows} rows "
            f"per step, at most {MAX_ROWS} are supported",
            hint=f"a batch of {MAX_ROWS // rows}, or fewer drafts",
        )


def check_geometry(geometry: TargetGeometry | DraftGeometry, where: Path) -> None:
    """Raise CheckpointError for sizes that no kernel is made for."""
    g = geometry
    wrong = {
        "head_dim": (g.head_dim, g.head_dim in HEAD_DIMS, "64 or 128"),
        "num_key_value_heads": (
            g.kv_heads,
            g.heads % g.kv_heads == 0 and g.heads // g.kv_heads <= MAX_GROUP,
            f"each must serve as many, 1 to {MAX_GROUP}, of the {g.heads} query heads",
        ),
        "hidden_size": (g.hidden, g.hidden % 64 == 0, "a multiple of 64"),
        "intermediate_size": (g.intermediate, g.intermediate % 32 == 0, "a multiple of 32"),
    }
    for key, (value, fine, right) in wrong.items():
        if not fine:
            raise CheckpointError(
                f"{where}: {key} = {value} is not supported by back end cupy: {right}", hint="use --backend reference"
            )


def check_window(draft: DraftGeometry, where: Path) -> None:
    """Raise CheckpointError for an attention window that is longer than the positions that the draft knows."""
    if draft.window is not None and draft.window > draft.max_positions:
        raise CheckpointError(
            f"{where}: sliding_window = {draft.window} is larger than the draft's cache: max_position_embeddings = "
            f"{draft.max_positions}",
            hint="a window of at most so many positions",
        )

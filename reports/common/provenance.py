"""What a run was made with, in a few words: commit, device and driver. Empty or a dash where the run does not say."""

from __future__ import annotations

from specgate.analysis.environment_diff import flat
from specgate.core import Run
from specgate.reports.common.figures import NONE

_DIGITS = 12
"""Of a commit or a hash that are shown."""
_UNKNOWN, _TRUE = "unknown", "true"
"""As `flat` writes None and True."""


def commit(run: Run) -> str:
    """The commit of the source tree, and whether it had other changes; without one, the hash of the tree."""
    known = dict(flat(run.environment))
    found = known.get("source.commit", _UNKNOWN)
    if found == _UNKNOWN:
        tree = run.fingerprint.get("source_tree_sha256")
        return f"tree {tree[:_DIGITS]}" if tree else NONE
    return found[:_DIGITS] + (" + uncommitted changes" if known.get("source.dirty") == _TRUE else "")


def device(run: Run) -> str:
    """What computed: the GPUs, or the CPU where there is none."""
    known = dict(flat(run.environment))
    gpus = [value for key, value in known.items() if key.startswith("gpus[") and key.endswith("].name")]
    if not gpus:
        return known.get("host.cpu") or next((e.device for e in run.engines.values()), NONE)
    return gpus[0] if len(gpus) == 1 else f"{len(gpus)} × {gpus[0]}"


def driver(run: Run) -> str | None:
    """The version of the GPU's driver; None where no GPU was seen."""
    return dict(flat(run.environment)).get("gpus[0].driver")

"""Options `-o kv=` and `-o draft_kv=`."""

from __future__ import annotations

from collections.abc import Mapping

from specgate.backends.eagle3.lib.kv.modes import DRAFT_KV, KV, KvModes, kv_mode
from specgate.errors import UsageError


def kv_modes(options: Mapping[str, str]) -> KvModes:
    """The formats that the options name. Raises UsageError for names that are none, and for a tree beside them."""
    target, draft = (kv_mode(options[name], name) if name in options else None for name in (KV, DRAFT_KV))
    for name, mode in ((KV, target), (DRAFT_KV, draft)):
        if mode in ("fp8", "nvfp4") and "tree" in options:
            raise UsageError(
                f"option {name} = {mode} with a tree: its rows are cached before their positions, and with them their "
                "scales, are known",
                hint="leave one of them out, or take bf16",
            )
    return KvModes(target, draft)

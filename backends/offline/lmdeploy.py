"""LMDeploy as a library: `lmdeploy.pipeline`, with its PyTorch engine or with TurboMind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.backends.offline.library import Opening
from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.adapters import lmdeploy
from specgate.backends.servers.exchange import KvCache
from specgate.errors import UsageError

SHARE: Final = 0.35
"""Of the free memory for each of two engines' caches side by side; the second engine's weights come after the first
cache.
"""


class LmdeployLibrary:
    name = "lmdeploy-pipeline"
    module = "lmdeploy"
    adapter: Adapter = lmdeploy.ADAPTER
    prefix = "config"
    own_options: Mapping[str, Sequence[str]] = {"engine": lmdeploy.ENGINES}
    ours: Sequence[str] = ("dtype", "session_len", "max_batch_size", "enable_prefix_caching", "speculative_config")
    environment: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}

    def opening(self, opening: Opening) -> Mapping[str, object]:
        request, options = opening.request, opening.options
        config: dict[str, object] = {
            "dtype": request.dtype,
            "session_len": request.max_positions,
            "max_batch_size": request.max_batch,
            "enable_prefix_caching": False,
        }
        if options.common.servers == "together" and request.max_k:
            config["cache_max_entry_count"] = SHARE
        draft: dict[str, object] | None = None
        if opening.role.speculative:
            draft = {"method": "eagle3", "model": str(opening.draft), "num_speculative_tokens": opening.role.k}
            draft |= options.spec
        return {
            "model": str(request.pair.target),
            "kind": options.own["engine"],
            "config": {**config, **options.args_of(opening.role)},
            "draft": draft,
            "slots": request.max_batch,
        }

    def shows_steps(self, opening: Opening, facts: Mapping[str, object]) -> bool:
        """Outputs come request by request, and say nothing of the steps that requests share."""
        if opening.options.show == "steps":
            raise UsageError("option show = steps: LMDeploy's engines show requests only", hint="leave it out")
        return False

    def settings_in(self, log: Sequence[str]) -> Mapping[str, str]:
        return {}

    def kv_cache_in(self, log: Sequence[str]) -> KvCache:
        return KvCache()


LIBRARY = LmdeployLibrary()

"""Other engines' readings of the auxiliary hidden-state layers in a draft's config: there, the same ids mean different
layers.

`checkpoints.auxiliary_layers` resolves what the checkpoint means. These functions resolve what an engine makes of it.
Layers that are off by one cost about 0.1 acceptance length and have no other symptom.
"""

from __future__ import annotations

from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, by_default, nested, nested_plain, shown, top_level
from specgate.checkpoints.hf_keys import Keys


def top_level_ids(draft: Keys, layers: int) -> AuxiliaryLayers:
    """vLLM (V2 runner): top-level ids or eagle_config.layer_ids, as boundaries. It does not read the nested ids."""
    return top_level(draft) or nested_plain(draft) or default(layers)


def nested_ids(draft: Keys, layers: int) -> AuxiliaryLayers:
    """SGLang, TensorRT-LLM: nested ids, taken as outputs of layers. They do not read the top-level ids."""
    return nested(draft, layers) or default(layers)


def no_ids(draft: Keys, layers: int) -> AuxiliaryLayers:
    """LMDeploy: it reads no ids."""
    return default(layers)


def default(layers: int) -> AuxiliaryLayers:
    resolved = by_default(layers)
    return AuxiliaryLayers(resolved.boundaries, f"boundaries {shown(resolved.boundaries)}, the engine's default")


def window_warning(name: str, window: int | None, reads_window: bool | None) -> str | None:
    """A warning where an engine ignores a draft's window, so that the draft sees more than it was trained on."""
    if window is None or reads_window is not False:
        return None
    return (
        f"{name} reads no window of a draft, and this one's is {window} tokens: beyond them it sees more than it was "
        "trained on, and acceptance falls"
    )


def warning(name: str, engines: AuxiliaryLayers, meant: AuxiliaryLayers) -> str | None:
    """A warning where an engine feeds a draft from other layers than it was made for."""
    if engines.boundaries == meant.boundaries:
        return None
    return (
        f"{name} feeds this draft boundaries {shown(engines.boundaries)} ({engines.rule}), but it was made for "
        f"{shown(meant.boundaries)} ({meant.rule}): one layer off costs about 0.1 acceptance length"
    )

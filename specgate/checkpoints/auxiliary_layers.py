"""Auxiliary hidden-state layers that feed the draft: the target's residual streams at certain boundaries.

Boundary b is the residual stream after b layers. So 0 is the embedding, and n (the number of layers) the stream before
the final norm. Draft configs state boundaries in several ways. The rule that was applied is printed with every run.

    top-level  eagle_aux_hidden_state_layer_ids                the boundaries themselves (speculators; vLLM)
    nested     eagle_config.eagle_aux_hidden_state_layer_ids   ids of the layers whose *output* is read, so id + 1
               (SpecForge, ModelOpt; SGLang, TensorRT-LLM). No layer has id n: where n occurs, they are boundaries.
    nested     eagle_config.layer_ids                          the boundaries themselves (vLLM)
    top-level  eagle_capture_layers                            ids of layers whose output is read, so id + 1 (drafts
               that were converted for TurboMind)
    no ids     the EAGLE authors' 2, n // 2, n - 3             (every engine)

Keys that contradict each other are refused, because engines differ in which one they obey. Layers that are off by one
cost acceptance without any other symptom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.checkpoints.hf_keys import Keys
from specgate.checkpoints.turbomind import CAPTURED
from specgate.errors import CheckpointError, UsageError

IDS: Final = "eagle_aux_hidden_state_layer_ids"
SPELLINGS: Final = (("", IDS), ("eagle_config", IDS), ("eagle_config", "layer_ids"))
"""(section, key): where trainers state layers."""
NOT_READ: Final = ("aux_hidden_state_layers", "aux_hidden_state_layer_ids", "aux_layer_ids", "target_layer_ids")
"""Keys of training runs and of other kinds of drafts (DFlash). No trainer writes them into the config of an EAGLE-3
head, so that nobody can say which layers they mean.
"""
OVERRIDE_HINT: Final = "make the keys agree, or name the boundaries yourself: --option capture=2,18,34"


@dataclass(frozen=True, slots=True)
class AuxiliaryLayers:
    """The auxiliary hidden-state layers of a draft.

    `boundaries` are ascending, in the order in which `fc` takes the concatenated streams. `rule` is the sentence that
    is printed.
    """

    boundaries: tuple[int, ...]
    rule: str


def resolve_boundaries(
    config: Keys, target_layers: int, boundaries: Sequence[int] | None = None, features: int | None = None
) -> AuxiliaryLayers:
    """Apply the rule above to a draft's config. `boundaries` overrides it. `features`: how many hidden states the
    draft's `fc` takes; keys with another number do not count beside one with this number.

    Raises CheckpointError where keys contradict each other or a boundary does not exist in the target.
    """
    if boundaries is not None:
        capture = AuxiliaryLayers(tuple(boundaries), f"override: boundaries {shown(boundaries)}")
        check(capture, target_layers, f"{config.file}: capture override")
        return capture
    readings = (top_level(config), nested(config, target_layers), nested_plain(config), converted(config))
    stated = [c for c in readings if c is not None]
    stated = [c for c in stated if len(c.boundaries) == features] or stated
    if len({c.boundaries for c in stated}) > 1:
        raise CheckpointError(
            f"{config.file}: capture layers are ambiguous: {'; '.join(c.rule for c in stated)}", hint=OVERRIDE_HINT
        )
    capture = stated[0] if stated else by_default(target_layers)
    if len(stated) > 1:
        capture = AuxiliaryLayers(capture.boundaries, "; ".join(c.rule for c in stated))
    check(capture, target_layers, f"{config.file}: {capture.rule}")
    return capture


def layer_warnings(config: Keys, capture: AuxiliaryLayers, features: int | None) -> Iterator[str]:
    """Yield a warning for each key about layers that does not count: `fc` takes another number of hidden states, or
    heads have no such key.
    """
    for section, key in SPELLINGS:
        part = config.part(section) if section else config
        ids = part.ids(key)
        if ids and features is not None and len(ids) != features == len(capture.boundaries):
            why = f"does not count, as fc takes {features} hidden states"
            yield f"the draft's config.json: {part.path(key)} = {shown(ids)} {why}"
    for part in (config, config.part("eagle_config")):
        for key in NOT_READ:
            if key in part:
                why = f"is no key of EAGLE-3 heads, and not read: {capture.rule}"
                yield f"the draft's config.json: {part.path(key)} {why}"


def parse_boundaries(text: str) -> tuple[int, ...]:
    """Parse the value of the option `capture`, e.g. "2,18,34". Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"option capture = {text!r}", hint="boundaries separated by commas: capture=2,18,34")
    return tuple(int(part) for part in parts)


def capture_keys(boundaries: Sequence[int]) -> Mapping[str, object]:
    """Config keys from which every engine that reads such keys gets `boundaries`: both conventions side by side.

    Engines that ignore the keys use the default, so choose 2, n // 2, n − 3 where it does not matter. Boundary 0 (the
    embedding) is the output of no layer, so only the first convention can express it.
    """
    top: dict[str, object] = {IDS: list(boundaries)}
    if 0 in boundaries:
        return top
    return top | {"eagle_config": {IDS: [b - 1 for b in boundaries], "use_aux_hidden_state": True}}


def top_level(config: Keys) -> AuxiliaryLayers | None:
    ids = config.ids(IDS)
    return AuxiliaryLayers(ids, f"top-level ids {shown(ids)} are boundaries") if ids else None


def nested(config: Keys, target_layers: int) -> AuxiliaryLayers | None:
    ids = config.part("eagle_config").ids(IDS)
    if not ids:
        return None
    if max(ids) == target_layers:
        return AuxiliaryLayers(
            ids, f"nested eagle_config ids {shown(ids)} are boundaries, as no layer has id {target_layers}"
        )
    bounds = tuple(i + 1 for i in ids)
    return AuxiliaryLayers(
        bounds, f"nested eagle_config ids {shown(ids)} are outputs of layers: boundaries {shown(bounds)}"
    )


def nested_plain(config: Keys) -> AuxiliaryLayers | None:
    ids = config.part("eagle_config").ids("layer_ids")
    return AuxiliaryLayers(ids, f"eagle_config.layer_ids {shown(ids)} are boundaries") if ids else None


def converted(config: Keys) -> AuxiliaryLayers | None:
    if not (ids := config.ids(CAPTURED)):
        return None
    bounds = tuple(i + 1 for i in ids)
    return AuxiliaryLayers(bounds, f"{CAPTURED} {shown(ids)} are outputs of layers: boundaries {shown(bounds)}")


def by_default(target_layers: int) -> AuxiliaryLayers:
    boundaries = (2, target_layers // 2, target_layers - 3)
    return AuxiliaryLayers(
        boundaries, f"no ids in the config: default boundaries 2, n // 2, n - 3 = {shown(boundaries)}"
    )


# ── what other engines make of a config ──────────────────────────────────────────────────────────────────────────────


def top_level_ids(draft: Keys, layers: int) -> AuxiliaryLayers:
    """vLLM (V2 runner): top-level ids or eagle_config.layer_ids, as boundaries. It does not read the nested ids."""
    return converted(draft) or top_level(draft) or nested_plain(draft) or engines_default(layers)


def nested_ids(draft: Keys, layers: int) -> AuxiliaryLayers:
    """SGLang, TensorRT-LLM: nested ids, taken as outputs of layers. They do not read the top-level ids."""
    return converted(draft) or nested(draft, layers) or engines_default(layers)


def no_ids(draft: Keys, layers: int) -> AuxiliaryLayers:
    """LMDeploy: it reads no ids, but those of a draft that was converted for TurboMind."""
    return converted(draft) or engines_default(layers)


def engines_default(layers: int) -> AuxiliaryLayers:
    resolved = by_default(layers)
    return AuxiliaryLayers(resolved.boundaries, f"boundaries {shown(resolved.boundaries)}, the engine's default")


def check(capture: AuxiliaryLayers, target_layers: int, where: str) -> None:
    """Raise CheckpointError unless the boundaries exist in the target and ascend."""
    if not capture.boundaries or capture.boundaries[0] < 0 or capture.boundaries[-1] > target_layers:
        raise CheckpointError(
            f"{where}: the target has {target_layers} layers, so boundaries 0 to {target_layers}",
            hint="is this the draft of another target?",
        )
    if any(a >= b for a, b in zip(capture.boundaries, capture.boundaries[1:], strict=False)):
        raise CheckpointError(
            f"{where}: not ascending", hint="engines concatenate captured streams low to high, each once"
        )


def shown(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids))}]"

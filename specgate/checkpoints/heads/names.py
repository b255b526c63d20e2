"""Names of a head's tensors, as trainers write them, in the layout of the EAGLE authors (`midlayer.*`, `fc`, `norm`).

Trainers whose names were read (2026-08): EAGLE's own repository and AngelSlim (`midlayer.*`), SpecForge (`midlayer.*`,
`fc_norm.i`), speculators (`layers.0.*`, `input_norm`, formerly `verifier_norm` and `verifier_lm_head`), Model Optimizer
(`layers.0.*`, `midlayer.0.*` from Megatron, `eagle_module.*` before export), NeMo Automodel (`model.*`), BaldEagle and
EAGLE-1 (`fc` over embedding and hidden state). vLLM itself calls d2t `draft_id_to_target_id`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.checkpoints.files import listed
from specgate.errors import CheckpointError, UnsupportedDraft

WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of names that torch.compile, FSDP and activation checkpointing put in between."""
RECOMPUTED: Final = frozenset({"inv_freq", "original_inv_freq", "cos_cached", "sin_cached"})
"""Last parts of the names of buffers that old checkpoints store and every engine recomputes."""
LEFT_OVER: Final[Mapping[str, str]] = {
    r"verifier(_.+)?|target_model|target_embed_tokens|target_lm_head|base_model|teacher(_model)?": "the target",
    r"optim(izer)?(_.+)?|exp_avg(_sq)?|max_exp_avg_sq|momentum_buffer|(lr_)?scheduler|grad_scaler|scaler": "training",
    r"ema(_.+)?|master_(weights?|params?)|_extra_state|num_batches_tracked|_amax": "training",
}
"""Regular expression of a part of a name → where such a tensor comes from. No forward pass of a head reads it."""
RENAMED: Final = (
    (re.compile(r"draft_id_to_target_id|d2t\.weight"), "d2t"),
    (re.compile(r"t2d\.weight"), "t2d"),
    (re.compile(r"aux_norm_low\.(.+)"), r"fc_norm.0.\1"),
    (re.compile(r"aux_norm_mid\.(.+)"), r"fc_norm.1.\1"),
    (re.compile(r"aux_norm_high\.(.+)"), r"fc_norm.2.\1"),
)
LAYER: Final = re.compile(r"(?:(?:midlayer|layers)\.(?P<index>\d+)|midlayer)\.(?P<rest>.+)")
ANCHORS: Final = (re.compile(r"(?P<prefix>(?:.+\.)?)fc\.weight"), re.compile(rf"(?P<prefix>(?:.+?\.)?){LAYER.pattern}"))
"""What stands before these names is the prefix of the whole head."""
PARTS: Final = re.compile(
    r"(midlayer|layers\.\d+|fc|fc_norm|input_norm|norm|lm_head|embed_tokens|aux_norm_\w+|[dt]2[dt])\..+"
    r"|[dt]2[dt]|draft_id_to_target_id"
)
"""Names of a head, without its prefix."""
OF_BOTH: Final = ("lm_head.weight", "embed_tokens.weight")
"""A head without one of these borrows the target's, which may be stored beside it."""
OTHER_KINDS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"mask_hidden", "parallel drafting (P-EAGLE)", "parallel drafting is not supported"),
    (r"medusa|parallel_draft_heads", "Medusa heads", "only EAGLE-3 heads are supported"),
    (r"\beh_proj\b|\benorm\b|\bhnorm\b", "multi-token prediction", "only EAGLE-3 heads are supported"),
    (r"\bkv_a_proj|\bkv_b_proj|\bq_[ab]_proj", "multi-head latent attention", "only Llama's attention is supported"),
    (r"\bmlp\.(experts|router|gate)\b", "a mixture of experts", "only a dense feed-forward part is supported"),
    (r"\b[qk]_norm\b", "norms of queries and keys", "only Llama's attention is supported"),
    (r"\blora_[AB]\b", "LoRA adapters", "merge them into the weights (peft: merge_and_unload)"),
    (
        r"\bqkv_proj\b|\bgate_up_proj\b",
        "fused projections",
        "split them into q_proj, k_proj, v_proj; gate_proj, up_proj",
    ),
    (
        r"\b(weight_scale(_inv)?|weight_packed|weight_zero_point|input_scale|qweight|qzeros|g_idx|absmax)\b",
        "quantised weights",
        "only unquantised weights are supported: export the head in bfloat16",
    ),
    (r"_proj\.bias\b", "projections with a bias", "projections with a bias are not supported"),
)
"""Regular expression of a tensor's name → the kind of head that has it, and what would be right."""


@dataclass(frozen=True, slots=True)
class HeadNames:
    """`stored`: canonical name → name in the files. `layers`: numbers of its decoder layers; `midlayer` is number 0.

    `warnings`: what was left over and is not read.
    """

    stored: Mapping[str, str]
    layers: tuple[int, ...]
    warnings: tuple[str, ...]


def head_names(names: Iterable[str], folder: Path) -> HeadNames:
    """Find the head among the tensors of `folder`.

    Raises CheckpointError where two names mean the same tensor.
    """
    unwrapped = {name: ".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names}
    origins = {name: origin(unwrapped[name]) for name in unwrapped}
    own = {name: text for name, text in unwrapped.items() if origins[name] is None}
    prefix = prefix_of(own.values())
    inner = {name: without_prefix(text, prefix) for name, text in own.items()}
    inside = {canonical(text, one_layer=True) for name, text in inner.items() if own[name].startswith(prefix)}
    strangers = [n for n, text in inner.items() if not own[n].startswith(prefix) and foreign(text, inside)]
    inner = {name: text for name, text in inner.items() if name not in strangers}
    layers = tuple(sorted({number_of(match) for text in inner.values() if (match := LAYER.fullmatch(text))}))
    stored: dict[str, str] = {}
    for name, text in sorted(inner.items(), key=lambda item: not own[item[0]].startswith(prefix)):
        if (known := stored.setdefault(canonical(text, one_layer=len(layers) == 1), name)) != name:
            raise CheckpointError(f"{folder}: tensors {known} and {name} are the same weight", hint="keep one")
    return HeadNames(stored, layers, tuple(unread(origins, strangers)))


def origin(name: str) -> str | None:
    """Where a tensor that is no part of a head comes from; "" for buffers that are recomputed; None: of the head."""
    parts = name.split(".")
    if parts[-1] in RECOMPUTED:
        return ""
    return next((what for text, what in LEFT_OVER.items() if any(re.fullmatch(text, part) for part in parts)), None)


def prefix_of(names: Iterable[str]) -> str:
    """The prefix of the head, such as `model.`: what stands before `fc.weight`, or else before its layer."""
    texts = sorted(names, key=len)
    for anchor in ANCHORS:
        if matches := [match for text in texts if (match := anchor.fullmatch(text))]:
            return matches[-1]["prefix"]
    return ""


def without_prefix(name: str, prefix: str) -> str:
    """`name` without `prefix`, or without as many of its first parts as it has: lm_head and maps stand outside."""
    parts = prefix.split(".")[:-1]
    for count in range(len(parts), 0, -1):
        start = ".".join(parts[:count]) + "."
        if name.startswith(start):
            return name.removeprefix(start)
    return name


def foreign(name: str, inside: Collection[str]) -> bool:
    """True if a name outside of the head's prefix is no part of it: weights of the whole model, for instance. `inside`:
    canonical names below the prefix.
    """
    return not PARTS.fullmatch(name) or (name in OF_BOTH and name in inside)


def number_of(match: re.Match[str]) -> int:
    return int(match["index"] or 0)


def canonical(name: str, *, one_layer: bool) -> str:
    """A tensor's name in the layout of the EAGLE authors. `one_layer`: its decoder layer is `midlayer`, as only one is
    there.
    """
    if (match := LAYER.fullmatch(name)) and (one_layer or match["index"] is None):
        return f"midlayer.{match['rest']}"
    for pattern, replacement in RENAMED:
        if pattern.fullmatch(name):
            return pattern.sub(replacement, name)
    return name


def unread(origins: Mapping[str, str | None], strangers: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each origin of tensors that are not read."""
    kinds: dict[str, list[str]] = {}
    for name, what in origins.items():
        if what:
            kinds.setdefault(what, []).append(name)
    kinds |= {"another model": names} if (names := list(strangers)) else {}
    for what, names in kinds.items():
        yield f"the draft's files also hold tensors of {what}, which are not read: {listed(names[:3])}" + (
            f" and {len(names) - 3} more" if len(names) > 3 else ""
        )


def refuse_other_kinds(head: HeadNames, folder: Path) -> None:
    """Raise UnsupportedDraft for a head that is no EAGLE-3 head of one decoder layer, with the one cause."""
    for pattern, kind, hint in OTHER_KINDS:
        if name := next((name for name in head.stored if re.search(pattern, name)), None):
            raise UnsupportedDraft(f"{folder}: tensor {head.stored[name]}: {kind}", hint=hint)
    if len(head.layers) > 1:
        numbers = ", ".join(map(str, head.layers[:4])) + (", …" if len(head.layers) > 4 else "")
        what = "" if "fc.weight" in head.stored else " and no fc.weight: a whole model, not a head"
        raise UnsupportedDraft(
            f"{folder}: the weights hold {len(head.layers)} decoder layers ({numbers}){what}",
            hint="the built-in engines run drafts of one layer only: engines disagree on the second",
        )

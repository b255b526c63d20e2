"""Names of a head's tensors, as trainers write them, in the layout of the EAGLE authors (`midlayer.*`, `fc`, `norm`).

Trainers whose names were read (2026-08): EAGLE's own repository and AngelSlim (`midlayer.*`), SpecForge (`midlayer.*`,
`fc_norm.i`), speculators (`layers.0.*`, `input_norm`, formerly `verifier_norm` and `verifier_lm_head`), Model Optimizer
(`layers.0.*`, `midlayer.0.*` from Megatron, `eagle_module.*` before export), NeMo Automodel (`model.*`), BaldEagle and
EAGLE-1 (`fc` over embedding and hidden state). vLLM itself calls d2t `draft_id_to_target_id`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
LAYER: Final = re.compile(
    r"(?:midlayer|mid_layer|layers?|blocks?|decoder_layers?|h)(?:\.(?P<index>\d{1,6}))?\.(?P<rest>(?!\d)[^.]+(?:\..+)?)"
)
"""A tensor of a decoder layer."""
TOP: Final = re.compile(
    r"(fc|fc_norm|input_norm|norm|lm_head|embed_tokens|aux_norm_\w+|[dt]2[dt])\..+|[dt]2[dt]|draft_id_to_target_id"
)
"""The other tensors of a head. What stands before such a name, or before that of a layer, is a prefix."""
LONGEST: Final = 12
"""Parts of a tensor's name without its prefix, at most."""
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
    origins = {name: origin(text) for name, text in unwrapped.items()}
    own, strangers = of_head({name: text for name, text in unwrapped.items() if origins[name] is None})
    layers = tuple(sorted({int(match["index"] or 0) for core in own.values() if (match := LAYER.fullmatch(core))}))
    stored: dict[str, str] = {}
    for name, core in own.items():
        if (known := stored.setdefault(canonical(core, one_layer=len(layers) == 1), name)) != name:
            raise CheckpointError(f"{folder}: tensors {known} and {name} are the same weight", hint="keep one")
    return HeadNames(stored, layers, tuple(unread(origins, strangers)))


def origin(name: str) -> str | None:
    """Where a tensor that is no part of a head comes from; "" for buffers that are recomputed; None: of the head."""
    parts = name.split(".")
    if parts[-1] in RECOMPUTED:
        return ""
    return next((what for text, what in LEFT_OVER.items() if any(re.fullmatch(text, part) for part in parts)), None)


def of_head(names: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(name → the same without its prefix, names of another model that is stored beside the head).

    The head's prefix is what stands before `fc.weight`. Its other parts have that prefix or the beginning of it, and
    where a part is not among these, any other one. `names`: name → the same without wrappers.
    """
    divided = {name: divide(text) for name, text in names.items()}
    prefix = max((before for before, core in divided.values() if core == "fc.weight"), key=len, default="")
    near = {(part_of(core), before) for before, core in divided.values() if core and prefix.startswith(before)}
    parts = {part for part, _ in near}
    own, strangers = {}, []
    for name, (before, core) in divided.items():
        if not core:
            is_own = names[name].startswith(prefix) or any(re.search(kind, names[name]) for kind, *_ in OTHER_KINDS)
        elif prefix.startswith(before):
            is_own = before == prefix or core not in OF_BOTH or (part_of(core), prefix) not in near
        else:
            is_own = part_of(core) not in parts
        if is_own:
            own[name] = core or names[name].removeprefix(prefix)
        else:
            strangers.append(name)
    return own, strangers


def divide(name: str) -> tuple[str, str]:
    """(prefix, name of a head's tensor); ("", "") where no end of `name` is one."""
    parts = name.split(".")
    ends = (".".join(parts[i:]) for i in range(max(0, len(parts) - LONGEST), len(parts)))
    core = next((end for end in ends if LAYER.fullmatch(end) or TOP.fullmatch(end)), "")
    return (name.removesuffix(core), core) if core else ("", "")


def part_of(core: str) -> str:
    """The part of a head that a tensor belongs to: its layer, or a module beside it."""
    return "layer" if LAYER.fullmatch(core) else core.split(".")[0]


def canonical(name: str, *, one_layer: bool) -> str:
    """A tensor's name in the layout of the EAGLE authors. `one_layer`: its decoder layer is `midlayer`, as only one is
    there.
    """
    if (match := LAYER.fullmatch(name)) and one_layer:
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
    """Raise UnsupportedDraft for a head that is no EAGLE-3 head of one decoder layer, with the one cause; and
    CheckpointError where there is none at all.
    """
    if not head.layers and not any(TOP.fullmatch(name) for name in head.stored):
        tensors = listed([*head.stored.values()][:3]) or "none"
        raise CheckpointError(
            f"{folder}: no tensor of an EAGLE-3 head among {len(head.stored)} ({tensors})",
            hint="a head has fc.weight, norm.weight and one decoder layer (midlayer.* or layers.0.*)",
        )
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

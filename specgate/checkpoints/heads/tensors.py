"""The tensors that a draft's geometry implies, by canonical name; and tensors compared with those of files.

Draft tensors have the names of the EAGLE authors (`fc`, `midlayer.*`, `norm`, `lm_head`, `embed_tokens`, `input_norm`,
`fc_norm.i`, each followed by `.weight`; `d2t` and `t2d`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from specgate.checkpoints.arrays import FLOATS, STORED
from specgate.checkpoints.files import listed
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.errors import CheckpointError

MAP: Final = "I64"
MASK: Final = "BOOL"
READ_FROM: Final[Mapping[str, frozenset[str]]] = {MAP: frozenset(STORED), MASK: frozenset(STORED)}
"""Type of d2t and t2d → types that trainers store them in. `maps` looks at the values."""

NO_FIT: Final = "config and weights must be of one model, in a layout that specgate knows"
NO_MAP: Final = (
    "the draft vocabulary is a part of the target's: export its table of offsets too (target id = i + d2t[i])"
)


class Described(Protocol):
    """A tensor as its file's header describes it. `dtype` is spelled as in safetensors, e.g. BF16."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """The shape and dtype that the config implies for a tensor.

    `dtype` None allows any of `FLOATS`. `meaning` explains the shape in error messages.
    """

    shape: tuple[int, ...]
    meaning: str = ""
    dtype: str | None = None


def draft_tensors(g: DraftGeometry, has_d2t: bool, has_t2d: bool) -> dict[str, Wanted]:
    """Every tensor of the draft with its shape.

    `d2t` is required where the draft vocabulary is smaller than the target's. `t2d` is never required. `has_d2t` and
    `has_t2d` say whether the checkpoint holds them.
    """
    width = g.features * g.target_hidden
    streams = f"{g.features} captured streams of the target's hidden size {g.target_hidden}"
    tensors = {"fc.weight": Wanted((g.hidden, width), streams), "norm.weight": Wanted((g.hidden,))}
    tensors |= attention_tensors("midlayer.", g, 2 * g.hidden, "the attention input is [embedding, feature]")
    tensors |= feed_forward_tensors("midlayer.", g)
    tensors["midlayer.hidden_norm.weight"] = Wanted((g.hidden,))
    if g.norm_before_fc:
        tensors["input_norm.weight"] = Wanted((width,), streams)
    if g.fc_norm:
        tensors |= {f"fc_norm.{i}.weight": Wanted((g.target_hidden,), streams) for i in range(g.features)}
    if g.own_embedding:
        tensors["embed_tokens.weight"] = Wanted((g.vocab, g.hidden), "one row per target token")
    if g.own_lm_head:
        tensors["lm_head.weight"] = Wanted((g.draft_vocab, g.hidden), f"draft_vocab_size {g.draft_vocab} rows")
    if has_d2t or g.draft_vocab != g.vocab:
        tensors["d2t"] = Wanted((g.draft_vocab,), "one offset per row of lm_head.weight", MAP)
    if has_t2d:
        tensors["t2d"] = Wanted((g.vocab,), "one mark per target token", MASK)
    return tensors


def attention_tensors(
    prefix: str, g: TargetGeometry | DraftGeometry, attention_input: int, meaning: str = ""
) -> dict[str, Wanted]:
    """The norms and projections of one layer. Queries, keys and values come from rows of width `attention_input`."""
    norm = Wanted((g.hidden,))
    q, kv = (Wanted((n * g.head_dim, attention_input), meaning) for n in (g.heads, g.kv_heads))
    parts = {
        "input_layernorm": norm,
        "self_attn.q_proj": q,
        "self_attn.k_proj": kv,
        "self_attn.v_proj": kv,
        "self_attn.o_proj": Wanted((g.hidden, g.heads * g.head_dim)),
        "post_attention_layernorm": norm,
    }
    return {f"{prefix}{name}.weight": want for name, want in parts.items()}


def feed_forward_tensors(prefix: str, g: TargetGeometry | DraftGeometry) -> dict[str, Wanted]:
    """A dense feed-forward part."""
    up = Wanted((g.intermediate, g.hidden))
    parts = {"gate_proj": up, "up_proj": up, "down_proj": Wanted((g.hidden, g.intermediate))}
    return {f"{prefix}mlp.{name}.weight": want for name, want in parts.items()}


def check_tensors(
    entries: Mapping[str, Described], expected: Mapping[str, Wanted], where: Path, other: str | None = None
) -> None:
    """Raise one CheckpointError that names every missing, misshapen, wrongly typed and left-over tensor of `entries`.

    Tensors whose names match the regular expression `other` are optional and not checked.
    """
    problems = {
        "missing": [name for name in expected if name not in entries],
        "wrong": [
            text for name, want in expected.items() if name in entries and (text := misfit(name, entries[name], want))
        ],
        "left over": [name for name in entries if name not in expected and not (other and re.fullmatch(other, name))],
    }
    if any(problems.values()):
        text = "; ".join(f"{kind}: {listed(items)}" for kind, items in problems.items() if items)
        hint = NO_MAP if [*problems.values()] == [["d2t"], [], []] else NO_FIT
        raise CheckpointError(f"{where}: tensors do not fit the config: {text}", hint=hint)


def misfit(name: str, entry: Described, want: Wanted) -> str:
    """Describe the misfit of a tensor's entry; "" if it fits."""
    if entry.shape != want.shape:
        reason = f" ({want.meaning})" if want.meaning else ""
        return f"{name} is {list(entry.shape)}, not {list(want.shape)}{reason}"
    allowed = READ_FROM.get(want.dtype, {want.dtype}) if want.dtype else FLOATS
    if entry.dtype not in allowed:
        return f"{name} is of type {entry.dtype}, not {want.dtype or 'a float of 16 to 64 bits'}"
    return ""

"""Rotary position embedding in Hugging Face configs: the older `rope_scaling` and the newer `rope_parameters`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from specgate.checkpoints.geometry import RopeSpec
from specgate.checkpoints.hf_keys import Keys
from specgate.files.json_text import shown

Kind = Literal["default", "linear", "llama3", "yarn"]
DEFAULT_BASE: Final = 10000.0
"""The base where `rope_theta` is missing, as in `LlamaConfig`. The drafts of the EAGLE authors rely on it."""

COMMON_KEYS: Final = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "finetuned",
    "mrope_section", "mrope_interleaved",
}  # fmt: skip
"""The last two divide the rotation among time, height and width, which are one position in a text."""
KEYS_OF_KIND: Final[Mapping[Kind, set[str]]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"},
}


def rope_of(config: Keys, head_dim: int, base: float = DEFAULT_BASE) -> tuple[RopeSpec, int]:
    """(the RoPE of `config`, the number of positions it serves). `base` holds where the config states none.

    A YaRN config may state its positions before or after scaling, so the larger of `max_position_embeddings` and
    original × factor counts. For the other kinds, `max_position_embeddings` counts as written.
    """
    stated = config.count("max_position_embeddings")
    section = scaling_section(config)
    config.refuse("partial_rotary_factor", 1.0, "only rotation of the whole head is supported")
    original = section.optional_count("original_max_position_embeddings")
    original = original or config.optional_count("original_max_position_embeddings") or stated
    spec = parse(section, config.number("rope_theta", base), head_dim, original, stated)
    return spec, max(stated, scaled_positions(spec, original)) if spec.kind == "yarn" else stated


def override(spec: RopeSpec, positions: int, keys: Keys) -> tuple[RopeSpec, int]:
    """Replace a checkpoint's RoPE scaling by a user's `keys` (Hugging Face spelling); positions = original × factor.

    Base and original positions stay the checkpoint's where `keys` does not name them.
    """
    original = keys.optional_count("original_max_position_embeddings") or spec.original_positions or positions
    scaled = parse(keys, spec.base, spec.dim, original, positions)
    return scaled, scaled_positions(scaled, original)


def scaling_section(config: Keys) -> Keys:
    """The config's section on scaling. Raises CheckpointError where both spellings are there and differ in meaning."""
    old, new = config.part("rope_scaling"), config.part("rope_parameters")
    if old.values and new.values and meaning(old, config) != meaning(new, config):
        raise config.wrong("rope_scaling", "rope_parameters says something else: keep one of the two")
    return new if new.values else old


def meaning(section: Keys, config: Keys) -> Mapping[str, object]:
    """A section with the defaults that its readers fill in. SpecForge writes both sections, one without a base."""
    values = {("rope_type" if key == "type" else key): value for key, value in section.values.items() if key in section}
    return {"rope_type": "default", "rope_theta": config.values.get("rope_theta"), **values}


def two_bases(config: Keys) -> str:
    """The two bases of a config that states `rope_theta` twice, differently, and the one that counts; else ""."""
    section = scaling_section(config)
    if "rope_theta" not in config or "rope_theta" not in section:
        return ""
    outer, inner = config.values["rope_theta"], section.values["rope_theta"]
    if outer == inner:
        return ""
    path = section.path("rope_theta")
    return f"rope_theta = {shown(outer)}, {path} = {shown(inner)}; the latter counts, as in transformers 5"


def parse(section: Keys, base: float, head_dim: int, original: int, positions: int) -> RopeSpec:
    """The RoPE that `section` describes. Raises CheckpointError for keys that its kind does not know."""
    kind = kind_of(section)
    unknown = sorted(k for k in section.values if k in section and k not in COMMON_KEYS | KEYS_OF_KIND[kind])
    if unknown:
        known = ", ".join(sorted(KEYS_OF_KIND[kind])) or "no further keys"
        raise section.wrong(unknown[0], f"rope type {kind!r} knows {known}")
    section.refuse("partial_rotary_factor", 1.0, "only rotation of the whole head is supported")
    spec = RopeSpec(
        kind=kind,
        base=section.number("rope_theta", base),
        dim=head_dim,
        factor=factor_of(section, kind, original, positions),
        original_positions=original if kind in ("yarn", "llama3") else None,
        low_freq_factor=section.number("low_freq_factor") if kind == "llama3" else None,
        high_freq_factor=section.number("high_freq_factor") if kind == "llama3" else None,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        attention_factor=section.optional_number("attention_factor"),
        mscale=section.optional_number("mscale"),
        mscale_all_dim=section.optional_number("mscale_all_dim"),
        truncate=section.flag("truncate", True),
    )
    if spec.base <= 1:
        raise section.wrong("rope_theta", f"the base of the rotation is {spec.base:g}: larger than 1 is needed")
    check_ranges(spec, section)
    return spec


def kind_of(section: Keys) -> Kind:
    key = "rope_type" if "rope_type" in section else "type"
    name = section.text(key) or "default"
    name = "default" if name == "mrope" else name
    for kind in KEYS_OF_KIND:
        if name == kind:
            return kind
    raise section.wrong(key, f"supported: {', '.join(KEYS_OF_KIND)}")


def factor_of(section: Keys, kind: Kind, original: int, positions: int) -> float:
    """The scaling factor. YaRN may leave it out: then it is positions / original."""
    if kind == "default":
        return 1.0
    if kind == "yarn" and "factor" not in section and positions > original:
        return positions / original
    factor = section.number("factor")
    if factor < 1.0:
        raise section.wrong("factor", "a factor ≥ 1 is needed: scaling can only lengthen the context")
    return factor


def check_ranges(spec: RopeSpec, section: Keys) -> None:
    if spec.low_freq_factor and spec.high_freq_factor and spec.high_freq_factor <= spec.low_freq_factor:
        raise section.wrong("high_freq_factor", f"must be larger than low_freq_factor = {spec.low_freq_factor:g}")
    if spec.beta_fast <= spec.beta_slow:
        raise section.wrong("beta_fast", f"must be larger than beta_slow = {spec.beta_slow:g}")


def scaled_positions(spec: RopeSpec, original: int) -> int:
    return round(original * spec.factor)

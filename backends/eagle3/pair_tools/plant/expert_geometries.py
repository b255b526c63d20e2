"""The geometries with experts that can be planted, as in `geometries.py`; and every geometry by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES, PairGeometry, default, dense, draft_of
from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.hf.gpt_oss import BASE
from specgate.errors import UsageError

YARN: Final = 32.0
"""How many times longer YaRN makes the context."""


def gpt_oss_tiny() -> PairGeometry:
    """A pair with every part of gpt-oss that decodes in seconds on a CPU and calibrates in a minute.

    The sizes are this project's own: 4 layers, 8 experts of which a token chooses 2, and windows of 32 positions.
    """
    target = mixture(
        dense(4, 512, 64, heads=8, kv_heads=2, head_dim=64, vocab=2048, positions=4096),
        ExpertGeometry(8, 2, mxfp4=True),
        window=32,
    )
    return PairGeometry(target, plain_draft(target, 512, 512), (1, 2, 4), context=256, written=True)


def gpt_oss_20b() -> PairGeometry:
    """gpt-oss-20b (https://huggingface.co/openai/gpt-oss-20b, config.json): 24 layers of 32 experts.

    Draft: SpecForge's `configs/gpt-oss-20B-eagle3-dense.json` (https://github.com/sgl-project/SpecForge), for as many
    positions as the target has.
    """
    target = published(24, 32)
    return PairGeometry(target, plain_draft(target, 32000, 17280), default(target), context=4096, written=False)


def gpt_oss_120b() -> PairGeometry:
    """gpt-oss-120b (https://huggingface.co/openai/gpt-oss-120b, config.json): 36 layers of 128 experts.

    Draft: SpecForge's `configs/gpt-oss-120B-eagle3.json` (https://github.com/sgl-project/SpecForge), for as many
    positions as the target has.
    """
    target = published(36, 128)
    return PairGeometry(target, plain_draft(target, 32000, 17280), default(target), context=4096, written=False)


EXPERT_GEOMETRIES: Final[Mapping[str, Callable[[], PairGeometry]]] = {
    "gpt-oss-tiny": gpt_oss_tiny,
    "gpt-oss-20b": gpt_oss_20b,
    "gpt-oss-120b": gpt_oss_120b,
}


def geometry_of(name: str) -> PairGeometry:
    """The geometry with that name, dense or with experts. Raises UsageError for a name that is not known."""
    known = {**GEOMETRIES, **EXPERT_GEOMETRIES}
    if name not in known:
        raise UsageError(f"geometry {name!r} is not known", hint=f"known: {', '.join(known)}")
    return known[name]()


def published(layers: int, experts: int) -> TargetGeometry:
    """Return the geometry that both published models share, with so many layers and experts in each."""
    return mixture(
        dense(layers, 2880, 2880, heads=64, kv_heads=8, head_dim=64, vocab=201088, positions=131072),
        ExpertGeometry(experts, 4, mxfp4=True),
        window=128,
    )


def mixture(dense: TargetGeometry, experts: ExpertGeometry, window: int) -> TargetGeometry:
    """The gpt-oss of these sizes: every other layer, from the first on, slides over `window` positions."""
    return replace(
        dense,
        experts=experts,
        windows=tuple(None if i % 2 else window for i in range(dense.layers)),
        biases=True,
        sinks=True,
        rope=RopeSpec(
            "yarn",
            BASE,
            dense.head_dim,
            factor=YARN,
            original_positions=round(dense.max_positions / YARN),
            truncate=False,
        ),
    )


def plain_draft(target: TargetGeometry, draft_vocab: int, intermediate: int) -> DraftGeometry:
    """A draft of the target's attention sizes whose RoPE is not scaled. It attends to its own position alone."""
    draft = draft_of(target, draft_vocab, intermediate)
    return replace(draft, rope=RopeSpec("default", BASE, target.head_dim))

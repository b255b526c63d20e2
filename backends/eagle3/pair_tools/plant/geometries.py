"""The geometries that can be planted, dense and with a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, RopeSpec, TargetGeometry
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class PairGeometry:
    """Sizes of a pair, and defaults for planting it.

    `context`: tokens at which the pair is calibrated. `written`: whether the weights go into files; those of larger
    pairs are generated when loaded.
    """

    target: TargetGeometry
    draft: DraftGeometry
    boundaries: tuple[int, int, int]
    context: int
    written: bool


def tiny() -> PairGeometry:
    """A pair that decodes in seconds on a CPU and calibrates in half a minute.

    The sizes are this project's own, just large enough for recipe B (eight heads, a width of 512).
    """
    target = dense(6, 512, 1024, heads=8, kv_heads=4, head_dim=64, vocab=2048, positions=8192)
    return PairGeometry(target, draft_of(target, 512), (1, 3, 5), context=256, written=True)


def medium() -> PairGeometry:
    """A pair that calibrates in a few minutes on a CPU.

    The sizes are this project's own: 1024 wide, between `tiny` and a real model.
    """
    target = dense(8, 1024, 4096, heads=16, kv_heads=4, head_dim=64, vocab=8192, positions=8192)
    return PairGeometry(target, draft_of(target, 2048), (2, 4, 5), context=1024, written=True)


def smollm2_135m() -> PairGeometry:
    """SmolLM2-135M (https://huggingface.co/HuggingFaceTB/SmolLM2-135M, config.json) with an untied LM head.

    A tied head has no room for a signal. Draft: as the demo pair's, with full attention.
    """
    target = dense(30, 576, 1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, positions=32768, base=100000.0)
    return PairGeometry(target, draft_of(target, 10240, intermediate=2048), default(target), context=2048, written=True)


def llama_3_2_1b() -> PairGeometry:
    """Llama-3.2-1B (https://huggingface.co/meta-llama/Llama-3.2-1B, config.json) with an untied LM head.

    Draft: one layer of the target's sizes, 32,000 draft tokens.
    """
    target = dense(
        16, 2048, 8192, heads=32, kv_heads=8, head_dim=64, vocab=128256, positions=131072, rope=llama3(64, 32.0)
    )
    return PairGeometry(target, draft_of(target, 32000), default(target), context=16384, written=False)


def llama_3_1_8b() -> PairGeometry:
    """Llama-3.1-8B (https://huggingface.co/meta-llama/Llama-3.1-8B, config.json).

    Draft: SpecForge's `configs/llama3-8B-eagle3.json` (https://github.com/sgl-project/SpecForge).
    """
    target = dense(
        32, 4096, 14336, heads=32, kv_heads=8, head_dim=128, vocab=128256, positions=131072, rope=llama3(128, 8.0)
    )
    return PairGeometry(target, draft_of(target, 32000), default(target), context=16384, written=False)


def qwen3_tiny() -> PairGeometry:
    """A pair with every part of Qwen3 that decodes in seconds on a CPU, with sizes of this project's own."""
    target = qwen3(4, 512, 1024, heads=6, kv_heads=2, vocab=2048)
    return PairGeometry(target, draft_of(target, 512), (1, 2, 3), context=256, written=True)


def qwen3_8b() -> PairGeometry:
    """Qwen3-8B (https://huggingface.co/Qwen/Qwen3-8B, config.json).

    Draft: one layer of the target's sizes, 32,000 draft tokens, as the public heads are.
    """
    target = qwen3(36, 4096, 12288, heads=32, kv_heads=8)
    return PairGeometry(target, draft_of(target, 32000), default(target), context=16384, written=False)


def qwen3_32b() -> PairGeometry:
    """Qwen3-32B (https://huggingface.co/Qwen/Qwen3-32B, config.json).

    Draft: one layer of the target's sizes, 32,000 draft tokens. SpecForge's `configs/qwen3-32b-eagle3.json` has heads
    of 80, for which the built-in engine has no kernel.
    """
    target = qwen3(64, 5120, 25600, heads=64, kv_heads=8)
    return PairGeometry(target, draft_of(target, 32000), default(target), context=16384, written=False)


def gpt_oss_120b_dense() -> PairGeometry:
    """gpt-oss-120b (https://huggingface.co/openai/gpt-oss-120b, config.json) as a dense stand-in.

    Its MLP is as wide as the four active experts of 2880, and it has full attention and plain RoPE. Draft: SpecForge's
    `configs/gpt-oss-120B-eagle3.json`.
    """
    target = dense(36, 2880, 4 * 2880, heads=64, kv_heads=8, head_dim=64, vocab=201088, positions=131072, base=150000.0)
    return PairGeometry(
        target, draft_of(target, 32000, intermediate=17280), default(target), context=16384, written=False
    )


GEOMETRIES: Final[Mapping[str, Callable[[], PairGeometry]]] = {
    "tiny": tiny,
    "medium": medium,
    "smollm2-135m": smollm2_135m,
    "llama-3.2-1b": llama_3_2_1b,
    "llama-3.1-8b": llama_3_1_8b,
    "qwen3-tiny": qwen3_tiny,
    "qwen3-8b": qwen3_8b,
    "qwen3-32b": qwen3_32b,
    "gpt-oss-120b-dense": gpt_oss_120b_dense,
}
"""The dense ones."""


def llama3(head_dim: int, factor: float) -> RopeSpec:
    """The RoPE scaling of Llama 3.1 (factor 8) and 3.2 (factor 32)."""
    return RopeSpec(
        "llama3", 500000.0, head_dim, factor=factor, original_positions=8192, low_freq_factor=1.0, high_freq_factor=4.0
    )


def default(target: TargetGeometry) -> tuple[int, int, int]:
    """The boundaries that the EAGLE authors use."""
    return 2, target.layers // 2, target.layers - 3


def dense(
    layers: int,
    hidden: int,
    intermediate: int,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    positions: int,
    base: float = 10000.0,
    rope: RopeSpec | None = None,
) -> TargetGeometry:
    """A Llama without special tokens, because all tokens of a planted pair are alike."""
    return TargetGeometry(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        rms_eps=1e-5,
        rope=rope or RopeSpec("default", base, head_dim),
        max_positions=positions,
        tied_embeddings=False,
        eos_token_ids=(),
        bos_token_id=None,
    )


def qwen3(
    layers: int, hidden: int, intermediate: int, *, heads: int, kv_heads: int, vocab: int = 151936
) -> TargetGeometry:
    """The Qwen3 of these sizes: heads of 128, whatever the hidden size, with norms of queries and keys."""
    plain = dense(
        *(layers, hidden, intermediate),
        heads=heads, kv_heads=kv_heads, head_dim=128, vocab=vocab, positions=40960, base=1000000.0,
    )  # fmt: skip
    return replace(plain, rms_eps=1e-6, head_norms=True)


def draft_of(target: TargetGeometry, draft_vocab: int, intermediate: int | None = None) -> DraftGeometry:
    """An EAGLE-3 draft with the target's attention sizes, RoPE and positions."""
    return DraftGeometry(
        hidden=target.hidden,
        target_hidden=target.hidden,
        features=3,
        intermediate=intermediate or target.intermediate,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab=target.vocab,
        draft_vocab=draft_vocab,
        rms_eps=target.rms_eps,
        rope=target.rope,
        max_positions=target.max_positions,
    )


BASE: Final = 150000.0
"""The base of the rotation of gpt-oss and its drafts."""
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

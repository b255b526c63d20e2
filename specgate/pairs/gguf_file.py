"""The metadata of a llama-architecture GGUF file: keys, sizes, shapes.

Source: the GGUF specification (metadata keys, tensor names).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.errors import CheckpointError

if TYPE_CHECKING:
    from gguf import GGUFReader

HEAD: Final = "output.weight"
"""The LM head's tensor. It is absent where the embedding serves as the head."""


@dataclass(frozen=True)
class Metadata:
    """The key-value section of a GGUF file. Errors name file and key."""

    file: Path
    reader: GGUFReader

    @classmethod
    def read(cls, file: Path) -> Metadata:
        from gguf import GGUFReader

        try:
            return cls(file, GGUFReader(file))
        except (ValueError, IndexError, OSError) as error:
            raise CheckpointError(f"{file}: not a readable GGUF file ({error})") from error

    def get(self, key: str, default: Any = None) -> Any:
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.file}: metadata key {key!r} is missing")
        return value

    def require_one_of(self, key: str, supported: tuple[str, ...]) -> None:
        value = self.require(key)
        if value not in supported:
            raise CheckpointError(f"{self.file}: {key} = {value!r}", hint=f"supported: {', '.join(supported)}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a llama decoder.

    `rope_theta` and `rms_eps` are the shortest decimals that round to the stored float32 values.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    rope_theta: float
    rms_eps: float
    tied: bool

    @classmethod
    def from_metadata(cls, m: Metadata) -> Sizes:
        m.require_one_of("general.architecture", ("llama",))
        if m.get("llama.rope.scaling.type", "none") != "none":
            raise CheckpointError(
                f"{m.file}: llama.rope.scaling.type = {m.get('llama.rope.scaling.type')!r}",
                hint="only models without rope scaling can be converted",
            )
        hidden, heads = m.require("llama.embedding_length"), m.require("llama.attention.head_count")
        return cls(
            layers=m.require("llama.block_count"),
            hidden=hidden,
            intermediate=m.require("llama.feed_forward_length"),
            heads=heads,
            kv_heads=m.get("llama.attention.head_count_kv", heads),
            head_dim=m.get("llama.attention.key_length", hidden // heads),
            vocab=len(m.require("tokenizer.ggml.tokens")),
            positions=m.require("llama.context_length"),
            rope_theta=shortest_float32(m.get("llama.rope.freq_base", 10000.0)),
            rms_eps=shortest_float32(m.require("llama.attention.layer_norm_rms_epsilon")),
            tied=all(t.name != HEAD for t in m.reader.tensors),
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the Hugging Face tensor `name`."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {
            "embed_tokens": (self.vocab, self.hidden),
            "lm_head": (self.vocab, self.hidden),
            "q_proj": (q, self.hidden),
            "k_proj": (kv, self.hidden),
            "v_proj": (kv, self.hidden),
            "o_proj": (self.hidden, q),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }
        return shapes.get(name.split(".")[-2], (self.hidden,))


def shortest_float32(value: float) -> float:
    """The shortest decimal that rounds to the float32 `value`, e.g. 0.00001 for 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))

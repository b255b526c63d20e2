"""The metadata of a llama-architecture GGUF file: keys, sizes, shapes.

Source: the GGUF specification (metadata keys, tensor names).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.backends.eagle3.pairs.gguf_layout import check_layout
from specgate.checkpoints.hf_keys import LARGEST_COUNT, LARGEST_NUMBER, is_integer
from specgate.errors import CheckpointError
from specgate.files.json_text import shown
from specgate.files.panics import refusing

if TYPE_CHECKING:
    from gguf import GGUFReader

HEAD: Final = "output.weight"
"""The LM head's tensor. It is absent where the embedding serves as the head."""
MOST_LAYERS: Final = 4096


@dataclass(frozen=True)
class Metadata:
    """The key-value section of a GGUF file. Errors name file and key."""

    file: Path
    reader: GGUFReader

    @classmethod
    def read(cls, file: Path) -> Metadata:
        from gguf import GGUFReader

        with refusing(lambda why: CheckpointError(f"{file}: not a readable GGUF file ({why})")):
            check_layout(file)
            return cls(file, GGUFReader(file))

    def get(self, key: str, default: Any = None) -> Any:
        field = self.reader.fields.get(key)
        with refusing(lambda why: CheckpointError(f"{self.file}: metadata key {key!r} cannot be read ({why})")):
            return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.file}: metadata key {key!r} is missing")
        return value

    def wrong(self, key: str, value: object, right: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: {key} = {shown(value)}", hint=right)

    def count(self, key: str, default: int | None = None, most: int = LARGEST_COUNT) -> int:
        """A positive integer, at most `most`. Required where there is no default."""
        value = self.require(key) if default is None else self.get(key, default)
        if not is_integer(value) or not 0 < value <= most:
            raise self.wrong(key, value, f"an integer from 1 to {most} is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number. Required where there is no default."""
        value = self.require(key) if default is None else self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LARGEST_NUMBER:
            raise self.wrong(key, value, "a positive number is needed")
        return value

    def words(self, key: str) -> list[str]:
        """A list of texts."""
        value = self.require(key)
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.wrong(key, value, "a list of texts is needed")
        return value

    def token_id(self, key: str) -> int | None:
        """An index into the vocabulary; None where the key is absent."""
        value, vocab = self.get(key), len(self.words("tokenizer.ggml.tokens"))
        if value is not None and (not is_integer(value) or not 0 <= value < vocab):
            raise self.wrong(key, value, f"the id of one of {vocab} tokens is needed")
        return value

    def require_one_of(self, key: str, supported: tuple[str, ...]) -> None:
        value = self.require(key)
        if value not in supported:
            raise self.wrong(key, value, f"supported: {', '.join(supported)}")


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
            key = "llama.rope.scaling.type"
            raise m.wrong(key, m.get(key), "only models without rope scaling can be converted")
        hidden, heads = m.count("llama.embedding_length"), m.count("llama.attention.head_count")
        return cls(
            layers=m.count("llama.block_count", most=MOST_LAYERS),
            hidden=hidden,
            intermediate=m.count("llama.feed_forward_length"),
            heads=heads,
            kv_heads=m.count("llama.attention.head_count_kv", heads),
            head_dim=m.count("llama.attention.key_length", max(hidden // heads, 1)),
            vocab=len(m.words("tokenizer.ggml.tokens")),
            positions=m.count("llama.context_length"),
            rope_theta=shortest_float32(m.number("llama.rope.freq_base", 10000.0)),
            rms_eps=shortest_float32(m.number("llama.attention.layer_norm_rms_epsilon")),
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

"""The metadata of a llama-architecture GGUF file, its layout, and its tokenizer as `tokenizer.json`.

A GGUF file says how many keys, elements, characters and dimensions follow. The package `gguf` believes it: it reads on
past the end of the file and makes an object per declared element. So a damaged file of a kilobyte could take all memory
or hang. Here each count is compared with the bytes that are left. Source: the GGUF specification, versions 2 and 3.

Source: the GGUF specification (metadata keys, tensor names).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.checkpoints.hf_keys import LARGEST_COUNT, LARGEST_NUMBER, is_integer
from specgate.errors import CheckpointError
from specgate.files.json_text import shown
from specgate.files.panics import refusing

if TYPE_CHECKING:
    from gguf import GGUFReader


VERSIONS: Final = (2, 3)
FIXED: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Type of a value → its bytes, for all types but text and arrays."""
TEXT: Final = 8
ARRAY: Final = 9
MOST_ELEMENTS: Final = 1 << 20
"""Of one array. The largest vocabularies have about 260,000 tokens and twice as many merges."""
MOST_DIMENSIONS: Final = 4
ELEMENTS_PER_BYTE: Final = 8
"""No quantisation stores more."""


def check_layout(file: Path) -> None:
    """Raise CheckpointError unless every count in `file` fits into it. OSError where it cannot be read."""
    with file.open("rb") as stream:
        if not stream.read(1):
            raise CheckpointError(f"{file}: not a readable GGUF file (it is empty)")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            walk(Cursor(file, content))


class Cursor:
    """A place in the file. Every read raises CheckpointError where the file ends before it."""

    def __init__(self, file: Path, content: mmap.mmap) -> None:
        self.file, self.content, self.at = file, content, 0

    @property
    def left(self) -> int:
        return len(self.content) - self.at

    def wrong(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: not a readable GGUF file ({why}, at byte {self.at})")

    def skip(self, count: int, what: str) -> None:
        if count > self.left:
            raise self.wrong(f"{what} takes {count} bytes, and {self.left} are left")
        self.at += count

    def number(self, form: str, what: str) -> int:
        """An unsigned integer; `form` as in `struct`."""
        start = self.at
        self.skip(struct.calcsize(form), what)
        value: int = struct.unpack_from(form, self.content, start)[0]
        return value

    def count(self, what: str, smallest: int, most: int | None = None) -> int:
        """A 64-bit count of things that take at least `smallest` bytes each."""
        count = self.number("<Q", what)
        if count * smallest > self.left or (most is not None and count > most):
            raise self.wrong(f"{what}: {count}, and {self.left} bytes are left")
        return count

    def text(self, what: str) -> None:
        self.skip(self.count(what, 1), what)


def walk(c: Cursor) -> None:
    """Go through header, metadata and tensor descriptions."""
    if c.content[:4] != b"GGUF":
        raise c.wrong("it does not begin with GGUF")
    c.skip(4, "the magic number")
    if (version := c.number("<I", "the version")) not in VERSIONS:
        raise c.wrong(f"version {version}; {' and '.join(map(str, VERSIONS))} can be read, in little-endian order")
    tensors, keys = c.count("the number of tensors", 24), c.number("<Q", "the number of keys")
    if keys * 13 > c.left:
        raise c.wrong(f"the number of keys: {keys}, and {c.left} bytes are left")
    for _ in range(keys):
        c.text("a key's name")
        value(c, c.number("<I", "a key's type"))
    for _ in range(tensors):
        tensor(c)


def value(c: Cursor, kind: int) -> None:
    if kind in FIXED:
        c.skip(FIXED[kind], "a value")
    elif kind == TEXT:
        c.text("a text")
    elif kind == ARRAY:
        array(c)
    else:
        raise c.wrong(f"a value of type {kind}")


def array(c: Cursor) -> None:
    kind = c.number("<I", "an array's type")
    if kind in FIXED:
        c.skip(FIXED[kind] * c.count("an array's length", FIXED[kind], MOST_ELEMENTS), "an array")
    elif kind == TEXT:
        for _ in range(c.count("an array's length", 8, MOST_ELEMENTS)):
            c.text("a text")
    else:
        raise c.wrong(f"an array of values of type {kind}")


def tensor(c: Cursor) -> None:
    c.text("a tensor's name")
    dimensions, elements = c.number("<I", "a tensor's dimensions"), 1
    if dimensions > MOST_DIMENSIONS:
        raise c.wrong(f"a tensor of {dimensions} dimensions")
    for _ in range(dimensions):
        elements *= c.number("<Q", "a tensor's size")
    if elements > ELEMENTS_PER_BYTE * len(c.content):
        raise c.wrong(f"a tensor of {elements} elements in a file of {len(c.content)} bytes")
    c.skip(4, "a tensor's type")
    if (offset := c.number("<Q", "a tensor's offset")) > len(c.content):
        raise c.wrong(f"a tensor at offset {offset} of a file of {len(c.content)} bytes")


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

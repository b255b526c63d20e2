"""Translate a pair's `tokenizer.json` to the vocabulary of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from tokenizers import Tokenizer

WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3: Final = rf"{WORDS}|\p{{N}}{{1,3}}|{SIGNS}"
QWEN2: Final = rf"{WORDS}|\p{{N}}|{SIGNS}"
GPT2: Final = ("ByteLevel", True)
NO_REGEX: Final = ("ByteLevel", False)

PRE_TOKENIZERS: Final[Mapping[tuple[tuple[object, ...], ...], tuple[str, bool]]] = {
    (GPT2,): ("gpt-2", False),
    (("Digits", True), GPT2): ("smollm", False),
    (("Split", LLAMA3, "Isolated"), NO_REGEX): ("llama-bpe", True),
    (("Split", QWEN2, "Isolated"), NO_REGEX): ("qwen2", False),
}
"""Pre-tokenizer steps → (llama.cpp's name for them, whether words of the vocabulary skip the BPE merges there)."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary. `words` has one entry per row of the embedding. `kinds` are GGUF's token types."""

    folder: Path
    pre: str
    words: list[str]
    kinds: list[int]
    adds: Mapping[str, bool]
    """Whether the tokens "bos" and "eos" are added around a text."""

    def add_to(self, writer: GGUFWriter) -> None:
        from gguf import SpecialVocab

        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.words)
        writer.add_token_types(self.kinds)
        special = SpecialVocab(self.folder, load_merges=True, n_vocab=len(self.words))
        special.add_special_token = dict(self.adds)
        special.add_to_gguf(writer, quiet=True)


def read_vocabulary(folder: Path, size: int) -> Vocabulary:
    """The tokenizer of a target with `size` embeddings. Ids without a word become unused tokens.

    Raises UsageError where there is no tokenizer, or none that llama.cpp would read in the same way. Raises
    CheckpointError for a file that is not a tokenizer of this target.
    """
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UsageError(
            f"{file}: no such file; a GGUF file holds its tokenizer",
            hint="this pair can be exported with --format hf or speculators",
        )
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(file))
        content = json.loads(file.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises bare Exception for every kind of bad file
        raise CheckpointError(f"{file}: not readable as a tokenizer ({error})") from error
    pre = pre_tokenizer(content, file)
    words, kinds = tokens(tokenizer, size, file)
    return Vocabulary(folder, pre, words, kinds, added(tokenizer, folder))


def pre_tokenizer(content: Mapping[str, Any], file: Path) -> str:
    """llama.cpp's name for the steps before the BPE merges. Raises UsageError for steps that it has no name for."""
    model = content["model"]
    if model["type"] != "BPE" or content["normalizer"] or not model["merges"]:
        raise unknown(file, f"a {model['type']} model")
    key = tuple(steps(content["pre_tokenizer"]))
    name, skips = PRE_TOKENIZERS.get(key, (None, False))
    if name is None or bool(model.get("ignore_merges")) != skips:
        raise unknown(file, f"pre-tokenizer {key}, ignore_merges {bool(model.get('ignore_merges'))}")
    return name


def unknown(file: Path, what: str) -> UsageError:
    names = ", ".join(name for name, _ in PRE_TOKENIZERS.values())
    return UsageError(
        f"{file}: {what} cannot be written as GGUF",
        hint=f"byte-level BPE as in {names} can; use llama.cpp's convert_hf_to_gguf.py on --format hf",
    )


def steps(section: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """The pre-tokenizer's steps, flattened, in the form of the keys of `PRE_TOKENIZERS`."""
    match section:
        case {"type": "Sequence", "pretokenizers": parts}:
            for part in parts:
                yield from steps(part)
        case {"type": "Digits", "individual_digits": alone}:
            yield "Digits", alone
        case {"type": "ByteLevel", "add_prefix_space": False}:
            yield "ByteLevel", section.get("use_regex", True)
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": behaviour, "invert": False}:
            yield "Split", regex, behaviour
        case _:
            yield (str(section),)


def tokens(tokenizer: Tokenizer, size: int, file: Path) -> tuple[list[str], list[int]]:
    """(words, GGUF token types) for every id below `size`."""
    from gguf import TokenType

    by_id = {i: word for word, i in tokenizer.get_vocab().items()}
    if max(by_id) >= size:
        raise CheckpointError(f"{file}: token {max(by_id)}, but the target has {size} embeddings")
    extra = tokenizer.get_added_tokens_decoder()
    kinds = [TokenType.NORMAL if i in by_id else TokenType.UNUSED for i in range(size)]
    for i, token in extra.items():
        kinds[i] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    return [by_id.get(i, f"[PAD{i}]") for i in range(size)], [int(kind) for kind in kinds]


def added(tokenizer: Tokenizer, folder: Path) -> dict[str, bool]:
    """Return the special tokens that the tokenizer adds around a text, found by encoding one.

    What its files claim is not used. Raises UsageError where it adds more than one token on either side.
    """
    with_special, plain = (tokenizer.encode("a", add_special_tokens=on).ids for on in (True, False))
    start = with_special.index(plain[0])
    around = {"bos": start, "eos": len(with_special) - start - len(plain)}
    if max(around.values()) > 1:
        raise unknown(folder / "tokenizer.json", f"adding {with_special} around a text")
    return {name: count == 1 for name, count in around.items()}

"""The tokenizer inside a GGUF file as a Hugging Face `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.backends.eagle3.pairs.gguf_file import Metadata, Sizes
from specgate.errors import CheckpointError
from specgate.files.panics import refusing

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL_TOKEN: Final = 3
USER_DEFINED_TOKEN: Final = 4


def tokenizer_config(m: Metadata, sizes: Sizes) -> dict[str, object]:
    words = m.words("tokenizer.ggml.tokens")
    out: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": sizes.positions,
        "clean_up_tokenization_spaces": False,
    }
    for ours, theirs in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        token = m.token_id(f"tokenizer.ggml.{theirs}_token_id")
        if token is not None:
            out[f"{ours}_token"] = words[token]
    template = m.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise m.wrong("tokenizer.chat_template", template, "a text is needed")
    return out | ({"chat_template": template} if template else {})


def write_tokenizer(file: Path, m: Metadata) -> None:
    """Write byte-level BPE as llama.cpp's pre-tokenizer `smollm` does it.

    Every digit stands alone, then GPT-2's pattern splits the text, and no special token is added. Raises
    CheckpointError for any other tokenizer.
    """
    m.require_one_of("tokenizer.ggml.model", ("gpt2",))
    m.require_one_of("tokenizer.ggml.pre", ("smollm",))
    for key in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix"):
        if m.get(key, False):
            raise CheckpointError(f"{m.file}: {key} = true", hint="only tokenizers that add nothing can be converted")
    words, kinds = m.words("tokenizer.ggml.tokens"), m.require("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or len(kinds) != len(words):
        raise m.wrong("tokenizer.ggml.token_type", kinds, f"one number for each of {len(words)} tokens is needed")
    merges = [tuple(merge.split(" ", 1)) for merge in m.words("tokenizer.ggml.merges")]
    known = set(words)
    for left, *right in merges:
        if not right or not {left, *right, left + right[0]} <= known:
            merge = " ".join((left, *right))
            raise m.wrong("tokenizer.ggml.merges", merge, "two tokens are needed, whose joined text is a token too")
    with refusing(lambda why: CheckpointError(f"{m.file}: no tokenizer can be made of it ({why})")):
        build(words, kinds, merges).save(str(file), pretty=False)


def build(words: list[str], kinds: list[int], merges: list[tuple[str, ...]]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    bpe: Callable[..., models.BPE] = models.BPE
    tokenizer = Tokenizer(bpe(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(w, normalized=False) for w in of_kind(words, kinds, USER_DEFINED_TOKEN)])
    tokenizer.add_special_tokens(
        [AddedToken(w, normalized=False, special=True) for w in of_kind(words, kinds, CONTROL_TOKEN)]
    )
    return tokenizer


def of_kind(words: list[str], kinds: list[int], kind: int) -> list[str]:
    return [word for word, k in zip(words, kinds, strict=True) if k == kind]

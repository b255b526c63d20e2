"""Tiny random pairs whose tokenizers have merges, in the kinds that llama.cpp knows by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from specgate.contract import PairRef
from tests.pairs.tiny import write_random_pair

TEXT = ["the quick brown fox doesn't jump over 12345 lazy dogs", "def f(x):\n\treturn x ** 2  # naïve", "你好 🤖 ½"] * 9
VOCAB = 320
SPECIAL = ("<|end|>", "<|start|>")
BOS = VOCAB - 12
"""The special tokens come last; the eleven embeddings after them have no token."""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def splitting(regex: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def pre_tokenizer(kind: str) -> Any:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    match kind:
        case "gpt-2":
            return plain
        case "smollm":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
        case "llama-bpe":
            return splitting(LLAMA3)
        case _:
            return splitting(LLAMA3.replace("{1,3}", ""))


def write_tokenizer(folder: Path, kind: str = "smollm", adds_bos: bool = False) -> Tokenizer:
    """A tokenizer trained on a few words, with its config, in place of what `folder` has."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=BOS - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing("<|start|> $A", special_tokens=[("<|start|>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|start|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**content, "chat_template": "{{ messages }}"}))
    config = json.loads((folder / "config.json").read_text()) | {"bos_token_id": BOS, "eos_token_id": BOS - 1}
    (folder / "config.json").write_text(json.dumps(config))
    return tokenizer


def textual_pair(folder: Path, kind: str = "smollm", **sizes: Any) -> PairRef:
    target, draft = write_random_pair(folder / "source", seed=3, vocab=VOCAB, **sizes)
    write_tokenizer(target, kind)
    return PairRef("textual", target, draft)


def change(file: Path, **keys: object) -> None:
    """Set keys of a JSON file; None removes."""
    content = {**json.loads(file.read_text()), **keys}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

"""Prompts as text become the same tokens again, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from specgate.backends.servers.exchange import PromptTexts
from specgate.errors import BackendError, UsageError


def test_a_text_that_has_the_prompts_tokens_is_sent(pair: tuple[Path, Path]) -> None:
    tokenizer = Tokenizer.from_file(str(pair[0] / "tokenizer.json"))
    ids = tuple(tokenizer.encode("a b c", add_special_tokens=False).ids)
    text = PromptTexts(pair[0] / "tokenizer.json").of(ids)
    assert tuple(tokenizer.encode(text, add_special_tokens=False).ids) == ids


def test_a_text_of_other_tokens_is_refused(tmp_path: Path) -> None:
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = {letter: i for i, letter in enumerate("abc")}
    tokenizer = Tokenizer(BPE({**alphabet, "ab": 3}, [("a", "b")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BackendError, match="2 tokens, as text, has 1"):
        PromptTexts(tmp_path / "tokenizer.json").of((0, 1))


def test_a_target_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json does not exist"):
        PromptTexts(tmp_path / "tokenizer.json")

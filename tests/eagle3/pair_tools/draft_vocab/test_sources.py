"""Counts of every kind of source, and sources that cannot be counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from specgate.backends.eagle3.pair_tools.draft_vocab.sources import (
    PIECE,
    CountedTarget,
    Counts,
    TokenSources,
    count,
    pieces,
)
from specgate.contract import Block, EngineFacts, PairRef
from specgate.errors import UsageError
from specgate.files.config import Config
from specgate.files.journal import PointEngine
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan
from tests.pairs.tiny import write_random_pair
from tests.support.factories import POLICY, blocks_of, scenario

VOCAB = 320


@pytest.fixture
def target(pair: tuple[Path, Path]) -> CountedTarget:
    return CountedTarget(VOCAB, pair[0] / "tokenizer.json", None)


def counter(counts: Counts) -> Counter[int]:
    return Counter({i: n for i, n in enumerate(counts.of.tolist()) if n})


def lines(file: Path, *records: object) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def test_ids_and_text_of_a_prompt_file_are_counted(tmp_path: Path, target: CountedTarget) -> None:
    file = lines(tmp_path / "p.jsonl", {"ids": [3, 3, 300]}, {"text": "abba"})
    encoded = Tokenizer.from_file(str(target.tokenizer_file)).encode("abba").ids
    counts = count(TokenSources(prompts=(file,)), target)
    assert counter(counts) == Counter([3, 3, 300, *encoded])
    assert [s.tokens for s in counts.sources] == [counts.total] == [7]


def test_plain_text_is_counted_whole_whatever_its_length(tmp_path: Path, target: CountedTarget) -> None:
    text = "one two\nthree\n" * (PIECE // 8) + "end"
    (file := tmp_path / "t.txt").write_text(text)
    assert len(list(pieces(text))) > 1 and "".join(pieces(text)) == text
    encoded = Tokenizer.from_file(str(target.tokenizer_file)).encode(text).ids
    assert counter(count(TokenSources(texts=(file,)), target)) == Counter(encoded)


def test_a_folder_is_counted_as_a_corpus_by_its_train_share(tmp_path: Path, target: CountedTarget) -> None:
    (folder := tmp_path / "books").mkdir()
    for i in range(12):
        (folder / f"{i}.txt").write_text(chr(97 + i) * 300)
    result = counter(count(TokenSources(corpora=(str(folder),)), target))
    assert set(result.values()) == {300} and 0 < len(result) < 12


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run as it stands when its engine has ended: configuration and journals."""
    plan = build_plan((scenario(),), "fake")
    (tmp_path / "run" / "samples").mkdir(parents=True)
    stored = RunFolder(tmp_path / "run")
    stored.write_config(Config("micro", "fake", PairRef("p", tmp_path, tmp_path), POLICY, plan.scenarios))
    for block in blocks_of(plan):
        stored.append(block)
    facts = EngineFacts("fake", "clock", "float32", 49_152, 8192, (0,), "a" * 64, "b" * 64, None, True)
    stored.append(PointEngine(plan.points[0].key, facts))
    return stored


def test_of_a_run_each_emitted_text_counts_once_without_its_first_token(run: RunFolder, target: CountedTarget) -> None:
    longest = dict[object, tuple[int, ...]]()
    for block in run.lines(Block):
        for slot, tokens in enumerate(block.tokens):
            key = (block.point, block.prompt_set, slot)
            longest[key] = max(longest.get(key, ()), tokens, key=len)
    expected = Counter(token for tokens in longest.values() for token in tokens[1:])
    wide = CountedTarget(max(expected) + 1, target.tokenizer_file, "a" * 64)
    assert counter(count(TokenSources(runs=(run.path,)), wide)) == expected


def test_a_run_of_another_target_is_refused(run: RunFolder, target: CountedTarget) -> None:
    with pytest.raises(UsageError, match=r"target_sha256 = aaa.*, this target's is 0123"):
        count(TokenSources(runs=(run.path,)), CountedTarget(1 << 20, target.tokenizer_file, "0123"))


def test_sources_add_up_and_equal_sources_have_equal_hashes(tmp_path: Path, target: CountedTarget) -> None:
    a, b = lines(tmp_path / "a.jsonl", {"ids": [1, 2]}), lines(tmp_path / "b.jsonl", {"ids": [1]}, {"ids": [2]})
    both, swapped = (count(TokenSources(prompts=files), target) for files in ((a, b), (b, a)))
    assert counter(both) == Counter({1: 2, 2: 2})
    assert both.sha256 == swapped.sha256
    assert len({source.sha256 for source in both.sources}) == 1


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([{"ids": [1]}, {"ids": [2, 320]}], r"p\.jsonl:2: ids\[1\]: 320: .* 0 to 319"),
        ([{"ids": [-1]}], r"p\.jsonl:1: ids\[0\]: -1"),
        ([], r"p\.jsonl: no prompts in it"),
        ([{"words": 3}], r"p\.jsonl:1: not a prompt in a known format; its keys: 'words'"),
    ],
)
def test_an_odd_prompt_file_is_named_with_line_and_value(
    tmp_path: Path, target: CountedTarget, records: list[object], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        count(TokenSources(prompts=(lines(tmp_path / "p.jsonl", *records),)), target)


@pytest.mark.parametrize(
    ("content", "why"), [(b"", r"t\.txt: no tokens in it"), (b"ab\xff", r"t\.txt: not UTF-8 at byte 3: 0xff")]
)
def test_an_odd_text_is_named(tmp_path: Path, target: CountedTarget, content: bytes, why: str) -> None:
    (file := tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UsageError, match=why):
        count(TokenSources(texts=(file,)), target)


def test_a_missing_file_is_named(tmp_path: Path, target: CountedTarget) -> None:
    with pytest.raises(UsageError, match=r"gone\.txt: no such file"):
        count(TokenSources(texts=(tmp_path / "gone.txt",)), target)


def test_text_needs_a_tokenizer_and_ids_do_not(tmp_path: Path) -> None:
    target = CountedTarget(VOCAB, tmp_path / "tokenizer.json", None)
    assert count(TokenSources(prompts=(lines(tmp_path / "i.jsonl", {"ids": [5]}),)), target).total == 1
    (text := tmp_path / "t.txt").write_text("words")
    with pytest.raises(UsageError, match=r"t\.txt: text, but the target has no tokenizer\.json"):
        count(TokenSources(texts=(text,)), target)
    with pytest.raises(UsageError, match=r"p\.jsonl:1: text, but the target has no tokenizer\.json"):
        count(TokenSources(prompts=(lines(tmp_path / "p.jsonl", {"text": "words"}),)), target)


def test_a_tokenizer_with_more_tokens_than_the_target_is_named(tmp_path: Path) -> None:
    folder, _ = write_random_pair(tmp_path, seed=1)
    (text := tmp_path / "t.txt").write_text("zz")
    with pytest.raises(UsageError, match=r"t\.txt: token id \d+: the target's vocabulary has 10 tokens: 0 to 9"):
        count(TokenSources(texts=(text,)), CountedTarget(10, folder / "tokenizer.json", None))

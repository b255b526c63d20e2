"""Sources of training sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from specgate.backends.eagle3.lib.weights import pack_target
from specgate.backends.eagle3.pair_tools.train.data import (
    Corpora,
    Source,
    mixed_batches,
    own_sequences,
    parse_corpus,
    repeated_share,
    texts,
    token_stream,
)
from specgate.backends.eagle3.pair_tools.train.evaluate import spread_prompts
from specgate.backends.eagle3.pair_tools.train.recipe import Strand
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget, rope_rows_upto
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import BASELINE, Budget
from specgate.errors import UsageError
from specgate.pairs.corpus import pool_of
from tests.eagle3.pair_tools.train.tiny_drafts import tiny_pair


def test_documents_are_closed_by_the_separator(tmp_path: Path) -> None:
    tiny_pair(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "target" / "tokenizer.json"))
    stream = token_stream(["ab", "c"], tokenizer, 299)
    assert stream.tolist() == [*tokenizer.encode("ab").ids, 299, *tokenizer.encode("c").ids, 299]


def test_chunks_are_stretches_of_a_stream_in_the_asked_shares() -> None:
    streams = (torch.arange(100, dtype=torch.int32), torch.arange(1000, 1100, dtype=torch.int32))
    drawn = Corpora(streams, (3.0, 1.0)).chunks(400, 10, torch.Generator().manual_seed(0))
    assert drawn.shape == (400, 10)
    assert bool((drawn.diff(dim=1) == 1).all())
    assert 240 < int((drawn[:, 0] < 1000).sum()) < 360


def test_a_corpus_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(UsageError, match="corpus of 5 tokens"):
        Corpora((torch.arange(5),), (1.0,)).chunks(1, 5, torch.Generator())


def test_batches_depend_on_the_seed_alone() -> None:
    rows = (torch.zeros(1), torch.zeros(1))
    corpora = Corpora((torch.arange(500),), (1.0,))
    sources = [Source(1.0, corpora, 2, 16, 0, rows), Source(1.0, torch.arange(64).view(4, 16), 3, 16, 5, rows)]
    first, second = mixed_batches(sources, 7), mixed_batches(sources, 7)
    for _ in range(6):
        a, b = next(first), next(second)
        assert torch.equal(a.tokens, b.tokens) and a.learned_from == b.learned_from


def test_own_text_is_what_the_engine_generates(tmp_path: Path) -> None:
    checkpoint, _ = tiny_pair(tmp_path)
    target = FrozenTarget(pack_target(checkpoint), checkpoint.geometry, (1, 2, 3))
    prompts = torch.randint(300, (3, 11), generator=torch.Generator().manual_seed(0))
    text = target.continue_greedily(prompts, 12, rope_rows_upto(checkpoint.geometry.rope, 23, "cpu"))

    again, _ = tiny_pair(tmp_path)
    engine = ReferenceEngine(again, None, max_batch=3, max_positions=64, device="cpu")
    engine.prefill(prompts.tolist(), draft=False)
    decoded = engine.decode(BASELINE, Budget(new_tokens=12), ())
    assert torch.equal(text[:, :11], prompts)
    assert text[:, 11:].tolist() == [list(row) for row in decoded.tokens]


def test_continuations_that_loop_are_dropped(tmp_path: Path) -> None:
    checkpoint, _ = tiny_pair(tmp_path)
    target = FrozenTarget(pack_target(checkpoint), checkpoint.geometry, (1, 2, 3))
    corpora = Corpora((torch.randint(300, (400,), generator=torch.Generator().manual_seed(1)),), (1.0,))
    strand, rows = Strand(32, 1.0, own_tokens=24, sequences=12), rope_rows_upto(checkpoint.geometry.rope, 32, "cpu")
    everything = own_sequences(target, corpora, strand, rows, most_repeated=1.0, seed=0)
    shares = repeated_share(everything[:, strand.prompt :])
    limit = float(shares.median())
    kept = own_sequences(target, corpora, strand, rows, most_repeated=limit, seed=0)
    assert len(everything) == 12
    assert torch.equal(kept, everything[shares <= limit])


def test_prompts_are_spread_over_the_stream_and_end_within_it() -> None:
    prompts = spread_prompts(torch.arange(100), 30, 4)
    assert prompts[:, 0].tolist() == [0, 23, 46, 70]
    assert spread_prompts(torch.arange(10), 30, 4).shape == (0, 30)


def test_a_folder_is_a_corpus_whose_pools_are_disjoint(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / f"{i}.txt").write_text(f"document {i} " + "text " * 60, encoding="utf-8")
    corpus = parse_corpus(f"{tmp_path}=2")
    trained = list(texts(corpus, "train"))
    expected = [i for i in range(40) if pool_of(tmp_path.name, f"{i}.txt") == "train"]
    assert corpus.share == 2.0
    assert sorted(int(t.split()[1]) for t in trained) == expected
    assert not set(trained) & set(texts(corpus, "measure"))


@pytest.mark.parametrize("text", ["python=0", "python=-1", "python=many", "python="])
def test_a_share_that_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="share ="):
        parse_corpus(text)


def test_a_corpus_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no-such-package-at-all"):
        parse_corpus("no-such-package-at-all")

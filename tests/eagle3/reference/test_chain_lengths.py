"""Chains that end before K tokens: where the draft says so or many requests run, and never with another token."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from specgate.backends.eagle3.lib.chains import ChainLengths, lengths_of, table_of
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget, PairRef, Role, Sampling
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.errors import UsageError
from tests.eagle3.reference.by_hand import Eagle3ByHand
from tests.eagle3.reference.test_engine import PROMPTS


def opened(folders: tuple[Path, Path], sampling: Sampling | None = None, **options: str) -> ReferenceEngine:
    pair = PairRef("p", *folders)
    return open_engine(OpenRequest(pair, "float32", 3, 160, 5, False, options, sampling=sampling))


def drafted(block: Decoded) -> list[int]:
    return [d for row in block.drafted for d in row if d >= 0]


@pytest.mark.parametrize("confidence", [0.003, 0.3])
def test_a_chain_ends_where_the_product_of_the_drafts_probabilities_falls_below_the_confidence(
    pair: tuple[Path, Path], confidence: float
) -> None:
    engine = opened(pair, confidence=str(confidence))
    engine.prefill([PROMPTS[0]], draft=True)
    block = engine.decode(Role(5), Budget(steps=8), ())
    pairs = [(d, a) for (d,), (a,) in zip(block.drafted, block.accepted, strict=True)]
    assert pairs == [(len(drafts), a) for drafts, a in Eagle3ByHand(pair).cycles(PROMPTS[0], 5, 8, confidence)]
    assert block.counters["chains_ended_early"] == sum(d < 5 for d, _ in pairs)
    assert min(d for d, _ in pairs) >= 1 and (confidence > 0.1 or max(d for d, _ in pairs) > 1)


@pytest.mark.parametrize(
    "options",
    [
        {"confidence": "0.02"},
        {"k_by_batch": "1:5,2:2,3:1"},
        {"confidence": "0.003", "k_by_batch": "3:3"},
        {"drafter": "oracle", "k_by_batch": "1:4,3:2"},
    ],
)
def test_no_token_is_changed(pair: tuple[Path, Path], options: dict[str, str]) -> None:
    engine = opened(pair, None, **options)
    engine.prefill(PROMPTS, draft=True)
    budget = Budget(new_tokens=30)
    plain, block = engine.decode(BASELINE, budget, ()), engine.decode(Role(5), budget, ())
    assert block.tokens == plain.tokens and {*drafted(block)} != {5}
    counts = drafted(block)
    accepted = sum(a for row in block.accepted for a in row if a >= 0)
    assert block.counters["rewound_tokens"] == sum(counts) - accepted
    assert "chains_ended_early" not in plain.counters


def test_chains_grow_as_requests_end(pair: tuple[Path, Path]) -> None:
    """With an oracle every draft is accepted, so that accepted tokens are the chains' lengths."""
    engine = opened(pair, drafter="oracle", k_by_batch="1:5,2:3,3:1")
    engine.prefill(PROMPTS, draft=True)
    texts = engine.decode(BASELINE, Budget(new_tokens=60), ()).tokens
    stop = tuple({texts[0][10], texts[1][25]})
    block = engine.decode(Role(5), Budget(new_tokens=60, ignore_eos=False), stop)
    running = [sum(d >= 0 for d in row) for row in block.drafted]
    assert {*running} == {1, 2, 3}
    for row, count in zip(block.drafted, running, strict=True):
        assert {d for d in row if d >= 0} == {{1: 5, 2: 3, 3: 1}[count]}
    assert block.accepted == block.drafted


def test_what_ends_chains_is_among_the_facts_and_a_warning(pair: tuple[Path, Path]) -> None:
    facts = opened(pair, confidence="0.3", k_by_batch="1:5,4:2").facts()
    assert facts.details["chains go on"] == "while the draft is 0.3 sure, by batch 1:5,4:2"
    assert any("may end before N tokens" in warning for warning in facts.warnings)
    assert "chains go on" not in opened(pair).facts().details


def test_a_table_in_a_file_is_the_table(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    file = tmp_path / "table.yaml"
    file.write_text(
        "schema: specgate.drafts-by-batch/v1\ndrafts: [{requests: 4, drafts: 2}, {requests: 1, drafts: 5}]\n"
    )
    lengths = lengths_of({"k_by_batch": str(file)})
    assert lengths == ChainLengths(table=table_of("1:5,4:2", "here"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": "1"}, "option confidence = 1: not a probability"),
        ({"confidence": "0"}, "not a probability"),
        ({"confidence": "nan"}, "not a probability"),
        ({"confidence": "much"}, "option confidence = much"),
        ({"k_by_batch": "1:3,1:4"}, "a number of requests twice"),
        ({"k_by_batch": "4"}, "'4' is no pair of numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused(pair: tuple[Path, Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opened(pair, **options)


@pytest.mark.parametrize("method", ["coupled", "rejection"])
def test_shorter_chains_draw_what_whole_ones_do_with_the_same_random_numbers(
    pair: tuple[Path, Path], method: Literal["coupled", "rejection"]
) -> None:
    sampling = Sampling(temperature=1.0, method=method)
    plain, short = opened(pair, sampling), opened(pair, sampling, k_by_batch="1:5,2:3,3:2")
    budget = Budget(new_tokens=20)
    for engine in (plain, short):
        engine.prefill(PROMPTS, draft=True)
    whole, block = plain.decode(Role(5), budget, ()), short.decode(Role(5), budget, ())
    assert drafted(block)[:3] == [2, 2, 2] and {*drafted(whole)} == {5}
    drawn = short.decode(BASELINE, budget, ()).tokens
    assert drawn == plain.decode(BASELINE, budget, ()).tokens
    if method == "coupled":
        assert block.tokens == whole.tokens == drawn

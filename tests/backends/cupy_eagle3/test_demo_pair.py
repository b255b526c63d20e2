"""The demo pair on a GPU: real text, every draft length, up to 32K, bit for bit."""

from __future__ import annotations

import inspect
import statistics
from functools import cache
from pathlib import Path

import pytest
import torch

from specgate import plugins
from specgate.api import OpenRequest
from specgate.backends.cupy_eagle3.engine import CupyEngine
from specgate.backends.cupy_eagle3.stretch import StopRule
from specgate.backends.eagle3.pair import load_draft, load_target
from specgate.backends.reference.engine import ReferenceEngine
from specgate.core import Budget, PairRef, Role
from specgate.errors import EnvironmentRefused
from specgate.pairs.demo import demo_pair
from tests.backends.cupy_eagle3.tracing import reference_logits, same_prefixes, tokens, trace

pytestmark = pytest.mark.gpu

YARN: dict[str, float | str] = {"rope_type": "yarn", "factor": 5.0}
POSITIONS = 34000


def pair() -> PairRef:
    try:
        found = demo_pair()
    except EnvironmentRefused as error:
        pytest.skip(f"the demo target is not in the cache: {error}")
    return PairRef(found.name, found.target, found.draft, rope=YARN)


@cache
def engine() -> CupyEngine:
    request = OpenRequest(pair(), "bfloat16", max_batch=8, max_positions=POSITIONS, max_k=5, perf_mode=True, options={})
    made = plugins.backend("cupy").open(request)
    assert isinstance(made, CupyEngine)
    return made


def prompts(lengths: list[int]) -> list[list[int]]:
    """Python source, each prompt from another place."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pair().target / "tokenizer.json"))
    files = sorted(Path(inspect.__file__).parent.glob("*.py"))
    ids = tokenizer.encode("".join(f.read_text(encoding="utf-8", errors="replace") for f in files[:120])).ids
    starts = [10007 * i for i in range(len(lengths))]
    assert len(ids) > max(a + n for a, n in zip(starts, lengths, strict=True))
    return [ids[a : a + n] for a, n in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize("lengths", [[1024], [300, 64, 65, 1], [512, 511, 513, 63, 900, 5, 128, 2000], [32768, 16383]])
def test_tokens_and_logits_of_every_draft_length_equal_the_baselines_bit_for_bit(lengths: list[int]) -> None:
    made = engine()
    made.prefill(prompts(lengths), draft=True)
    rule = StopRule((), (), POSITIONS)
    plain, baseline = trace(made, 0, 80, rule), tokens(made, 0, Budget(steps=80))
    for k in (1, 2, 3, 4, 5):
        block = made.decode(Role(k), Budget(steps=30), ())
        assert same_prefixes(block.tokens, baseline)
        got = trace(made, k, 30, rule)
        common = [at for at in got if at in plain]
        assert all(torch.equal(got[at], plain[at]) for at in common)
        assert len(common) > 30 * len(lengths)


def test_logits_agree_with_the_float32_reference() -> None:
    lengths = [1500, 200]
    made, ids = engine(), prompts(lengths)
    made.prefill(ids, draft=True)
    plain, text = trace(made, 0, 40, StopRule((), (), POSITIONS)), tokens(made, 0, Budget(steps=40))
    folder, draft = pair().target, pair().draft
    assert draft is not None
    target = load_target(folder, torch.float32, "cuda", YARN)
    head = load_draft(draft, target.geometry, torch.float32, "cuda")
    oracle = ReferenceEngine(target, head, max_batch=2, max_positions=2048, device="cuda")
    oracle.prefill(ids, draft=True)
    cosines = [
        float(
            torch.cosine_similarity(
                logits, reference_logits(oracle, slot, text[slot][: position - lengths[slot] + 1]), dim=0
            )
        )
        for (slot, position), logits in plain.items()
    ]
    print(f"cosine to float32: least {min(cosines):.6f}, median {statistics.median(cosines):.6f}")
    assert min(cosines) >= 0.9999
    ours, theirs = (e.decode(Role(3), Budget(steps=40), ()) for e in (made, oracle))
    assert sum(map(sum, ours.accepted)) == pytest.approx(sum(map(sum, theirs.accepted)), rel=0.25)

"""The demo pair on a GPU: real text, every draft length, up to 32K, bit for bit."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path

import pytest
import torch

from specgate import plugins
from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.pairs.shipped import demo_pair
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import Budget, PairRef, Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import EnvironmentRefused
from tests.eagle3.cupy.engine.tracing import check_common_rows, nearness, same_prefixes, tokens, trace

pytestmark = pytest.mark.gpu

YARN: dict[str, float | str] = {"rope_type": "yarn", "factor": 5.0}
POSITIONS = 34000


def pair() -> PairRef:
    try:
        result = demo_pair()
    except EnvironmentRefused as error:
        pytest.skip(f"the demo target is not in the cache: {error}")
    return PairRef(result.name, result.target, result.draft, rope=YARN)


@cache
def engine() -> CupyEngine:
    request = OpenRequest(
        pair(), "bfloat16", max_batch=8, max_positions=POSITIONS, max_k=5, perf_mode=False, options={}
    )
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
        check_common_rows(trace(made, k, 30, rule), plain, 30 * len(lengths) + 1)


def test_logits_are_nearer_to_the_float32_reference_than_torch_is_in_bfloat16() -> None:
    made, exact, rounded = engine(), oracle(torch.float32), oracle(torch.bfloat16)
    ours, torchs = nearness(made, exact, rounded, prompts([1500, 200]), 40)
    print(f"demo pair: {ours}; torch in bfloat16: {torchs}")
    assert ours.pooled >= 0.9999
    assert ours.pooled > torchs.pooled and ours.least > torchs.least
    accepted, expected = (sum(map(sum, e.decode(Role(3), Budget(steps=40), ()).accepted)) for e in (made, exact))
    assert accepted == pytest.approx(expected, rel=0.25)


def oracle(dtype: torch.dtype) -> ReferenceEngine:
    folder, draft = pair().target, pair().draft
    assert draft is not None
    target = load_target(folder, dtype, "cuda", YARN)
    head = load_draft(draft, target.geometry, dtype, "cuda")
    return ReferenceEngine(target, head, max_batch=2, max_positions=2048, device="cuda")

"""Promises of the back ends for libraries, checked with real vLLM on a CPU, with the demo pair's target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specgate.analysis.tokens.last_place import unit_of
from specgate.backends.eagle3.pairs.shipped import demo_pair
from specgate.backends.offline.engine import OfflineEngine
from specgate.contract import BASELINE, Budget
from specgate.contract.protocols import OpenRequest
from specgate.plugins import backend
from specgate.run.token_evidence import CANDIDATES
from tests.real.engines import VLLM

pytestmark = pytest.mark.slow("loads real vLLM")

LAWS = "The three laws of motion were first stated by Isaac Newton in 1687. The first law says that"


@contextmanager
def opened(dtype: str, logs: Path) -> Iterator[OfflineEngine]:
    """vLLM as a library, without drafts, with the prompt prefilled."""
    from tokenizers import Tokenizer

    if not (program := os.environ.get(VLLM)):
        pytest.skip(f"{VLLM} is not set (run_suite.sh servers installs it)")
    options = {"python": str(Path(program).with_name("python")), "llm.enforce_eager": "true"}
    options["llm.gpu_memory_utilization"] = "0.3"
    pair = demo_pair()
    engine = backend("vllm-offline").open(OpenRequest(pair, dtype, 1, 256, 0, False, options, logs))
    assert isinstance(engine, OfflineEngine)
    try:
        engine.prefill([Tokenizer.from_file(str(pair.target / "tokenizer.json")).encode(LAWS).ids], draft=False)
        yield engine
    finally:
        engine.close()


def test_vllm_ranks_its_own_choice_first_and_goes_on_from_any_text_as_it_decodes(tmp_path: Path) -> None:
    with opened("float32", tmp_path) as engine:
        (tokens,) = engine.decode(BASELINE, Budget(steps=16), ()).tokens
        for at in (0, 5, 12):
            top = engine.ranked(0, tokens[:at], CANDIDATES)
            assert top is not None and len(top.values) == CANDIDATES and top.tokens[0] == tokens[at]
            assert max(top.values) == top.values[0] <= 0 and unit_of(top.values) is None, "float32 lies on no grid"
        assert engine.follow(0, tokens[:5], 8) == tokens[5:13]
        two = engine.ranked(0, tokens[:5], 2)
        assert two is not None and engine.top2(0, tokens[:5]) == two.values
        assert engine.decode(BASELINE, Budget(steps=16), ()).tokens == (tokens,), "the prompt is the block's again"


def test_vllms_log_probabilities_show_the_last_place_of_bfloat16_logits(tmp_path: Path) -> None:
    with opened("bfloat16", tmp_path) as engine:
        top = engine.ranked(0, (), CANDIDATES)
        assert top is not None and unit_of(top.values) in {2.0**-n for n in range(2, 7)}

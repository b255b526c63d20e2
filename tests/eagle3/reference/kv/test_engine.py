"""The reference engine with narrower caches: speculation emits its baseline's tokens and logits, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.lib.kv.modes import MODES, KvMode
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.kv_planes import Fp8Plane, Nvfp4Plane, read_rows
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget, PairRef, Role, Sampling
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError
from tests.pairs.tiny import write_random_pair

PROMPTS = [[5, 9, 2, 7, 7, 1, 30, 12], [3, 3, 8], [*range(40, 53), 9, 9, 2, 17, 4]]
LONG = Budget(new_tokens=36)  # so that every slot fills several blocks of 16 positions
POSITIONS = (1, 17, 34)
NARROW: list[KvMode] = ["fp8", "nvfp4"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    folder = tmp_path_factory.mktemp("pair")
    return PairRef("tiny", *write_random_pair(folder, seed=1, layers=2, boundaries=(0, 1, 2)))


def opened(pair: PairRef, options: Mapping[str, str], sampling: Sampling | None = None) -> ReferenceEngine:
    return open_engine(OpenRequest(pair, "float32", 3, 160, 5, False, options, sampling=sampling))


@pytest.mark.parametrize(("mode", "draft"), [("bf16", None), ("fp8", "nvfp4"), ("nvfp4", "fp8")], ids=str)
def test_every_spec_n_emits_tokens_and_logits_of_the_baseline_of_its_mode(
    mode: str, draft: str | None, pair: PairRef
) -> None:
    engine = opened(pair, {"kv": mode, **({"draft_kv": draft} if draft else {})})
    engine.prefill(PROMPTS, draft=True)
    baseline = engine.decode(BASELINE, LONG, ()).tokens
    logits = engine.logits(BASELINE, POSITIONS)
    assert engine.decode(Role(4), LONG, ()).tokens == baseline
    assert engine.logits(Role(4), POSITIONS) == logits
    assert engine.decode(BASELINE, LONG, ()).tokens == baseline


@pytest.mark.parametrize("mode", NARROW)
def test_what_is_cached_of_a_text_does_not_depend_on_rejected_drafts(mode: str, pair: PairRef) -> None:
    engine = opened(pair, {"kv": mode, "drafter": "random"})
    engine.prefill(PROMPTS, draft=True)
    seen = []
    for role in (BASELINE, Role(4)):
        engine.cache.clear()
        engine.prefill(PROMPTS, draft=True)
        decoded = engine.decode(role, LONG, ())
        ends = [len(p) + len(t) - 1 for p, t in zip(PROMPTS, decoded.tokens, strict=True)]
        planes = [read_rows(plane, 0, 128, torch.float32) for plane in (*engine.cache.k, *engine.cache.v)]
        seen.append([plane[slot, :, :end].clone() for plane in planes for slot, end in enumerate(ends)])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("mode", NARROW)
def test_a_slot_decodes_alone_what_it_decodes_beside_others(mode: str, pair: PairRef) -> None:
    engine = opened(pair, {"kv": mode})
    engine.prefill(PROMPTS, draft=True)
    together = engine.decode(Role(3), LONG, ()).tokens
    for prompt, tokens in zip(PROMPTS, together, strict=True):
        engine.prefill([prompt], draft=True)
        assert engine.decode(Role(3), LONG, ()).tokens == (tokens,)


@pytest.mark.parametrize("mode", NARROW)
def test_a_sampled_text_is_its_sampled_baselines(mode: str, pair: PairRef) -> None:
    engine = opened(pair, {"kv": mode, "draft_kv": mode}, Sampling(temperature=1.0, seed=3))
    engine.prefill(PROMPTS, draft=True)
    assert engine.decode(Role(3), LONG, ()).tokens == engine.decode(BASELINE, LONG, ()).tokens


def test_the_first_layers_keys_and_values_are_kept_as_precisely_as_their_format_allows(pair: PairRef) -> None:
    text, kept = [*range(2, 60)], {}
    for mode in (None, *MODES):
        engine = opened(pair, {"kv": mode} if mode else {})
        engine.prefill([text], draft=False)
        kept[mode] = [read_rows(plane, 0, 58, torch.float32)[0] for plane in (engine.cache.k[0], engine.cache.v[0])]
    # relative rounding errors of 8, 4 and 2 bits of precision, in the mean of many numbers
    for mode, least, most in (("bf16", 0.001, 0.003), ("fp8", 0.02, 0.04), ("nvfp4", 0.07, 0.13)):
        for block, exact in zip(kept[mode], kept[None], strict=True):
            assert least < (block - exact).norm() / exact.norm() < most


def test_facts_name_the_formats_and_the_floors_have_them(pair: PairRef) -> None:
    engine = opened(pair, {"kv": "fp8", "draft_kv": "nvfp4"})
    facts, plain = engine.facts(), opened(pair, {}).facts()
    assert facts.details["KV cache"] == "fp8 (E4M3, a scale per 16 positions and head)"
    assert str(facts.details["draft's KV cache"]).startswith("nvfp4")
    assert "KV cache" not in plain.details
    assert facts.traffic and plain.traffic
    assert facts.traffic.target.attention[0].position_bytes < plain.traffic.target.attention[0].position_bytes / 3


@pytest.mark.parametrize("mode", NARROW)
def test_a_value_that_is_not_finite_has_no_scale_and_is_named_with_its_place(mode: str, pair: PairRef) -> None:
    engine = opened(pair, {"kv": mode})
    engine.prefill(PROMPTS, draft=False)
    sound = engine.decode(BASELINE, LONG, ()).tokens
    kept = engine.tw.layers[1].qkv.clone()
    engine.tw.layers[1].qkv[-1] = float("inf")
    with pytest.raises(BackendError, match=rf"kv = {mode}: values of layer 1, slot 0, position 0, head \d+: "):
        engine.prefill(PROMPTS, draft=False)
    engine.tw.layers[1].qkv.copy_(kept)
    engine.prefill(PROMPTS, draft=False)
    assert engine.decode(BASELINE, LONG, ()).tokens == sound


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan")])
def test_a_scale_that_is_no_positive_number_ends_the_run_with_its_place(scale: float, pair: PairRef) -> None:
    engine = opened(pair, {"kv": "fp8"})
    engine.prefill(PROMPTS, draft=False)
    plane = engine.cache.v[1]
    assert isinstance(plane, Fp8Plane)
    plane.scales[2, 0, 1] = scale
    with pytest.raises(
        BackendError, match=rf"values of layer 1, slot 2, head 0, positions 16 to 31: the scale is {scale}"
    ):
        engine.decode(BASELINE, LONG, ())


def test_a_scale_of_zero_in_nvfp4_is_named_too(pair: PairRef) -> None:
    engine = opened(pair, {"kv": "nvfp4"})
    engine.prefill(PROMPTS, draft=False)
    plane = engine.cache.k[0]
    assert isinstance(plane, Nvfp4Plane)
    plane.blocks[1, 0, 2] = 0
    with pytest.raises(BackendError, match=r"keys of layer 0, slot 1, head 0, positions 2 to 2: the scale is 0\.0"):
        engine.decode(BASELINE, LONG, ())
    engine.prefill(PROMPTS, draft=False)
    plane.scale[0] = float("inf")
    with pytest.raises(BackendError, match="keys of layer 0, slot 0, head 0: the scale is inf"):
        engine.decode(BASELINE, LONG, ())


@pytest.mark.parametrize("mode", NARROW)
def test_a_tree_emits_the_baselines_tokens_of_its_format_and_accepts_the_chain_on_one_branch(
    pair: PairRef, mode: KvMode
) -> None:
    """What a draft says behind a path, and so what is accepted, depends on the format of both caches."""
    of_tree = {"tree": "dynamic:5", "tree_width": "1"}
    chain, narrow, tree = (
        opened(pair, {"kv": mode, "draft_kv": mode, **options})
        for options in ({}, of_tree, {"tree": "dynamic:12", "tree_width": "3"})
    )
    decoded = []
    for engine in (chain, narrow, tree):
        engine.prefill(PROMPTS, draft=True)
        decoded.append(engine.decode(Role(5), Budget(new_tokens=20), ()))
    assert decoded[2].tokens == tree.decode(BASELINE, Budget(new_tokens=20), ()).tokens
    assert (decoded[1].tokens, decoded[1].accepted) == (decoded[0].tokens, decoded[0].accepted)


def test_a_pair_that_was_calibrated_for_another_format_is_warned_about(tmp_path: Path) -> None:
    folders = write_random_pair(tmp_path, seed=1)
    config = {"quantization": {"kv_cache_quant_algo": "FP8"}}
    (folders[1] / "hf_quant_config.json").write_text(json.dumps(config))
    pair = PairRef("tiny", *folders)
    assert not opened(pair, {"draft_kv": "fp8"}).facts().warnings
    (warning,) = opened(pair, {"kv": "nvfp4"}).facts().warnings
    assert "the draft was calibrated for a KV cache in fp8, and draft_kv is not given" in warning

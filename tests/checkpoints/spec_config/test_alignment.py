"""Two engines' configs side by side: every difference is there, with what follows from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.checkpoints.hf_keys import read_config
from specgate.checkpoints.spec_config.alignment import Alignment, align
from specgate.checkpoints.spec_config.sources import read_source
from specgate.checkpoints.spec_config.terms import TERMS
from tests.checkpoints.folders import DRAFT, LLAMA, keys

VLLM = 'vllm:{"method": "eagle3", "model": "D", "num_speculative_tokens": 3%s}'
CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1"
SGLANG = "sglang:--speculative-algorithm EAGLE3 --speculative-draft-model-path D %s"


def beside(a: str, b: str) -> Alignment:
    return align(read_source(a), read_source(b))


def differing(alignment: Alignment) -> dict[str, str]:
    return {difference.term: difference.breaks for difference in alignment.differences}


def test_a_config_is_aligned_with_itself() -> None:
    for text in (VLLM % "", SGLANG % CHAIN, 'turbomind:{"method": "eagle3", "model": "D"}'):
        result = beside(text, text)
        assert result.aligned and not result.differences and result.same


@pytest.mark.parametrize(
    ("change", "term", "breaks"),
    [
        (', "synthetic_acceptance_length": 2.5, "rejection_sample_method": "synthetic"', "forced", "acceptance"),
        (', "draft_sample_method": "probabilistic"', "draft_sampling", "nothing"),
        (', "rejection_sample_method": "block"', "verification", "nothing"),
        (', "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 64, 0]]', "varies", "acceptance"),
    ],
)
def test_a_change_is_named_with_what_it_breaks(change: str, term: str, breaks: str) -> None:
    result = beside(VLLM % "", VLLM % change)
    assert differing(result)[term] == breaks
    assert result.aligned == all(d.breaks == "nothing" for d in result.differences)


def test_another_draft_length_is_said_with_both_values() -> None:
    result = beside(VLLM % "", VLLM.replace("3%s", "4%s") % "")
    (k,) = [d for d in result.differences if d.term == "k"]
    assert k.values == ("3", "4") and k.consequence.startswith("K 3 against 4: acceptance length cannot be compared")
    assert not result.aligned


def test_a_tree_beside_a_chain_is_named() -> None:
    tree = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
    result = differing(beside(SGLANG % CHAIN, SGLANG % tree))
    assert {"topk", "verified", "tree"} <= set(result)


def test_what_only_one_can_express_is_said() -> None:
    result = beside('{"decoding_type": "Eagle3", "max_draft_len": 3, "max_non_leaves_per_layer": 4}', VLLM % "")
    assert not [d for d in result.differences if d.term == "non_leaves" and d.breaks == "nothing"]
    windowed = beside(
        SGLANG % f"{CHAIN} --speculative-draft-window-size 512",
        'lmdeploy:{"method": "eagle3", "model": "D", "num_speculative_tokens": 3}',
    )
    assert "the draft's attention window: sglang says 512, lmdeploy cannot express it" in windowed.one_sided


def test_one_that_does_not_speculate_is_named_first() -> None:
    result = beside("vllm serve T", VLLM % "")
    assert result.differences[0].term == "speculation" and result.differences[0].values == ("off", "on")


def test_a_broken_rule_is_named_and_aligns_with_nothing() -> None:
    sizes = '"num_speculative_tokens": 3, "max_path_len": 9, "max_decoding_tokens": 4'
    text = 'turbomind:{"method": "eagle3", "model": "D", ' + sizes + "}"
    result = beside(text, text)
    assert result.broken == tuple(
        f"turbomind ({side}): max_path_len = 9 is more than max_decoding_tokens = 4" for side in "AB"
    )
    assert not result.aligned


def write_pair(folder: Path, **draft: object) -> tuple[Path, Path]:
    for name, base, changes in (("target", LLAMA, {}), ("draft", DRAFT, draft)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(dict(keys(base, **changes).values)))
    return folder / "target", folder / "draft"


def test_layers_are_compared_where_the_folders_are_here(tmp_path: Path) -> None:
    """Only nested ids: vLLM does not read them and takes its default, SGLang takes them for outputs of layers."""
    target, draft = write_pair(tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    layers = read_config(target).count("num_hidden_layers")
    section = json.dumps({"method": "eagle3", "num_speculative_tokens": 3, "model": str(draft)})
    vllm = f"vllm serve {target} --speculative-config '{section}'"
    sglang = (
        f"sglang:--model-path {target} --speculative-algorithm EAGLE3 --speculative-draft-model-path {draft} {CHAIN}"
    )
    result = beside(vllm, sglang)
    (capture,) = [d for d in result.differences if d.term == "capture"]
    assert capture.values == (f"boundaries 2, {layers // 2}, {layers - 3}", "boundaries 1, 2, 3")
    assert "one layer off" in capture.consequence


def test_every_term_has_words_for_its_consequence() -> None:
    assert all(term.title and term.consequence for term in TERMS.values())

"""The real demo pair: logits against transformers, and speculation that changes nothing but the number of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint, load_draft, load_target
from specgate.backends.eagle3.pairs.shipped import DRAFT_FOLDER, demo_target
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.target import target_forward, target_logits
from specgate.backends.eagle3.reference.tree import TreePlan
from specgate.contract import BASELINE, Budget, Role
from specgate.errors import EnvironmentRefused
from specgate.planning.prompts import build_prompts
from specgate.planning.scenario import find

YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.fixture(scope="module")
def target_folder() -> Path:
    try:
        return demo_target()
    except EnvironmentRefused as error:
        pytest.skip(f"the demo target is not in the cache: {error}")


@pytest.fixture(scope="module")
def target(target_folder: Path) -> TargetCheckpoint:
    """In float32, read and hashed once for the module."""
    return load_target(target_folder, torch.float32, "cpu")


@pytest.fixture(scope="module")
def draft(target: TargetCheckpoint) -> DraftCheckpoint:
    return load_draft(DRAFT_FOLDER, target.geometry, torch.float32, "cpu", target_sha256=target.sha256)


def engine_of(
    target: TargetCheckpoint, draft: DraftCheckpoint | None, positions: int, tree: TreePlan | None = None
) -> ReferenceEngine:
    """An engine empties the mapping of tensors that it packs, and gets one of its own."""
    target = replace(target, tensors=dict(target.tensors))
    draft = draft and replace(draft, tensors=dict(draft.tensors))
    return ReferenceEngine(target, draft, max_batch=1, max_positions=positions, device="cpu", tree=tree)


def prompt_of(target: Path, tokens: int) -> list[int]:
    scenario = find("cpu-1k-single")
    scenario = replace(scenario, workload=replace(scenario.workload, prompt_sets=1, source="code"))
    prompts = build_prompts(scenario, tokens, 1, target / "tokenizer.json", 49152)
    return list(prompts.measured[0].token_ids[0])


@pytest.mark.parametrize("rope", [None, YARN], ids=["plain", "yarn 4"])
def test_logits_agree_with_transformers_in_float32(
    target_folder: Path, target: TargetCheckpoint, rope: dict[str, float | str] | None
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(target_folder)
    if rope:
        base = config.rope_parameters["rope_theta"]
        original = config.max_position_embeddings
        config.rope_parameters = {**rope, "rope_theta": base, "original_max_position_embeddings": original}
        config.max_position_embeddings = original * 4
    model = AutoModelForCausalLM.from_pretrained(target_folder, config=config, dtype=torch.float32)
    target = load_target(target_folder, torch.float32, "cpu", rope) if rope else target
    engine = engine_of(target, None, 512)
    tokens = torch.tensor([prompt_of(target_folder, 128)])
    positions = torch.arange(tokens.shape[1])[None]
    with torch.inference_mode():
        stream, _ = target_forward(engine.tw, target.geometry, engine.table, engine.cache, tokens, positions, ())
        difference = target_logits(engine.tw, target.geometry, stream) - model(tokens).logits
    assert difference.abs().max() <= 1e-3


def test_the_shipped_draft_changes_no_token_as_a_chain_and_no_bit_as_a_tree_which_takes_fewer_steps(
    target_folder: Path, target: TargetCheckpoint, draft: DraftCheckpoint
) -> None:
    assert draft.warnings == ()
    prompt, budget = prompt_of(target_folder, 96), Budget(new_tokens=14)
    engine = engine_of(target, draft, 512)
    engine.prefill([prompt], draft=True)
    plain, short, chain = (engine.decode(role, budget, ()) for role in (BASELINE, Role(1), Role(4)))
    engine = engine_of(target, draft, 512, TreePlan("dynamic:16", None, 16, 4, 4))
    engine.prefill([prompt], draft=True)
    tree = engine.decode(Role(4), budget, ())
    assert short.tokens == chain.tokens == tree.tokens == plain.tokens
    assert engine.logits(Role(4), (1, 5)) == engine.logits(BASELINE, (1, 5))
    steps = [len(decoded.step_ns) for decoded in (plain, short, chain, tree)]
    assert steps[1] < 0.8 * steps[0] and steps[2] < 0.6 * steps[0] and steps[3] < steps[2]

"""Stages of the engine on a GPU, beside the reference's in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from specgate.analysis.parity.comparison import Parity, compare
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.checkpoints.stages.dump import Dtype, StageDump
from specgate.checkpoints.stages.names import TARGET_IDS
from specgate.contract import BASELINE, Budget, Role
from specgate.errors import BackendError
from tests.eagle3.cupy.engine import test_demo_pair as demo
from tests.eagle3.cupy.gpu_pairs import GEOMETRIES, SIZES, checkpoints_of, engine, engine_of, random_prompts

pytestmark = pytest.mark.gpu

ROWS = 48


def dump(made: CupyEngine | ReferenceEngine, prompt: Sequence[int], rows: int = ROWS) -> StageDump:
    shown = dict(made.stages(prompt, rows))
    ids = shown.pop(TARGET_IDS, None)
    dtype: Dtype = "bfloat16" if isinstance(made, CupyEngine) else "float32"
    stages = {name: tensor.astype(np.float32) for name, tensor in shown.items()}
    return StageDump(dtype, dtype, tuple(prompt), stages, None if ids is None else ids.astype(np.int64))


def exact(name: str, recipe: str) -> ReferenceEngine:
    target, draft = checkpoints_of(name, recipe, torch.float32)
    return ReferenceEngine(target, draft, max_batch=1, max_positions=SIZES.positions, device="cuda")


def largest(parity: Parity) -> str:
    worst = max(parity.stages, key=lambda stage: stage.distance.error / stage.tolerance)
    return f"{worst.stage}: {worst.distance.error:.2g} of {worst.tolerance:.2g}"


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
@pytest.mark.parametrize("length", [2, 3, 70, 700])
def test_every_stage_is_that_of_the_reference_but_for_rounding(name: str, recipe: str, length: int) -> None:
    (prompt,) = random_prompts([length], seed=length)
    ours, theirs = dump(engine(name, recipe), prompt), dump(exact(name, recipe), prompt)
    comparison = compare(ours, theirs)
    print(f"{name}, {recipe}, {length}: furthest {largest(comparison)}")
    assert comparison.agrees, comparison.first
    assert {stage.stage for stage in comparison.stages} == set(theirs.tensors) and comparison.ids_compared
    rows = len(ours.tensors["target.logits"])
    assert rows == min(length - 1, ROWS) == len(ours.tensors["draft.logits"])


def test_a_draft_whose_hidden_norm_is_another_departs_first_in_its_attention() -> None:
    target, draft = checkpoints_of("4:1 of 64", "A", torch.bfloat16)
    spoilt = engine_of(target, draft, SIZES)
    assert spoilt.draft is not None
    spoilt.draft.input.feature_norm.mul_(torch.linspace(0.5, 2, 512, device="cuda").bfloat16())
    (prompt,) = random_prompts([90])
    comparison = compare(dump(spoilt, prompt), dump(exact("4:1 of 64", "A"), prompt))
    assert comparison.first is not None and comparison.first.stage == "draft.attn_out"


def test_a_prompt_is_prefilled_anew_after_its_stages_and_decodes_as_before() -> None:
    made = engine()
    prompts = random_prompts([130])
    made.prefill(prompts, draft=True)
    before = made.decode(Role(3), Budget(steps=20), ())
    made.stages(prompts[0], 16)
    with pytest.raises(BackendError, match="decode before prefill"):
        made.decode(BASELINE, Budget(steps=4), ())
    made.prefill(prompts, draft=True)
    again = made.decode(Role(3), Budget(steps=20), ())
    assert (before.tokens, before.accepted) == (again.tokens, again.accepted)


@pytest.mark.parametrize("length", [0, 1, SIZES.positions])
def test_a_prompt_that_is_too_short_or_does_not_fit_is_refused(length: int) -> None:
    with pytest.raises(BackendError, match=f"stages of {length} tokens"):
        engine().stages([1] * length, ROWS)


def test_the_demo_pairs_logits_are_the_references_with_the_same_leading_tokens() -> None:
    (prompt,) = demo.prompts([300])
    ours, theirs = dump(demo.engine(), prompt, 64), dump(demo.oracle(torch.float32), prompt, 64)
    comparison = compare(ours, theirs)
    for stage in comparison.stages:
        if stage.leading:
            one, eight = stage.leading
            print(
                f"{stage.stage}: cosine {stage.distance.mean_cosine:.6f}, worst {stage.distance.worst_cosine:.6f}; "
                f"leading token {one.overlap:.1%}, leading eight {eight.overlap:.1%}, "
                f"{eight.beyond_one_step} beyond a step"
            )
            assert eight.beyond_one_step == 0 and one.beyond_one_step == 0
    assert comparison.agrees, comparison.first
    a, b = (side.tensors["target.logits"].astype(np.float64).ravel() for side in (ours, theirs))
    assert float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) >= 0.9999

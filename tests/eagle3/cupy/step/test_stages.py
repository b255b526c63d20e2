"""Stages of both passes on a CPU, each kernel run from its own source, beside the reference's in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from specgate.analysis.parity.comparison import compare
from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.stages import StagePasses, first_shown
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.checkpoints.stages.dump import Dtype, StageDump
from specgate.checkpoints.stages.names import TARGET_IDS
from tests.eagle3.cupy.gpu_pairs import random_prompts
from tests.eagle3.cupy.step.decoder import Decoder, made_pair

pytestmark = pytest.mark.usefixtures("whole_steps")


def dump(dtype: Dtype, prompt: list[int], shown: dict[str, Any]) -> StageDump:
    ids = shown.pop(TARGET_IDS).astype(np.int64)
    return StageDump(dtype, dtype, tuple(prompt), {name: t.astype(np.float32) for name, t in shown.items()}, ids)


@pytest.mark.parametrize("length", [3, 70])
def test_every_stage_is_that_of_the_reference_but_for_rounding(length: int) -> None:
    (prompt,), rows = random_prompts([length], seed=length), 6
    start = first_shown(length, rows)
    made = Decoder.of(None, prompts=[prompt[:start]])
    passes = StagePasses(made.model, made.draft, made.sizes, NOTHING_TUNED)
    made.prefilled.rewind(made.b, StopRule((), (), made.sizes.positions))
    assert not passes.run(made.b, prompt, start)
    ours = dump("bfloat16", prompt, passes.shown(rows))
    oracle = ReferenceEngine(*made_pair(torch.float32), max_batch=1, max_positions=made.sizes.positions, device="cpu")
    theirs = dump("float32", prompt, dict(oracle.stages(prompt, rows)))
    comparison = compare(ours, theirs)
    assert comparison.agrees and comparison.ids_compared, comparison.first
    assert {stage.stage for stage in comparison.stages} == set(theirs.tensors)

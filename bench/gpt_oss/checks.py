"""Whether the kernels and the engine are right: nothing is timed that is not."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.gpt_oss.prefill import ways_on
from specgate.backends.eagle3.cupy.bench.oracles import relative_error
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.checkpoints.geometry import ExpertGeometry
from specgate.contract import BASELINE, Budget, Role
from tests.eagle3.cupy.engine.tracing import NEAR_TIE, partings
from tests.eagle3.cupy.gpu_pairs import (
    RECIPE_EXPERTS,
    checkpoints,
    expert_engine,
    expert_pair,
    random_prompts,
)
from tests.eagle3.cupy.kernels.device import rows_of
from tests.eagle3.cupy.kernels.experts.mixtures import Mixture, picked

Finding = tuple[str, float, float]
"""What was compared, how far it is from what is right, and how far it may be."""
ROWS = (1, 2, 4, 8, 16, 64)
TOLERANCE = 2e-3
STEPS = 32


def findings() -> Iterator[Finding]:
    """All of them: one that is not within its tolerance, or is NaN, is reason not to time anything."""
    yield from of_kernels()
    yield from of_engine()


def of_kernels() -> Iterator[Finding]:
    """A layer of gpt-oss' sizes with 16 experts."""
    made = Mixture(ExpertGeometry(16, 4, mxfp4=True), 2880, 2880)
    stream = made.rows(64)
    whole = made.run(stream, rows_of(range(64), 1))
    for count in ROWS:
        left = made.run(stream[:count], rows_of(range(count), 1))
        logits, act, want = made.oracle(stream[:count], left.logits)
        yield f"router, {count} rows", relative_error(left.logits, logits), 1e-5
        yield f"gate and up, {count} rows", relative_error(left.act, act), TOLERANCE
        yield f"down, {count} rows", relative_error(left.stream - stream[:count], want - stream[:count]), TOLERANCE
        same = all(torch.equal(a, b) for a, b in zip(left.results, picked(whole, range(count)), strict=True))
        yield f"bits of {count} rows among 64", 0.0 if same else float("inf"), 0.0


def of_engine() -> Iterator[Finding]:
    """The tiny planted pair: prefilled in every way, the baseline leaves the float32 reference at near ties alone; and
    every draft length has the baseline's tokens.
    """
    made, prompts = expert_engine(), random_prompts([300, 31, 70, 5])
    exact = ReferenceEngine(
        *checkpoints(expert_pair(), RECIPE_EXPERTS, torch.float32), max_batch=4, max_positions=1024, device="cuda"
    )
    exact.prefill(prompts, draft=True)
    theirs, usual = exact.decode(BASELINE, Budget(steps=STEPS), ()).tokens, made.way
    for how, way in {**ways_on(torch.device("cuda"), 1), "usual": usual}.items():
        made.way = way
        made.prefill(prompts, draft=True)
        ours = made.decode(BASELINE, Budget(steps=STEPS), ()).tokens
        for parted in partings(ours, theirs, exact):
            where = f"where text {parted.slot} leaves the reference's, after {parted.at} tokens"
            yield f"the gap between the logits {where} (prefill: {how})", parted.gap, NEAR_TIE
    for k in range(1, 8):
        texts = made.decode(Role(k), Budget(steps=STEPS // 4), ()).tokens
        same = all(a[: len(b)] == b[: len(a)] for a, b in zip(texts, ours, strict=True))
        yield f"tokens of spec-{k} are the baseline's", 0.0 if same else float("inf"), 0.0

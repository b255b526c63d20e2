"""An engine step by step, and the logits that it sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specgate.analysis.perf_invariants.spans import shown_intact
from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import Block, Budget, Held, Role
from specgate.contract.protocols import Decoded
from tests.support.factories import block, plan_of, scenario

NEAR_TIE = 0.05
"""How far apart two tokens' logits may be in float32, as a share of the row's largest, where rounding decides."""


def trace(made: CupyEngine, k: int, steps: int, rule: StopRule) -> dict[tuple[int, int], Tensor]:
    """(slot, position) → logits [V] of every row whose context is the emitted text, over `steps` single steps."""
    assert made.prefilled is not None
    slots, tensors = made.b.slots, dict[tuple[int, int], Tensor]()
    with made.stream.current():
        step = made.step(k, len(made.prefilled.prompts))
        made.prefilled.rewind(made.b, rule)
        for _ in range(steps):
            active, lengths = slots.active[: int(slots.active_count)].tolist(), slots.length.tolist()
            step()
            made.stream.wait()
            for a, slot in enumerate(active):
                for t in range(int(slots.accepted[slot]) + 1):
                    row = a * made.sizes.rows_of(k) + node_of(made, k, slot, t)
                    tensors[slot, lengths[slot] + t] = made.b.target.layer.logits[row].clone()
        assert not slots.fault.any()
    return tensors


def block_of(decoded: Decoded, role: Role, lengths: Sequence[int]) -> Block:
    """The timed block that a decode run over prompts of these lengths is."""
    plan = plan_of(scenario(spec=(max(role.k, 1),)))
    made = block(next(r for r in plan.rounds if not r.warmup), role)
    return replace(
        made,
        tokens=decoded.tokens,
        accepted=decoded.accepted,
        drafted=decoded.drafted,
        prompt_tokens=tuple(lengths),
        counters=decoded.counters,
    )


def check_spans(made: CupyEngine, role: Role, budget: Budget, decoded: Decoded) -> None:
    """What the engine shows of a `decoded` run's steps is intact to the harness, and all of it is there."""
    assert made.prefilled is not None
    last = len(decoded.step_ns) - 1
    steps = sorted({0, 1, last // 2, last})
    shown = made.spans(role, budget, steps)
    timed = block_of(decoded, role, [*map(len, made.prefilled.prompts)])
    trees = made.sizes.tree_of(role.k) is not None
    result = shown_intact(shown, timed, trees=trees and role.k > 0)
    assert result.held is Held.HELD and result.evidence["shown_steps"] == len(steps), result.message


def node_of(made: CupyEngine, k: int, slot: int, depth: int) -> int:
    """The row of a slot's accepted token number `depth` of the last step; 0 is the last token of the step before."""
    if made.sizes.tree_of(k) is None or made.b.tree is None:
        return depth
    return int(made.b.tree.path[slot, depth])


def tokens(made: CupyEngine, k: int, budget: Budget, stop: Sequence[int] = ()) -> tuple[tuple[int, ...], ...]:
    return made.decode(Role(k), budget, stop).tokens


def same_prefixes(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> bool:
    return all(list(a)[: len(b)] == list(b)[: len(a)] for a, b in zip(one, other, strict=True))


Rows = Mapping[tuple[int, int], Tensor]
"""(slot, position) → logits."""


def check_common_rows(got: Rows, wanted: Rows, least: int) -> None:
    """Assert that rows at the same places have the same bits, and that there are at least so many of them."""
    common = [at for at in got if at in wanted]
    assert len(common) >= least
    assert all(torch.equal(got[at], wanted[at]) for at in common)


def check_speculation(
    made: CupyEngine, ks: Iterable[int], steps: int, plain_steps: int = 0, *, spans: bool = False
) -> list[Decoded]:
    """Assert that each spec-`k` has the baseline's tokens and logits, bit for bit, behind what is prefilled.

    `plain_steps`: of the baseline, by default three times as many. `spans`: what is shown of its steps is looked at.
    """
    assert made.prefilled is not None
    rule, blocks, plain_steps = StopRule((), (), made.sizes.positions), list[Decoded](), plain_steps or 3 * steps
    plain, baseline = trace(made, 0, plain_steps, rule), tokens(made, 0, Budget(steps=plain_steps))
    for k in ks:
        check_common_rows(trace(made, k, steps, rule), plain, steps * len(made.prefilled.prompts))
        blocks.append(made.decode(Role(k), Budget(steps=steps), ()))
        assert same_prefixes(blocks[-1].tokens, baseline)
        if spans:
            check_spans(made, Role(k), Budget(steps=steps), blocks[-1])
    return blocks


def accepted_of(blocks: Iterable[Decoded]) -> int:
    return sum(a for block in blocks for row in block.accepted for a in row)


def reference_logits(oracle: ReferenceEngine, slot: int, continuation: Sequence[int]) -> Tensor:
    """[V], after the prompt of `slot` and `continuation`."""
    *before, last = oracle.prompts[slot]
    row = torch.tensor([[last, *continuation]], device=oracle.device)
    positions = torch.arange(len(before), len(before) + row.shape[1], device=oracle.device)[None]
    with torch.inference_mode():
        stream, _ = oracle.model.forward(slice(slot, slot + 1), row, positions, ())
        return oracle.model.logits(stream[:, -1])[0]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a text of `slot` leaves the reference's, after `at` tokens. `gap`: how far the reference's logit of its own
    token is above that of the other one, as a share of the row's largest.
    """

    slot: int
    at: int
    gap: float


def divergences(
    texts: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]], oracle: ReferenceEngine
) -> list[Divergence]:
    """`wanted`: the greedy texts of `oracle`, after the prompts that it has prefilled last."""
    values = []
    for slot, (text, exact) in enumerate(zip(texts, wanted, strict=True)):
        at = next((i for i, (ours, theirs) in enumerate(zip(text, exact, strict=True)) if ours != theirs), None)
        if at is not None:
            logits = reference_logits(oracle, slot, exact[:at])
            values.append(Divergence(slot, at, float((logits[exact[at]] - logits[text[at]]) / logits.max())))
    return values


@dataclass(frozen=True, slots=True)
class Nearness:
    """Cosines to the float32 reference's logits: of the row that is furthest, and of all rows as one vector."""

    least: float
    pooled: float

    @classmethod
    def of(cls, rows: Sequence[Tensor], exact: Sequence[Tensor]) -> Nearness:
        got, want = torch.stack(list(rows)).double(), torch.stack(list(exact)).double()
        each = torch.cosine_similarity(got, want, dim=1)
        return cls(float(each.min()), float(torch.cosine_similarity(got.flatten(), want.flatten(), dim=0)))


def nearness(
    made: CupyEngine, exact: ReferenceEngine, rounded: ReferenceEngine, prompts: Sequence[Sequence[int]], steps: int
) -> tuple[Nearness, Nearness]:
    """How near the engine's and bfloat16 torch's logits along the engine's own text are to float32's."""
    for engine in (made, exact, rounded):
        engine.prefill(prompts, draft=True)
    result = trace(made, 0, steps, StopRule((), (), made.sizes.positions))
    text = tokens(made, 0, Budget(steps=steps))
    contexts = [(slot, text[slot][: position - len(prompts[slot]) + 1]) for slot, position in result]
    wanted, torchs = ([reference_logits(oracle, *context) for context in contexts] for oracle in (exact, rounded))
    return Nearness.of(list(result.values()), wanted), Nearness.of(torchs, wanted)

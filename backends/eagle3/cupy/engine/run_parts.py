"""Features of an engine as its decode runs see them: each is a part with the same few calls, and none knows another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specgate.backends.eagle3.cupy.engine.partial import counters_of
from specgate.backends.eagle3.cupy.engine.phase_trace import PhaseTrace
from specgate.backends.eagle3.cupy.engine.sampled import name_requests
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import Kind, bound_prompts
from specgate.backends.eagle3.lib.chains import ChainLengths
from specgate.backends.eagle3.lib.playback import Playback
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.checkpoints.geometry import TargetGeometry
from specgate.contract.protocols import Decoded
from specgate.contract.samples.counters import ENDED_EARLY


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """A run of spec-`asked_k` behind prompts of these `lengths`, each step of which drafted `k` tokens, 0 for a plain
    one, and verified as `kinds` say. `first`: the first of its cycles; `b`: as the run has left it on the first rank.
    """

    asked_k: int
    k: int
    lengths: Sequence[int]
    kinds: Sequence[Kind]
    first: Cycle
    b: Buffers
    decoded: Decoded
    fault: Fault


class RunPart:
    """A feature that does nothing. Each call is made for every feature; those with buffers may copy from the host."""

    def meet(self, prompts: Sequence[Sequence[int]]) -> None:
        """These are the next prompts. Called before they are prefilled."""

    def name(self, b: Buffers, prompts: Sequence[Sequence[int]]) -> None:
        """Prepare the buffers of a rank for these prompts."""

    def prefilled(self, b: Buffers, target: TargetGeometry, lengths: Sequence[int]) -> None:
        """Prompts of these lengths are in the cache; launch what follows from them. `b`: of the first rank."""

    def drafts(self, k: int, count: int) -> int:
        """Return the most draft tokens of a step of spec-`k` over `count` requests."""
        return k

    def rewind(self, b: Buffers, k: int, steps: int, count: int) -> None:
        """Up to `steps` steps of spec-`k` over `count` requests follow."""

    def counters(self, run: DecodeRun) -> Mapping[str, int]:
        """Return what the feature counts of a run."""
        return {}


@dataclass(frozen=True, slots=True)
class Requests(RunPart):
    """Requests that draw are known by their prompts."""

    def name(self, b: Buffers, prompts: Sequence[Sequence[int]]) -> None:
        if b.sampling is not None:
            name_requests(b.sampling, prompts)


@dataclass(frozen=True, slots=True)
class Trees(RunPart):
    """Draft tokens that were verified, and the check of every step's masks."""

    sizes: Sizes

    def counters(self, run: DecodeRun) -> Mapping[str, int]:
        shape = self.sizes.tree_of(run.k)
        return tree_counters(shape, run.decoded, run.fault) if shape else {}


@dataclass(frozen=True, slots=True)
class InPart(RunPart):
    """Verification over a part of the cache. `plan`: as asked; the sizes have none where no request is long enough."""

    sizes: Sizes
    plan: PartialPlan

    def prefilled(self, b: Buffers, target: TargetGeometry, lengths: Sequence[int]) -> None:
        if b.partial is not None:
            bound_prompts(b, target, self.sizes, lengths)

    def counters(self, run: DecodeRun) -> Mapping[str, int]:
        overruled = 0 if run.b.partial is None else int(run.b.partial.overruled[: len(run.lengths)].sum())
        return counters_of(self.plan, run.kinds, run.decoded.accepted, run.lengths, overruled) if run.k else {}


@dataclass(frozen=True, slots=True)
class Lengths(RunPart):
    """Chains that end early. The requests that a run begins with count as those that run."""

    lengths: ChainLengths

    def drafts(self, k: int, count: int) -> int:
        return self.lengths.most(k, count)

    def counters(self, run: DecodeRun) -> Mapping[str, int]:
        return ended_early(run.decoded, run.asked_k) if run.k else {}


@dataclass(frozen=True, slots=True)
class OfTape(RunPart):
    """Accept counts of another run."""

    playback: Playback

    def meet(self, prompts: Sequence[Sequence[int]]) -> None:
        self.playback.meet(prompts)

    def rewind(self, b: Buffers, k: int, steps: int, count: int) -> None:
        if k and b.forced is not None:
            b.forced[:steps, :count].copy_(self.playback.accepted(k, steps, count, "cpu").int())


@dataclass(frozen=True, slots=True)
class Phases(RunPart):
    """A trace of the phases of every step."""

    trace: PhaseTrace

    def counters(self, run: DecodeRun) -> Mapping[str, int]:
        self.trace.add(run.first.name, run.b.slots.stamps[: len(run.decoded.step_ns)])
        return {}


def parts_of(
    sizes: Sizes,
    plan: PartialPlan | None = None,
    lengths: ChainLengths | None = None,
    playback: Playback | None = None,
    trace: PhaseTrace | None = None,
) -> list[RunPart]:
    """Return the parts of an engine of these sizes. `plan`: as asked, if not in the sizes."""
    plan = plan or sizes.partial
    parts: list[RunPart | None] = [
        Requests(),
        Trees(sizes),
        InPart(sizes, plan) if plan else None,
        Lengths(lengths) if lengths else None,
        OfTape(playback) if playback else None,
        Phases(trace) if trace else None,
    ]
    return [part for part in parts if part is not None]


def tree_counters(shape: DraftTree, decoded: Decoded, fault: Fault) -> dict[str, int]:
    """Return what a decode run reports of its trees."""
    return {
        "tree_tokens": shape.nodes * sum(a >= 0 for row in decoded.accepted for a in row),
        "mask_checked_steps": len(decoded.step_ns),
        "mask_integrity_failures": int(bool(fault & Fault.MASK_INTEGRITY)),
    }


def ended_early(decoded: Decoded, k: int) -> dict[str, int]:
    """Return the count of request-steps of spec-`k` whose chain ended before K tokens."""
    return {ENDED_EARLY: sum(0 <= drafts < k for step in decoded.drafted for drafts in step)}

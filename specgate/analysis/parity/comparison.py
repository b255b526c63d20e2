"""Every stage of two dumps beside each other, and the first that departs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specgate.analysis.parity.causes import IdMap, different_ids
from specgate.analysis.parity.distances import Distance, Leading, distance, leading
from specgate.analysis.parity.tolerances import coarser, of_rows, of_the_worst, tolerance
from specgate.checkpoints.stages.dump import PARTS, Dtype, StageDump, check_same_question
from specgate.checkpoints.stages.names import SHORTEST, in_order, part_of
from specgate.errors import InvalidResult

LEADING: Final = (1, 8)
"""Of how many tokens the leading ones are compared."""


@dataclass(frozen=True, slots=True)
class StageFinding:
    """One stage of both sides. `rows` were compared, `worst_position` is the prompt position of the worst. `leading` is
    empty but for logits. It departs where the root mean square of the rows' relative errors exceeds `tolerance`, or
    that of the worst row `worst_tolerance`.
    """

    stage: str
    rows: int
    width: int
    distance: Distance
    worst_position: int
    tolerance: float
    worst_tolerance: float
    leading: tuple[Leading, ...]

    @property
    def departs(self) -> bool:
        return self.distance.error > self.tolerance or self.distance.worst_error > self.worst_tolerance


@dataclass(frozen=True, slots=True)
class Parity:
    """Two sides compared. `dtype` is the coarser of theirs. `ids` says where the maps from the draft's vocabulary to
    the target's differ; None where they are equal or a side does not tell (`ids_compared`). `notes` say what was not
    compared.
    """

    a: str
    b: str
    dtype: Dtype
    prompt_tokens: int
    stages: tuple[StageFinding, ...]
    ids_compared: bool
    ids: IdMap | None
    notes: tuple[str, ...]

    @property
    def first(self) -> StageFinding | None:
        """The first stage that departs."""
        return next((stage for stage in self.stages if stage.departs), None)

    @property
    def agrees(self) -> bool:
        return self.first is None and self.ids is None


def compare(a: StageDump, b: StageDump, factor: float = 1.0) -> Parity:
    """Compare two checked dumps, with tolerances multiplied by `factor`.

    Of each stage the rows are compared that both have, which end at the same position. Raises UsageError for dumps of
    different prompts or sizes, InvalidResult where they have no stage in common.
    """
    check_same_question(a, b)
    common = in_order(name for name in a.tensors if name in b.tensors)
    if not common:
        raise InvalidResult(
            f"{a.source} has {', '.join(a.parts)}, {b.source} has {', '.join(b.parts)}: no stage in common",
            hint="dump the same part of both engines",
        )
    dtype, layers = coarser(a.dtype, b.dtype), max(a.layers or 0, b.layers or 0)
    stages = tuple(compared(name, a, b, layers, dtype, factor) for name in common)
    both = a.target_ids is not None and b.target_ids is not None
    return Parity(
        a=a.source,
        b=b.source,
        dtype=dtype,
        prompt_tokens=len(a.prompt_ids),
        stages=stages,
        ids_compared=both,
        ids=different_ids(a, b),
        notes=tuple(not_compared(a, b)),
    )


def compared(name: str, a: StageDump, b: StageDump, layers: int, dtype: Dtype, factor: float) -> StageFinding:
    rows = min(len(a.tensors[name]), len(b.tensors[name]))
    x, y = a.tensors[name][-rows:], b.tensors[name][-rows:]
    apart, allowed = distance(x, y), tolerance(name, layers, summed_up(name, a), dtype)
    last = len(a.prompt_ids) - (1 if part_of(name) == "target" else 2)
    return StageFinding(
        stage=name,
        rows=rows,
        width=x.shape[1],
        distance=apart,
        worst_position=last - (rows - 1 - apart.worst_row),
        tolerance=factor * of_rows(allowed, rows),
        worst_tolerance=factor * of_the_worst(allowed),
        leading=tuple(leading(x, y, k, dtype) for k in LEADING) if name.endswith("logits") else (),
    )


def summed_up(name: str, dump: StageDump) -> int:
    """Approximate number of terms that the products up to a stage sum up: the width of one hidden state."""
    before = {"target.logits": "target.hidden.0", "draft.features": "draft.fc_out"}.get(
        name, name.replace("logits", "pre_head_hidden")
    )
    return int(dump.tensors[before].shape[1])


def not_compared(a: StageDump, b: StageDump) -> list[str]:
    """List in words what only one side has."""
    notes = []
    for dump, other in ((a, b), (b, a)):
        for part in PARTS:
            if part in dump.parts and part not in other.parts:
                notes.append(f"{part}: only {dump.source} has it")
        if dump.target_ids is not None and other.target_ids is None and "draft" in other.parts:
            notes.append(f"draft.target_ids: only {dump.source} has it, so the map d2t was not compared")
        if "draft.features" in dump.tensors and "draft" in other.parts and "draft.features" not in other.tensors:
            notes.append(f"draft.features: only {dump.source} has it")
    for part, shortest in SHORTEST.items():
        if len(a.prompt_ids) < shortest:
            notes.append(f"{part}: the prompt has {len(a.prompt_ids)} tokens, it takes {shortest}")
    return notes

"""Accept counts of the same prompt in several rounds: a greedy engine repeats them as it repeats its text.

A cycle that begins at the same place of the same text has the same drafts, so as many of them are accepted. An engine
whose counts grow from round to round drafts from what it remembers. (One whose counts fall goes stale: another matter.)
Rounding moves single counts to either side, where the engine is not bit-exact: texts part then, too, and counts are
compared as far as these are the same.

Not compared: drawn tokens, forced acceptance, scripted engines, load. In the stored runs (docs/results, six engines,
600 repeated texts) no count differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from specgate.analysis.tokens.comparison import first_difference
from specgate.analysis.tokens.drafts_along import Cycle, whole_cycles
from specgate.contract import Block
from specgate.contract.samples.counters import JOINED_OUTPUTS
from specgate.errors import InvalidResult

SHARE: Final = 0.02
"""Share of the cycles whose counts rounding may raise, beyond as many that it lowers."""
FEW: Final = 2
"""Cycles that may differ beyond that."""
SERVED_SHARE: Final = 0.05
"""The same of a server's steps, of which it counts one or two more or less in every block."""


def check_repeats(blocks: Sequence[Block]) -> None:
    """Check the accept counts of one spec cell over the rounds of each prompt set. Raises InvalidResult."""
    pairs = list(repeated(blocks))
    in_steps = [p for p in pairs if p[1].served is None]
    slots = [(earlier, now, slot) for earlier, now in in_steps for slot in range(len(now.tokens))]
    cycles = [(now, slot, *c) for earlier, now, slot in slots for c in same_cycles(earlier, now, slot)]
    more = [c for c in cycles if c[3].accepted > c[2].accepted]
    fewer = sum(then.accepted > now.accepted for _, _, then, now in cycles)
    if len(more) - fewer > SHARE * len(cycles) + FEW:
        block, slot, before, now = more[0]
        raise InvalidResult(
            f"{block.cell.key}: {len(more)} of {len(cycles)} cycles accept more drafts than in an earlier round, after "
            f"the same tokens, and {fewer} fewer; first: set {block.prompt_set} round {block.round} slot {slot}, after "
            f"token {now.start}: {now.accepted} of {now.drafted}, where it was {before.accepted}"
        )
    counted = [(steps_of(a), steps_of(b)) for a, b in pairs if b.served is not None and a.tokens == b.tokens]
    steps = [(a, b) for a, b in counted if a is not None and b is not None]
    first, later = sum(a for a, _ in steps), sum(b for _, b in steps)
    if first - later > SERVED_SHARE * first + FEW * len(steps):
        raise InvalidResult(
            f"{blocks[0].cell.key}: the server counts {later} steps over {len(steps)} blocks whose texts an earlier "
            f"round had as well, in {first} steps"
        )


def repeated(blocks: Sequence[Block]) -> Iterator[tuple[Block, Block]]:
    """Yield (the first round of a prompt set, a later one)."""
    first: dict[int, Block] = {}
    for block in blocks:
        earlier = first.setdefault(block.prompt_set, block)
        if earlier is not block and earlier.answered_all and block.answered_all:
            yield earlier, block


def steps_of(block: Block) -> int | None:
    """Steps that a server counted over a block; None where it did not, or lost some."""
    record = block.served.acceptance if block.served is not None else None
    if record is None or block.counters.get(JOINED_OUTPUTS):
        return None
    return record.steps + (block.steps_without_draft or 0)


def same_cycles(earlier: Block, block: Block, slot: int) -> Iterator[tuple[Cycle, Cycle]]:
    """Yield pairs of cycles of a slot that begin after the same tokens, and whose texts agree as far as drafts go."""
    a, b = earlier.tokens[slot], block.tokens[slot]
    parted = first_difference(a, b)
    end = min(len(a), len(b)) if parted is None else parted
    before = {cycle.start: cycle for cycle in whole_cycles(earlier, slot)}
    for now in whole_cycles(block, slot):
        then = before.get(now.start)
        if then is not None and then.drafted == now.drafted and now.start + now.drafted < end:
            yield then, now

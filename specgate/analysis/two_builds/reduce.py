"""The journals of two builds → quantities with words, texts and tokens. Pure, so that a stored comparison can be
recomputed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.analysis.reduce import Checked, measure
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.tokens.comparison import first_difference
from specgate.analysis.two_builds.estimates import over_processes
from specgate.analysis.two_builds.outcomes import overall
from specgate.analysis.two_builds.quantities import Both, Pairing, firsts_of, raw_of_cells, raw_of_processes, with_words
from specgate.contract import Block, Cell, CellResult, Comparison, EngineFacts, Margin, NearTies, Plan, Point
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.token_check import NO_TOKEN
from specgate.contract.two_builds import Margins, Parting, Process, Quantity, TextChange, TokensOf, Word

LEAST_PROMPTS: Final = 3
"""Prompts that all begin with another token before the weights are doubted."""
UNEVEN_SHARE: Final = 0.1
"""By how much of the usable CPUs' time what others use may differ between the blocks of the two sides."""
LEAST_COUNTED_NS: Final = 1_000_000_000
"""Nanoseconds of blocks before their shares are compared."""


@dataclass(frozen=True, slots=True)
class SideSamples:
    """Samples of one side. `near_ties`: see `analysis.reduce.measure`."""

    name: str
    plan: Plan
    blocks: Sequence[Block]
    margins: Sequence[Margin]
    engines: Mapping[str, EngineFacts]
    checked: Checked
    near_ties: NearTies
    bandwidth: Bandwidth | None = None

    @property
    def attached(self) -> bool:
        """True if it is a server that somebody else has started: one process in all sessions."""
        return any(facts.attached for facts in self.engines.values())

    @property
    def forced(self) -> bool:
        """True if an engine was told how many drafts to accept, so that its tokens are wrong by design."""
        return any(facts.acceptance == "forced" for facts in self.engines.values())


@dataclass(frozen=True, slots=True)
class Found:
    """Results of the samples of both sides. See `contract.TwoBuilds`. `margins`: with the device that was seen."""

    quantities: tuple[Quantity, ...]
    texts: tuple[TextChange, ...]
    tokens: tuple[TokensOf, ...]
    trouble: tuple[str, ...]
    warnings: tuple[str, ...]
    word: Word | None
    reason: str
    margins: Margins


def compare_builds(
    old: SideSamples, new: SideSamples, processes: Sequence[Process], margins: Margins, then: float | None = None
) -> Found:
    """Compare the new build with the old one.

    A block counts only where both sides have measured the whole round that it belongs to. `then`: the error on each
    side at which more samples would be judged; None in a comparison that cannot be extended.
    """
    judged_old, judged_new = judged(old), judged(new)
    tokens = (*tokens_of(old, *judged_old), *tokens_of(new, *judged_new))
    cells = list(cells_of(old, new))
    gaps = gaps_of((*old.margins, *new.margins))
    texts = tuple(text_change(cell, gaps) for cell in cells)
    trouble = (
        *facts_trouble(old, new),
        *token_trouble(tokens, judged_new[1]),
        *load_trouble(old, new, margins.error),
        *(weights_trouble(texts) if then is not None else ()),
    )
    attached = old.attached + new.attached
    on_cpu = any(facts.on_cpu for side in (old, new) for facts in side.engines.values())
    margins = replace(margins, device="cpu" if on_cpu else "attached" if attached else "gpu")
    unit = "session pairs" if attached else "process pairs"
    pairing = Pairing(firsts_of(processes), OF_TIME.process_sd * math.sqrt(attached), unit)
    of_processes = [] if attached else raw_of_processes(processes)  # nobody saw a server start
    quantities = with_words([*raw_of_cells(cells, pairing, margins), *of_processes], margins, then)
    word, reason = overall(quantities, margins.same_within_pct)
    warnings = (
        *engine_warnings(old, new),
        *repetition_warnings(old, judged_old[0]),
        *repetition_warnings(new, judged_new[0]),
    )
    if trouble:
        return Found(quantities, texts, tokens, trouble, warnings, None, trouble[0], margins)
    return Found(quantities, texts, tokens, (), warnings, word, reason, margins)


def judged(side: SideSamples) -> tuple[tuple[CellResult, ...], tuple[Comparison, ...]]:
    """Every cell of one side by itself: whether its records hold, and whether its tokens are its baseline's."""
    blocks, check_facts = whole_rounds(side.plan, side.blocks), CheckFacts(side.engines, side.bandwidth)
    beside = (side.margins, side.near_ties, side.checked)
    return measure(side.plan, blocks, *beside, forced=side.forced, check_facts=check_facts)


# ── tokens of each side ──────────────────────────────────────────────────────────────────────────────────────────────


def tokens_of(side: SideSamples, cells: Sequence[CellResult], comparisons: Sequence[Comparison]) -> Iterator[TokensOf]:
    """The token check of every spec cell, and every cell whose records contradict themselves."""
    for result in cells:
        if result.reason_code is not None and not result.cell.role.speculative:
            yield TokensOf(side.name, name_of(result.cell), 0, 0, 0, 0, result.reason)
    for comparison in comparisons:
        result = next(r for r in cells if r.cell == comparison.cell)
        why, check = result.reason if result.reason_code is not None else None, comparison.tokens
        near = sum(d.near_tie for d in check.divergences)
        counts = check.compared_tokens, check.emitted_tokens, len(check.mismatches), near
        yield TokensOf(side.name, name_of(comparison.cell), *counts, why)


def token_trouble(tokens: Sequence[TokensOf], of_new: Sequence[Comparison]) -> Iterator[str]:
    """Yield reasons to give no word: records that cannot be true, and a new build that emits wrong tokens.

    `of_new`: the comparisons of the new build with its own baseline.
    """
    compared = {name_of(c.cell): c for c in of_new}
    for check in tokens:
        if check.why is not None:
            yield f"{check.side}: {check.cell}: {check.why}"
        elif check.mismatches and check.side == "new":
            comparison = compared[check.cell]
            first = min(comparison.tokens.mismatches, key=lambda d: (d.prompt_set, d.slot, d.round))
            got, expected = ("the end" if token == NO_TOKEN else token for token in (first.got, first.expected))
            yield (
                f"new: {cell_name(comparison.cell.key)}: {check.mismatches} texts are not those of its own baseline, "
                f"such as prompt set {first.prompt_set}, slot {first.slot}, token {first.position}: "
                f"{got} instead of {expected}"
            )


def facts_trouble(old: SideSamples, new: SideSamples) -> Iterator[str]:
    """Yield the facts that both engines must share and do not."""
    for key, facts in old.engines.items():
        other = next((f for k, f in new.engines.items() if without_backend(k) == without_backend(key)), None)
        for name in ("target_sha256", "draft_sha256", "device", "dtype", "acceptance"):
            mine, theirs = getattr(facts, name), getattr(other, name, None)
            if other is not None and mine != theirs:
                yield f"{key}: {name}: old has {mine}, new has {theirs}: two builds are compared on the same weights"


def weights_trouble(texts: Sequence[TextChange]) -> Iterator[str]:
    """Cells in which every text begins with another token. Of a server that somebody else has started, nobody sees
    which weights it has; another order of additions changes the first token of a few prompts, but not of all.
    """
    for cell in texts:
        if cell.prompts >= LEAST_PROMPTS and sum(p.position == 0 for p in cell.changed) == cell.prompts:
            yield (
                f"{cell.cell}: all {cell.prompts} prompts begin with another token in the new build: other weights, "
                "another tokeniser or another prompt template; two builds are compared on the same weights"
            )


def load_trouble(old: SideSamples, new: SideSamples, error: float) -> Iterator[str]:
    """Yield the reason that one side was measured on a busier machine. The idle engine of the other side counts as
    others, too: one that is never idle slows the other build down.

    Neighbours come and go: the difference must be proven over process pairs, with an error of `error` a direction.
    """
    shares = {side.name: others_share(side.blocks) for side in (old, new)}
    known = {name: share for name, share in shares.items() if share is not None}
    if len(known) < len(shares) or max(known.values()) - min(known.values()) <= UNEVEN_SHARE:
        return
    of_pair: dict[int, list[list[Block]]] = defaultdict(lambda: [[], []])
    for at, side in enumerate((old, new)):
        for block in side.blocks:
            of_pair[block.worker_generation][at].append(block)
    both = {n: [others_share(blocks, 1) for blocks in sides] for n, sides in of_pair.items()}
    uneven = over_processes({n: [b - a] for n, (a, b) in both.items() if a is not None and b is not None}, {})
    if uneven is not None and abs(uneven.mean) > uneven.half_width(error):
        texts = [f"{share:.0%} beside {name}'s blocks" for name, share in known.items()]
        yield f"others, the idle side among them, used the CPUs unevenly: {', '.join(texts)}: measure with --apart"


def others_share(blocks: Sequence[Block], least_ns: int = LEAST_COUNTED_NS) -> float | None:
    """Share of the usable CPUs' time that others used beside `blocks`; None where less than `least_ns` was counted."""
    counted = [cpu for block in blocks if (cpu := block.cpu) and cpu.busy_ns is not None and cpu.ours_ns is not None]
    offered = sum(cpu.wall_ns * cpu.cpus for cpu in counted)
    if sum(cpu.wall_ns for cpu in counted) < least_ns:
        return None
    return sum((cpu.busy_ns or 0) - (cpu.ours_ns or 0) for cpu in counted) / offered


def engine_warnings(old: SideSamples, new: SideSamples) -> Iterator[str]:
    """Yield what the engine of one side warns of and the other's does not, such as a variable that it ignores."""
    for side, other in ((old, new), (new, old)):
        known = {warning for facts in other.engines.values() for warning in facts.warnings}
        for warning in dict.fromkeys(w for facts in side.engines.values() for w in facts.warnings if w not in known):
            yield f"{side.name}: {warning}"


def repetition_warnings(side: SideSamples, cells: Sequence[CellResult]) -> Iterator[str]:
    """Yield a warning per cell of a side that gave other tokens for the same prompt in another block."""
    for result in cells:
        repeats = result.values.get("repeat_mismatches")
        if repeats is not None and repeats.value:
            yield f"{side.name}: {name_of(result.cell)}: {repeats.value:.0f} of {repeats.n} blocks repeat another text"


# ── a cell of both sides ─────────────────────────────────────────────────────────────────────────────────────────────


def cells_of(old: SideSamples, new: SideSamples) -> Iterator[Both]:
    """The cells that both sides have, as the old one names them."""
    theirs = {(without_backend(b.point.key), b.role, *round_of(b)): b for b in whole_rounds(new.plan, new.blocks)}
    mine: dict[Cell, list[tuple[Block, Block]]] = defaultdict(list)
    for block in whole_rounds(old.plan, old.blocks):
        other = theirs.get((without_backend(block.point.key), block.role, *round_of(block)))
        if other is not None and not block.warmup:
            mine[block.cell].append((block, other))
    for cell in old.plan.cells:
        if pairs := mine.get(cell):
            a, b = zip(*pairs, strict=True)
            yield Both(name_of(cell), without_backend(cell.point.key), cell.role, a, b)


def round_of(block: Block) -> tuple[int, int, int]:
    return block.worker_generation, block.prompt_set, block.round


def name_of(cell: Cell) -> str:
    """`scenario/cCONTEXT/bBATCH/ROLE`: both sides have the same cells, whatever their back ends are called."""
    return f"{without_backend(cell.point.key)}/{cell.role}"


def without_backend(point: Point | str) -> str:
    key = point if isinstance(point, str) else point.key
    scenario, _, rest = key.partition("/")
    return f"{scenario}/{rest.partition('/')[2]}"


Gaps = Mapping[tuple[str, int, int, int], float]
"""(cell, prompt set, slot, position) → distance of the two largest logits."""


def gaps_of(margins: Sequence[Margin]) -> Gaps:
    """The gaps at all places whose largest logits an engine has shown."""
    return {(without_backend(m.cell), m.prompt_set, m.slot, m.position): m.top1 - m.top2 for m in margins}


def text_change(cell: Both, gaps: Gaps) -> TextChange:
    """Compare the texts of a cell prompt by prompt, as far as the shorter one goes."""
    firsts: dict[tuple[int, int], tuple[Sequence[int], Sequence[int]]] = {}
    for a, b in cell.pairs:
        for slot, texts in enumerate(zip(a.tokens, b.tokens, strict=True)):
            firsts.setdefault((a.prompt_set, slot), texts)
    places = {prompt: first_difference(*texts) for prompt, texts in firsts.items()}
    changed = tuple(
        Parting(*prompt, at, old[at], new[at], gaps.get((cell.cell, *prompt, at)))
        for prompt, at in places.items()
        if at is not None
        for old, new in [firsts[prompt]]
    )
    unsteady = (*unsteady_texts("old", cell.old), *unsteady_texts("new", cell.new))
    return TextChange(cell.cell, len(firsts), sum(min(map(len, texts)) for texts in firsts.values()), changed, unsteady)


def unsteady_texts(side: str, blocks: Sequence[Block]) -> Iterator[tuple[str, int, int, int]]:
    """(side, prompt set, slot, first token that differs) of every prompt to which a later process of one side gave
    another text than its first one.
    """
    firsts: dict[tuple[int, int], tuple[int, Sequence[int]]] = {}
    unsteady = set[tuple[int, int]]()
    for block in blocks:
        for slot, text in enumerate(block.tokens):
            prompt = block.prompt_set, slot
            process, before = firsts.setdefault(prompt, (block.worker_generation, text))
            if process == block.worker_generation or prompt in unsteady:
                continue
            if (at := first_difference(before, text)) is not None:
                unsteady.add(prompt)
                yield side, *prompt, at

"""Modes of decoding beside each other: what each gives in speed, memory and acceptance, and what it changes.

A mode is a role of a run, with its variant: `baseline`, `spec-3`, `spec-3+kv-fp8`. They are laid out by scenario,
context and batch, each beside plain decoding of the scenario without variants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from specgate.analysis.cycle_accounting import moved_by
from specgate.contract import BASELINE, Block, Cell, CellResult, Comparison, Point, Run, Sampling, Scenario
from specgate.contract.samples.counters import SPECPV_FULL, SPECPV_PARTIAL
from specgate.contract.traffic import PassTraffic, Traffic


def variation(run: Run, cell: Cell) -> str:
    """Setting that differs in a variant's cell: `kv=fp8`. Empty for a cell of the plain role."""
    if not cell.point.variant or cell.point.scenario not in run.scenarios:
        return ""
    return what_varies(run.scenarios[cell.point.scenario], run.scenarios.get(cell.point.unvaried))


def what_varies(scenario: Scenario, plain: Scenario | None) -> str:
    """Settings of `scenario` that differ from `plain`, the scenario that it is a variant of: `kv=fp8, temperature 1`.
    With None, whatever it sets.
    """
    before: Mapping[str, str] = plain.options if plain else {}
    options = [f"{name}={value}" for name, value in scenario.options.items() if before.get(name) != value]
    sampling = [] if plain and plain.sampling == scenario.sampling else list(sampling_in_words(scenario.sampling))
    return ", ".join((*options, *sampling))


def sampling_in_words(sampling: Sampling | None) -> Iterator[str]:
    """The settings that tokens are drawn with, as far as they are not the defaults; the temperature always."""
    if sampling is None:
        return
    yield f"temperature {sampling.temperature:g}"
    usual = asdict(Sampling())
    for name, value in asdict(sampling).items():
        if name != "temperature" and value != usual[name]:
            yield f"{name} {value}"


SPEED: Final = ("output_tok_s", "joint_decode_tok_s", "decode_tok_s")
"""The speed that a run quotes first, as reports have it: of whole requests, else of decoding alone."""
MEMORY: Final = ("peak_gpu_memory_bytes", "peak_host_memory_bytes")
Texts = Mapping[tuple[int, int], tuple[int, ...]]
"""(prompt set, slot) → the longest text that is known of it."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Target passes per emitted token and request: `full` over all of the cache, `partial` over a part of it."""

    full: float
    partial: float = 0.0


@dataclass(frozen=True, slots=True)
class Mode:
    """One cell of a run. None: not observable.

    `varies`: what it does otherwise than the scenario, in words; empty for a plain role.
    `passes`: of the target. `read_bytes`: bytes of the target's cache that these read per emitted token.
    `held_bytes`: of the caches of target and draft, at the end of the longest block, all requests together.
    `equal_to_own`, `equal_to_plain`: share of the emitted tokens that stand before the first one which is not that of
    its own baseline, and not that of plain decoding without the variant. The latter is None where tokens are drawn.
    """

    run: Run
    result: CellResult
    comparison: Comparison | None
    varies: str
    passes: Passes | None
    read_bytes: float | None
    held_bytes: float | None
    equal_to_own: float | None
    equal_to_plain: float | None

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.result.cell

    @property
    def tok_s(self) -> float | None:
        """Tokens per second; None where they may not be quoted."""
        values = self.result.values
        value = next((values[name] for name in SPEED if name in values), None)
        return value.value if value is not None else None

    @property
    def lossy(self) -> bool:
        """True if its engine declares that its tokens may differ."""
        return self.comparison is not None and self.comparison.tokens.lossy


@dataclass(frozen=True, slots=True)
class Group:
    """The modes of one scenario, context and batch of a run, plain ones first.

    `cache_share`: the share of the bytes of a plain decode step that is cache. `even_at`: the context from which on it
    is more than half, for this batch. None where the engine states no traffic.
    """

    run: Run
    scenario: str
    context: int
    batch: int
    modes: tuple[Mode, ...]
    cache_share: float | None
    even_at: int | None

    @property
    def plain(self) -> Mode | None:
        """Plain decoding without a variant."""
        plain_modes = (m for m in self.modes if m.cell.role == BASELINE and not m.cell.point.variant)
        return next(plain_modes, None)

    @property
    def exact(self) -> tuple[Mode, ...]:
        """The modes of whose tokens all that were compared are those of plain decoding without a variant."""
        return tuple(mode for mode in self.modes if mode.equal_to_plain == 1.0)

    def times_plain(self, mode: Mode) -> float | None:
        """Tokens per second of `mode` over those of plain decoding; None where one of them may not be quoted."""
        mine, theirs = mode.tok_s, self.plain.tok_s if self.plain is not None else None
        return mine / theirs if mine is not None and theirs else None


def tradeoff_of(runs: Iterable[tuple[Run, Sequence[Block]]]) -> tuple[Group, ...]:
    """The groups of `runs`, each with its measured blocks, in the order in which they were measured."""
    return tuple(group for run, blocks in runs for group in groups_of(run, blocks))


def groups_of(run: Run, blocks: Sequence[Block]) -> Iterator[Group]:
    of: dict[Cell, list[Block]] = defaultdict(list)
    for block in blocks:
        of[block.cell].append(block)
    grouped: dict[Point, list[CellResult]] = defaultdict(list)
    for result in run.cells:
        point = result.cell.point
        grouped[replace(point, scenario=point.unvaried)].append(result)
    for point, results in grouped.items():
        texts = longest_texts([b for r in results if r.cell.point == point and exact(run, r) for b in of[r.cell]])
        modes = [mode_of(run, result, of[result.cell], texts) for result in results]
        modes.sort(key=lambda mode: bool(mode.cell.point.variant))
        share, even_at = plain_step(traffic_of(run, point), point)
        yield Group(run, point.scenario, point.context, point.batch, tuple(modes), share, even_at)


def exact(run: Run, result: CellResult) -> bool:
    """True if the texts of a plain role are its baseline's."""
    comparison = run.comparison(result.cell.key)
    return result.status != "failed" and (comparison is None or comparison.tokens.identical)


def longest_texts(blocks: Iterable[Block]) -> Texts:
    longest: dict[tuple[int, int], tuple[int, ...]] = {}
    for block in blocks:
        if block.answered_all:
            for slot, tokens in enumerate(block.tokens):
                longest[block.prompt_set, slot] = max(longest.get((block.prompt_set, slot), ()), tokens, key=len)
    return longest


def mode_of(run: Run, result: CellResult, blocks: Sequence[Block], texts: Texts) -> Mode:
    cell, comparison = result.cell, run.comparison(result.cell.key)
    traffic, sampled = traffic_of(run, cell.point), run.scenarios[cell.point.scenario].sampling is not None
    emitted = sum(block.emitted for block in blocks)
    read = verified_bytes(blocks, traffic)
    return Mode(
        run=run,
        result=result,
        comparison=comparison,
        varies=variation(run, cell),
        passes=passes_of(blocks, emitted),
        read_bytes=read / emitted if read is not None and emitted else None,
        held_bytes=held(blocks, traffic, draft=cell.role.speculative),
        equal_to_own=equal_to_own(comparison) if comparison is not None else None,
        equal_to_plain=None if sampled else equal_share(blocks, texts),
    )


def traffic_of(run: Run, point: Point) -> Traffic | None:
    engine = run.engines.get(point.key)
    return engine.traffic if engine is not None else None


def passes_of(blocks: Sequence[Block], emitted: int) -> Passes | None:
    """Target passes per emitted token, by the engine's counts where it verifies in part; else a step is a pass."""
    steps = sum(a >= 0 for block in blocks for row in block.accepted for a in row)
    if not steps or not emitted:
        return None
    full, partial = (sum(b.counters.get(name, 0) for b in blocks) for name in (SPECPV_FULL, SPECPV_PARTIAL))
    return Passes(full / emitted, partial / emitted) if full or partial else Passes(steps / emitted)


def verified_bytes(blocks: Sequence[Block], traffic: Traffic | None) -> float | None:
    """Bytes of cache that the target's passes read over all blocks; None where steps or traffic are not observable."""
    if traffic is None or not any(block.accepted for block in blocks):
        return None
    return moved_by(blocks, traffic)["verify"].kv_read


def held(blocks: Sequence[Block], traffic: Traffic | None, *, draft: bool) -> float | None:
    """Bytes of the cached positions at the end of the longest block. What a window leaves out is held all the same."""
    if traffic is None or not blocks:
        return None
    positions = max(sum(n + len(t) for n, t in zip(b.prompt_lengths, b.tokens, strict=True)) for b in blocks)
    passes = [traffic.target, *([traffic.draft.extension] if draft and traffic.draft else [])]
    return float(positions * sum(map(position_bytes, passes)))


def position_bytes(of: PassTraffic) -> int:
    return sum(a.layers * a.position_bytes for a in of.attention)


def equal_to_own(comparison: Comparison) -> float | None:
    """Share of tokens before the first one that is not the own baseline's; of texts that differ, None where not all of
    them were compared to their ends, as in a run that was cut short.
    """
    check = comparison.tokens
    if check.identical:
        return 1.0 if check.compared_tokens else None
    return check.equal_share if set(comparison.prompt_sets) <= set(check.whole_sets) else None


def equal_share(blocks: Sequence[Block], texts: Texts) -> float | None:
    """Share of the tokens that stand before the first one that differs from `texts`, as far as both go."""
    same = compared = 0
    for block in blocks:
        if not block.answered_all:
            continue
        for slot, tokens in enumerate(block.tokens):
            pairs = list(zip(tokens, texts.get((block.prompt_set, slot), ()), strict=False))
            compared += len(pairs)
            same += next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return same / compared if compared else None


def plain_step(traffic: Traffic | None, point: Point) -> tuple[float | None, int | None]:
    """(the share of cache in the bytes of a plain decode step at the point's context, the context at which it is half).

    Windows are left out of the latter: it is that of layers which look at everything.
    """
    if traffic is None:
        return None, None
    target = traffic.target
    weights = target.weight_bytes + point.batch * target.token_bytes
    if target.experts is not None:
        routed = target.experts.distinct_of_slots([1] * point.batch)
        weights += round(target.experts.layers * target.experts.expert_bytes * routed)
    whole = sum(a.layers * a.position_bytes for a in target.attention if a.window is None)
    in_reach = sum(
        a.layers * a.position_bytes * min(point.context, a.window or point.context) for a in target.attention
    )
    cache = point.batch * in_reach
    even_at = -(-weights // (point.batch * whole)) if whole else None
    return cache / (cache + weights), even_at

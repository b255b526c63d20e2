"""Compare two stored runs, A and B: every figure with the ratio B / A and its interval, and the tokens.

Apart from reading the samples, the functions here are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from specgate import plugins
from specgate.analysis.block_figures import paired_figures
from specgate.analysis.intervals.between_runs import ASSUMED, of_one_role
from specgate.analysis.machine.disturbed_blocks import SetAside, set_aside, timed
from specgate.analysis.machine.memory import PEAKS
from specgate.analysis.prompt_acceptance import length_counts
from specgate.analysis.tokens.comparison import first_difference
from specgate.archive.comparing.engines import by_cell, same_prompts, target_of
from specgate.archive.comparing.two_samples import Estimate, Logs, by_prompt_set, log_ratio, log_ratio_of_ratios
from specgate.archive.stored_runs import StoredRun
from specgate.contract import BetweenRuns, Block, Cell, CellResult, Comparison, Run, Scenario, Value
from specgate.contract.comparisons import Change, Contrast, How, TokenContrast
from specgate.contract.metrics import METRICS, TIMES_OVER
from specgate.errors import UsageError
from specgate.planning.policy import FOR_CONTRASTS, find_policy
from specgate.planning.rule_names import nowhere, with_elsewhere
from specgate.run.recompute import meant_nothing

ACCEPTANCE = ("acceptance_length", "draft_acceptance_rate")
TIMED = ("ms", "tok/s", "req/s")
"""Units of metrics that are measured with a clock."""
OF_MEMORY = (*PEAKS, "kv_capacity_tokens", "kv_capacity_loss")
"""Metrics of memory in use when a block ended, or when an engine started: no prompts are paired in them."""
COMPARED = tuple(m.name for m in METRICS.values() if m.direction in ("higher", "lower") and m.name not in TIMES_OVER)


@dataclass(frozen=True, slots=True)
class Partners:
    """A cell of A and the matching cell of B, with the measured blocks of each."""

    result_a: CellResult
    result_b: CellResult
    run_a: Run
    run_b: Run
    blocks_a: Sequence[Block]
    blocks_b: Sequence[Block]

    @property
    def a(self) -> Cell:
        return self.result_a.cell

    @property
    def b(self) -> Cell:
        return self.result_b.cell

    @property
    def same_prompts(self) -> bool:
        return same_prompts(self.run_a, self.a.point, self.run_b, self.b.point)

    @property
    def refused(self) -> bool:
        """True if a server refused requests of either cell."""
        return self.result_a.refused or self.result_b.refused

    @property
    def between_speedups(self) -> tuple[BetweenRuns, BetweenRuns]:
        """Spread from process to process in the ratio to the baseline: as each run stored it, else ASSUMED."""
        a, b = (stored or ASSUMED for stored in self._between)
        return a, b

    @property
    def between_times(self) -> tuple[BetweenRuns, BetweenRuns]:
        """The same in the times of this role alone."""
        a, b = map(of_one_role, self._between)
        return a, b

    @property
    def _between(self) -> tuple[BetweenRuns | None, BetweenRuns | None]:
        return self.run_a.between_runs.get(self.a.key), self.run_b.between_runs.get(self.b.key)


def contrast_of(a: StoredRun, b: StoredRun) -> Contrast:
    """Compare B with A. Nothing is judged yet.

    Raises UsageError if one is a micro run and the other a full run, or if they have no cell in common.
    """
    check_comparable(a, b)
    theirs = {c.cell.anywhere: c for c in b.run.cells}
    pairs = [(c, theirs[c.cell.anywhere]) for c in a.run.cells if c.cell.anywhere in theirs]
    if not pairs:
        names = (", ".join(dict.fromkeys(cell_in_words(c.cell) for c in run.cells)) or "none" for run in (a.run, b.run))
        hint = "compare runs of one scenario: specgate runs compare matches scenario, context, batch and role"
        raise UsageError("no cell of A is also in B; A has {}; B has {}".format(*names), hint=hint)
    blocks_a, blocks_b = by_cell(a.blocks()), by_cell(b.blocks())
    partners = [
        Partners(mine, other, a.run, b.run, blocks_a.get(mine.cell, ()), blocks_b.get(other.cell, ()))
        for mine, other in pairs
    ]
    paired = {cell for mine, other in pairs for cell in (mine.cell, other.cell)}
    return Contrast(
        a=a.run,
        b=b.run,
        changes=tuple(change for p in partners for change in changes(p)),
        tokens=tuple(map(tokens, partners)),
        only_a=tuple(c.cell for c in a.run.cells if c.cell not in paired),
        only_b=tuple(c.cell for c in b.run.cells if c.cell not in paired),
    )


def judged(contrast: Contrast, policy: str) -> Contrast:
    """Return the contrast with the verdicts of a policy for comparisons. `policy`: its name, or a file."""
    gates = plugins.contrast_gates()
    judging = find_policy(policy, gates, FOR_CONTRASTS)
    runs = (contrast.a, contrast.b)
    whole = with_elsewhere(judging, [scenario for run in runs for scenario in run.scenarios.values()])
    dead = nowhere(whole, [result.cell for run in runs for result in run.cells])
    verdicts = tuple(
        verdict
        for rule in judging.rules
        for verdict in (
            [meant_nothing(rule, dead[rule.id])] if rule.id in dead else gates[rule.gate].judge(rule, contrast)
        )
    )
    return replace(contrast, verdicts=verdicts, policy=judging.name)


def check_comparable(a: StoredRun, b: StoredRun) -> None:
    if a.run.kind != b.run.kind:
        kinds = f"{a.path} is a {a.run.kind} run, {b.path} a {b.run.kind} run"
        raise UsageError(kinds, hint="micro blocks time engine steps, full ones whole requests: compare like with like")


def cell_in_words(cell: Cell) -> str:
    rate = "" if cell.point.rate is None else f" q{cell.point.rate:g}"
    return f"{cell.point.unvaried} c{cell.point.context} b{cell.point.batch}{rate} {cell.role_name}"


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def changes(partners: Partners) -> Iterator[Change]:
    """Every figure that one of the two cells has, the speed-up and the ratios beside it first."""
    if (speedup := speedup_change(partners)) is not None:
        yield speedup
        yield from changes_beside(partners)
    for metric in COMPARED:
        a, b = partners.result_a.values.get(metric), partners.result_b.values.get(metric)
        if a is not None or b is not None:
            yield change(partners, metric, a, b)


def change(partners: Partners, metric: str, a: Value | None, b: Value | None) -> Change:
    """One figure of both cells with the ratio B / A and its 95 % interval.

    The ratio is None if it may not be stated, and `reason_code` then says why.
    """
    untimed = How.BY_PROMPT if partners.same_prompts else How.OTHER_PROMPTS
    bare = Change(
        cell=partners.a,
        partner=partners.b,
        metric=metric,
        how=How.UNPAIRED if METRICS[metric].unit in TIMED or metric in OF_MEMORY else untimed,
        a=a.value if a else None,
        b=b.value if b else None,
        ratio=None,
        ci_low=None,
        ci_high=None,
        n=0,
        same_prompts=partners.same_prompts,
        between=partners.between_times if METRICS[metric].unit in TIMED else None,
    )
    if a is None or b is None or a.value is None or b.value is None:
        reasons = (v.reason_code if v is not None else "not_measured" for v in (a, b))
        return replace(bare, reason_code=next((r for r in reasons if r), "withheld"))
    if metric in ACCEPTANCE and partners.run_a.acceptance != partners.run_b.acceptance:
        return replace(bare, reason_code="acceptance_sources_differ")
    if (METRICS[metric].unit == "ms" or metric == "latency_speedup_ratio") and partners.refused:
        return replace(bare, reason_code="requests_refused")
    if not a.value or not b.value:
        return replace(bare, reason_code="zero")
    stated = replace(bare, ratio=b.value / a.value)
    if metric == "acceptance_length":
        return of_lengths(stated, partners)
    both = ((partners.run_a, partners.a, partners.blocks_a), (partners.run_b, partners.b, partners.blocks_b))
    sides = [
        per_prompt_set(run.scenarios[cell.point.scenario], timed(blocks, aside_in(run)), metric)
        for run, cell, blocks in both
    ]
    return of_logs(stated, *sides)


def of_lengths(stated: Change, partners: Partners) -> Change:
    """`stated` with the interval of the ratio of two acceptance lengths, clustered by prompt."""
    a, b = length_counts(partners.blocks_a, partners.blocks_b)
    estimate, n = log_ratio_of_ratios(a, b, paired=partners.same_prompts), min(len(a), len(b))
    if estimate is None:
        return replace(stated, reason_code="few_samples" if n else "no_interval")
    return with_interval(stated, estimate, n)


def of_logs(stated: Change, a: Logs, b: Logs) -> Change:
    """`stated` with the ratio of the geometric means over prompt sets, and its interval.

    Says why there is no interval where a or b is empty, which leaves the ratio as it is stated, or where there are too
    few prompt sets.
    """
    if stated.same_prompts:
        a, b = {key: a[key] for key in a if key in b}, {key: b[key] for key in b if key in a}
    if not a or not b:
        return replace(stated, reason_code="no_interval")
    mean_a, mean_b = (math.exp(math.fsum(side.values()) / len(side)) for side in (a, b))
    estimated = replace(stated, mean_a=mean_a, mean_b=mean_b, ratio=mean_b / mean_a, reason_code=None)
    estimate, n = log_ratio(a, b, paired=stated.same_prompts), min(len(a), len(b))
    return (
        replace(estimated, reason_code="few_prompt_sets") if estimate is None else with_interval(estimated, estimate, n)
    )


def with_interval(bare: Change, estimate: Estimate, n: int) -> Change:
    low, high = estimate.interval(between=bare.between)
    return replace(bare, ratio=math.exp(estimate.mean), ci_low=math.exp(low), ci_high=math.exp(high), n=n)


def aside_in(run: Run) -> SetAside:
    """The rounds of a run whose times were set aside."""
    return set_aside({key: c.host for key, c in run.conditions.items() if c.host is not None})


def per_prompt_set(scenario: Scenario, blocks: Sequence[Block], metric: str) -> Logs:
    """The logarithm of the metric per prompt set. Empty if it is not a metric of single blocks, or 0 in one of them."""
    live = [b for b in blocks if b.emitted]
    of = paired_figures(live, scenario.whole_requests).get(metric)
    values = [(b.prompt_set, of(b)) for b in live] if of else []
    usable = all(value > 0 for _, value in values)
    return by_prompt_set((prompt_set, math.log(value)) for prompt_set, value in values) if usable else {}


def speedup_change(partners: Partners) -> Change | None:
    """The ratio of the two speed-ups; None if a run has no speed-up for the cell.

    Each speed-up is itself paired in time with the baseline of its own run. The two are then compared by prompt set.
    """
    mine, other = partners.run_a.comparison(partners.a.key), partners.run_b.comparison(partners.b.key)
    if mine is None or other is None:
        return None
    bare = change(partners, other.speedup.metric, mine.speedup, other.speedup)
    stated = replace(bare, how=How.OVER_BASELINES, between=partners.between_speedups)
    return stated if stated.ratio is None else of_logs(stated, per_pair(mine), per_pair(other))


def per_pair(comparison: Comparison) -> Logs:
    """The logarithm of the speed-up per prompt set, from the pairs of a run."""
    return by_prompt_set(zip(comparison.prompt_sets, comparison.log_ratios, strict=True))


def changes_beside(partners: Partners) -> Iterator[Change]:
    """The other ratios over the baseline that both runs have. They are shown without an interval."""
    mine, other = partners.run_a.comparison(partners.a.key), partners.run_b.comparison(partners.b.key)
    theirs = {value.metric: value for value in other.beside} if other else {}
    for value in mine.beside if mine else ():
        if value.metric in theirs:
            yield replace(change(partners, value.metric, value, theirs[value.metric]), how=How.OVER_BASELINES)


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tokens(partners: Partners) -> TokenContrast:
    """Compare the tokens of blocks with the same prompt set and round, up to the length of the shorter sequence."""
    if (reason := incomparable(partners)) is not None:
        return TokenContrast(partners.a, 0, 0, 0, None, reason)
    theirs = {(b.prompt_set, b.round): b for b in partners.blocks_b}
    sequences = [
        (x, y)
        for block in partners.blocks_a
        if (block.prompt_set, block.round) in theirs
        for x, y in zip_longest(block.tokens, theirs[block.prompt_set, block.round].tokens, fillvalue=())
    ]
    places = [at for x, y in sequences if (at := first_difference(x, y)) is not None]
    compared = sum(min(len(x), len(y)) for x, y in sequences)
    reason = None if compared else "not_measured"
    return TokenContrast(partners.a, compared, len(sequences), len(places), min(places, default=None), reason)


def incomparable(partners: Partners) -> str | None:
    """Reason for which a cell's tokens may differ between the two runs; None if they must agree."""
    run_a, run_b = partners.run_a, partners.run_b
    if not partners.same_prompts:
        return "prompts_differ"
    if "forced" in (run_a.acceptance, run_b.acceptance) and partners.a.role.speculative:
        return "acceptance_forced"
    if target_of(run_a, partners.a.point) != target_of(run_b, partners.b.point):
        return "targets_differ"
    return None

"""Error rates and power of `specgate ab`'s verdicts, on simulated blocks.

    python -m bench.simulations.ab_simulation --runs 40000

Everything is as the command does it by default: process pairs over one prompt set each, one ABBA group per
role in the order that `schedule_of` draws, a prefill and an untimed block per side before them. The step times of two
roles and the prefill time decide. A true difference is one of the step time of spec-3 alone: nothing else helps to find
it.

A comparison is judged at the error of its first look (`analysis.two_builds.looks`). `--table looks` extends it.

The acceptance length decides as well. Where both builds emit the same texts, it is the same by count and takes no part.
Where texts differ, it does: see `acceptances`.

`tests/analysis/two_builds/test_words.py` holds the vectorised rule used here to the one that judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import click
import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.simulations.error_rates import bound
from specgate.ab.schedule import other, schedule_of
from specgate.analysis.intervals.decision import spent
from specgate.analysis.two_builds.estimates import FITTED_FROM
from specgate.analysis.two_builds.outcomes import share
from specgate.contract.two_builds import Margins, Word
from specgate.planning.plan import points_of
from tests.support.factories import scenario

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

WORDS = (Word.SLOWER, Word.FASTER, Word.SAME, Word.CANNOT_TELL)
SLOWER, FASTER, SAME, CANNOT_TELL = range(4)
PREFILL, BASELINE, SPEC, ACCEPTANCE = range(4)
"""Columns of the quantities."""
DRAWS = 512
"""Schedules that are drawn; a run has one of them."""
TRUE_PCT = (0.0, 0.3, 0.5, 1.0, 2.0, 3.0)
"""Differences of the new build's step time in percent. 0.5 is the margin."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Disturbances of the blocks of a session. All figures are percent of a block's time.

    `process`: standard deviation of ln(new / old) between process pairs, of every quantity by itself; with `shared`, of
    all quantities together.
    `block`: standard deviation of a block. `freedom`: of Student's t, scaled to these two; None: normal.
    `memory`: correlation of a block with the one before it.
    `every`, `slow`: each `every`-th block takes `slow` longer; with `by_chance`, counted from another block in every
        process pair. `drift`: blocks get slower over the session by so much.
    `state`: (share of processes, percent) that are slower from their start to their end.
    `stalls`: (share of blocks, percent) that are slower.
    `second`: the process that is started second is faster for as long as it lives.
    `changed`: share of the prompts to which the new build gives another text.
    `apart`: the processes of a pair run one after the other. `groups`: per role, as `--quads` says.
    """

    name: str
    process: float = 0.1
    block: float = 0.1
    freedom: int | None = None
    memory: float = 0.0
    every: int = 0
    slow: float = 1.0
    by_chance: bool = False
    drift: float = 0.0
    state: tuple[float, float] = (0.0, 0.0)
    stalls: tuple[float, float] = (0.0, 0.0)
    second: float = 0.0
    changed: float = 0.0
    shared: bool = False
    apart: bool = False
    groups: int = 2


NOISES = (
    *(Noise(f"process sd {sd:g} %", process=sd, block=0.05) for sd in (0.02, 0.1, 0.2, 0.26, 0.45)),
    Noise("process sd 0.26 %, one for all quantities", process=0.26, block=0.05, shared=True),
    Noise("process sd 0.26 %, half of the texts change", process=0.26, block=0.05, changed=0.5),
    Noise("block noise 0.3 %", block=0.3),
    Noise("AR(1) 0.9 between blocks of 0.3 %", block=0.3, memory=0.9),
    Noise("the same, builds apart", block=0.3, memory=0.9, apart=True),
    Noise("every 4th block 1 % slow", every=4),
    Noise("every 8th block 1 % slow", every=8),
    Noise("every 4th block 1 % slow, from a block by chance", every=4, by_chance=True),
    Noise("the same, one ABBA group per role (`--quads 1`)", every=4, by_chance=True, groups=1),
    Noise("the second process of a pair 0.4 % faster", process=0.08, block=0.05, second=0.4),
    Noise("drift of 1 % over the session", drift=1.0),
    Noise("the same, builds apart", drift=1.0, apart=True),
    Noise("30 % of processes 1 % slower", state=(0.3, 1.0)),
    Noise("heavy tails: t with 3 degrees of freedom", process=0.2, block=0.3, freedom=3),
    Noise("2 % of blocks 3 % slow", stalls=(0.02, 3.0)),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of drawn schedules.

    `signs`: +1 for the new side and −1 for the old one, float64 [draws, pairs, places]; places in running order.
    `quantities`: the quantity of each place, [places].
    `firsts`: +1 where the new side's process was started first, −1 where the old one's was, float64 [draws, pairs].
    """

    signs: Floats
    quantities: Codes
    firsts: Floats


def layout(looks: Sequence[int], noise: Noise, draws: int = DRAWS) -> Layout:
    """Schedules of as many seeds, drawn look by look. The places of a pair are a prefill of either side, then the
    groups of either role.
    """
    pairs = looks[-1]
    signs, firsts = np.empty((draws, pairs, 2 + 8 * noise.groups)), np.empty((draws, pairs))
    for seed in range(draws):
        plan = scenario(prompt_sets=8, rounds=4)
        plan = replace(plan, workload=replace(plan.workload, seed=seed))
        points = [(plan, point) for point in points_of(plan, "any")]
        drawn_pairs = [schedule_of(points, b - a, 1, noise.groups, a) for a, b in pairwise((0, *looks))]
        for pair in chain.from_iterable(drawn_pairs):
            (visit,) = pair.visits
            order = [visit.first, other(visit.first), *(side for group in visit.groups for side in group.order)]
            if noise.apart:
                order = [side for side in order[:2] for _ in range(len(order) // 2)]
            signs[seed, pair.number] = [1.0 if side == "new" else -1.0 for side in order]
            firsts[seed, pair.number] = 1.0 if pair.first == "new" else -1.0
    groups, halves = [BASELINE] * 4 + [SPEC] * 4, [BASELINE] * 2 + [SPEC] * 2
    places = [PREFILL, *halves * noise.groups] * 2 if noise.apart else [PREFILL] * 2 + groups * noise.groups
    return Layout(signs, np.array(places), firsts)


def blocks(noise: Noise, runs: int, pairs: int, source: np.random.Generator) -> Floats:
    """ln of the time of every prefill and block in running order, of whichever side: float64 [runs, pairs, places]."""
    decoded = 8 * noise.groups
    count = (2 + decoded) * pairs
    times = noise.block / 100 * drawn(source, (runs, count), noise.freedom)
    for i in range(1, count if noise.memory else 1):
        times[:, i] = noise.memory * times[:, i - 1] + math.sqrt(1 - noise.memory**2) * times[:, i]
    times += noise.drift / 100 * np.arange(count) / count
    times += noise.stalls[1] / 100 * (source.random((runs, count)) < noise.stalls[0])
    times = times.reshape(runs, pairs, 2 + decoded)
    if noise.every:
        timed = (np.arange((2 + decoded) * pairs) + 1).reshape(pairs, 2 + decoded)[:, 2:]  # two before them are untimed
        phase = source.integers(noise.every, size=(runs, pairs if noise.by_chance else 1, 1))
        times[:, :, 2:] += noise.slow / 100 * (timed % noise.every == phase)
    return times


def drawn(source: np.random.Generator, shape: tuple[int, ...], freedom: int | None) -> Floats:
    """Noise of standard deviation 1."""
    if freedom is None:
        return source.standard_normal(shape)
    return source.standard_t(freedom, shape) * math.sqrt((freedom - 2) / freedom)


def log_ratios(
    noise: Noise, runs: int, pairs: int, source: np.random.Generator, looks: Sequence[int] = ()
) -> tuple[Floats, Floats]:
    """ln(new / old) of PREFILL, BASELINE and SPEC of every process pair of equal builds, float64 [runs, pairs, 3]; and
    which side was started first, as `Layout.firsts` has it, float64 [runs, pairs].
    """
    plan = layout(looks or (pairs,), noise)
    run = source.integers(len(plan.signs), size=runs)
    signed, firsts = plan.signs[run] * blocks(noise, runs, pairs, source), plan.firsts[run]
    places = [plan.quantities == quantity for quantity in (PREFILL, BASELINE, SPEC)]
    ratios = np.stack([signed[:, :, of].sum(axis=2) / (of.sum() / 2) for of in places], axis=2)
    ratios += noise.process / 100 * drawn(source, (runs, pairs, 1 if noise.shared else 3), noise.freedom)
    slower = source.random((2, runs, pairs, 1)) < noise.state[0]
    ratios += math.log1p(noise.state[1] / 100) * (slower[1].astype(float) - slower[0])
    return ratios + noise.second / 100 * firsts[:, :, None], firsts


def acceptances(
    changed: float, runs: int, prompts: int, source: np.random.Generator, moved: float = 6.0
) -> tuple[Floats, Floats]:
    """Acceptance lengths of the old and the new build, float64 [runs, prompts], over equally many steps each.

    Prompts have a length of 3.6 ± 0.6; another text moves it by `moved` percent, up or down. With 6 %,
    the length of 8 prompts differs by 1.5 % where half of the texts change, as between source trees of the built-in
    engine.
    """
    old = np.clip(source.normal(3.6, 0.6, (runs, prompts)), 1.5, 5.0)
    new = old * (1 + moved / 100 * source.standard_normal(old.shape) * (source.random(old.shape) < changed))
    return old, new


# ── the rule, for many runs at once ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Estimates:
    """`Difference` for many runs at once: float64 [runs, quantities] each."""

    mean: Floats
    error: Floats
    freedom: Floats

    @classmethod
    def beside(cls, *parts: Estimates) -> Estimates:
        """The quantities of all `parts`."""
        return cls(*(np.hstack([getattr(part, name) for part in parts]) for name in ("mean", "error", "freedom")))


def over_processes(ratios: Floats, firsts: Floats) -> Estimates:
    """`estimates.over_processes` of ratios [runs, pairs, quantities], by least squares with the order of starting."""
    pairs = ratios.shape[1]
    fitted = np.minimum((firsts > 0).sum(axis=1), (firsts < 0).sum(axis=1)) >= FITTED_FROM
    design = np.stack([np.ones_like(firsts), np.where(fitted[:, None], firsts, 0.0)], axis=2)
    inverse = np.linalg.pinv(design.swapaxes(1, 2) @ design)
    fit = inverse @ design.swapaxes(1, 2) @ ratios
    freedom = np.where(fitted, pairs - 2, pairs - 1)[:, None]
    squares = ((ratios - design @ fit) ** 2).sum(axis=1)
    error = np.sqrt(squares / freedom * inverse[:, :1, 0])
    return Estimates(fit[:, 0], error, np.broadcast_to(freedom, error.shape).astype(float))


def over_prompts(old: Floats, new: Floats) -> Estimates:
    """`estimates.over_prompts` where every prompt has equally many steps, of lengths [runs, prompts]; more is worse."""
    n = old.shape[1]
    shares = [side / side.sum(axis=1, keepdims=True) - 1 / n for side in (old, new)]
    mean = np.log(old.mean(axis=1) / new.mean(axis=1))
    error = np.sqrt(n / (n - 1) * ((shares[1] - shares[0]) ** 2).sum(axis=1))
    return Estimates(mean[:, None], error[:, None], np.full((len(mean), 1), n - 1.0))


def words(of: Estimates, margins: Sequence[float], error: float) -> Codes:
    """`words.words_of` for a family of quantities, turned so that more is worse: indices of WORDS, [runs, quantities].

    `margins`: of each quantity, on the log scale.
    """
    mean, se = of.mean, of.error
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(se > 0, mean / se, np.where(mean > 0, np.inf, -np.inf))
        mirrored = np.where(se > 0, -mean / se, np.where(mean < 0, np.inf, -np.inf))
    codes = np.full(mean.shape, CANNOT_TELL)
    codes[holm(special.stdtr(of.freedom, -mirrored), error)] = FASTER
    codes[holm(special.stdtr(of.freedom, -ratio), error)] = SLOWER
    codes[np.abs(mean) + special.stdtrit(of.freedom, 1 - error) * se < np.asarray(margins)] = SAME
    return codes


def holm(chances: Floats, error: float) -> NDArray[np.bool_]:
    """`words.holm` for every row of p-values."""
    count = chances.shape[1]
    order = np.argsort(chances, axis=1, kind="stable")
    passed = np.take_along_axis(chances, order, axis=1) <= error / np.arange(count, 0, -1)
    rejected = np.empty_like(passed)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(passed, axis=1), axis=1)
    return rejected


def overall(codes: Codes) -> Codes:
    """`words.overall` for every row."""
    whole = np.full(len(codes), SAME)
    for word in (FASTER, CANNOT_TELL, SLOWER):
        whole[(codes == word).any(axis=1)] = word
    return whole


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Outcome:
    """The words of many runs at one true difference, in percent: of each quantity [runs, quantities], of the whole."""

    true: float
    each: Codes
    whole: Codes


def simulate(noise: Noise, runs: int, pairs: int, source: np.random.Generator, margins: Margins) -> Iterator[Outcome]:
    """The outcome of the same noise at every true difference."""
    ratios, firsts = log_ratios(noise, runs, pairs, source)
    texts = [over_prompts(*acceptances(noise.changed, runs, pairs, source))] if noise.changed else []
    percents = [margins.prefill_pct, margins.step_pct, margins.step_pct, *[margins.acceptance_pct] * len(texts)]
    times = over_processes(ratios, firsts)
    for true in TRUE_PCT:
        moved = replace(times, mean=times.mean + math.log1p(true / 100) * (np.arange(3) == SPEC))
        each = words(Estimates.beside(moved, *texts), [math.log1p(p / 100) for p in percents], margins.error)
        yield Outcome(true, each, overall(each))


def marked(wrong: NDArray[np.bool_], goal: float, *, at_most: bool) -> str:
    """A share in percent, with a `!` where its 99 % interval lies on the wrong side of the goal."""
    share, low, high = bound(wrong)
    missed = low > goal if at_most else high < goal
    return f"{share:.2%}{' !' if missed else ''}"


def summary(name: str, pairs: int, outcomes: Sequence[Outcome]) -> str:
    """A row: false alarms, SAME, false SAME at the margin, and power."""
    at = {outcome.true: outcome for outcome in outcomes}
    cells = [
        *(marked((at[0.0].each == word).any(axis=1), 0.005, at_most=True) for word in (SLOWER, FASTER)),
        f"{(at[0.0].whole == SAME).mean():.1%}",
        marked(at[0.5].each[:, SPEC] == SAME, 0.005, at_most=True),
        marked(at[1.0].whole == SLOWER, 0.95, at_most=False),
        f"{(at[2.0].whole == SLOWER).mean():.2%}",
        marked(at[3.0].whole == SLOWER, 0.995, at_most=False),
    ]
    return f"| {name} | {pairs} | {' | '.join(cells)} |"


def rates(runs: int, counts: Sequence[int], margins: Margins, source: np.random.Generator) -> Iterator[str]:
    """A row per noise and number of process pairs; `!` marks a share that misses its goal."""
    yield (
        "| noise | pairs | A/A: SLOWER | A/A: FASTER | A/A: SAME | 0.5 %: false SAME | 1 %: SLOWER | 2 %: SLOWER "
        f"| 3 %: SLOWER |\n{'|---' * 9}|"
    )
    for pairs in counts:
        for noise in NOISES:
            yield summary(noise.name, pairs, list(simulate(noise, runs, pairs, source, margins)))


def all_words(runs: int, counts: Sequence[int], margins: Margins, source: np.random.Generator) -> Iterator[str]:
    """Every word at every true difference: of the step time of spec-3 alone, and of the whole."""
    heads = [f"{what}: {word}" for what in ("spec-3", "whole") for word in WORDS]
    yield f"| noise | pairs | true | {' | '.join(heads)} |\n{'|---' * 11}|"
    for pairs in counts:
        for noise in NOISES:
            for outcome in simulate(noise, runs, pairs, source, margins):
                shares = [float((of == w).mean()) for of in (outcome.each[:, SPEC], outcome.whole) for w in range(4)]
                yield f"| {noise.name} | {pairs} | {outcome.true:g} % | {' | '.join(f'{s:.2%}' for s in shares)} |"


def enough_pairs(runs: int, counts: Sequence[int], margins: Margins, source: np.random.Generator) -> Iterator[str]:
    """Print the process pairs that find a slow-down, and those that prove that there is none, by the noise of
    processes.
    """
    heads = [f"{true} %: SLOWER in 95 %" for true in (1, 2, 3)]
    yield f"| process sd | A/A: SAME in 95 % | {' | '.join(heads)} |\n{'|---' * 5}|"
    for sd in (0.02, 0.1, 0.2, 0.26, 0.45, 0.65, 1.0):
        first: dict[str, int] = {}
        for pairs in counts:
            at = {o.true: o.whole for o in simulate(Noise("", sd, 0.05), runs, pairs, source, margins)}
            shares = {"A/A": (at[0.0] == SAME).mean()} | {str(t): (at[t] == SLOWER).mean() for t in (1.0, 2.0, 3.0)}
            first |= {key: pairs for key, share in shares.items() if share >= 0.95 and key not in first}
        cells = [str(first.get(key, f"> {max(counts)}")) for key in ("A/A", "1.0", "2.0", "3.0")]
        yield f"| {sd:g} % | {' | '.join(cells)} |"


def enough_prompts(
    runs: int, counts: Sequence[int], margins: Margins, source: np.random.Generator, moved: float = 6.0
) -> Iterator[str]:
    """Print the verdicts on an acceptance length that stays while texts change."""
    yield f"| prompts | texts that change | SAME | SLOWER | FASTER | CANNOT TELL |\n{'|---' * 6}|"
    for prompts in counts:
        for changed in (0.1, 0.5, 1.0):
            lengths = over_prompts(*acceptances(changed, runs, prompts, source, moved))
            codes = words(lengths, [math.log1p(margins.acceptance_pct / 100)], margins.error)
            shares = [f"{(codes == word).mean():.2%}" for word in (SAME, SLOWER, FASTER, CANNOT_TELL)]
            yield f"| {prompts} | {changed:.0%} | {' | '.join(shares)} |"


def extended(runs: int, counts: Sequence[int], margins: Margins, source: np.random.Generator) -> Iterator[str]:
    """A comparison that is extended from look to look while it cannot tell: what is wrong by the end, and what the
    first look sees, with the error shared as it ships, by halves, and not shared.
    """
    total = margins.error / share(1.0, 1)  # `margins` has the error of the first look
    sharing: dict[str, Callable[[float, int], float]] = {"80/20": share, "halves": spent, "one look": lambda e, _: e}
    ends = " → ".join(map(str, counts))
    yield (
        f"| noise | error shared | A/A: SLOWER | 0.5 %: false SAME | A/A: SAME | 1 %: SLOWER | {ends}: A/A: SLOWER "
        f"| 0.5 %: false SAME | A/A: SAME | 1 %: SLOWER |\n{'|---' * 10}|"
    )
    for noise in (n for n in NOISES if not n.changed and n.groups == 2):
        ratios, firsts = log_ratios(noise, runs, counts[-1], source, counts)
        for name, shared in sharing.items():
            ends_at = counts if name != "one look" else counts[:1]
            errors = [shared(total, look) for look in range(1, len(ends_at) + 1)]
            yield f"| {noise.name} | {name} | {' | '.join(looks_at(ratios, firsts, ends_at, errors, margins))} |"


def looks_at(
    ratios: Floats, firsts: Floats, counts: Sequence[int], errors: Sequence[float], margins: Margins
) -> list[str]:
    """The rates after the first look, and after the last one."""
    scale = [math.log1p(p / 100) for p in (margins.prefill_pct, margins.step_pct, margins.step_pct)]
    cells: dict[bool, list[str]] = {True: [], False: []}
    for what, true, goal in ((SLOWER, 0.0, 0.005), (SAME, 0.5, 0.005), (SAME, 0.0, None), (SLOWER, 1.0, None)):
        whole, open_ = np.full(len(ratios), CANNOT_TELL), np.ones(len(ratios), dtype=bool)
        step = whole.copy()
        for look, (pairs, error) in enumerate(zip(counts, errors, strict=True)):
            of = over_processes(ratios[:, :pairs], firsts[:, :pairs])
            codes = words(replace(of, mean=of.mean + math.log1p(true / 100) * (np.arange(3) == SPEC)), scale, error)
            whole[open_], step[open_] = overall(codes)[open_], codes[open_, SPEC]
            open_ = whole == CANNOT_TELL
            if look in (0, len(counts) - 1):
                hits = (step if true == 0.5 else whole) == what
                text = marked(hits, goal, at_most=True) if goal is not None else f"{hits.mean():.2%}"
                cells[look == 0] += [text]
    return [*cells[True], *cells[False]]


def moved_texts(runs: int, counts: Sequence[int], margins: Margins, source: np.random.Generator) -> Iterator[str]:
    """`enough_prompts` for a planted pair, where another text moves the acceptance length by 1.3 %."""
    yield from enough_prompts(runs, counts, margins, source, 1.3)


TABLES = {
    "looks": (extended, (8, 16, 24)),
    "rates": (rates, (8, 5, 12)),
    "words": (all_words, (8,)),
    "pairs": (enough_pairs, (3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48)),
    "prompts": (enough_prompts, (8, 16, 32, 64, 128, 256)),
    "planted": (moved_texts, (8, 16, 32, 64)),
}
"""What can be printed, and for which numbers of process pairs or prompts."""


@click.command()
@click.option("--runs", default=40_000, show_default=True, type=click.IntRange(100))
@click.option("--table", default="rates", show_default=True, type=click.Choice(list(TABLES)))
@click.option("--pairs", "counts", multiple=True, type=click.IntRange(3), help="Process pairs, or prompts.")
@click.option("--seed", default=1, show_default=True)
def main(runs: int, table: str, counts: Sequence[int], seed: int) -> None:
    """Print a table of simulated rates."""
    margins = Margins()
    margins = replace(margins, error=share(margins.error, 1))
    rows, usual = TABLES[table]
    of = f"step {margins.step_pct:g} %, prefill {margins.prefill_pct:g} %, acceptance {margins.acceptance_pct:g} %"
    click.echo(f"{runs} runs each, numpy {np.__version__}, error {margins.error:g} a side; margins: {of}")
    for row in rows(runs, counts or usual, margins, np.random.default_rng(seed)):
        click.echo(row)


if __name__ == "__main__":
    main()

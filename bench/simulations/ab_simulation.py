"""Error rates and power of `specgate ab`'s verdicts, on simulated blocks.

    python -m bench.simulations.ab_simulation --runs 20000

Everything is as the command does it by default: process pairs over one prompt set each, two ABBA groups per role in the
order that `schedule_of` draws, a prefill and (on a GPU) an untimed block per side before them, the usual looks
and margins. The step times of two roles decide, the prefill time where it is long enough, and the acceptance length
where texts change: where they do not, it is the same by count. A true difference is one of the step time of spec-3
alone: nothing else helps to find it.

`tests/analysis/two_builds/test_outcomes.py` holds the vectorised rule used here to the one that judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import click
import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.simulations.error_rates import bound
from specgate.ab.request import USUAL_LOOKS
from specgate.ab.schedule import other, schedule_of
from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.analysis.two_builds import estimates as judge
from specgate.analysis.two_builds.estimates import FITTED_FROM
from specgate.analysis.two_builds.outcomes import log_margin, share, words_of
from specgate.contract import two_builds
from specgate.contract.two_builds import Device, Margins, Word
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
"""Differences of the new build's step time in percent."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Disturbances of the blocks of a session. All figures are percent of a block's time.

    `process`: standard deviation of ln(new / old) between process pairs, of every quantity by itself; with `shared`, of
    all quantities together. `prefill`: that of the prefill time, where it is another; infinite for one that is too
        short to decide.
    `block`: standard deviation of a block. `freedom`: of Student's t, scaled to these two; None: normal.
    `memory`: correlation of a block with the one before it.
    `every`, `slow`: each `every`-th block takes `slow` longer; with `by_chance`, counted from another block in every
        process pair. `drift`: blocks get slower over the session by so much.
    `state`: (share of processes, percent) that are slower from their start to their end.
    `stalls`: (share of blocks, percent) that are slower.
    `second`: the process that is started second is faster for as long as it lives.
    `changed`: share of the prompts to which the new build gives another text, which moves their acceptance length by
        `moved` (sd); of `batch` prompts in every process pair.
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
    moved: float = 6.0
    batch: int = 1
    prefill: float | None = None
    device: Device = "gpu"
    shared: bool = False
    apart: bool = False
    groups: int = 2


SESSIONS = (
    Noise("H200, 8B, 32K, quiet", process=0.08, block=0.0, prefill=0.24),
    Noise("a noisy loan", process=0.4, block=0.0, prefill=0.38),
    Noise("a quarter of the texts moves by 1.3 %", process=0.08, block=0.0, prefill=0.24, changed=0.25, moved=1.3),
    Noise("server, batch 8, half of the texts by 6 %", 0.3, 0.0, prefill=math.inf, changed=0.5, batch=8),
    Noise("small pair, prefill of 20 ms (t, 3 degrees)", 0.3, 0.0, 3, prefill=math.inf),
    Noise("30 % of processes 1 % slower", block=0.0, state=(0.3, 1.0)),
    Noise("heavy tails: 0.3 %, t with 3 degrees", process=0.3, block=0.0, freedom=3),
    Noise("CPU, 1 %", process=1.0, block=0.0, device="cpu"),
    Noise("CPU, 3 %", process=3.0, block=0.0, device="cpu"),
)
"""As sessions were seen: on H200s, servers, small pairs and shared CPUs."""
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
    prefill = noise.process if noise.prefill in (None, math.inf) else noise.prefill
    sizes = np.array([prefill, noise.process, noise.process]) / 100
    ratios += sizes * drawn(source, (runs, pairs, 1 if noise.shared else 3), noise.freedom)
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
    """Words of many runs at one true difference: of the step time of spec-3 and of the whole, int64 [runs].

    `pairs`: process pairs that were measured, [runs]. `within`: margin within which all are the same, on the log scale.
    """

    spec: Codes
    whole: Codes
    pairs: Codes
    within: Floats


@dataclass(frozen=True, slots=True)
class Session:
    """Differences of many comparisons of equal builds: see `log_ratios` and `acceptances`."""

    noise: Noise
    ratios: Floats
    firsts: Floats
    lengths: tuple[Floats, Floats] | None

    @classmethod
    def of(cls, noise: Noise, runs: int, looks: Sequence[int], source: np.random.Generator) -> Session:
        """Draw `runs` comparisons that go on to the last of `looks`."""
        ratios, firsts = log_ratios(noise, runs, looks[-1], source, looks)
        prompts = looks[-1] * noise.batch
        lengths = acceptances(noise.changed, runs, prompts, source, noise.moved) if noise.changed else None
        return cls(noise, ratios, firsts, lengths)

    def estimates(self, pairs: int, true: float) -> Estimates:
        """Estimates from the first `pairs` process pairs, where spec-3 takes `true` percent more time per step."""
        times = over_processes(self.ratios[:, :pairs], self.firsts[:, :pairs])
        times = replace(times, mean=times.mean + math.log1p(true / 100) * (np.arange(3) == SPEC))
        if self.noise.prefill == math.inf:
            times = Estimates(times.mean[:, 1:], times.error[:, 1:], times.freedom[:, 1:])
        if self.lengths is None:
            return times
        old, new = (side[:, : pairs * self.noise.batch] for side in self.lengths)
        return Estimates.beside(times, over_prompts(old, new))

    def margins(self, margins: Margins) -> list[float]:
        """Margin of each quantity of `estimates`, on the log scale."""
        names = [] if self.noise.prefill == math.inf else [two_builds.PREFILL]
        names += [two_builds.STEP] * 2 + ([two_builds.ACCEPTANCE] if self.lengths is not None else [])
        return [math.log1p(margins.percent(name) / 100) for name in names]

    def outcome(self, looks: Sequence[int], margins: Margins, true: float) -> Outcome:
        """Judge after each of `looks`, as long as the word is CANNOT TELL."""
        scale, runs = self.margins(margins), len(self.ratios)
        at = scale.index(math.log1p(margins.percent(two_builds.STEP) / 100)) + 1
        whole, spec, pairs = (np.full(runs, CANNOT_TELL) for _ in range(3))
        within, open_ = np.empty(runs), np.ones(runs, dtype=bool)
        for before, count in pairwise((0, *looks)):
            error, of = share(margins.error, count, before), self.estimates(count, true)
            codes = words(of, scale, error)
            bounds = (np.abs(of.mean) + special.stdtrit(of.freedom, 1 - error) * of.error).max(axis=1)
            whole[open_], spec[open_], pairs[open_] = overall(codes)[open_], codes[open_, at], count
            within[open_] = bounds[open_]
            open_ = whole == CANNOT_TELL
        return Outcome(spec, whole, pairs, within)


def marked(wrong: NDArray[np.bool_], goal: float) -> str:
    """A share in percent, with a `!` where its 99 % interval lies above the goal."""
    share, low, _ = bound(wrong)
    return f"{share:.2%}{' !' if low > goal else ''}"


def row(noise: Noise, runs: int, looks: Sequence[int], source: np.random.Generator) -> str:
    """Judge equal builds, a loss as large as the margin, and losses that are to be found: by one row of the table."""
    session, margins = Session.of(noise, runs, looks, source), Margins(device=noise.device)
    error, margin = margins.error, margins.percent(two_builds.STEP)
    same, edge = (session.outcome(looks, margins, true) for true in (0.0, margin))
    cells = [
        *(marked(same.whole == word, error) for word in (SLOWER, FASTER)),
        f"{((same.whole == SAME) & (same.pairs == looks[0])).mean():.0%} / {(same.whole == SAME).mean():.1%}",
        f"{same.pairs.mean():.1f}",
        f"{100 * math.expm1(float(np.median(same.within))):.2f} %",
        marked(edge.spec == SAME, error),
        marked(edge.within < math.log1p(margin / 100), error),
        *(f"{(session.outcome(looks, margins, true).whole == SLOWER).mean():.1%}" for true in (1.0, 3.0)),
        f"{(session.outcome(looks, margins, 2 * margin).whole == SLOWER).mean():.1%}",
    ]
    return f"| {noise.name} | {' | '.join(cells)} |"


def judged(ratios: Floats, looks: Sequence[int], margins: Margins) -> tuple[Word, Word]:
    """Words of the last quantity and of the whole that the shipped rule says of two servers which somebody else has
    started. `ratios`: ln(new / old) of the step times in every session, [sessions, quantities].
    """
    processes, margin = OF_TIME.process_sd * math.sqrt(2), log_margin(margins.percent(two_builds.STEP))
    firsts = {i: two_builds.SIDES[i % 2] for i in range(len(ratios))}
    for before, count in pairwise((0, *looks)):
        family = {
            str(q): judge.over_processes(
                {i: [float(row[q])] for i, row in enumerate(ratios[:count])}, firsts, processes
            )
            for q in range(ratios.shape[1])
        }
        known = {q: difference for q, difference in family.items() if difference is not None}
        each = list(words_of(known, dict.fromkeys(known, margin), share(margins.error, count, before)).values())
        whole = min(each, key=(Word.SLOWER, Word.CANNOT_TELL, Word.FASTER, Word.SAME).index)
        if whole is not Word.CANNOT_TELL:
            break
    return each[-1], whole


def attached(processes: float, runs: int, looks: Sequence[int], source: np.random.Generator) -> str:
    """Judge servers whose processes differ by `processes` percent (sd) each, and whose sessions by 0.3 %: equal builds,
    and a step time of spec-3 that is slower by the margin or by twice as much.
    """
    margins, cells = Margins(device="attached"), []
    percent = margins.percent(two_builds.STEP)
    for true, at, word in ((0, 1, Word.SAME), (0, 1, Word.SLOWER), (1, 0, Word.SAME), (2, 1, Word.SLOWER)):
        moved = math.log1p(true * percent / 100) * np.array([0, 1])
        common = moved + source.normal(0, math.sqrt(2) * processes / 100, (runs, 1, 2))
        sessions = common + source.normal(0, 0.003, (runs, looks[-1], 2))
        cells.append(f"{np.mean([judged(run, looks, margins)[at] is word for run in sessions]):.2%}")
    return f"| processes {processes:g} % | {' | '.join(cells)} |"


TABLES = {"sessions": SESSIONS, "blocks": NOISES}


@click.command()
@click.option("--runs", default=20_000, show_default=True, type=click.IntRange(100))
@click.option("--table", default="sessions", show_default=True, type=click.Choice([*TABLES, "attached"]))
@click.option("--pairs", "looks", multiple=True, type=click.IntRange(3), help="Process pairs, ascending.")
@click.option("--seed", default=1, show_default=True)
def main(runs: int, table: str, looks: Sequence[int], seed: int) -> None:
    """Print a table of simulated rates; `!` marks one that exceeds its error. m: the line "the same within m"."""
    looks, source = tuple(looks) or USUAL_LOOKS[table == "attached"], np.random.default_rng(seed)
    click.echo(f"{runs} runs each, numpy {np.__version__}, looks after {', '.join(map(str, looks))} process pairs")
    if table == "attached":
        click.echo(f"| servers | A/A: SAME | SLOWER | at the margin: SAME | twice the margin: SLOWER |\n{'|---' * 5}|")
        for processes in (0.1, 0.2, 0.45, 0.6):
            click.echo(attached(processes, runs, looks, source))
        return
    click.echo(
        f"| noise | A/A: SLOWER | FASTER | SAME after {looks[0]} / by the end | pairs | m (median) "
        f"| at the margin: SAME | m too small | 1 %: SLOWER | 3 %: SLOWER | twice the margin: SLOWER |\n{'|---' * 11}|"
    )
    for noise in TABLES[table]:
        click.echo(row(noise, runs, looks, source))


if __name__ == "__main__":
    main()

"""Words against closed testing and what they promise, and the simulation's rule against the one that judges."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.simulations import ab_simulation as simulation
from bench.simulations.error_rates import bound
from specgate.analysis.two_builds.estimates import Difference
from specgate.analysis.two_builds.outcomes import (
    MOST_PROCESSES,
    all_within_pct,
    holm,
    log_margin,
    needed,
    overall,
    within_pct,
    words_of,
)
from specgate.contract.two_builds import STEP, Margins, Quantity, Word

ERROR = Margins().error
MARGIN = log_margin(0.5)
differences = st.builds(
    Difference,
    st.floats(-0.03, 0.03).map(lambda x: round(x, 7)),
    st.floats(1e-5, 0.01).map(lambda x: round(x, 7)),
    st.integers(4, 40),
    st.sampled_from([1, 2]),
)
families = st.lists(differences, min_size=1, max_size=5).map(lambda members: dict(zip("abcde", members, strict=False)))
chances = st.dictionaries(
    st.sampled_from("abcdef"),
    st.one_of(st.floats(0, 0.02), st.sampled_from([ERROR / k for k in range(1, 7)]), st.floats(0, 1)),
    min_size=1,
)
untold = st.builds(
    Difference,
    st.floats(-0.006, 0.006).map(lambda x: round(x, 7)),
    st.floats(0.004, 0.04).map(lambda x: round(x, 7)),
    st.integers(4, 8),
    st.sampled_from([1, 2]),
).filter(lambda difference: word(difference) is Word.CANNOT_TELL)


def words(family: dict[str, Difference], margin: float = MARGIN, error: float = ERROR) -> dict[str, Word]:
    return words_of(family, dict.fromkeys(family, margin), error)


def word(difference: Difference, margin: float = MARGIN, error: float = ERROR) -> Word:
    return words({"": difference}, margin, error)[""]


def quantity(word: Word, *, decides: bool = True) -> Quantity:
    return Quantity(STEP, "c", decides, "lower", 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 8, word, f"is {word}")


# ── Holm ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(chances)
def test_holm_rejects_what_closed_testing_with_bonferroni_rejects(p_values: dict[str, float]) -> None:
    """Marcus, Peritz, Gabriel (1976): reject what every subset that holds it rejects. Holm is its short cut."""
    subsets = list(chain.from_iterable(combinations(p_values, k) for k in range(1, len(p_values) + 1)))
    closed = {
        key for key in p_values if all(min(p_values[k] for k in s) <= ERROR / len(s) for s in subsets if key in s)
    }
    assert holm(p_values, ERROR) == closed


def test_holm_stops_at_the_first_that_it_does_not_reject() -> None:
    """At 0.05, 0.01 passes 0.05 / 4. 0.02 fails 0.05 / 3, and 0.024 after it, although that is below 0.05 / 2."""
    assert holm({"a": 0.01, "b": 0.024, "c": 0.02, "d": 0.03}, 0.05) == {"a"}
    assert holm({}, 0.05) == set()


# ── what the words promise ───────────────────────────────────────────────────────────────────────────────────────────


@given(families)
def test_swapping_the_sides_mirrors_the_words(family: dict[str, Difference]) -> None:
    mirror = {Word.SLOWER: Word.FASTER, Word.FASTER: Word.SLOWER}
    mirrored = words({key: result.mirrored() for key, result in family.items()})
    assert mirrored == {key: mirror.get(w, w) for key, w in words(family).items()}


@given(families, st.floats(0, 0.02))
def test_a_larger_loss_never_turns_slower_into_anything_else(family: dict[str, Difference], more: float) -> None:
    before = words(family)
    slower = [key for key, w in before.items() if w is Word.SLOWER]
    assume(slower)
    old = family[slower[0]]
    after = words({**family, slower[0]: replace(old, mean=old.mean + more)})
    assert all(after[key] is Word.SLOWER for key in slower)


@given(families, st.floats(1.0, 5.0))
def test_a_wider_margin_leaves_the_same_the_same(family: dict[str, Difference], times: float) -> None:
    before, after = words(family), words(family, MARGIN * times)
    assert all(after[key] is Word.SAME for key, w in before.items() if w is Word.SAME)
    assert all(after[key] in (w, Word.SAME) for key, w in before.items())


@given(families, st.floats(0.01, 1.0))
def test_a_smaller_error_tells_no_more_and_drops_no_proof_against_a_build(
    family: dict[str, Difference], times: float
) -> None:
    """It can turn SAME into SLOWER, where what is proven to be a loss is no longer proven to be a small one."""
    loose, strict = words(family), words(family, error=ERROR * times)
    for key, w in strict.items():
        assert w is Word.CANNOT_TELL or loose[key] in (w, Word.SAME)
        assert w is not Word.SAME or loose[key] is Word.SAME


@given(families, differences)
def test_one_more_quantity_proves_nothing_about_the_others(family: dict[str, Difference], more: Difference) -> None:
    alone, together = words(family), words({**family, "more": more})
    for key, w in alone.items():
        assert together[key] in (w, Word.CANNOT_TELL)
        assert (together[key] is Word.SAME) == (w is Word.SAME)


@given(differences)
def test_a_proven_sign_is_an_interval_that_excludes_zero(difference: Difference) -> None:
    half = difference.half_width(ERROR)
    assume(abs(abs(difference.mean) - half) > 1e-9)
    label = word(difference, margin=1e-9)
    assert (label is not Word.CANNOT_TELL) == (abs(difference.mean) > half)
    assert label is not Word.SLOWER or difference.mean > 0


def test_a_proven_difference_that_is_proven_to_be_small_is_no_alarm() -> None:
    small = Difference(log_margin(0.3), 0.0002, 8)
    assert small.chance() < 1e-6 and word(small) is Word.SAME
    assert word(Difference(log_margin(0.5), 0.0002, 8)) is Word.SLOWER
    assert word(Difference(log_margin(0.3), 0.02, 8)) is Word.CANNOT_TELL


# ── how many would tell ──────────────────────────────────────────────────────────────────────────────────────────────


@given(untold, st.integers(1, 6))
def test_needed_is_the_first_number_that_tells(difference: Difference, family: int) -> None:
    """With others in the family of which nothing can be told."""
    blank = {str(i): Difference(0.0, 1.0, 3) for i in range(family - 1)}

    def tells(n: int) -> bool:
        return words({"it": replace(difference, n=n), **blank})["it"] is not Word.CANNOT_TELL

    first = next((n for n in range(difference.n + 1, MOST_PROCESSES + 1) if tells(n)), None)
    assert needed(difference, MARGIN, ERROR, family) == first


def test_what_one_gpu_showed_between_processes_needs_six_of_them_and_a_hundred_times_that_too_many() -> None:
    """t(0.995; 5) · 0.26 % / √6 = 0.43 % is below the margin of 0.5 %; with five, it would be 0.54 %."""
    assert needed(Difference(0.0, 0.0026, 5), MARGIN, ERROR, 3) == 6
    assert needed(Difference(0.0, 0.26, 5), MARGIN, ERROR, 3) is None


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.sampled_from(Word), st.booleans()), max_size=6))
def test_the_whole_is_the_worst_word_of_what_decides(words: list[tuple[Word, bool]]) -> None:
    order = [Word.SLOWER, Word.CANNOT_TELL, Word.FASTER, Word.SAME]
    deciding = [w for w, decides in words if decides]
    expected = min(deciding, key=order.index, default=Word.CANNOT_TELL)
    whole, reason = overall([quantity(w, decides=d) for w, d in words])
    assert whole is expected
    assert expected is Word.SAME or not deciding or f"is {expected}" in reason
    assert "all 1" not in reason


@given(differences, st.floats(0.01, 5.0))
def test_the_same_within_is_the_narrowest_margin_that_is_proven(difference: Difference, percent: float) -> None:
    within = within_pct(difference, ERROR)
    assume(abs(within - percent) > 1e-9)
    assert (word(difference, log_margin(percent)) is Word.SAME) == (within < percent)


@given(st.lists(st.tuples(st.sampled_from(Word), st.booleans(), st.floats(0, 5) | st.none()), max_size=6))
def test_the_whole_is_the_same_within_what_its_worst_quantity_is_and_a_stated_bound_takes_an_alarm_away(
    of: list[tuple[Word, bool, float | None]],
) -> None:
    quantities = [replace(quantity(w, decides=d), within_pct=p) for w, d, p in of]
    deciding = [p for _, d, p in of if d]
    within = all_within_pct(quantities)
    assert within == (max(p for p in deciding if p is not None) if deciding and None not in deciding else None)
    plain, _ = overall(quantities)
    bounded, _ = overall(quantities, 2.0)
    small = within is not None and within <= 2.0
    assert bounded is (Word.SAME if small and plain in (Word.SLOWER, Word.CANNOT_TELL) else plain)


# ── the simulation ───────────────────────────────────────────────────────────────────────────────────────────────────


def judged(of: simulation.Estimates, row: int, n: int, margins: list[float]) -> list[Word]:
    """Judge one run."""
    columns = zip(of.mean[row].tolist(), of.error[row].tolist(), of.freedom[row].tolist(), strict=True)
    family = {str(i): Difference(m, e * math.sqrt(n), n, n - round(f)) for i, (m, e, f) in enumerate(columns)}
    return list(words_of(family, {str(i): m for i, m in enumerate(margins)}, ERROR).values())


@pytest.mark.parametrize("pairs", [3, 8])
@pytest.mark.parametrize("noise", simulation.NOISES, ids=lambda noise: noise.name)
def test_the_simulation_judges_as_the_judge_does(noise: simulation.Noise, pairs: int) -> None:
    source, results = np.random.default_rng(pairs), set[Word]()
    times = simulation.over_processes(*simulation.log_ratios(noise, 12, pairs, source))
    lengths = simulation.over_prompts(*simulation.acceptances(0.5, 12, pairs, source))
    margins = [log_margin(2.0), MARGIN, MARGIN, log_margin(2.0)]
    for true in simulation.TRUE_PCT:
        moved = replace(times, mean=times.mean + log_margin(true) * np.array([0, 0, 1]))
        of = simulation.Estimates.beside(moved, lengths)
        codes = simulation.words(of, margins, ERROR)
        wholes = simulation.overall(codes)
        for row in range(len(codes)):
            expected = judged(of, row, pairs, margins)
            assert [simulation.WORDS[code] for code in codes[row]] == expected
            assert simulation.WORDS[wholes[row]] is overall([quantity(w) for w in expected])[0]
            results.update(expected)
    assert Word.SAME in results or Word.SLOWER in results


def test_the_simulation_judges_as_the_judge_does_without_spread_and_at_ties() -> None:
    mean = np.array([[0.0, 0.01, -0.01], [0.001, 0.001, 0.001], [0.0, 0.0, 0.0], [MARGIN, -MARGIN, 0.0]])
    sd = np.array([[0.0, 0.0, 0.0], [0.0005, 0.0005, 0.0005], [0.0, 0.001, 0.01], [0.0, 0.0, 0.0]])
    of = simulation.Estimates(mean, sd / math.sqrt(8), np.full(mean.shape, 7.0))
    codes = simulation.words(of, [MARGIN] * 3, ERROR)
    for row in range(len(mean)):
        assert [simulation.WORDS[code] for code in codes[row]] == judged(of, row, 8, [MARGIN] * 3)


def test_equal_builds_raise_an_alarm_in_no_more_runs_than_promised() -> None:
    """Without a margin, so that SAME takes no alarm away: three quantities, 20,000 runs, the noise of each its own."""
    labels = simulation.words(drawn(5, (20_000, 8, 3), 0.0, 0.003), [0.0] * 3, ERROR)
    for direction in (simulation.SLOWER, simulation.FASTER):
        share, low, _ = bound((labels == direction).any(axis=1))
        assert low <= ERROR and share > ERROR / 3


def test_same_is_said_of_a_difference_as_large_as_the_margin_in_no_more_runs_than_promised() -> None:
    labels = simulation.words(drawn(6, (40_000, 8, 1), MARGIN, 0.001), [MARGIN], ERROR)
    share, low, high = bound(labels[:, 0] == simulation.SAME)
    assert low <= ERROR <= high, share


def drawn(seed: int, shape: tuple[int, int, int], mean: float, sd: float) -> simulation.Estimates:
    """Estimates of normal noise, where the sides take turns in being started first."""
    ratios = np.random.default_rng(seed).normal(mean, sd, shape)
    return simulation.over_processes(ratios, np.where(np.arange(shape[1]) % 2, 1.0, -1.0) * np.ones((shape[0], 1)))


def test_the_noise_of_the_simulation_has_the_size_that_it_says() -> None:
    source = np.random.default_rng(7)
    for noise in (simulation.Noise("", 0.3, 0.0), simulation.Noise("", 0.3, 0.0, freedom=5)):
        assert simulation.log_ratios(noise, 4000, 8, source)[0].std() == pytest.approx(0.003, rel=0.05)
    ratios, _ = simulation.log_ratios(simulation.Noise("", 0.0, 0.3, groups=1), 4000, 8, source)
    # A prefill of each side; two blocks of each side: 0.3 % · √2 and 0.3 %.
    assert ratios.std(axis=(0, 1)) == pytest.approx([0.003 * math.sqrt(2), 0.003, 0.003], rel=0.05)
    kept = simulation.blocks(simulation.Noise("", 0.0, 0.3, memory=0.9), 4000, 8, source)
    assert kept.std() == pytest.approx(0.003, rel=0.05)
    second, firsts = simulation.log_ratios(simulation.Noise("", 0.0, 0.0, second=0.4), 10, 8, source)
    assert second == pytest.approx(0.004 * np.repeat(firsts[:, :, None], 3, axis=2))

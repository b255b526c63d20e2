"""Effect of rounding on a distribution: the unit that it shows, and the size of a policy's units."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specgate.analysis.draws.goodness_of_fit import cut_elsewhere, logit_unit, slack_of
from specgate.contract import Sampling
from specgate.contract.draws import TokenLaw

SOURCE = np.random.default_rng(5)


def law_of(logits: torch.Tensor, temperature: float, given: tuple[int, ...] = ()) -> TokenLaw:
    shares = torch.softmax(logits.double() / temperature, 0)
    return TokenLaw(given, tuple(range(len(shares))), tuple(shares.tolist()))


def rounded(middle: float) -> torch.Tensor:
    """bfloat16 logits about `middle`."""
    return torch.tensor(middle + SOURCE.normal(0, 1, 40)).bfloat16()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize(("middle", "unit"), [(5.5, 1 / 32), (22.0, 1 / 8), (45.0, 1 / 4)])
def test_the_spacing_of_logits_is_seen_in_the_probabilities_of_any_temperature(
    middle: float, unit: float, temperature: float
) -> None:
    law = law_of(rounded(middle), temperature)
    assert logit_unit(law, temperature) == unit
    # A gap of 4 units between two tokens leaves each logit 2, which the temperature then divides.
    assert slack_of([law], temperature, 4).after(()) == pytest.approx(2 * unit / temperature)


def test_a_beginning_whose_unit_cannot_be_seen_gets_the_middle_one() -> None:
    laws = [law_of(rounded(middle), 1.0, (i,)) for i, middle in enumerate((22.0, 45.0, 22.0))]
    few = TokenLaw((7,), (0, 1), (0.4, 0.6))
    slack = slack_of([*laws, few], 1.0, 4)
    assert [slack.after((i,)) for i in range(3)] == [0.25, 0.5, 0.25]
    assert slack.after((7,)) == slack.after((8, 9)) == 0.25


def test_logits_on_no_grid_are_granted_nothing() -> None:
    law = law_of(torch.tensor(SOURCE.normal(20, 1, 40)), 1.0)
    assert not slack_of([law], 1.0, 4) and slack_of([law], 1.0, 4).after(()) == 0.0
    assert not slack_of([], 1.0, 4) and not slack_of([law_of(rounded(22.0), 1.0)], 1.0, 0)


def test_a_token_of_no_probability_takes_no_part() -> None:
    law = law_of(rounded(22.0), 1.0)
    assert logit_unit(TokenLaw((), (*law.tokens, 99), (*law.probabilities, 0.0)), 1.0) == 1 / 8
    assert logit_unit(TokenLaw((), (0,), (1.0,)), 1.0) is None


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=20), Sampling(min_p=0.1)])
def test_another_engine_may_cut_elsewhere_where_rounding_is_seen_or_cannot_be(sampling: Sampling) -> None:
    coarse, fine = law_of(rounded(22.0), 1.0), law_of(torch.tensor(SOURCE.normal(20, 1, 40)), 1.0)
    few = TokenLaw((), (0, 1), (0.4, 0.6))
    cuts = [cut_elsewhere([law], sampling, slack_of([law], 1.0, 4)) for law in (coarse, fine, few)]
    assert cuts == [True, False, True]
    assert not cut_elsewhere([coarse], Sampling(), slack_of([coarse], 1.0, 4))


def test_slack_is_as_wide_as_the_gap_that_is_granted() -> None:
    """Two engines whose gap between two tokens differs by 4 units: both laws are within the slack of each other."""
    unit, logits = 1 / 8, rounded(22.0).double()
    other = logits.clone()
    other[0], other[1] = logits[0] + 2 * unit, logits[1] - 2 * unit
    p, q = torch.softmax(logits, 0), torch.softmax(other, 0)
    apart = (q.log() - p.log()).sort().values
    half = (apart[-1] - apart[0]) / 2
    assert math.isclose(float(half), slack_of([law_of(logits.bfloat16(), 1.0)], 1.0, 4).after(()))

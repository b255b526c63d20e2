"""Requests with a prefix cache on and off, on servers of the stub that run already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

import pytest

from specgate.analysis.prefix_cache.judging import Check, judge
from specgate.analysis.prefix_cache.samples import Limits, Sample
from specgate.core import Budget, NearTies, Role
from specgate.run.prefix_cache.asking import Asked, Asking, Switch, both_passes, requests_of, samples_of, shared
from tests.backends.servers import helpers

SPEC = Role(3)
LIMITS = Limits(max_lost_tokens=16, max_ttft_loss=1000.0, ties=NearTies(margin=0.001))
PROMPTS = (tuple(range(2, 50)), (*range(2, 42), *range(80, 88)))
"""Two of 48 tokens, of which they share 40."""


def asked_of(
    pair: tuple[Path, Path], folder: Path, dialect: str, *of_spec: str
) -> tuple[tuple[Sample, ...], dict[str, Check]]:
    """One group of three requests, asked of two servers. `of_spec`: more arguments of the one that drafts."""
    asked: list[Asked] = requests_of([PROMPTS])
    arguments = ("--reuses", "--rate", "150")
    with (
        helpers.running_stub(dialect, 0, *arguments) as plain,
        helpers.running_stub(dialect, 3, *arguments, *of_spec) as spec,
    ):

        @contextmanager
        def opened(switch: Switch) -> Iterator[Asking]:
            options = {"url.baseline": plain, "url.spec-3": spec, "prefix_cache": switch}
            with cast(AbstractContextManager[Asking], helpers.attached(folder, pair, dialect, options)) as engine:
                yield engine

        _, partings = both_passes(opened, asked, SPEC, Budget(new_tokens=12, ignore_eos=True), tuple(range(90, 120)))
    samples = samples_of(asked)
    return samples, {f"{c.name} {c.state}": c for c in judge(samples, partings, SPEC.name, LIMITS)}


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_single_requests_are_kept_out_of_the_cache_of_a_server_that_runs_already(
    pair: tuple[Path, Path], tmp_path: Path, dialect: str
) -> None:
    samples, checks = asked_of(pair, tmp_path, dialect)
    cached = [[(s.on[r].cached, s.off[r].cached) for s in samples] for r in ("baseline", "spec-3")]
    # Blocks of 16: of 40 shared tokens two, of 59 that were sent or answered with keys three; one less where it drafts.
    assert cached == [[(0, 0), (32, 0), (48, 0)], [(0, 0), (16, 0), (32, 0)]]
    assert [(s.turn, s.reusable, s.prompt_tokens) for s in samples] == [
        ("first", 0, 48),
        ("shared prefix", 40, 48),
        ("next turn", 59, 76),
    ]
    assert "cache PASS" in checks and "reuse PASS" in checks and "texts PASS" in checks


@pytest.mark.slow("starts servers")
def test_a_server_that_forgets_where_it_drafts_fails(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, checks = asked_of(pair, tmp_path, "vllm", "--fault", "forgets")
    assert "with speculation nothing is reused" in checks["reuse FAIL"].message


@pytest.mark.slow("starts servers")
def test_a_cache_that_changes_texts_fails(pair: tuple[Path, Path], tmp_path: Path) -> None:
    samples, checks = asked_of(pair, tmp_path, "llamacpp", "--fault", "corrupts")
    said = checks["texts FAIL"].message
    assert said.startswith("spec-3: 3 texts of 36 tokens, 2 of 2 leave theirs without the cache at no near tie")
    assert samples[1].on["spec-3"].tokens != samples[1].off["spec-3"].tokens and not samples[2].same_text
    assert "reuse PASS" in checks and "1 requests left out" in checks["reuse PASS"].message


def test_what_prompts_share_is_their_common_beginning() -> None:
    assert [shared((1, 2, 3), other) for other in ((1, 2, 4), (1, 2), (5,), (1, 2, 3))] == [2, 2, 0, 3]
    first, second, third = requests_of([[(1, 2, 3), (1, 2, 3)]])
    assert (first.turn, second.reusable, third.before) == ("first", 2, 1)

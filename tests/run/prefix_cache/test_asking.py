"""Requests with a prefix cache on and off, on servers of the stub that run already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

import pytest

from specgate.analysis.prefix_cache import Check, Limits, Sample, check_reuse, judge
from specgate.contract import Budget, Finish, Role, Served, ServedRequest, State
from specgate.contract.protocols import Decoded
from specgate.errors import BackendError
from specgate.run.diagnose.prefix_cache import (
    Asked,
    Asking,
    Switch,
    ask_all,
    both_passes,
    requests_of,
    samples_of,
    shared,
)
from tests.backends.servers import helpers

SPEC = Role(3)
LIMITS = Limits(max_lost_tokens=16, margin=0.001)
PROMPTS = (tuple(range(2, 50)), (*range(2, 42), *range(80, 88)))
"""Two of 48 tokens, of which they share 40."""
WARMUP = tuple(range(90, 120))


def asked_of(
    pair: tuple[Path, Path], folder: Path, dialect: str, *of_spec: str, times: int = 1
) -> tuple[tuple[Sample, ...], dict[str, Check]]:
    """One group of three requests, asked of two servers. `of_spec`: more arguments of the one that drafts. `times`: so
    often, of the same servers; what the last time found is returned.
    """
    arguments = ("--reuses", "--rate", "300")
    with (
        helpers.running_stub(dialect, 0, *arguments) as plain,
        helpers.running_stub(dialect, 3, *arguments, *of_spec) as spec,
    ):

        @contextmanager
        def opened(switch: Switch) -> Iterator[Asking]:
            options = {"url.baseline": plain, "url.spec-3": spec, "prefix_cache": switch}
            with cast(AbstractContextManager[Asking], helpers.attached(folder, pair, dialect, options)) as engine:
                yield engine

        for _ in range(times):
            requests: list[Asked] = requests_of([PROMPTS], WARMUP)
            _, divergences = both_passes(opened, requests, SPEC, Budget(new_tokens=24, ignore_eos=True), WARMUP)
    samples = samples_of(requests)
    return samples, {f"{c.name} {c.state}": c for c in judge(samples, divergences, SPEC.name, LIMITS)}


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_single_requests_are_kept_out_of_the_cache_of_a_server_that_runs_already(
    pair: tuple[Path, Path], tmp_path: Path, dialect: str
) -> None:
    samples, checks = asked_of(pair, tmp_path, dialect, times=2)
    cached = [[(s.on[r].cached, s.off[r].cached) for s in samples] for r in ("baseline", "spec-3")]
    # The second time as the first: what the servers have kept of that is of another name.
    # Blocks of 16: of 40 shared tokens two, of 71 that were sent or answered with keys four; one less where it drafts.
    assert cached == [[(0, 0), (32, 0), (64, 0)], [(0, 0), (16, 0), (48, 0)]]
    assert [(s.turn, s.reusable, s.prompt_tokens) for s in samples] == [
        ("first", 0, 48),
        ("shared prefix", 40, 48),
        ("next turn", 71, 88),
    ]
    assert "cache PASS" in checks and "texts PASS" in checks
    # What the drafting server reuses of the answer is no whole block.
    assert "spec-3 reused nothing that was computed while decoding" in checks["reuse INCONCLUSIVE"].message


@pytest.mark.slow("starts servers")
def test_a_server_that_forgets_where_it_drafts_fails(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, checks = asked_of(pair, tmp_path, "vllm", "--fault", "forgets")
    assert "with speculation nothing is reused" in checks["reuse FAIL"].message


@pytest.mark.slow("starts servers")
def test_a_cache_that_changes_texts_fails(pair: tuple[Path, Path], tmp_path: Path) -> None:
    samples, checks = asked_of(pair, tmp_path, "llamacpp", "--fault", "corrupts")
    message = checks["texts FAIL"].message
    assert message.startswith("spec-3: 3 texts of 72 tokens, 2 of 2 leave theirs without the cache at no near tie")
    assert samples[1].on["spec-3"].tokens != samples[1].off["spec-3"].tokens and not samples[2].same_text
    assert "1 requests left out" in checks["reuse INCONCLUSIVE"].message


def test_what_prompts_share_is_their_common_beginning() -> None:
    assert [shared((1, 2, 3), other) for other in ((1, 2, 4), (1, 2), (5,), (1, 2, 3))] == [2, 2, 0, 3]
    first, second, third = requests_of([[(1, 2, 3), (1, 2, 3)]])
    assert (first.turn, second.reusable, third.before) == ("first", 2, 1)
    assert [a.reusable for a in requests_of([[(1, 2), (3, 4)], [(3, 5), (6, 7)]], warmup=(6, 8))] == [0, 0, 0, 1, 1, 0]


class OneSlot:
    """An engine that keeps the keys of its last request only, as llama.cpp's server with one slot does."""

    def __init__(self, *, reuses: bool, keeps_answers: bool = True, asked_again: int = 0) -> None:
        self.reuses, self.keeps_answers, self.asked_again = reuses, keeps_answers, asked_again
        self.slots: dict[Role, tuple[int, ...]] = {}
        self.prompt: tuple[int, ...] = ()

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        self.prompt = tuple(prompts[0])
        return 0

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        prompt, slot = self.prompt, self.slots.get(role, ())
        cached = min(shared(prompt, slot), len(prompt) - 1) if self.reuses else 0
        text = tuple((sum(prompt) + i) % 97 + 200 for i in range(budget.new_tokens or 0))
        self.slots[role] = (*prompt, *text[:-1]) if self.keeps_answers else prompt
        served = Served((ServedRequest(0, (1000,), (len(text),)),), None)
        return Decoded(
            1,
            (),
            (text,),
            (),
            (),
            (0,),
            (Finish.LENGTH,),
            counters={"cache_hit_tokens": cached, "asked_again": self.asked_again},
            prefill_ns=1,
            served=served,
        )


def asked_of_one_slot(engine: OneSlot, *, apart: bool = False) -> tuple[Sample, ...]:
    requests = requests_of([[*PROMPTS, (*range(2, 40), 300, 301)]], WARMUP)
    budget = Budget(new_tokens=12, ignore_eos=True)
    switched: tuple[tuple[Switch, OneSlot], ...] = (("on", engine), ("off", OneSlot(reuses=False)))
    for switch, each in switched:
        ask_all(cast(Asking, each), requests, SPEC, budget, switch, WARMUP, apart=apart)
    return samples_of(requests)


@pytest.mark.parametrize("apart", [False, True])
def test_a_server_with_one_slot_still_has_an_answer_when_it_is_gone_on_with(apart: bool) -> None:
    samples = asked_of_one_slot(OneSlot(reuses=True), apart=apart)
    assert [s.turn for s in samples] == ["first", *2 * ["shared prefix", "next turn"]]
    assert [s.answered for s in samples] == [0, 0, 11, 0, 11]
    for sample in samples:
        for role in ("baseline", "spec-3"):
            assert sample.on[role].cached == sample.reusable and sample.of_answer(role) == sample.answered
    assert check_reuse(samples, "spec-3", LIMITS).state is State.PASS


def test_a_server_that_keeps_no_answers_tells_nothing_of_decoded_keys() -> None:
    report = check_reuse(asked_of_one_slot(OneSlot(reuses=True, keeps_answers=False)), "spec-3", LIMITS)
    assert report.state is State.INCONCLUSIVE and report.evidence["most_lost"] == 0
    assert "baseline and spec-3 reused nothing that was computed while decoding" in report.message


def test_an_answer_that_had_to_be_asked_for_again_may_come_from_the_cache_and_is_refused() -> None:
    with pytest.raises(BackendError, match=r"the next one may have come from the cache\n.*--new-tokens"):
        asked_of_one_slot(OneSlot(reuses=True, asked_again=1))

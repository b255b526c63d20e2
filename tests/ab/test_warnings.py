"""Warnings of a comparison of two builds about the machine that both ran on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from specgate.ab.judging import warnings_of
from specgate.analysis.machine.cpu_pace import pace_of, uneven
from specgate.analysis.two_builds.reduce import SideSamples, engine_warnings
from specgate.contract.two_builds import Look, SideName, Word
from specgate.files.journal import Journal
from tests.support.surroundings import SAMPLES, working

NOTHING = Journal(blocks=(), margins=(), engines={})
LOOK = Look(pairs=64, error=0.05, word=Word.SAME, reason="")


def test_cpus_that_were_not_evenly_fast_are_named_beside_the_word() -> None:
    shared = [working(s, 20_000 * (1 + i % 2)) for i, s in enumerate(SAMPLES)]
    even = [working(s, 20_000) for s in SAMPLES]
    journals: dict[SideName, Journal] = {"old": NOTHING, "new": NOTHING}
    assert list(warnings_of(LOOK, journals, shared, [])) == [uneven(pace_of(shared))]
    assert list(warnings_of(LOOK, journals, even, [])) == list(warnings_of(LOOK, journals, SAMPLES, [])) == []


def test_what_the_engine_of_one_side_alone_warns_of_is_named_with_its_side() -> None:
    warned = {"old": ["slow", "TILE=1 is ignored"], "new": ["slow", "TILE=2 is ignored"]}
    old, new = (
        cast("SideSamples", SimpleNamespace(name=name, engines={"point": SimpleNamespace(warnings=tuple(texts))}))
        for name, texts in warned.items()
    )
    assert list(engine_warnings(old, new)) == ["old: TILE=1 is ignored", "new: TILE=2 is ignored"]

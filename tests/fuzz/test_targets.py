"""Odd input to every reader: it is read, or refused with the file's name and the right exit code.

Every input that once ended badly comes first. `python -m tests.fuzz --inputs 100000` tries many more.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.__main__ import CORPUS
from tests.fuzz.attempt import Target, attempt
from tests.fuzz.targets import TARGETS


def kept(target: Target) -> list[Path]:
    return sorted((CORPUS / target.name).glob("*")) if (CORPUS / target.name).is_dir() else []


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_odd_input_is_read_or_refused_by_name(target: Target, tmp_path: Path) -> None:
    ready, outcome = target.prepare(tmp_path), Counter[str]()
    assert attempt(ready, ready.valid, outcome) is None and outcome["read"], "the valid input was not read"
    for file in kept(target):
        assert attempt(ready, file.read_bytes()) is None, file

    # The same inputs every time, so that a change turns this red and chance does not; the command looks further.
    @settings(
        max_examples=target.inputs,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(ready.inputs)
    def each(data: bytes) -> None:
        wrong = attempt(ready, data)
        assert wrong is None, wrong

    each()


def test_every_kept_input_belongs_to_a_target() -> None:
    names = {target.name for target in TARGETS}
    assert {folder.name for folder in CORPUS.iterdir()} <= names if CORPUS.is_dir() else True

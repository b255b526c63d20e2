"""Errors keep their hint across the worker's pipe, and none of them ends with code 1."""

from __future__ import annotations

import importlib
import pickle
import re
from pathlib import Path

import pytest

from specgate import errors
from specgate.errors import ExitCode, NotEnded, SpecgateError

PACKAGE = Path(errors.__file__).parent
DEFINES = re.compile(r"^class \w+\((\w*Error|\w+Refused|InvalidResult|WorkerLost)\):", re.MULTILINE)


def every_error() -> list[type[SpecgateError]]:
    """Those of every module, whichever the tests have imported so far."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if DEFINES.search(file.read_text(encoding="utf-8")):
            importlib.import_module(".".join(("specgate", *file.relative_to(PACKAGE).with_suffix("").parts)))
    values, left = [], [SpecgateError]
    while left:
        cls = left.pop()
        values.append(cls)
        left += cls.__subclasses__()
    return values


@pytest.mark.parametrize("cls", every_error())
def test_an_error_survives_pickling_with_its_hint(cls: type[SpecgateError]) -> None:
    copy = pickle.loads(pickle.dumps(cls("what is wrong", hint="what would be right")))
    assert type(copy) is cls
    assert str(copy) == "what is wrong\n  what would be right"


@pytest.mark.parametrize("cls", every_error())
def test_no_error_ends_with_a_verdicts_code_but_that_of_a_run_that_has_not_ended(cls: type[SpecgateError]) -> None:
    assert cls.exit_code not in (ExitCode.PASS, ExitCode.FAIL)
    assert (cls.exit_code is ExitCode.INCONCLUSIVE) == (cls is NotEnded)


def test_the_tree_in_the_docstring_names_every_error() -> None:
    assert errors.__doc__ is not None
    for cls in every_error():
        assert cls.__name__ in errors.__doc__

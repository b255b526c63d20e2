"""Check settings of sampling that reach an engine without a scenario's file."""

from __future__ import annotations

from specgate.contract import Sampling
from specgate.contract.reading import problems_of
from specgate.errors import UsageError


def check_settings(sampling: Sampling, where: str = "sampling") -> None:
    """Raise UsageError for the first setting that makes no sense. `where`: what has these settings."""
    for problem in problems_of(Sampling, sampling):
        name = str(problem.key[0])
        raise UsageError(f"{where}.{name} = {getattr(sampling, name)!r}", hint=problem.why)

"""The number format that a second engine takes over from the measured one."""

from __future__ import annotations

import dataclasses

import pytest

from specgate.contract import EngineFacts, EngineIdentity

STARTED = EngineFacts("vllm", "vllm server", "float32", 49_152, 8192, (0,), None, None, None, True)
"""Facts of a server that was started for its scenario."""


def server(reported: str | None) -> EngineFacts:
    """Facts of a server that runs already, and what it reports of its number format."""
    identity = EngineIdentity("vllm", settings={} if reported is None else {"dtype": reported})
    return dataclasses.replace(STARTED, details={"servers": "attached"}, identity=identity)


@pytest.mark.parametrize(
    ("reported", "scenario", "expected"),
    [
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "float32", "float32"),
        ("float16", "bfloat16", "float16"),
        (None, "float32", "bfloat16"),
        (None, "float16", "float16"),
        ("auto", "float32", "bfloat16"),
    ],
)
def test_a_running_server_has_the_format_that_it_reports_and_never_float32_unasked(
    reported: str | None, scenario: str, expected: str
) -> None:
    assert server(reported).computes_in(scenario) == expected


def test_an_engine_that_was_started_for_the_scenario_has_its_format() -> None:
    assert STARTED.computes_in("float32") == "float32"

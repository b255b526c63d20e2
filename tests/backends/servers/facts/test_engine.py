"""Facts about a server that are stored for those who judge its figures later."""

from __future__ import annotations

from pathlib import Path

from specgate.analysis.speculation.forced import Forced, forced_of
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.facts.engine import server_facts
from specgate.backends.servers.facts.reported import ServerReport
from specgate.backends.servers.options import Options
from specgate.contract import BASELINE
from tests.backends.servers.helpers import request_of


def test_the_check_of_forced_acceptance_reads_the_length_that_a_server_was_told(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    adapter, seen = adapter_named("sglang"), [ServerReport(BASELINE, "0.5.17", {})]

    def facts_of(**given: float) -> Forced | None:
        return forced_of(server_facts(adapter, request_of(pair, tmp_path, {}), Options(**given), seen))  # type: ignore[arg-type]

    assert facts_of(force_al=2.5) == Forced(2.5, "two counts", shared=True)
    assert facts_of() is None

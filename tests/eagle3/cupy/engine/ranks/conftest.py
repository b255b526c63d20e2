"""Threads that are the ranks of a target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specgate.backends.eagle3.cupy.kernels.peers import launchers
from tests.eagle3.cupy.kernels.host import Host
from tests.eagle3.cupy.kernels.peers.ranks_on_host import Ranks, kernels_from_source


@pytest.fixture(scope="module")
def four(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(4, tmp_path_factory.mktemp("ranks"), host)
    with kernels_from_source(host), pytest.MonkeyPatch.context() as patch:
        patch.setattr(launchers, "LIMIT_MS", 120_000)  # another rank may still compile
        yield made
    made.close()

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.bench.synthetic import require_dense_pair
from specgate.backends.eagle3.lib.hf_write import target_config
from specgate.contract import PairRef
from specgate.errors import CheckpointError
from tests.eagle3.cupy.pairs import MIXTURE, TARGET


def test_a_benchmark_of_dense_parts_refuses_a_target_with_experts(tmp_path: Path) -> None:
    for name, geometry in (("dense", TARGET), ("experts", MIXTURE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(target_config(geometry, "bfloat16")), encoding="utf-8")
    require_dense_pair(PairRef("dense", tmp_path / "dense", None), "the benchmark of prefill")
    with pytest.raises(
        CheckpointError, match="num_local_experts = 8: the benchmark of prefill knows dense targets only"
    ):
        require_dense_pair(PairRef("experts", tmp_path / "experts", None), "the benchmark of prefill")

"""Findings in an engine's own files beside the trace: logs, and TurboMind's list of the draft's matrix products."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.backends.offline.libraries import library_named
from specgate.backends.offline.libraries import parse as offline
from specgate.backends.servers.evidence.log_lines import findings_of_files
from specgate.backends.servers.options import Options
from specgate.contract import BASELINE, Role
from specgate.errors import UsageError

PRODUCTS = [
    {"tag": "EAGLE3_FC", "M": 3, "K": 8640, "N": 2880, "dtype": 14, "layout": "row", "count": 512},
    {"tag": "EAGLE3_QKV", "M": 3, "K": 5760, "N": 5120, "dtype": 14, "layout": "row", "count": 1536},
    {"tag": "EAGLE3_LM_HEAD", "M": 3, "K": 2880, "N": 201088, "dtype": 14, "layout": "row", "count": 512},
    {"tag": "EAGLE3_MLP", "M": 3, "K": 2880, "N": 34560, "dtype": 14, "layout": "row", "count": 511},
]


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    (file := tmp_path / "eagle3_gemm_shapes_sm120.json").write_text(json.dumps(PRODUCTS))
    return file


def test_the_products_of_the_draft_stand_beside_i2_and_hold_nothing(shapes: Path) -> None:
    (finding,) = findings_of_files("lmdeploy", Role(3), [(shapes, 0)])
    assert (finding.invariant, finding.reason_code, finding.breaks) == ("I2", "products_listed", False)
    assert (finding.where, finding.count) == (shapes.name, 512 + 1536 + 512 + 511)
    assert (
        finding.text.startswith("EAGLE3_QKV 3 × 5760 × 5120 (1,536 times), EAGLE3_FC") and "and 1 more" in finding.text
    )
    assert "4 shapes" in finding.meaning
    assert not list(findings_of_files("lmdeploy", BASELINE, [(shapes, 0)])), "a baseline has no draft"


def test_each_file_is_read_as_what_it_is(shapes: Path, tmp_path: Path) -> None:
    (log := tmp_path / "server.log").write_text("[TM][FATAL][gemm.cu:341] No feasible kernel found for: sm90_bf16\n")
    assert [f.invariant for f in findings_of_files("lmdeploy", Role(3), [(log, 0), (shapes, 0)])] == ["I1", "I2"]
    assert not list(findings_of_files("vllm", Role(3), [(log, 0), (shapes, 0)])), "these are another engine's"


def test_a_list_of_products_that_cannot_be_read_is_refused_before_the_run_and_says_nothing_in_it(shapes: Path) -> None:
    assert Options.parse({"log.spec-3": str(shapes)}, ()).log_of(Role(3)) == shapes
    shapes.write_text(json.dumps([{**PRODUCTS[0], "M": "3"}]))
    for parse in (lambda given: Options.parse(given, ()), lambda given: offline(library_named("vllm-offline"), given)):
        with pytest.raises(UsageError, match=r"shapes_sm120.json: \[0\].M: '3': an integer of at least 0 is needed"):
            parse({"log": str(shapes)})
    assert not list(findings_of_files("lmdeploy", Role(3), [(shapes, 0)]))

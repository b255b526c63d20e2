from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.engine import open as opening
from specgate.backends.eagle3.cupy.tuned import lookup as tuned
from specgate.contract.protocols import OpenRequest
from specgate.errors import EnvironmentRefused, ExitCode, UsageError
from tests.eagle3.cupy.engine.test_open import written as written_pair
from tests.eagle3.cupy.tuned.files import DEVICE, gemm, written


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRequest:
    """In PERF_MODE, on a GPU that is only named: what is refused is refused before it would be used."""
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(opening, "first_gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: DEVICE)
    return replace(written_pair(tmp_path), perf_mode=True)


def test_perf_mode_refuses_what_is_not_tuned_with_shape_file_and_command(
    request_: OpenRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = BACKEND.gemm_shapes(request_.pair, (request_.max_batch,), (request_.max_k,))
    known = sorted({shape.weight for shape in shapes if shape.tag != "TARGET_QKV"})
    missing = next(shape for shape in shapes if shape.tag == "TARGET_QKV")
    file = written(tmp_path / "t.json", *(gemm(n, k) for n, k in known if (n, k) != missing.weight))
    with pytest.raises(EnvironmentRefused) as refused:
        BACKEND.open(replace(request_, options={"tuned": str(file)}))
    pair = request_.pair
    first, why, hint = str(refused.value).splitlines()
    assert first.startswith(f"PERF_MODE on {DEVICE}: no tuned configuration for 1 of 15 products: ")
    assert first.endswith(f"TARGET_QKV {missing.n} x {missing.k}")
    assert why == f"  {file}: does not hold them"
    command = shlex.join(["--target", str(pair.target), "--draft", str(pair.draft)])
    assert hint == f"  tune them: specgate engine tune gemm --missing {command}"
    assert refused.value.exit_code is ExitCode.ENV_REJECTED
    assert f"tuned products: 14 of 15 from {file.name}" in capsys.readouterr().out


def test_where_nothing_is_tuned_three_products_are_named_and_the_rest_counted(request_: OpenRequest) -> None:
    with pytest.raises(
        EnvironmentRefused, match=r"15 of 15 products: (\w+ \d+ x \d+, ){2}\w+ \d+ x \d+ and \d+ more\n"
    ):
        BACKEND.open(request_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tuned": "absent.json"}, r"absent\.json: cannot be read"),
        ({"log_shapes": "shapes.json"}, r"shapes\.json:1: .* where a mapping was expected"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_before_a_weight_is_read(
    request_: OpenRequest, options: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shapes.json").write_text("64 x 32")
    monkeypatch.setattr(opening, "load_target_parts", pytest.fail)
    with pytest.raises(UsageError, match=message):
        BACKEND.open(replace(request_, options=options))

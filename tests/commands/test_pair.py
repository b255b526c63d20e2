"""`specgate diagnose pair`: what the files of a pair show, without an engine and without weights of the target."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from specgate.cli import cli
from specgate.errors import UsageError
from tests.support.engines.house import head_of_ones, write_configs

Arrays = dict[str, Any]


def diagnosed(folder: Path, change: Callable[[Arrays], object] = bool, **config: object) -> Result:
    """Return what is said of a draft of width 64 with three auxiliary layers, after its arrays and config changed."""
    target, draft = write_configs(folder)
    arrays = head_of_ones(draft)
    change(arrays)
    save_file(arrays, draft / "model.safetensors")
    file = draft / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return CliRunner().invoke(cli, ["diagnose", "pair", "--target", str(target), "--draft", str(draft)])


def test_a_pair_whose_files_fit_ends_with_0(tmp_path: Path) -> None:
    text = diagnosed(tmp_path)
    assert text.exit_code == 0, text.output
    assert "fine        misfits          the draft's tensors have their names, types and" in text.output
    assert text.output.endswith(": 0 of 6 checks found a fault\n") and "WRONG" not in text.output


@pytest.mark.parametrize(
    ("change", "config", "cause", "seen"),
    [
        (lambda a: a.update({"fc.weight": np.ones((64, 128), np.float32)}), {}, "misfits", "[64, 128], not [64, 192]"),
        (lambda a: a.pop("lm_head.weight"), {}, "misfits", "missing: lm_head.weight"),
        (lambda a: a.pop("fc.weight"), {}, "misfits", "missing: fc.weight"),
        (lambda a: a.update({"d2t": a["d2t"] + np.arange(96)}), {}, "vocabulary", "absolute"),
        (lambda a: a.update({"fc.weight": np.zeros((64, 192), np.float32)}), {}, "weights", "all zero: fc.weight"),
        (lambda a: a.pop("t2d"), {"vocab_size": 512}, "wrong_target", "vocabulary 512 for, 320 here"),
        (bool, {"max_position_embeddings": 512}, "draft_positions", "the draft has 512 positions"),
    ],
)
def test_each_fault_is_named_with_what_would_be_right(
    tmp_path: Path, change: Callable[[Arrays], object], config: Mapping[str, object], cause: str, seen: str
) -> None:
    sentence = diagnosed(tmp_path, change, **config)
    assert sentence.exit_code == 1, sentence.output
    text = " ".join(sentence.output.split())
    assert f"WRONG {cause} " in text and seen in text and " do: " in text


@pytest.mark.parametrize("name", ["draft_model.pt", "consolidated.safetensors", "config.json"])
def test_a_head_that_was_not_read_is_not_fine(tmp_path: Path, name: str) -> None:
    target, draft = write_configs(tmp_path)
    (draft / "model.safetensors").unlink()
    (draft / name).touch()
    output = CliRunner().invoke(cli, ["diagnose", "pair", "--target", str(target), "--draft", str(draft)])
    assert output.exit_code == 8 and "not checked misfits" in output.output, output.output
    assert name in output.output


def test_a_pair_that_is_nowhere_is_a_usage_error() -> None:
    assert isinstance(CliRunner().invoke(cli, ["diagnose", "pair", "no-such-pair"]).exception, UsageError)


def test_a_draft_whose_config_nobody_can_read_is_wrong_and_named_by_its_file(tmp_path: Path) -> None:
    target, draft = write_configs(tmp_path)
    (draft / "config.json").write_text('{\n"a": 1,\n')
    words = ["diagnose", "pair", "--target", str(target), "--draft", str(draft)]
    text, data = (CliRunner().invoke(cli, [*words, *more]) for more in ((), ("--json",)))
    assert text.exit_code == data.exit_code == 1
    assert text.output.startswith(f"not readable: {draft / 'config.json'}: ") and "line 2, column 8" in text.output
    assert str(draft / "config.json") in json.loads(data.output)["unreadable"][0]

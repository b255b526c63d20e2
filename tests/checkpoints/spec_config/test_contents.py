"""Drafts and targets that are here are compared by content, all others by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specgate.checkpoints.spec_config.alignment import align
from specgate.checkpoints.spec_config.contents import other_content
from specgate.checkpoints.spec_config.sources import read_source
from specgate.errors import ExitCode


@pytest.fixture
def draft(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair[1], tmp_path / "draft"))


def copy(draft: Path, name: str) -> Path:
    return Path(shutil.copytree(draft, draft.parent / name))


def rewrite(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_the_same_weights_under_another_name_are_the_same(draft: Path) -> None:
    other = copy(draft, "other")
    rewrite(other, transformers_version="9", _name_or_path="elsewhere")
    assert other_content(str(draft), str(other)) == ""


def test_weights_in_other_shards_are_the_same(draft: Path) -> None:
    other = copy(draft, "other")
    weights = load_file(other / "model.safetensors")
    (other / "model.safetensors").unlink()
    index: dict[str, str] = {}
    for n, half in enumerate((sorted(weights)[::2], sorted(weights)[1::2])):
        save_file({name: weights[name] for name in half}, other / f"{n}.safetensors")
        index |= dict.fromkeys(half, f"{n}.safetensors")
    (other / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert other_content(str(draft), str(other)) == ""


def test_one_changed_number_is_another_draft_whatever_the_name(draft: Path) -> None:
    (draft.parent / "elsewhere").mkdir()
    other = Path(shutil.copytree(draft, draft.parent / "elsewhere" / "draft"))
    weights = load_file(other / "model.safetensors")
    name = next(name for name in sorted(weights) if weights[name].is_floating_point())
    weights[name].view(-1)[-1] += 1
    save_file(weights, other / "model.safetensors")
    assert other_content(str(draft), str(other)) == f"the weights differ, in {name} first"
    command = "vllm serve /m/t -sc.method eagle3 -sc.num_speculative_tokens 3 -sc.model {}"
    result = align(read_source(command.format(draft)), read_source(command.format(other)))
    (difference,) = [d for d in result.differences if d.term == "draft_model"]
    assert difference.values == (str(draft), str(other)) and result.exit_code is ExitCode.FAIL


@pytest.mark.parametrize("change", [{"rms_norm_eps": 0.5}, {"sliding_window": 7}])
def test_the_same_weights_with_another_config_are_another_draft(draft: Path, change: dict[str, object]) -> None:
    rewrite(other := copy(draft, "other"), **change)
    assert other_content(str(draft), str(other)) == f"their configs differ in {next(iter(change))}"


def test_a_missing_tensor_and_another_shape_are_named(draft: Path) -> None:
    weights = load_file(draft / "model.safetensors")
    name = sorted(weights)[0]
    less, wider = copy(draft, "less"), copy(draft, "wider")
    save_file({n: w for n, w in weights.items() if n != name}, less / "model.safetensors")
    save_file({**weights, name: weights[name].repeat_interleave(2, 0)}, wider / "model.safetensors")
    assert name in (other_content(str(draft), str(less)) or "")
    assert " in one and " in (other_content(str(draft), str(wider)) or "")


def test_what_is_not_here_is_compared_by_name_and_called_so(draft: Path) -> None:
    assert other_content(str(draft), "org/draft") is None
    command = "vllm serve /m/t -sc.method eagle3 -sc.num_speculative_tokens 3 -sc.model {}"
    cached = "/c/hub/models--org--draft/snapshots/0123abc"
    result = align(read_source(command.format(cached)), read_source(command.format("org/draft")))
    assert ("draft", "draft (by name)") in result.same and result.exit_code is ExitCode.PASS


def test_drafts_that_have_nothing_in_common_but_their_name_are_not_taken_for_the_same(draft: Path) -> None:
    command = "vllm serve /m/t -sc.method eagle3 -sc.num_speculative_tokens 3 -sc.model {}"
    result = align(read_source(command.format(draft)), read_source(command.format("org/draft")))
    assert result.exit_code is ExitCode.NOT_JUDGED and any("their content would tell" in t for t in result.undecided)
    rewrite(other := copy(draft, "elsewhere/draft"), rope_theta=5e5)
    (other / "model.safetensors").unlink()
    (difference,) = align(*(read_source(command.format(place)) for place in (draft, other))).differences
    assert "their configs differ in rope_theta" in difference.consequence


def test_gguf_files_are_compared_by_their_bytes(tmp_path: Path) -> None:
    for name, content in (("a.gguf", b"one"), ("b.gguf", b"one"), ("c.gguf", b"two"), ("d.gguf", b"more")):
        (tmp_path / name).write_bytes(content)
    a, b, c, d = (str(tmp_path / f"{n}.gguf") for n in "abcd")
    assert other_content(a, b) == "" and other_content(a, c) and other_content(a, d)


@pytest.mark.parametrize(
    "path", ["/c/hub/models--org--draft/snapshots/0123abc", "org/draft", "/m/draft/", "draft.gguf"]
)
def test_a_model_has_its_name_wherever_it_lies(path: str) -> None:
    command = "vllm serve /m/t -sc.method eagle3 -sc.num_speculative_tokens 3 -sc.model"
    assert read_source(f"{command} {path}").value("draft_model") == "draft"

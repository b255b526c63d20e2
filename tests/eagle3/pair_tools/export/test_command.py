"""`specgate engine export` as a user runs it; where it may write; the commands that it prints."""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.backends.eagle3.pair_tools.export.command import Wish, export
from specgate.backends.eagle3.pair_tools.export.differences import Format
from specgate.backends.eagle3.pair_tools.export.room import require_disk
from specgate.backends.eagle3.pair_tools.export.starting import flags, wrapped
from specgate.checkpoints.hf_keys import read_config
from specgate.cli import cli
from specgate.contract import PairRef
from specgate.errors import CheckpointError, EnvironmentRefused, ExitCode, UsageError
from tests.eagle3.pair_tools.export.textual import change, textual_pair
from tests.support.command import ROOT

FORMATS = pytest.mark.parametrize("layout", ["hf", "speculators", "gguf"])


@FORMATS
def test_the_manifest_hashes_every_file_and_names_the_source(tmp_path: Path, layout: Format) -> None:
    ref, out = textual_pair(tmp_path), tmp_path / "out"
    export(ref, Wish(layout, out))
    manifest = json.loads((out / "EXPORT.json").read_text())
    files = {p.relative_to(out).as_posix(): p for p in out.rglob("*") if p.is_file()}
    generated = {"EXPORT.json", "trtllm-spec-3.yaml"}
    assert manifest["files"].keys() == files.keys() - generated
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == hashlib.sha256(files[name].read_bytes()).hexdigest()
    assert (manifest["format"], manifest["pair"], manifest["acceptance"], manifest["dtype"]) == (
        layout,
        "textual",
        "real",
        "as stored",
    )
    assert manifest["conventions"]["capture_boundaries"] == [1, 2, 3]
    assert manifest["conventions"]["d2t"] == ("target ids" if layout == "gguf" else "offsets")
    assert manifest["source"]["target"]["name"] == "target" and len(manifest["source"]["draft"]["sha256"]) == 64


def test_what_differs_elsewhere_is_said_and_written(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path, window=32)
    done = export(ref, Wish("hf", tmp_path / "out"))
    text = " ".join(done.differences)
    assert "the draft's window of 32" in text
    assert "lmdeploy feeds this draft boundaries" in text and "vllm feeds" not in text
    assert json.loads((tmp_path / "out" / "EXPORT.json").read_text())["differences"] == list(done.differences)


def test_a_pair_that_every_engine_reads_the_same_way_has_no_differences(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path, layers=8, boundaries=(2, 4, 5))
    assert export(ref, Wish("hf", tmp_path / "hf")).differences == ()
    assert export(ref, Wish("gguf", tmp_path / "gguf")).differences == ()


def test_a_pair_without_a_tokenizer_is_exported_with_that_said(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    (ref.target / "tokenizer.json").unlink()
    done = export(ref, Wish("hf", tmp_path / "out"))
    assert any("no tokenizer" in line for line in done.differences)


def run(*arguments: str | Path, ref: PairRef | None = None) -> Result:
    named = ["--target", str(ref.target), "--draft", str(ref.draft)] if ref else []
    return CliRunner().invoke(cli, ["engine", "export", *map(str, arguments), *named])


@FORMATS
def test_the_command_line_prints_commands_of_eighty_columns(layout: str, tmp_path: Path) -> None:
    done = run("--format", layout, tmp_path / "out", ref=textual_pair(tmp_path, window=32))
    assert done.exit_code == 0, done.output
    program = {"gguf": "llama-server", "hf": "sglang.launch_server", "speculators": "vllm serve"}[layout]
    assert program in done.output and "specgate micro" in done.output and "differs: " in done.output
    wide = [line for line in done.output.splitlines() if len(line) > 80 and str(tmp_path) not in line]
    assert wide == [], "only paths may be longer"


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1))
def test_a_shell_reads_the_printed_command_as_the_words_it_was_made_of(words: list[str]) -> None:
    script = "printf '%s\\0' " + wrapped([*flags(words)])
    output = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert output.decode().split("\0")[:-1] == words


def refused(*arguments: str | Path, ref: PairRef | None = None) -> str:
    """Return the output of a command line that ends with exit code 2."""
    done = run(*arguments, ref=ref)
    if isinstance(done.exception, UsageError):
        return str(done.exception)
    assert isinstance(done.exception, SystemExit) and done.exit_code == ExitCode.USAGE, done.output
    return done.output


def test_an_unknown_format_is_refused_with_those_that_are_known() -> None:
    assert "'hf', 'speculators', 'gguf'" in refused("--format", "onnx", "out")


def test_an_unknown_pair_is_refused() -> None:
    assert "pair 'nope' is not known" in refused("--format", "hf", "--pair", "nope", "out")


def test_a_pair_named_in_two_ways_is_refused(tmp_path: Path) -> None:
    message = refused("--format", "hf", "--pair", "demo", "out", ref=PairRef("p", tmp_path, tmp_path))
    assert "--pair together with --target" in message


def test_an_occupied_folder_is_refused_and_kept(tmp_path: Path) -> None:
    ref, out = textual_pair(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    for flag in ([], ["--replace"]):
        assert "not empty, and no earlier export" in refused("--format", "hf", out, *flag, ref=ref)
    assert [p.name for p in out.iterdir()] == ["mine.txt"]


def test_an_earlier_export_is_replaced_only_when_asked(tmp_path: Path) -> None:
    ref, out = textual_pair(tmp_path), tmp_path / "out"
    assert run("--format", "hf", out, ref=ref).exit_code == 0
    assert "add --replace" in refused("--format", "speculators", out, ref=ref)
    assert run("--format", "speculators", out, "--replace", ref=ref).exit_code == 0
    assert read_config(out / "draft").text("speculators_model_type") == "eagle3"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"], "no scratch folder stays"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    ref, file = textual_pair(tmp_path), tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "out"):
        assert f"{file}: is no folder" in refused("--format", "hf", out, ref=ref)
    assert file.read_text() == "mine"


def test_a_checkpoint_with_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    change(ref.target / "config.json", num_hidden_layers=5)
    done = run("--format", "hf", tmp_path / "out", ref=ref)
    assert isinstance(done.exception, CheckpointError) and "missing: model.layers.4" in str(done.exception)


def test_more_than_the_disk_holds_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match=r"the export takes 1000000000\.00 GB, its disk has"):
        require_disk(tmp_path / "a" / "b", 10**18)


@pytest.mark.parametrize("layout", ["hf", "gguf"])
def test_a_write_that_fails_midway_leaves_nothing(tmp_path: Path, layout: str) -> None:
    """The operating system ends the write, as it does on a full disk: here by a limit on the size of files."""
    ref = textual_pair(tmp_path)
    command = [sys.executable, "-m", "specgate", "engine", "export", "--format", layout, str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--target", str(ref.target), "--draft", str(ref.draft)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000)),
    )
    assert done.returncode == 4, done.stderr
    assert "out: cannot be written:" in done.stderr and "nothing was kept" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_no_client_of_a_server_is_needed() -> None:
    block = "import sys; sys.modules.update(dict.fromkeys(('aiohttp', 'prometheus_client', 'transformers')));"
    done = subprocess.run(
        [sys.executable, "-c", f"{block} import specgate.backends.eagle3.pair_tools.export.command"], cwd=ROOT
    )
    assert done.returncode == 0


def test_a_pair_keeps_its_name(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    named = PairRef("another", ref.target, ref.draft)
    export(named, Wish("gguf", tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "EXPORT.json").read_text())["pair"] == "another"

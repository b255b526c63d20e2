"""The script that dumps a target's stages from transformers: what it writes agrees with the reference."""

from __future__ import annotations

import json
import runpy

import pytest

from tests.support.command import ROOT, Cli

SCRIPT = ROOT / "docs" / "examples" / "dump_stages_transformers.py"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_it_dumps_agrees_with_the_reference(cli: Cli, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    ours, theirs = cli.folder / "ours.safetensors", cli.folder / "theirs.safetensors"
    assert (
        cli.run(
            "diagnose", "parity", "reference", "--dtype", dtype, "--prompt-ids", "5,9,2,7,7,1,30,12", "--dump", ours
        ).returncode
        == 0
    )
    monkeypatch.setattr("sys.argv", [str(SCRIPT), str(cli.target), str(ours), str(theirs), dtype])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    done = cli.run("diagnose", "parity", theirs, ours, "--json", pair=False, code=0)
    stored = json.loads(done.stdout)
    assert [stage["stage"] for stage in stored["stages"]] == [f"target.hidden.{b}" for b in range(5)] + [
        "target.logits"
    ]
    assert stored["dtype"] == dtype
    assert [note.partition(":")[0] for note in stored["notes"]] == ["draft", "step"]

"""An engine that writes to the run folder: the run is invalid, and the file is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgate.archive.verification import verify
from specgate.backends.fake.engine import FakeEngine
from specgate.promotion.ledger import Ledger
from tests.support.command import Cli


def faster(run: Path) -> None:
    """Tell the baseline's blocks with a tenth more time, in as many bytes."""
    journal = run / "samples" / "blocks.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["role"]["k"] == 0:
            line["elapsed_ns"] = int(line["elapsed_ns"] * 1.1)
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("name", "cheat"),
    [
        ("samples/blocks.jsonl", faster),
        ("samples/margins.jsonl", lambda run: (run / "samples" / "margins.jsonl").write_text("{}\n")),
        ("samples/environment.jsonl", lambda run: (run / "samples" / "environment.jsonl").write_text("")),
        ("config.resolved.yaml", lambda run: (run / "config.resolved.yaml").write_text("kind: micro\n")),
        ("env.json", lambda run: (run / "env.json").write_text("{}\n")),
        ("run.json", lambda run: (run / "run.json").write_text("{}\n")),
        ("report.html", lambda run: (run / "report.html").write_text("PASS")),
    ],
)
def test_an_engine_that_writes_to_the_run_folder_makes_the_run_invalid(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, cheat: Callable[[Path], object]
) -> None:
    decode, calls = FakeEngine.decode, []

    def decode_and_cheat(engine: FakeEngine, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 12:
            cheat(cli.newest())
        return decode(engine, *args, **kwargs)

    monkeypatch.setattr(FakeEngine, "decode", decode_and_cheat)
    done = cli.micro("--backend", "fake")
    run = max((cli.folder / "runs").glob("*-micro-*"))
    assert done.returncode == 6, done.stdout + done.stderr
    assert f"{name}: was changed while the run went on" in done.stderr
    stored = json.loads((run / "run.json").read_text())
    assert (stored["cells"], stored["verdicts"], stored["status"]) == ([], [], "partial")
    (entry,) = Ledger(run.parent).read().entries
    assert (entry.state, entry.exit_code) == ("INVALID", 6)
    assert verify(run).differences if name.startswith("samples") else True

"""Every leaf of run.json, gates.json and env.json: changed behind a mended manifest and a mended ledger, it is seen."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.archive import verification
from specgate.archive.verification import verify
from specgate.errors import OtherVersion
from specgate.files.run_folder import RunFolder
from specgate.files.writing import sha256_of
from specgate.promotion.ledger import Ledger
from tests.support.command import Cli

FILES = ("run.json", "gates.json", "env.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Path:
    """The folder of a small run with its ledger."""
    cli = Cli(tmp_path_factory.mktemp("leaves"), *pair)
    cli.scenario(batch=1, spec=[2], sets=8, budget="steps: 4")
    policy = (cli.folder / "policy.yaml").read_text()
    cli.write("policy.yaml", policy.replace("gate.yaml", "tiny.yaml"))  # so that the page shows what the run advances
    cli.micro("--backend", "fake", code=0)
    return cli.newest()


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of everything in a JSON value that is neither an object nor a list with something in it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not (pairs := list(inner)):
        yield place
    for key, item in pairs:
        yield from leaves(item, (*place, key))


def other(value: Any) -> Any:
    """Another value, of the same type where it has one."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.01 + 0.001
        case str():
            return f"{value[:-1]}{'1' if value[-1:] != '1' else '2'}"
        case list():
            return ["added"]
        case dict():
            return {"added": 1}
    return "added"


def changed(data: Any, place: tuple[Any, ...]) -> str:
    """The JSON text of `data` with another value at `place`."""
    copy = json.loads(json.dumps(data))
    at = copy
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = other(at[place[-1]])
    return json.dumps(copy, indent=1, ensure_ascii=False) + "\n"


def mend(run: Path) -> None:
    """Make manifest, ledger and chain agree with what lies in the folder."""
    RunFolder(run).write_manifest()
    entries = Ledger(run.parent).read().entries
    for file in run.parent.glob("ledger.*"):
        file.unlink()
    for entry in entries:
        Ledger(run.parent).append(replace(entry, manifest_sha256=sha256_of(run / "MANIFEST.sha256")))


def is_seen(run: Path) -> bool:
    """True if `verify` finds a difference. Its reports, half of the time, are only rendered where nothing else does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "report_differences", lambda *_: ([], []))
        try:
            if verify(run).differences:
                return True
        except OtherVersion:  # the leaf said which version made the run
            return True
    return bool(verify(run).differences)


def unseen(run: Path, folder: Path, stride: int) -> tuple[list[str], int]:
    """(the leaves that were changed and not seen, how many were changed), of every `stride`th leaf."""
    shutil.copytree(run.parent, folder / "runs")
    copy, missed, count = folder / "runs" / run.name, [], 0
    mend(copy)
    assert verify(copy).differences == ()
    for name in FILES:
        original = (copy / name).read_text()
        data = json.loads(original)
        for place in list(leaves(data))[::stride]:
            (copy / name).write_text(changed(data, place))
            mend(copy)
            count += 1
            if not is_seen(copy):
                missed.append(f"{name}: {'.'.join(map(str, place))}")
        (copy / name).write_text(original)
    return missed, count


@pytest.mark.slow("verifies the run once for each leaf that is changed, of 1,124")
def test_every_changed_leaf_is_seen(run: Path, tmp_path: Path) -> None:
    # All of them take two minutes: whoever changes what verify compares sets SPECGATE_TEST_LEAVES=1 once.
    stride = int(os.environ.get("SPECGATE_TEST_LEAVES", "17"))
    missed, count = unseen(run, tmp_path, stride)
    assert missed == [] and count > 500 // stride

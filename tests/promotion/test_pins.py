"""Pins in the ledger: which one counts, and whom it is believed from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.pins import key_of, pins
from specgate.promotion.signing import KEY_VARIABLE, SIGNERS_VARIABLE, signer
from tests.promotion.test_ledger import ENTRY
from tests.promotion.test_signing import allowed, new_key
from tests.run.test_earlier import POLICY
from tests.support.command import Cli

HERE = replace(ENTRY, fingerprint={"gpu_uuid": "GPU-1", "host": None})
THERE = replace(ENTRY, run="run-there", fingerprint={"gpu_uuid": "GPU-2", "host": None})
OTHER = replace(HERE, run="run-other", subject={"policy": "other", "pair": "démo"})
LATER = replace(HERE, run="run-1")


def pinned(entry: Entry) -> Entry:
    return replace(entry, kind="pin")


def current(*entries: Entry) -> set[str]:
    return {entry.run for entry in pins(entries).values()}


def test_the_last_pin_of_a_kind_a_subject_and_a_machine_counts() -> None:
    ends = (HERE, THERE, OTHER, LATER)
    assert current(*ends) == set()
    assert current(*ends, pinned(HERE), pinned(THERE), pinned(OTHER)) == {"run-0", "run-there", "run-other"}
    assert current(*ends, pinned(HERE), pinned(THERE), pinned(LATER)) == {"run-1", "run-there"}
    assert current(*ends, pinned(HERE), pinned(THERE), replace(HERE, kind="unpin")) == {"run-there"}
    assert pins([*ends, pinned(HERE)]).keys() == {key_of("micro", HERE.subject, HERE.fingerprint)}
    assert current(pinned(HERE)) == set()  # nothing says what kind of run it was


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen (OpenSSH) is not installed")
def test_a_pin_is_signed_where_entries_are_and_an_unsigned_one_is_refused_where_they_must_be(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.write("policy.yaml", POLICY)
    key = new_key(tmp_path, "ci")
    signers = allowed(tmp_path, key)
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    monkeypatch.setenv(SIGNERS_VARIABLE, str(signers))
    assert cli.micro("--backend", "fake", "-o", "accept=2,1,3").returncode == 0
    run = cli.newest()
    assert cli.run("runs", "pin", run, pair=False).returncode == 0
    entry = Ledger(run.parent).read().entries[-1]
    assert (entry.kind, entry.run) == ("pin", run.name) and entry.signature is not None
    assert signer(entry.signature, signers, entry.time) == "ci"
    assert cli.run("runs", "unpin", run, pair=False).returncode == 0

    monkeypatch.delenv(KEY_VARIABLE)
    assert cli.run("runs", "pin", run, pair=False).returncode == 0
    done = cli.micro("--backend", "fake", "-o", "accept=2,1,3")
    assert done.returncode == 2 and f"{run.name} is pinned in" in done.stderr and "it is not signed" in done.stderr

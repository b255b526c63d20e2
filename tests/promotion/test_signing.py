"""Signed entries: made and checked by the real ssh-keygen, and every way in which one can fail."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.errors import EnvironmentRefused, InvalidResult, UsageError
from specgate.promotion.ledger import GENESIS, Entry, Ledger, _sha256
from specgate.promotion.signing import Signature, UnknownSigner, sign, signer
from tests.promotion.test_ledger import ENTRY

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen (OpenSSH) is not installed")


def new_key(folder: Path, name: str, passphrase: str = "") -> Path:
    key = folder / name
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", str(key)], check=True, timeout=30
    )
    return key


def allowed(folder: Path, *keys: Path, options: str = "") -> Path:
    """The allowed signers, each under the name of its key."""
    lines = [f"{key.name} {options} {key.with_suffix('.pub').read_text().strip()}\n" for key in keys]
    (file := folder / "allowed_signers").write_text("".join(lines))
    return file


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    return new_key(folder, "ours"), new_key(folder, "theirs")


def test_a_signature_names_its_signer(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    signers = allowed(tmp_path, *keys)
    for key in keys:
        assert signer(sign("text", key), signers, ENTRY.time) == key.name


def test_another_text_is_not_signed(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    signed = sign("text", keys[0])
    with pytest.raises(InvalidResult, match="the signature of ours is not one of this text") as error:
        signer(replace(signed, text="other text"), allowed(tmp_path, *keys), ENTRY.time)
    assert not isinstance(error.value, UnknownSigner)


def test_a_key_that_is_not_listed_is_unknown(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    ours, theirs = keys
    with pytest.raises(UnknownSigner, match="does not list"):
        signer(sign("text", theirs), allowed(tmp_path, ours), ENTRY.time)
    with pytest.raises(UnknownSigner):
        signer(Signature("no signature", "text"), allowed(tmp_path, ours), ENTRY.time)


def test_a_key_that_had_expired_when_the_entry_was_made_does_not_count(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    signers = allowed(tmp_path, keys[0], options='valid-before="20261121130000"')
    signed = sign("text", keys[0])
    assert signer(signed, signers, "2026-11-21T12:59:00+00:00") == "ours"
    with pytest.raises(InvalidResult):
        signer(signed, signers, "2026-11-21T13:01:00+00:00")


def test_a_signature_for_another_purpose_does_not_count(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(keys[0]), "-n", "git"]
    made = subprocess.run(command, input=b"text", capture_output=True, check=True, timeout=30).stdout.decode()
    with pytest.raises(InvalidResult):
        signer(Signature(made, "text"), allowed(tmp_path, keys[0]), ENTRY.time)


def test_a_key_with_a_passphrase_a_missing_key_and_no_key_are_usage_errors(tmp_path: Path) -> None:
    (no_key := tmp_path / "text").write_text("no key\n")
    for key, message in (
        (new_key(tmp_path, "locked", "secret"), "cannot sign"),
        (tmp_path / "absent", "no such file"),
        (no_key, "cannot sign"),
    ):
        with pytest.raises(UsageError, match=message):
            sign("text", key)
    with pytest.raises(UsageError, match="no such file of allowed signers"):
        signer(Signature("s", "text"), tmp_path / "absent", ENTRY.time)


def test_without_ssh_keygen_the_environment_is_refused(
    tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    signed, signers = sign("text", keys[0]), allowed(tmp_path, keys[0])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentRefused, match="ssh-keygen is not installed"):
        sign("text", keys[0])
    with pytest.raises(EnvironmentRefused, match="ssh-keygen is not installed"):
        signer(signed, signers, ENTRY.time)


def rechained(ledger: Ledger, was: bytes, now: bytes) -> None:
    """Replace text in every line of a ledger, and make chain and head agree again."""
    lines, previous = [], GENESIS
    for line in ledger.file.read_bytes().replace(was or b"\0", now).splitlines():
        data = {**json.loads(line), "prev_sha256": previous}
        lines.append(json.dumps(data, separators=(",", ":")).encode())
        previous = _sha256(lines[-1])
    ledger.file.write_bytes(b"".join(line + b"\n" for line in lines))
    ledger._write_head(len(lines), previous)


def signers_of(ledger: Ledger, signers: Path) -> list[str]:
    def name(entry: Entry) -> str:
        assert entry.signature is not None
        return signer(entry.signature, signers, entry.time)

    return [name(entry) for entry in ledger.read().entries]


def test_the_signatures_of_a_ledger_hold_and_do_not_once_it_is_rewritten(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    ledger, signers = Ledger(tmp_path / "runs"), allowed(tmp_path, *keys)
    for n, key in enumerate((*keys, keys[0])):
        ledger.append(replace(ENTRY, run=f"run-{n}"), key)
    assert signers_of(ledger, signers) == ["ours", "theirs", "ours"]
    rechained(ledger, b'"pid":7', b'"pid":8')
    assert [entry.pid for entry in ledger.read().entries] == [8, 8, 8]  # the chain holds
    with pytest.raises(InvalidResult):
        signers_of(ledger, signers)


def test_an_entry_that_is_taken_out_of_a_signed_ledger_breaks_the_signature_of_the_next(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    ledger, signers = Ledger(tmp_path / "runs"), allowed(tmp_path, *keys)
    for n in range(3):
        ledger.append(replace(ENTRY, run=f"run-{n}"), keys[0])
    lines = ledger.file.read_bytes().splitlines(keepends=True)
    ledger.file.write_bytes(lines[0] + lines[2])
    rechained(ledger, b"", b"")
    assert len(ledger.read().entries) == 2
    with pytest.raises(InvalidResult):
        signers_of(ledger, signers)

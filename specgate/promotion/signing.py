"""Signatures of ledger entries, made and checked by `ssh-keygen -Y` (OpenSSH 8.9 or newer).

`SPECGATE_SIGNING_KEY` names the key that signs every entry: a private key without a passphrase, or a public key whose
private half an agent holds. `SPECGATE_ALLOWED_SIGNERS` names the keys that are believed, in the format of `ssh-keygen`:
a line per key with a name for its holder, the type of the key and the key itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate.errors import EnvironmentRefused, InvalidResult, UsageError

NAMESPACE: Final = "specgate-ledger"
"""What the signatures are for: one made for anything else is not taken for one of a ledger entry."""
KEY_VARIABLE: Final = "SPECGATE_SIGNING_KEY"
SIGNERS_VARIABLE: Final = "SPECGATE_ALLOWED_SIGNERS"
_PROGRAM: Final = "ssh-keygen"
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature in the armoured form of `ssh-keygen`, and the text that it was made for."""

    armoured: str
    text: str


class UnknownSigner(InvalidResult):
    """The signature was made by a key that is not among the allowed signers."""


def signing_key() -> Path | None:
    """The key that signs, by `SPECGATE_SIGNING_KEY`; None if entries are not signed."""
    name = os.environ.get(KEY_VARIABLE)
    return Path(name).expanduser() if name else None


def allowed_signers() -> Path | None:
    """The file of keys that are believed, by `SPECGATE_ALLOWED_SIGNERS`; None if no signature is asked for."""
    name = os.environ.get(SIGNERS_VARIABLE)
    return Path(name).expanduser() if name else None


def sign(text: str, key: Path) -> Signature:
    """Sign `text` (UTF-8) with `key`.

    Raises UsageError for a key that is missing, needs a passphrase or cannot be used, and EnvironmentRefused where
    there is no `ssh-keygen`.
    """
    if not key.is_file():
        raise UsageError(f"{KEY_VARIABLE}={key}: no such file", hint="name a private key; ssh-keygen makes one")
    done = _ssh_keygen(("-Y", "sign", "-f", str(key), "-n", NAMESPACE), text)
    if done.returncode or not done.stdout:
        hint = "it needs a private key without a passphrase, or a public key whose private half is in ssh-agent"
        raise UsageError(f"{KEY_VARIABLE}={key}: cannot sign: {_last_line(done.stderr)}", hint=hint)
    return Signature(done.stdout.decode(), text)


def signer(signature: Signature, signers: Path, at: str) -> str:
    """The name, in the file `signers`, of whoever made the signature. `at`: when, ISO 8601; keys may have expired.

    Raises UnknownSigner for a key that is not in the file, InvalidResult where text and signature do not belong
    together, UsageError where the file cannot be read, and EnvironmentRefused where there is no `ssh-keygen`.
    """
    if not signers.is_file():
        raise UsageError(f"{signers}: no such file of allowed signers", hint="a line per key: NAME KEYTYPE KEY")
    time = f"-Overify-time={datetime.fromisoformat(at).astimezone(UTC):%Y%m%d%H%M%S}"
    with _in_memory(signature.armoured) as file:
        known = ("-f", str(signers), "-s", file.name, time)
        principals = _ssh_keygen(("-Y", "find-principals", *known), "", (file.fd,))
        names = principals.stdout.decode(errors="replace").splitlines()
        if principals.returncode or not names:
            raise UnknownSigner(f"signed by a key that {signers} does not list ({_last_line(principals.stderr)})")
        command = ("-Y", "verify", "-I", names[0], "-n", NAMESPACE, *known)
        done = _ssh_keygen(command, signature.text, (file.fd,))
    if done.returncode:
        raise InvalidResult(f"the signature of {names[0]} is not one of this text ({_last_line(done.stderr)})")
    return names[0]


class _in_memory:
    """A file in memory that a child process can open by name. Reading a ledger writes to no disk."""

    def __init__(self, text: str) -> None:
        self.fd = os.memfd_create("specgate-signature")
        os.write(self.fd, text.encode())
        self.name = f"/dev/fd/{self.fd}"

    def __enter__(self) -> _in_memory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _ssh_keygen(arguments: Sequence[str], text: str, fds: Sequence[int] = ()) -> subprocess.CompletedProcess[bytes]:
    # A session of its own has no terminal, so that a passphrase cannot be asked for. Times are in UTC.
    environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "TZ": "UTC", "LC_ALL": "C"}
    try:
        return subprocess.run(
            (_PROGRAM, *arguments),
            input=text.encode(),
            capture_output=True,
            env=environment,
            pass_fds=fds,
            start_new_session=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        hint = f"install OpenSSH's client programs, or unset {KEY_VARIABLE} and {SIGNERS_VARIABLE}"
        raise EnvironmentRefused(f"{_PROGRAM} is not installed: signatures need it", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise EnvironmentRefused(f"{_PROGRAM} did not answer within {_TIMEOUT_S:g} s") from None


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "ssh-keygen says nothing"

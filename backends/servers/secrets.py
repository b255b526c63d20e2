"""Credentials are refused in options and flags. An API key is read from the environment, sent, and written nowhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specgate.contract.protocols import is_telling, masked, remember
from specgate.errors import EnvironmentRefused

FLAGS: Final = (
    "token", "hftoken", "hft", "hubtoken", "huggingfacetoken", "apitoken", "bearertoken", "secrettoken",
    "key", "apikeys", "bearer", "authorization", "auth", "credential", "credentials",
)  # fmt: skip
"""Names of flags and options that carry a credential, in lower case and without hyphens."""
ENDINGS: Final = (
    "apikey", "secretkey", "accesskey", "privatekey", "authtoken", "accesstoken", "hftoken",
    "password", "passwd", "secret",
)  # fmt: skip
"""How the names of further ones end. `token` alone is no such ending: --pad-token is a word of the vocabulary."""
ABBREVIATED: Final = ("apikey", "hftoken", "authtoken", "accesstoken", "password", "token")
SHORTEST_ABBREVIATION: Final = 4
"""Servers that use argparse take the beginning of a flag for the flag: --api-k."""
HEADERS: Final = ("-h", "--header", "--headers")
"""Flags with an HTTP header as value, in lower case (`-H`)."""
_SECRET_HEADER = re.compile(r"(?i)\W*((proxy-)?authorization|[\w-]*(api|access|auth)[_-]?key|[\w-]*token|cookie)\b")
_SECRET_ENTRY = re.compile(r"(?i)[\"']?(api[_-]?key|hf[_-]?token|auth[_-]?token|password|secret)[\"']?\s*[:=]")
_ASSIGNED = re.compile(r"(?:^|[\s,=])([A-Z][A-Z0-9_]*)=[^\s]")


def names_a_credential(name: str) -> bool:
    """True if a flag or option of this whole name carries a credential: `--hf-token`, `--API_KEY`, but neither
    `--max-num-batched-tokens` nor `--tokenizer`.
    """
    plain = re.sub(r"[-_.]", "", name.lower())
    abbreviated = len(plain) >= SHORTEST_ABBREVIATION and any(flag.startswith(plain) for flag in ABBREVIATED)
    return plain in FLAGS or plain.endswith(ENDINGS) or abbreviated


def credential_flags(words: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a server's command line that carry a credential, in words that do not show it."""
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            if names_a_credential(flag.lstrip("-")):
                yield flag
                continue
            if flag.lower() in HEADERS:
                value = value if equals else " ".join(words[number + 1 : number + 2])
            elif flag.startswith("-H") and not flag.startswith("--"):
                flag, value = "-H", word[2:]
            else:
                value = ""
            if _SECRET_HEADER.match(value):
                yield f"{flag} with a header of that kind"
                continue
        if assigned := [name for name in _ASSIGNED.findall(word) if is_telling(name)]:
            yield assigned[0]
        elif (entry := _SECRET_ENTRY.search(word)) is not None:
            yield entry[1]
        elif masked(word) != word:
            yield masked(word)[:80]


class Secret:
    """Holds the key in a private slot, so that no dump of options, errors or objects shows it."""

    __slots__ = ("__key",)

    def __init__(self, key: str | None = None) -> None:
        self.__key = key

    @classmethod
    def from_environment(cls, variable: str | None) -> Secret:
        """The key in an environment variable, or none. It is masked from then on in all that this process stores or
        prints.

        Raises EnvironmentRefused where the variable is not set, or its value cannot be sent or masked.
        """
        if variable is None:
            return cls()
        if not (key := os.environ.get(variable, "").strip()):
            raise EnvironmentRefused(
                f"option api_key_env = {variable}: the variable is not set",
                hint="the name of a variable that holds the server's key, exported",
            )
        if not key.isprintable():  # no header can hold it
            raise EnvironmentRefused(
                f"option api_key_env = {variable}: the value has a line break or another control character",
                hint="the key alone, on one line",
            )
        try:
            remember(key)
        except ValueError as error:
            raise EnvironmentRefused(
                f"option api_key_env = {variable}: {error}", hint="a server that checks no key needs none"
            ) from error
        return cls(key)

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.__key}"} if self.__key else {}

    def __repr__(self) -> str:
        return "Secret()"

"""An API key: read from the environment, sent to the server, and never written anywhere."""

from __future__ import annotations

import os
from collections.abc import Mapping

from specgate.errors import EnvironmentRefused

HIDDEN = "(API key)"


class Secret:
    """Holds the key in a private slot, so that no dump of options, errors or objects shows it."""

    __slots__ = ("__key",)

    def __init__(self, key: str | None = None) -> None:
        self.__key = key

    @classmethod
    def from_environment(cls, variable: str | None) -> Secret:
        """The key in an environment variable, or none. Raises EnvironmentRefused where the variable is not set."""
        if variable is None:
            return cls()
        if not (key := os.environ.get(variable, "").strip()):
            raise EnvironmentRefused(f"option api_key_env = {variable}: the variable is not set")
        return cls(key)

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.__key}"} if self.__key else {}

    def hidden_in(self, text: str) -> str:
        """`text` without the key. Servers often repeat a key that they refuse."""
        return text.replace(self.__key, HIDDEN) if self.__key else text

    def __repr__(self) -> str:
        return "Secret()"

"""Values of back-end options (`-o KEY=VALUE`) that several back ends read alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specgate.errors import UsageError

LONGEST_BUILD: Final = 200


def choice(options: Mapping[str, str], key: str, values: tuple[str, ...]) -> str:
    """The chosen one of `values`, the first where the option is not given. Raises UsageError for any other value."""
    value = options.get(key, values[0])
    if value not in values:
        raise UsageError(f"option {key} = {value!r}", hint=f"it is one of: {', '.join(values)}")
    return value


def build_of(text: str) -> str:
    """The name of a build. Raises UsageError for one that names nothing."""
    if not text.strip() or not text.isprintable() or len(text) > LONGEST_BUILD:
        hint = f"a commit, or the digest of a wheel or an image, in at most {LONGEST_BUILD} characters"
        raise UsageError(f"option build = {text[:40]!r}", hint=hint)
    return text.strip()

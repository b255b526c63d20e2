"""A request is led along a text as far as the engine itself would have gone that way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.servers.evidence.second_pass import led_along
from specgate.contract import TopTokens
from specgate.contract.protocols import LED


@given(st.lists(st.booleans(), max_size=2 * LED), st.booleans())
def test_it_decodes_what_follows_the_last_token_that_is_not_the_engines_own(own: list[bool], shows: bool) -> None:
    """The engine's own choice at place i is i; the text has another token where `own` is False."""
    text = tuple(i if is_own else -1 for i, is_own in enumerate(own))
    asked_for = list[int]()

    def decoded(led: int) -> tuple[tuple[int, ...], TopTokens | None]:
        asked_for.append(led)
        begin = len(text) - led
        return tuple(range(begin, len(text) + 1)), TopTokens((float(led), 0.0)) if shows else None

    top = led_along(text, decoded)
    behind = own[::-1].index(False) if False in own[-LED:] else min(LED, len(own))
    assert top == (TopTokens((float(behind), 0.0)) if behind and shows else None)
    assert asked_for == sorted(set(asked_for), reverse=True) and len(asked_for) <= 1 + own[-LED:].count(False)

"""Differences between two fingerprints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgate.promotion.fingerprint import changes, in_words, incomplete

KEYS = st.sampled_from(["source", "device", "package:torch", "package:numpy", "plugin:gate:p90"])
PRINTS = st.dictionaries(KEYS, st.sampled_from([None, "1", "2"]))


def test_a_change_is_said_with_both_values_and_short_hashes() -> None:
    then = {"interpreter": "CPython 3.11", "package:torch": "2.11.0", "draft_sha256": "ab" * 32, "device": None}
    now = {"interpreter": "CPython 3.11", "package:torch": "2.12.0", "draft_sha256": "cd" * 32, "device": "cpu"}
    assert in_words(changes(then, now)) == (
        "torch was 2.11.0, is 2.12.0; draft_sha256 was abababababab…, is cdcdcdcdcdcd…; device was absent, is cpu"
    )


def test_a_package_or_plug_in_that_comes_or_goes_is_a_change() -> None:
    then = {"package:numpy": "2", "package:triton": "3", "plugin:gate:p90": "judging 1"}
    now = {"package:numpy": "2", "plugin:backend:mine": "engine 1"}
    assert in_words(changes(then, now)) == (
        "plugin:backend:mine was absent, is engine 1; triton was 3, is absent; plugin:gate:p90 was judging 1, is absent"
    )


def test_what_one_side_did_not_know_is_no_change_but_incomplete() -> None:
    old = {"source": "s", "target_sha256": "w"}
    new = {"source": "s", "interpreter": "x", "target_sha256": "w"}
    assert changes(old, new) == changes(new, old) == []
    assert incomplete(old, new) == "its fingerprint is incomplete, without interpreter"
    assert incomplete(new, new) is None


@given(PRINTS, PRINTS)
def test_fingerprints_are_the_same_if_nothing_changed_and_nothing_lacks(
    then: dict[str, str | None], now: dict[str, str | None]
) -> None:
    assert (then == now) == (not changes(then, now) and incomplete(then, now) is None)


@given(PRINTS, PRINTS)
def test_a_change_the_other_way_has_its_values_exchanged(
    then: dict[str, str | None], now: dict[str, str | None]
) -> None:
    there, back = changes(then, now), changes(now, then)
    assert {(c.key, c.now, c.then) for c in there} == {(c.key, c.then, c.now) for c in back}
    assert all(c.then != c.now for c in there)

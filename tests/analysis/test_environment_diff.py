"""Two records of an environment, and what of them is a difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.environment_diff import differences, flat

leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
keys = st.text("abc", min_size=1, max_size=3)
records = st.dictionaries(keys, leaves | st.dictionaries(keys, leaves, min_size=1, max_size=3), max_size=4)


def test_nested_records_are_flat_with_their_path_as_key() -> None:
    facts = {"host": {"cpu": "x", "load": [1, 2]}, "gpus": [{"name": "a"}, {"name": None}], "empty": {}}
    assert list(flat(facts)) == [
        ("host.cpu", "x"),
        ("host.load", "[1, 2]"),
        ("gpus[0].name", "a"),
        ("gpus[1].name", "unknown"),
        ("empty", "{}"),
    ]


@given(records)
def test_a_record_does_not_differ_from_itself(record: dict[str, object]) -> None:
    assert list(differences(record, record)) == []


@given(records, records)
def test_every_key_that_differs_is_named_once_with_both_sides(a: dict[str, object], b: dict[str, object]) -> None:
    then, now = dict(flat(a)), dict(flat(b))
    results = list(differences(a, b))
    expected = {key: (then.get(key), now.get(key)) for key in then.keys() | now.keys() if then.get(key) != now.get(key)}
    assert {key: (was, is_) for key, was, is_ in results} == expected
    assert len(results) == len(expected)


def test_a_package_of_the_fingerprint_is_told_once() -> None:
    def record(torch: str, **listed: str) -> dict[str, object]:
        return {"fingerprint": {"source": "s", **listed}, "packages": {"torch": torch, "numpy": "2"}}

    new, newer = record("2.11", **{"package:torch": "2.11"}), record("2.12", **{"package:torch": "2.12"})
    assert list(differences(new, newer)) == [("fingerprint.package:torch", "2.11", "2.12")]
    # A package that one fingerprint lists, the other record has in its environment alone.
    assert list(differences(record("2.11"), newer)) == [
        ("fingerprint.package:torch", None, "2.12"),
        ("packages.torch", "2.11", "2.12"),
    ]


def test_what_is_of_one_moment_is_no_difference() -> None:
    def record(clock: int, driver: str) -> dict[str, object]:
        return {
            "host": {"load_average": [clock, 0, 0]},
            "gpus": [{"sm_clock_mhz": clock, "driver": driver}, {"temperature_c": clock}],
            "env_before": {"gpu": {"power_mw": clock}},
        }

    assert list(differences(record(1, "580"), record(2, "581"))) == [("gpus[0].driver", "580", "581")]

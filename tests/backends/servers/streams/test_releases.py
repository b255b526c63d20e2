"""Counters and fields by the names that they have in other releases."""

from __future__ import annotations

from typing import cast

import pytest

from specgate.backends.servers.adapters.sglang import counts_of
from specgate.backends.servers.client import Client
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.exchange import MissingFields, Reading, SpecCounts
from specgate.backends.servers.server import is_known
from specgate.errors import BackendError

NEEDED = "".join(f"vllm:{name} 0\n" for name in ("num_requests_running", "num_requests_waiting"))


class Scraped:
    """The side of a client that a meter uses, with one text."""

    url = "http://here"

    def __init__(self, text: str) -> None:
        self.all = text

    def text(self, path: str) -> str:
        return self.all


def read(*samples: str) -> Reading:
    text = f"{NEEDED}vllm:generation_tokens_total 41\n" + "".join(f"{sample}\n" for sample in samples)
    return adapter_named("vllm").meter().read(cast(Client, Scraped(text)))


def counters(**values: float) -> list[str]:
    return [f"vllm:spec_decode_{name} {value}" for name, value in values.items()]


ALL = {"num_drafts_total": 16, "num_draft_tokens_total": 48, "num_accepted_tokens_total": 24}


def test_rows_of_several_engines_are_added_and_the_times_of_their_creation_are_not() -> None:
    rows = [
        line
        for name, value in ALL.items()
        for line in (
            f'vllm:spec_decode_{name}{{engine="0"}} {value - 5}',
            f'vllm:spec_decode_{name}{{engine="1"}} 5',
            f'vllm:spec_decode_{name.replace("_total", "_created")}{{engine="0"}} 1.78e9',
        )
    ]
    spec = read(*rows).spec
    assert (spec.steps, spec.drafted, spec.accepted) == (16, 48, 24)
    assert 1 + spec.accepted / spec.steps == 2.5


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        # V0, up to 0.9: no drafts, but emitted tokens and two gauges
        (
            {
                "draft_acceptance_rate": 0.5,
                "efficiency": 0.6,
                "num_emitted_tokens_total": 40,
                **{name: ALL[name] for name in ("num_draft_tokens_total", "num_accepted_tokens_total")},
            },
            "num_drafts_total",
        ),
        # V1 of 0.8.3 and 0.8.4
        ({name: ALL[name] for name in ("num_draft_tokens_total", "num_accepted_tokens_total")}, "num_drafts_total"),
        ({"num_drafts_total": 16, "num_draft_tokens_total": 48}, "num_accepted_tokens_total"),
        ({"num_drafts_created": 1.78e9}, "num_drafts_total"),
    ],
)
def test_a_counter_of_speculation_that_is_missing_beside_others_is_named(
    values: dict[str, float], missing: str
) -> None:
    with pytest.raises(BackendError, match=f"counter vllm:spec_decode_{missing} is missing, and vllm:") as error:
        read(*counters(**values))
    assert "since 0.8.5" in str(error.value)


@pytest.mark.parametrize(
    ("samples", "cached"),
    [
        (("vllm:prefix_cache_hits_total 7",), 7),
        (("vllm:gpu_prefix_cache_hits_total 7",), 7),  # up to 0.9.1
        (("vllm:prefix_cache_hits_total 7", "vllm:gpu_prefix_cache_hits_total 7"), 7),  # 0.9.2 to 0.11 have both
        ((), None),  # V0 does not count them
    ],
)
def test_cached_tokens_are_read_by_either_name_and_are_not_none_where_they_are_not_counted(
    samples: tuple[str, ...], cached: int | None
) -> None:
    assert read(*samples).cached == cached


def test_a_counter_under_the_name_of_a_gateway_is_named_beside_the_one_that_is_missing() -> None:
    text = NEEDED.replace("vllm:", "ray_vllm_")
    with pytest.raises(BackendError, match="no counter vllm:num_requests_running, but ray_vllm_num_requests_running:"):
        adapter_named("vllm").meter().read(cast(Client, Scraped(f"{text}vllm:generation_tokens_total 41\n")))


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_a_counter_of_many_digits_is_refused(digits: int) -> None:
    with pytest.raises(BackendError, match=r"is no count|not Prometheus"):
        read(*counters(**ALL), f"vllm:request_success_total {'9' * digits}")


@pytest.mark.parametrize(
    ("accepted", "drafted", "hist"),
    [
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    ],
)
def test_answers_of_sglang_count_drafts_by_the_names_of_their_release(accepted: str, drafted: str, hist: str) -> None:
    meta = {"spec_verify_ct": 16, accepted: 24, drafted: 48, hist: [4, 4, 4, 4], "spec_accept_rate": 0.5}
    assert counts_of(meta) == SpecCounts(16, 48, 24, (4, 4, 4, 4))
    del meta[hist]
    assert counts_of(meta) == SpecCounts(16, 48, 24)


def test_steps_of_sglang_without_a_count_of_drafts_name_the_field_of_each_release() -> None:
    with pytest.raises(MissingFields, match=r"spec_num_correct_drafts \(0.5.12 and later\).* \(0.5.6 to 0.5.10\)"):
        counts_of({"spec_verify_ct": 16, "spec_accept_rate": 0.5, "spec_accept_length": 2.5})  # 0.5.4
    assert counts_of({"spec_verify_ct": 0}) == SpecCounts(0, 0, 0)


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.33.0", True), ("0.33.0rc1+cu130", True), ("0.3.0", False), ("0.331", False), ("1.0.33", False), ("", False)],
)
def test_a_version_is_known_by_its_first_parts(version: str, known: bool) -> None:
    assert is_known(version, "0.32, 0.33") is known

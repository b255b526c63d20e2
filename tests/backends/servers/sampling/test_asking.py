"""Sampling settings in requests to a server, and settings that are refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.backends.servers.adapter import Launch
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.exchange import Ask
from specgate.backends.servers.options import Options
from specgate.backends.servers.sampling import seed_of
from specgate.contract import BASELINE, PairRef, Sampling
from specgate.contract.protocols import ChecksSampling
from specgate.errors import UsageError
from specgate.plugins import backend
from tests.backends.servers.helpers import ENGINES, request_of

DRAWN = Sampling(temperature=0.7, method="rejection")


def body(name: str, sampling: Sampling, seed: int | None = None) -> dict[str, Any]:
    _, result = adapter_named(name).request(Ask("m", (1, 2, 3), 4, True, sampling=sampling, seed=seed))
    return dict(result)


def refused(name: str, sampling: Sampling) -> str:
    result = backend(name)
    assert isinstance(result, ChecksSampling)
    with pytest.raises(UsageError) as caught:
        result.check_sampling(sampling, "scenario s: sampling")
    return str(caught.value)


@pytest.mark.parametrize("name", ENGINES)
def test_coupled_speculation_is_refused_with_what_would_be_right(
    name: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    message = refused(name, Sampling())
    assert message.startswith(f"scenario s: sampling.method = 'coupled': {name} draws with random numbers of its own")
    assert "method: rejection" in message
    with pytest.raises(UsageError, match=r"sampling\.method = 'coupled'"):
        backend(name).open(request_of(pair, tmp_path, {}, sampling=Sampling()))
    assert not list(tmp_path.iterdir()), "nothing is started"


@pytest.mark.parametrize(
    ("name", "setting", "value", "why"),
    [
        ("vllm", "min_p", 0.1, "takes none where it speculates"),
        ("vllm", "logit_bias", ((5, 1.0),), "takes none where it speculates"),
        ("sglang", "repetition_penalty", 1.1, "does not count the tokens of the prompt"),
        ("llamacpp", "presence_penalty", 0.5, "counts the tokens of the prompt, too"),
        ("llamacpp", "frequency_penalty", 0.5, "counts the tokens of the prompt, too"),
        ("trtllm", "min_p", 0.1, "has no such setting that is known here"),
        ("lmdeploy", "logit_bias", ((5, 1.0),), "has no such setting that is known here"),
    ],
)
def test_a_setting_that_means_something_else_there_is_refused_by_name(
    name: str, setting: str, value: object, why: str
) -> None:
    message = refused(name, replace(DRAWN, **{setting: value}))  # type: ignore[arg-type]
    assert message.startswith(f"scenario s: sampling.{setting} = {value!r}: {name} {why}")
    assert f"{name} can be asked for: temperature" in message


def test_filters_that_are_applied_in_another_order_are_refused_together_and_taken_alone() -> None:
    assert "top_p and top_k together" in refused("sglang", replace(DRAWN, top_p=0.9, top_k=5))
    assert body("sglang", replace(DRAWN, top_p=0.9))["sampling_params"]["top_k"] == -1
    assert body("vllm", replace(DRAWN, top_p=0.9, top_k=5))["top_k"] == 5


@pytest.mark.parametrize("name", ["sglang", "lmdeploy"])
def test_a_seed_is_refused_where_requests_take_none(name: str) -> None:
    assert f"sampling.seed = 7: requests to {name} take no seed" in refused(name, replace(DRAWN, seed=7))


@pytest.mark.parametrize("name", ENGINES)
def test_settings_that_filter_nothing_are_sent_so_that_no_default_of_the_server_holds(name: str) -> None:
    request = body(name, DRAWN, 11)
    fields = request.get("sampling_params", request)
    assert fields["temperature"] == 0.7 and fields["top_p"] == 1.0
    assert fields["top_k"] == (-1 if name == "sglang" else 0)
    assert fields.get("seed") == (None if name == "sglang" else 11)
    if name in ("vllm", "llamacpp", "sglang", "lmdeploy"):
        assert fields["min_p"] == 0.0


def test_llamacpp_gets_the_samplers_in_the_order_of_the_library_and_penalises_the_whole_text() -> None:
    request = body("llamacpp", replace(DRAWN, repetition_penalty=1.2, logit_bias=((9, -100.0),)), 3)
    assert request["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]
    assert (request["repeat_penalty"], request["repeat_last_n"]) == (1.2, 7)
    assert request["logit_bias"] == [[9, -100.0]] and request["stream"] is True
    assert adapter_named("llamacpp").request(Ask("m", (1,), 4, True, whole=True))[1]["stream"] is False


@pytest.mark.parametrize("name", ENGINES)
def test_greedy_requests_are_what_they_were(name: str) -> None:
    _, result = adapter_named(name).request(Ask("m", (1, 2, 3), 4, True))
    fields = dict(result.get("sampling_params", result))  # type: ignore[call-overload]
    assert fields["temperature"] == 0 and "seed" not in fields and "top_p" not in fields


def test_vllm_lists_all_log_probabilities_only_where_it_is_to_draw(pair: tuple[Path, Path], tmp_path: Path) -> None:
    launch = Launch(BASELINE, PairRef("tiny", *pair), 1, "float32", 1, 64, Options(), tmp_path)
    plain, drawing = (adapter_named("vllm").command(replace(launch, lists_all=lists)).argv for lists in (False, True))
    assert "--max-logprobs" not in plain and drawing[-2:] == ("--max-logprobs", "-1")


def test_every_request_has_a_seed_of_its_own_and_every_scenario_others() -> None:
    seeds = {seed_of(0, number, 31) or 0 for number in range(50_000)}
    assert len(seeds) == 50_000 and max(seeds) < 1 << 31
    assert not seeds & {seed_of(1, number, 31) for number in range(10)}
    assert seed_of(0, 5, 0) is None and seed_of(3, 5, 63) == seed_of(3, 5, 63)

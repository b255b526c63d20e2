"""Every adapter turns what its engine's documentation promises into a record whose identities hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from specgate.backends.servers.answers import Answer, understand
from specgate.backends.servers.blocks import accounted_for, between, own_counts, record_of, refuse_other_traffic
from specgate.backends.servers.client import Client, Recording
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.exchange import Ask, Reading
from specgate.errors import BackendError

FIXTURES = sorted(p for p in (Path(__file__).parent / "fixtures").iterdir() if p.is_dir())
WHERE = "fixture"


class Canned:
    """The side of a client that a meter uses, answering from files."""

    url = "http://fixture"

    def __init__(self, folder: Path, when: str) -> None:
        self.folder, self.when = folder, when

    def text(self, path: str, *, method: str = "GET") -> str:
        return (self.folder / f"{self.when}.txt").read_text()

    def json(self, path: str) -> Any:
        return json.loads((self.folder / f"{self.when}.json").read_text())


def answer_of(folder: Path, expected: dict[str, Any], width: int = 1 << 20) -> Answer:
    """The fixture's stream, received in pieces of `width` bytes, a microsecond apart."""
    data = (folder / "stream.txt").read_bytes()
    pieces = tuple((1000 * (i + 1), data[i * width : (i + 1) * width]) for i in range(-(-len(data) // width)))
    ask = Ask("smol", tuple(range(expected["prompt"])), expected["new_tokens"], ignore_eos=True)
    read = adapter_named(expected["dialect"]).read
    return understand(Recording(0, pieces), ask, read, WHERE, expected["prompt"])


def counted(folder: Path, expected: dict[str, Any]) -> Reading:
    meter = adapter_named(expected["dialect"]).meter()
    before, after = (meter.read(cast(Client, Canned(folder, when))) for when in ("before", "after"))
    return between(before, after, WHERE)


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda p: p.name)
def test_a_documented_answer_becomes_the_record_written_beside_it(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    answer, counts = answer_of(folder, expected), counted(folder, expected)
    assert accounted_for(counts, [answer]) and not counts.busy
    refuse_other_traffic(counts, [answer], WHERE)
    assert len(answer.tokens) == answer.usage.completion == expected["new_tokens"]
    assert answer.usage.cached == expected["cached"]
    record, undrafted = record_of(expected["k"], own_counts([answer]) or counts.spec, [answer], WHERE)
    record.check()
    for name in ("steps", "drafted", "accepted", "emitted", "truncated", "acceptance_length"):
        assert getattr(record, name) == expected[name], name
    assert list(record.hist) == expected["hist"] and list(record.drafted_at_pos) == expected["drafted_at_pos"]
    assert undrafted == expected["undrafted"]
    # The identity that every engine must keep, in its own words: what came is what was accepted, and a token per step.
    assert expected["new_tokens"] - 1 == record.steps + undrafted + record.accepted - record.truncated


def test_the_time_of_decoding_by_the_engines_own_clock_is_the_growth_of_its_histograms_sum() -> None:
    folders = {folder.name: folder for folder in FIXTURES}
    data = {n: counted(f, json.loads((f / "expected.json").read_text())).decode_s for n, f in folders.items()}
    assert data["vllm-0.33"] == 0.25
    assert data["vllm-0.32"] == 0.0 and data["trtllm-1.2"] is None  # never written; no such counter


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda p: p.name)
def test_an_answer_in_small_pieces_is_the_same_answer(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    whole, torn = answer_of(folder, expected), answer_of(folder, expected, width=7)
    assert torn.tokens == whole.tokens and torn.usage == whole.usage and torn.spec == whole.spec
    assert list(torn.times.chunk_ns) == sorted(torn.times.chunk_ns) and torn.times.chunk_ns[0] < torn.times.chunk_ns[-1]


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda p: p.name)
def test_an_answer_that_stops_early_is_refused(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    received = expected["new_tokens"]
    expected["new_tokens"] += 1
    with pytest.raises(BackendError, match=f"{received} tokens in place of {received + 1}"):
        answer_of(folder, expected)


@pytest.mark.parametrize("folder", [p for p in FIXTURES if not (p / "before.json").exists()], ids=lambda p: p.name)
def test_counters_that_fell_are_refused(folder: Path) -> None:
    """TensorRT-LLM's iterations are consumed by whoever reads them: there is no sum that could fall."""
    expected = json.loads((folder / "expected.json").read_text())
    meter = adapter_named(expected["dialect"]).meter()
    after, before = (meter.read(cast(Client, Canned(folder, when))) for when in ("after", "before"))
    with pytest.raises(BackendError, match="counters fell"):
        between(after, before, WHERE)


def test_five_engines_have_a_fixture() -> None:
    assert {json.loads((p / "expected.json").read_text())["dialect"] for p in FIXTURES} == {
        "vllm",
        "sglang",
        "trtllm",
        "lmdeploy",
        "llamacpp",
    }

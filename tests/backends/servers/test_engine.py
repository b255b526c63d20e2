"""Five engines through the harness's protocol, on servers that the adapters start with the real engines' flags."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from specgate.analysis.requests.arrivals import request_records, step_unit
from specgate.backends.servers.adapter import UNTOLD
from specgate.contract import BASELINE, Block, Budget, DecodeRun, Finish, Point, Role
from specgate.contract.protocols import Decoded, Engine, FollowsText, RanksAgain, RanksTokens, ScriptedTrace
from specgate.contract.references import StepUnit
from specgate.contract.types import DRAFT_TOKENS
from specgate.errors import BackendError, UsageError
from specgate.plugins import backend
from tests.backends.servers.helpers import ENGINES, attached, own_options, request_of, running_stub, started
from tests.backends.servers.stub.engine import ACCEPT, DECODED, token

pytestmark = pytest.mark.slow("starts two servers per test")

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
STEPS = Budget(steps=20)


@pytest.fixture(scope="module", params=ENGINES)
def served(
    request: pytest.FixtureRequest, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Engine]]:
    """The name of an engine, and the engine on two servers."""
    with started(tmp_path_factory.mktemp("served"), pair, request.param) as engine:
        yield request.param, engine


def test_a_block_has_every_request_its_times_and_the_servers_counts(served: tuple[str, Engine]) -> None:
    name, engine = served
    assert engine.prefill(PROMPTS, draft=True) == 0
    began = time.monotonic_ns()
    baseline, spec = (engine.decode(role, STEPS, ()) for role in (BASELINE, Role(3)))
    answered = time.monotonic_ns()
    for block in (baseline, spec):
        assert block.tokens == tuple(tuple(token(p, i) for i in range(21)) for p in PROMPTS)
        assert block.served is not None and block.prefill_ns is not None
        firsts = [r.chunk_ns[0] for r in block.served.requests]
        lasts = [r.chunk_ns[-1] for r in block.served.requests]
        assert block.prefill_ns == min(firsts) and block.elapsed_ns == max(lasts) - min(firsts)
        assert block.began_ns is not None and began < block.began_ns < answered - max(lasts)
        assert block.finish == ("length", "length") and not block.step_ns and not block.accepted
    assert baseline.served is not None and baseline.served.acceptance is None
    assert spec.served is not None and spec.served.acceptance is not None
    record = spec.served.acceptance
    # By the script: 20 tokens in cycles of 4, 2, 3, 1, 4, 3, 3, and the third of the last cycle fits just in part.
    cycles = [ACCEPT[i % len(ACCEPT)] for i in range(7)]
    record.check()
    assert (record.steps, record.accepted, record.drafted) == (14, 2 * sum(cycles), 2 * 7 * 3)
    assert record.truncated == 2 * (7 + sum(cycles) - 20)
    assert record.hist in ((), tuple(2 * cycles.count(i) for i in range(4)))
    assert (record.hist == ()) == (name == "trtllm"), "only TensorRT-LLM counts no positions"
    # Each step came in a chunk of its own, so the two requests, of the same steps, share the counts evenly.
    stored = block_from(spec, Role(3))
    assert step_unit([stored]) is StepUnit.ARRIVAL, "seven steps are too few to time joint decoding"
    halves = request_records(stored)
    assert (halves is None) == (name == "trtllm")
    assert (
        halves is None
        or [(r.steps, r.accepted, r.truncated) for r in halves] == [(7, sum(cycles), 7 + sum(cycles) - 20)] * 2
    )


def block_from(decoded: Decoded, role: Role) -> Block:
    """The block that the harness stores."""
    values: dict[str, Any] = {field.name: getattr(decoded, field.name) for field in fields(DecodeRun)}
    own: dict[str, Any] = {"prompt_set": 0, "round": 0, "position_in_round": 0, "warmup": False, "worker_generation": 0}
    return Block(point=Point("s", "b", 64, 2), role=role, prefill_ns=decoded.prefill_ns or 0, **own, **values)


def test_facts_and_top_two_come_from_the_baselines_server(served: tuple[str, Engine]) -> None:
    name, engine = served
    facts = engine.facts()
    engine.prefill(PROMPTS, draft=True)
    assert engine.top2(0, (9, 9)) == (-0.25, -1.75)
    assert isinstance(engine, RanksTokens) and isinstance(engine, FollowsText)
    top = engine.ranked(0, (9, 9), 20)
    if top is not None:
        assert top.values[:2] == (-0.25, -1.75)
        assert top.tokens[:1] == (token((*PROMPTS[0], 9, 9), 0),)
    text = tuple(token(PROMPTS[0], i) for i in range(5))
    assert isinstance(engine, RanksAgain)
    if top is not None:
        again = engine.ranked_again(0, text, 20)
        assert (
            again is not None and again.values == (-0.25, -1.75 - DECODED) and again.tokens[0] == token(PROMPTS[0], 5)
        )
        assert engine.ranked_again(0, (*text[:-1], 9), 20) is None, "it cannot be led along another text"
    assert engine.follow(0, (9, 9), 3) == tuple(token((*PROMPTS[0], 9, 9), i) for i in range(3))
    assert engine.decode(BASELINE, STEPS, ()).tokens[0][0] == token(PROMPTS[0], 0)
    assert facts.backend == name and facts.has_draft and facts.acceptance is None
    assert facts.details["drafter"] == "eagle3" and facts.details["servers"] == "together"
    versions = {"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.2.1", "llamacpp": "b11434-2f3a1c"}
    assert facts.details[f"{name} version"] == versions.get(name, UNTOLD)
    assert facts.engine_version == facts.details[f"{name} version"]
    assert facts.capture_rule is not None
    assert bool(facts.warnings) == (name == "lmdeploy"), "the tiny draft names its layers, which LMDeploy does not read"


def test_the_digest_is_that_of_the_reference_engine(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with started(tmp_path, pair, "vllm") as engine:
        served = engine.facts()
    opened = backend("reference").open(request_of(pair, tmp_path, {"device": "cpu"}))
    assert (served.target_sha256, served.draft_sha256) == (opened.facts().target_sha256, opened.facts().draft_sha256)


def test_a_block_that_is_looked_into_says_that_nothing_can_be_seen(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with started(tmp_path, pair, "vllm") as engine:
        engine.prefill(PROMPTS, draft=True)
        assert isinstance(engine, ScriptedTrace)
        decoded, seen = engine.trace(Role(3), Budget(steps=4))
    assert len(decoded.tokens[0]) == 5 and "behind a server" in str(seen.unseen)


@pytest.mark.parametrize("name", ENGINES)
def test_a_natural_end_is_an_end_and_not_a_short_answer(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with started(tmp_path, pair, name, "--fault", "short") as engine:
        engine.prefill(PROMPTS, draft=True)
        block = engine.decode(Role(3), Budget(new_tokens=21, ignore_eos=False), ())
        assert block.finish == (Finish.EOS, Finish.EOS) and 1 < len(block.tokens[0]) < 21
        with pytest.raises(BackendError, match="tokens in place of 21"):
            engine.decode(Role(3), Budget(new_tokens=21, ignore_eos=True), ())


@pytest.mark.parametrize("name", ["vllm", "trtllm", "llamacpp"])
def test_counters_may_come_later_than_the_answers(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with started(tmp_path, pair, name, "--fault", "late_counters") as engine:
        engine.prefill(PROMPTS, draft=True)
        first, second = (engine.decode(Role(3), STEPS, ()) for _ in range(2))
    assert first.served is not None and second.served is not None
    assert first.served.acceptance == second.served.acceptance and first.counters["undrafted_steps"] == 0


NGRAM = ("--lengths", "0:0,4:2,16:9", "--k", "16")
"""By hand: three steps emit 1 + 3 + 10 tokens. 20 tokens take six steps, two of them without a draft, and eight tokens
of the last one are cut off.
"""


@pytest.mark.parametrize(
    ("name", "fault", "lengths"),
    [
        *((name, "none", ()) for name in ENGINES if name != "lmdeploy"),
        ("vllm", "per_request=summary", ()),
        ("vllm", "per_request=detailed", ((4, 2), (16, 2))),
        ("trtllm", "per_request=summary", ()),
    ],
)
def test_a_method_that_drafts_none_to_sixteen_is_counted_right(
    name: str, fault: str, lengths: tuple[tuple[int, int], ...], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with running_stub(name, 0) as plain, running_stub(name, 16, *NGRAM, "--fault", fault) as url:
        options = {"url.baseline": plain, "url": url}
        request = replace(request_of(pair, tmp_path, options), max_k=DRAFT_TOKENS)
        with closing(backend(name).open(request)) as engine:
            engine.prefill(PROMPTS, draft=True)
            block, facts = engine.decode(Role(DRAFT_TOKENS), STEPS, ()), engine.facts()
    assert facts.sets_lengths and block.served is not None and "undrafted_steps" not in block.counters
    record, by_request = block.served.acceptance, "per_request" in fault or name == "sglang"
    assert record is not None
    record.check()
    assert (record.steps, record.drafted, record.accepted, record.skipped) == (8, 4 * 20, 4 * 11, 4)
    assert record.truncated == 16 and record.acceptance_length == pytest.approx(14 / 3)
    blind = name == "trtllm" and not by_request
    assert record.k == (10 if name == "sglang" or blind else 16)
    assert blind or (record.hist[2], record.hist[9], sum(record.hist)) == (4, 4, 8)
    for answered in block.served.requests:
        assert (answered.drafts is not None) == by_request
        if answered.drafts is not None:
            assert answered.drafts.hist == ((2, 2), (9, 2)) and answered.drafts.lengths == lengths
    assert record.per_position == bool(lengths) and (not lengths or record.drafted_at_pos == (8,) * 4 + (4,) * 12)


@pytest.mark.parametrize("servers", ["together", "apart"])
def test_cached_prompt_tokens_are_counted(pair: tuple[Path, Path], tmp_path: Path, servers: str) -> None:
    with started(tmp_path, pair, "sglang", "--fault", "cached=2", servers=servers) as engine:
        engine.prefill(PROMPTS, draft=True)
        block = engine.decode(BASELINE, STEPS, ())
    assert block.counters["cache_hit_tokens"] == 4
    assert block.served is not None and [r.prefix_hit_tokens for r in block.served.requests] == [2, 2]
    # SGLang sizes its KV cache by what other servers have left.
    assert block.memory is not None and block.memory.kv_tokens and block.memory.kv_beside == (servers == "together")


def test_a_cache_that_cannot_be_dropped_is_seen_by_its_counter(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """vLLM drops its cache in development mode only, and tells of hits in an answer only where it was asked to."""
    with running_stub("vllm", 0, "--fault", "hits=3") as url, attached(tmp_path, pair, "vllm", {"url": url}) as engine:
        engine.prefill(PROMPTS, draft=False)
        block = engine.decode(BASELINE, STEPS, ())
        assert block.counters["cache_hit_tokens"] == 6
        assert block.memory is not None and block.memory.kv_tokens and not block.memory.kv_beside
        assert engine.facts().details["baseline listens as"] == psutil.Process(block.memory.process).name()


def test_a_server_that_silently_drafts_nothing_leaves_an_empty_record(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with started(tmp_path, pair, "vllm", "--fault", "no_drafts") as engine:
        engine.prefill(PROMPTS, draft=True)
        block = engine.decode(Role(3), STEPS, ())
    assert block.served is not None and block.served.acceptance is not None
    assert block.served.acceptance.steps == 0 and block.counters["undrafted_steps"] == 40


def test_servers_apart_run_one_at_a_time(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from specgate.backends.servers.engine import ServerEngine

    with started(tmp_path, pair, "llamacpp", servers="apart") as engine:
        assert isinstance(engine, ServerEngine)
        engine.prefill(PROMPTS, draft=True)
        for role in (BASELINE, Role(3), BASELINE):
            assert engine.decode(role, STEPS, ()).tokens[0][0] == token(PROMPTS[0], 0)
            assert list(engine.servers) == [role]


def test_running_servers_are_attached_to_by_role_and_left_running(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with running_stub("vllm", 0) as plain, running_stub("vllm", 3) as drafting:
        options = {"url.baseline": plain, "url.spec-3": drafting}
        for _ in range(2):
            with attached(tmp_path, pair, "vllm", options) as engine:
                engine.prefill(PROMPTS, draft=True)
                assert engine.decode(Role(3), STEPS, ()).tokens == engine.decode(BASELINE, STEPS, ()).tokens
                assert any("started by someone else" in w for w in engine.facts().warnings)


def test_a_baseline_that_drafts_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with running_stub("vllm", 3) as drafting, attached(tmp_path, pair, "vllm", {"url": drafting}) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match="it drafts, and is to be the baseline"):
            engine.decode(BASELINE, STEPS, ())


def test_a_server_of_another_draft_length_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with running_stub("vllm", 0) as plain, running_stub("vllm", 3) as drafting:
        for drafter, message, hint in (
            ("given", "a step had 3 draft tokens, and 2 are the most here", "--spec 3"),
            ("eagle3", "k = 2 needs 3 histogram bins", "draft length"),
        ):
            options = {"url.baseline": plain, "url": drafting, "drafter": drafter}
            with attached(tmp_path, pair, "vllm", options) as engine:
                engine.prefill(PROMPTS, draft=True)
                with pytest.raises(BackendError, match=message) as caught:
                    engine.decode(Role(2), STEPS, ())
                assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lmdeploy", {"force_al": "2.5"}, "no way to force acceptance"),
        ("trtllm", {"drafter": "ngram"}, "trtllm does not draft so"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_a_server_is_started(
    name: str, options: dict[str, str], message: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        backend(name).open(request_of(pair, tmp_path, {**own_options(tmp_path, name), **options}))
    assert not list(tmp_path.glob("*.log"))

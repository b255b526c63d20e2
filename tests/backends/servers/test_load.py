"""A server under load, over HTTP: a closed loop keeps its clients busy, an open loop its times; refusals are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from specgate.contract import BASELINE, Budget, Role, ServedRequest
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Decoded, Engine, ServesLoad
from specgate.errors import BackendError
from tests.backends.servers.helpers import attached, running_stub
from tests.backends.servers.stub.engine import token

pytestmark = pytest.mark.slow("starts servers")

PROMPTS = [[1, 2, 3 + i] for i in range(10)]
BUDGET = Budget(new_tokens=8)
MS = 1_000_000


@contextmanager
def engine_on(folder: Path, pair: tuple[Path, Path], *arguments: str) -> Iterator[Engine]:
    """An engine on two running stubs, which have these `arguments`. The engine is opened for two slots."""
    with ExitStack() as stack:
        urls = {k: stack.enter_context(running_stub("vllm", k, *arguments)) for k in (0, 3)}
        options = {"url.baseline": urls[0], "url.spec-3": urls[3]}
        yield stack.enter_context(attached(folder, pair, "vllm", options))


@pytest.fixture(scope="module")
def engine(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with engine_on(tmp_path_factory.mktemp("load"), pair, "--rate", "1000") as result:
        yield result


def served(engine: Engine, role: Role, offered: OfferedLoad, prompts: Sequence[Sequence[int]] = PROMPTS) -> Decoded:
    assert isinstance(engine, ServesLoad)
    return engine.serve(role, prompts, BUDGET, offered, ())


def requests_of(block: Decoded) -> tuple[ServedRequest, ...]:
    assert block.served is not None
    return block.served.requests


def most_at_once(requests: tuple[ServedRequest, ...]) -> int:
    """The most requests between sending and last chunk at any sending; one that ends then has ended."""
    return max(sum(o.sent_ns <= r.sent_ns < o.chunk_ns[-1] for o in requests) for r in requests)


@pytest.mark.parametrize("role", [BASELINE, Role(3)])
@pytest.mark.parametrize("clients", [1, 3])
def test_a_closed_loop_never_has_more_requests_than_clients_and_answers_all(
    engine: Engine, role: Role, clients: int
) -> None:
    block = served(engine, role, OfferedLoad(clients=clients))
    requests = requests_of(block)
    assert block.tokens == tuple(tuple(token(p, i) for i in range(8)) for p in PROMPTS)
    assert most_at_once(requests) == clients, "more than the two slots that the engine was opened for, if asked to"
    firsts, ends = sorted(r.sent_ns for r in requests), sorted(r.chunk_ns[-1] for r in requests)
    for next_one, ended in zip(firsts[clients:], ends, strict=False):
        assert next_one >= ended, "the next request starts when one has ended"
    assert block.served is not None and (block.served.acceptance is not None) == role.speculative
    assert not block.served.refused and not block.served.prompts


def test_a_closed_loop_that_ends_by_the_clock_takes_its_list_again_and_answers_what_is_out(engine: Engine) -> None:
    """A request takes 7 ms, so that a busy machine, too, has time for four. The second client begins halfway."""
    end = 300 * MS
    block = served(engine, BASELINE, OfferedLoad(clients=2, ramp_ns=end, until_ns=end), PROMPTS[:3])
    requests = requests_of(block)
    assert block.served is not None and block.served.prompts == tuple(i % 3 for i in range(len(requests)))
    assert len(requests) > 3
    assert block.tokens == tuple(tuple(token(PROMPTS[p], i) for i in range(8)) for p in block.served.prompts)
    assert none_was_sent_after(end, requests)
    assert most_at_once(tuple(r for r in requests if r.sent_ns < end // 2)) == 1


def none_was_sent_after(end: int, requests: tuple[ServedRequest, ...]) -> bool:
    """True if no request was sent once an answer had ended after `end`: one client at least was answered then."""
    return max(r.sent_ns for r in requests) < min(r.chunk_ns[-1] for r in requests if r.chunk_ns[-1] > end)


def test_a_client_that_was_turned_away_shortly_before_the_end_sends_no_more(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """It waits for 100 ms, and the server would be free by then."""
    with engine_on(tmp_path, pair, "--rate", "1000", "--fault", "refuse_beyond=1") as engine:
        block = served(engine, BASELINE, OfferedLoad(clients=2, until_ns=60 * MS))
    assert block.served is not None and block.served.refused
    assert none_was_sent_after(60 * MS, requests_of(block))


def test_each_answer_of_a_trace_has_its_own_length(engine: Engine) -> None:
    block = served(engine, Role(3), OfferedLoad(clients=4, new_tokens=tuple(range(3, 13))))
    assert [len(tokens) for tokens in block.tokens] == [r.new_tokens for r in requests_of(block)] == [*range(3, 13)]


def test_an_open_loop_sends_at_its_times_whatever_was_answered(engine: Engine) -> None:
    """Ten requests arrive within 2 ms and take 7 ms each: all run at once, which no closed loop would do."""
    due = tuple(i * MS // 5 for i in range(10))
    began, block = time.monotonic_ns(), served(engine, BASELINE, OfferedLoad(arrivals_ns=due))
    requests = requests_of(block)
    assert block.began_ns is not None
    assert began < block.began_ns < time.monotonic_ns() - max(r.chunk_ns[-1] for r in requests)
    assert tuple(r.due_ns for r in requests) == due
    assert all(r.sent_ns >= r.due_ns for r in requests if r.due_ns is not None)
    assert all(r.ttft_ns == r.chunk_ns[0] - (r.due_ns or 0) for r in requests), "a late sender is not forgiven"
    assert most_at_once(requests) > 3


def test_an_open_loop_that_is_late_keeps_the_order_of_its_requests(engine: Engine) -> None:
    sent = [r.sent_ns for r in requests_of(served(engine, BASELINE, OfferedLoad(arrivals_ns=tuple(range(10)))))]
    assert sent == sorted(sent)


def test_refused_requests_are_counted_by_prompt_and_the_block_stays(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with engine_on(tmp_path, pair, "--rate", "1000", "--fault", "refuse_beyond=2") as engine:
        for role in (BASELINE, Role(3)):
            block = served(engine, role, OfferedLoad(clients=4))
            assert block.served is not None and block.served.refused
            assert {r.status for r in block.served.refused} == {429}
            answered, refused = block.served.prompts, [r.prompt for r in block.served.refused]
            assert sorted([*answered, *refused]) == list(range(10)) and len(block.tokens) == len(answered)
            assert block.tokens == tuple(tuple(token(PROMPTS[p], i) for i in range(8)) for p in answered)


@pytest.mark.parametrize(
    ("fault", "message"),
    [("refuse_beyond=0", "all 10 requests were refused, .*HTTP 429.*too many requests"), ("status=500", "HTTP 500")],
)
def test_a_server_that_answers_nothing_ends_the_point(
    fault: str, message: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with engine_on(tmp_path, pair, "--fault", fault) as engine, pytest.raises(BackendError, match=message):
        served(engine, BASELINE, OfferedLoad(clients=2))

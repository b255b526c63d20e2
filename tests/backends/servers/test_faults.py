"""Whatever a server does wrong ends in a BackendError that says what, and leaves no process and no port behind."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from specgate.analysis.speculation.drafting import refuse_beyond_k
from specgate.backends.servers import server as server_module
from specgate.contract import BASELINE, Budget, Role
from specgate.errors import BackendError, EnvironmentRefused, InvalidResult
from specgate.plugins import backend
from tests.backends.servers.helpers import ENGINES, attached, request_of, running_stub, started

pytestmark = pytest.mark.slow("starts two servers per test")

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
STEPS = Budget(steps=20)
KEY = "sk-not-to-be-seen"

IN_MID_BLOCK = [
    ("die", r"the connection broke"),
    ("hang", r"silent for 2 s"),
    ("malformed_json", r"malformed event"),
    ("malformed_sse", r"malformed event: field '<html>gateway</html>'"),
    ("cut", r"the connection broke"),
    ("error_event", r"the server reports an error: .*the engine has gone"),
    ("status=500", r"HTTP 500"),
    ("status=429", r"HTTP 429"),
    ("no_usage", r"with no (finish reason|usage record)"),
    ("adds_bos", r"the server counted 4 prompt tokens, 3 were meant"),
    ("miscounts", r"41 tokens received, but the usage record says 42"),
    ("one_piece", r"not streamed"),
    ("foreign", r"counted .* during a block of"),
    ("reset", r"counters fell|0 requests during a block of 2"),
]


@pytest.fixture(scope="module")
def baselines() -> Iterator[Callable[[str], str]]:
    """Engine → the URL of a stub without faults, started once, in the baseline's place."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(running_stub(name, 0)))


@pytest.mark.parametrize(("fault", "message"), IN_MID_BLOCK, ids=[f for f, _ in IN_MID_BLOCK])
def test_a_fault_in_mid_block_is_named(
    fault: str,
    message: str,
    baselines: Callable[[str], str],
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "SETTLE_S", 0.3)
    with running_stub("vllm", 3, "--fault", fault) as url:
        options = {"url": url, "url.baseline": baselines("vllm"), "stall_s": "2" if fault == "hang" else "60"}
        with attached(tmp_path, pair, "vllm", options) as engine:
            engine.prefill(PROMPTS, draft=True)
            with pytest.raises(BackendError, match=message):
                engine.decode(Role(3), Budget(steps=40), ())


def test_a_block_that_was_seen_in_one_piece_once_is_asked_for_again_and_says_so(
    baselines: Callable[[str], str], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with (
        running_stub("vllm", 3, "--fault", f"one_piece_first={len(PROMPTS)}") as url,
        attached(tmp_path, pair, "vllm", {"url": url, "url.baseline": baselines("vllm")}) as engine,
    ):
        engine.prefill(PROMPTS, draft=True)
        blocks = [engine.decode(Role(3), Budget(steps=40), ()) for _ in range(2)]
    assert blocks[0].counters["asked_again"] >= 1
    for block in blocks:
        assert block.served is not None and all(len({*r.chunk_ns}) > 1 for r in block.served.requests)


@pytest.mark.parametrize(
    ("name", "tree", "shape"),
    [
        (
            "vllm",
            '{"num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (0, 0), (0, 0, 0), (1,)]"}',
            "static tree of up to 4 draft tokens",
        ),
        (
            "trtllm",
            '{"decoding_type": "Eagle3", "max_draft_len": 3, "use_dynamic_tree": true, "dynamic_tree_max_topK": 4}',
            "dynamic tree of up to 12 draft tokens",
        ),
    ],
)  # fmt: skip
def test_more_drafts_than_k_a_step_are_a_contradiction_but_of_a_tree_that_the_config_names(
    name: str, tree: str, shape: str, baselines: Callable[[str], str], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """It is no failure of the server, which answers well. Of a tree, one path is accepted and counted."""
    records = []
    with running_stub(name, 3, "--fault", "padding=4") as url:
        for options in ({"drafter": "eagle3"}, {"spec_config": f"{name}:{tree}"}):
            with attached(tmp_path, pair, name, {"url": url, "url.baseline": baselines(name), **options}) as engine:
                engine.prefill(PROMPTS, draft=True)
                block, details = engine.decode(Role(3), STEPS, ()), engine.facts().details
            assert block.served is not None and block.served.acceptance is not None
            records.append(block.served.acceptance)
    chain, path = records
    with pytest.raises(InvalidResult, match=r"draft tokens in \d+ steps with a draft, where K × steps"):
        refuse_beyond_k(chain, name)
    refuse_beyond_k(path, name)
    path.check()
    assert path.drafted == 3 * path.steps and path.drafted_at_pos == () and path.accepted == chain.accepted
    assert block.counters["tree_tokens"] == chain.drafted > path.drafted and details["draft tree"] == shape


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("fault", ["no_usage", "foreign"])
def test_no_engine_gets_away_with_it(
    name: str,
    fault: str,
    baselines: Callable[[str], str],
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "SETTLE_S", 0.3)
    with (
        running_stub(name, 3, "--fault", fault) as url,
        attached(tmp_path, pair, name, {"url": url, "url.baseline": baselines(name)}) as engine,
    ):
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError):
            engine.decode(Role(3), STEPS, ())


def test_a_server_that_dies_in_mid_block_is_explained_by_its_log(pair: tuple[Path, Path], tmp_path: Path) -> None:
    faults = ("--fault", "die", "--fault", "log='torch.OutOfMemoryError: CUDA out of memory'")
    before = psutil.Process().children()
    with started(tmp_path, pair, "vllm", *faults) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match="the server ended with exit code 9") as caught:
            engine.decode(Role(3), STEPS, ())
        assert "memory ran out" in str(caught.value)
    assert psutil.Process().children() == before


@pytest.mark.parametrize("name", ENGINES)
def test_missing_counters_are_missed_at_once_with_the_flag_that_brings_them(
    name: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with (
        pytest.raises(BackendError, match=r"the server needs|HTTP 404"),
        started(tmp_path, pair, name, "--fault", "no_metrics"),
    ):
        pass


def test_a_server_that_does_not_start_is_explained_by_its_log(pair: tuple[Path, Path], tmp_path: Path) -> None:
    line = "RuntimeError:_size_mismatch_for_fc.weight"
    faults = ("--fault", "no_start", "--fault", f"log={line.replace('_', ' ')!r}")
    with (
        pytest.raises(BackendError, match="ended with exit code 3") as caught,
        started(tmp_path, pair, "vllm", *faults),
    ):
        pass
    assert "width error" in str(caught.value) and "size mismatch for fc.weight" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("sglang", "Parameter midlayer.fc.weight not found in params_dict", "draft not loaded"),
        # As b11434 prints it, and goes on without a draft.
        (
            "llamacpp",
            "load_model: failed to initialize speculative decoding context: draft model is not eagle3",
            "speculation is off",
        ),
    ],
)
def test_a_draft_that_did_not_load_is_found_in_the_log_of_a_server_that_runs(
    name: str, line: str, message: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with started(tmp_path, pair, name, "--fault", f"log={line!r}") as engine:
        engine.prefill(PROMPTS, draft=True)
        assert engine.decode(BASELINE, STEPS, ()).tokens
        with pytest.raises(BackendError, match=message) as caught:
            engine.decode(Role(3), STEPS, ())
    assert str(caught.value).count(message) == 1, "said once, though it is found twice"


def test_an_error_that_a_server_reports_is_explained_by_what_it_has_logged_meanwhile(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with started(tmp_path, pair, "vllm", "--fault", "error_event='ValueError: it cannot do that'") as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match="the server reports an error") as caught:
            engine.decode(Role(3), Budget(steps=40), ())
    assert "ValueError: it cannot do that" in str(caught.value.hint)


def test_a_port_in_use_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = {"port": str(port), "servers": "apart"}
        with (
            pytest.raises(BackendError, match=rf"port {port} of 127\.0\.0\.1 is in use"),
            started(tmp_path, pair, "vllm", **options),
        ):
            pass


def test_nobody_listening_is_said(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="nobody listens there"):
        backend("vllm").open(request_of(pair, tmp_path, {"url": "http://127.0.0.1:9"}))


def test_https_to_a_server_without_it_is_a_tls_error(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with running_stub("vllm", 0) as url, pytest.raises(BackendError, match="TLS"):
        backend("vllm").open(request_of(pair, tmp_path, {"url": url.replace("http:", "https:")}))


def test_another_model_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with running_stub("sglang", 0) as url, pytest.raises(BackendError, match=r"serves specgate, not 'llama'"):
        backend("sglang").open(request_of(pair, tmp_path, {"url": url, "model": "llama"}))


def test_a_key_is_sent_and_never_repeated(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    with (
        running_stub("vllm", 0, "--fault", "status=401") as url,
        attached(tmp_path, pair, "vllm", {"url": url, "api_key_env": "SERVER_KEY"}) as engine,
    ):
        engine.prefill(PROMPTS, draft=False)
        with pytest.raises(BackendError, match=r"refused: Bearer \*\*\*\"") as caught:
            engine.decode(BASELINE, STEPS, ())
        assert KEY not in repr(caught.value) + repr(engine.facts())


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm", "lmdeploy", "llamacpp"])
def test_a_token_beyond_the_vocabulary_is_an_error(pair: tuple[Path, Path], tmp_path: Path, dialect: str) -> None:
    with (
        running_stub(dialect, 0, "--fault", "strange_ids") as url,
        attached(tmp_path, pair, dialect, {"url": url}) as engine,
    ):
        engine.prefill(PROMPTS, draft=False)
        with pytest.raises(BackendError, match=r"slot 0: token 20 has id 1000000, and the target has \d+ ids"):
            engine.decode(BASELINE, STEPS, ())


def test_counters_that_fall_between_two_blocks_are_an_error(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with running_stub("vllm", 0) as url, attached(tmp_path, pair, "vllm", {"url": url}) as engine:
        engine.prefill(PROMPTS, draft=False)
        engine.decode(BASELINE, STEPS, ())
        urlopen(Request(f"{url}/stub/restart", method="POST")).close()
        with pytest.raises(BackendError, match=r"counters fell: requests from 2 to 0, generated tokens from 42 to 0"):
            engine.decode(BASELINE, STEPS, ())


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("abc", "a value of fewer than 8 characters cannot be masked"),
        ("the-key\nof-two-lines", "the value has a line break or another control character\n  the key alone"),
    ],
)
def test_a_key_that_cannot_be_masked_or_sent_is_refused(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, why: str
) -> None:
    monkeypatch.setenv("SERVER_KEY", key)
    with pytest.raises(EnvironmentRefused, match=f"SERVER_KEY: {why}"):
        backend("vllm").open(request_of(pair, tmp_path, {"url": "http://127.0.0.1:9", "api_key_env": "SERVER_KEY"}))


def test_a_key_that_is_not_set_is_missed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    options = {"url": "http://127.0.0.1:9", "api_key_env": "NO_SUCH_KEY"}
    with pytest.raises(EnvironmentRefused, match="NO_SUCH_KEY"):
        backend("vllm").open(request_of(pair, tmp_path, options))

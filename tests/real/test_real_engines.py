"""Promises of the adapters, checked with the engines themselves: llama.cpp and vLLM, on a CPU, with the demo pair."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specgate.backends.eagle3.pairs.shipped import demo_pair
from specgate.backends.servers.engine import ServerEngine
from specgate.backends.servers.process import free_port, is_free
from specgate.contract import BASELINE, Budget, Finish, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import Decoded, Engine
from specgate.errors import BackendError
from tests.real.engines import RealEngine

LAWS = "The three laws of motion were first stated by Isaac Newton in 1687. The first law says that"
LIST = "one two three four five six seven eight nine ten one two three four five six seven eight nine ten one two three"
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SPEC = Role(3)
FORTY = Budget(new_tokens=40)


@pytest.fixture(scope="module")
def engine(real: RealEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with real.opened(tmp_path_factory.mktemp(real.name), max_batch=2) as opened:
        yield opened


def ids(text: str) -> list[int]:
    from tokenizers import Tokenizer

    entries: list[int] = Tokenizer.from_file(str(demo_pair().target / "tokenizer.json")).encode(text).ids
    return entries


def blocks(engine: Engine, *texts: str, budget: Budget = FORTY) -> tuple[Decoded, Decoded]:
    engine.prefill([ids(text) for text in texts], draft=True)
    return engine.decode(BASELINE, budget, ()), engine.decode(SPEC, budget, ())


def record(block: Decoded) -> AcceptanceRecord:
    assert block.served is not None and block.served.acceptance is not None
    block.served.acceptance.check()
    return block.served.acceptance


def accepted(block: Decoded) -> int:
    return record(block).accepted


def acceptance_length(block: Decoded) -> float:
    result = record(block).acceptance_length
    assert result is not None
    return result


def test_the_trained_draft_is_accepted_and_changes_no_token(engine: Engine) -> None:
    baseline, spec = blocks(engine, LAWS, LIST)
    assert spec.tokens == baseline.tokens and all(len(text) == 40 for text in spec.tokens)
    assert 1.3 < acceptance_length(spec) < 4
    assert spec.counters["cache_hit_tokens"] == 0


def test_requests_side_by_side_are_drafted_for_as_each_is_alone(engine: Engine) -> None:
    """In llama.cpp b11434 they are not, where the backend samples the drafts."""
    alone = [accepted(blocks(engine, text)[1]) for text in (LAWS, LIST)]
    assert accepted(blocks(engine, LAWS, LIST)[1]) == sum(alone)


def test_repeating_a_block_repeats_its_tokens_and_its_acceptance(engine: Engine) -> None:
    first, second = (blocks(engine, LAWS)[1] for _ in range(2))
    assert first.tokens == second.tokens and acceptance_length(first) == acceptance_length(second)


def test_facts_name_a_version(real: RealEngine, engine: Engine) -> None:
    facts = engine.facts()
    version = str(facts.details[f"{real.name} version"])
    assert version.startswith({"llamacpp": "b", "vllm": "0."}[real.name])
    assert facts.capture_rule is not None, "the demo draft names its layers for every engine"
    assert ["window" in w for w in facts.warnings] == [True] * (real.name == "llamacpp"), "vLLM reads it"


def test_the_baselines_server_tells_the_top_two(engine: Engine) -> None:
    engine.prefill([ids(LAWS)], draft=True)
    first = engine.decode(BASELINE, Budget(new_tokens=1), ()).tokens[0]
    top = engine.top2(0, first)
    assert top is not None and top[1] < top[0] <= 0


def test_a_natural_end_is_an_end(engine: Engine) -> None:
    for block in blocks(engine, QUESTION, budget=Budget(new_tokens=40, ignore_eos=False)):
        assert block.finish == (Finish.EOS,) and 4 < len(block.tokens[0]) < 40


def baseline_of(engine: Engine) -> dict[str, str]:
    """Options that attach to the baseline's server of an engine that is open, since starting one may take a minute."""
    assert isinstance(engine, ServerEngine)
    return {"url.baseline": engine.servers[BASELINE].running.url}


def test_n_grams_stand_in_and_change_no_token(real: RealEngine, engine: Engine, tmp_path: Path) -> None:
    with real.opened(tmp_path, {"drafter": "ngram", **baseline_of(engine)}) as other:
        baseline, spec = blocks(other, LIST)
        assert other.facts().acceptance == "stand-in"
    assert spec.tokens == baseline.tokens and acceptance_length(spec) > 2, "the list goes on as it began"


def test_a_forced_acceptance_length_comes_out(real: RealEngine, tmp_path: Path) -> None:
    if real.name == "vllm":
        pytest.skip("vLLM 0.32 has no synthetic acceptance on a CPU")
    with real.opened(tmp_path, {"force_al": "2.5"}) as engine:
        spec = blocks(engine, LAWS, budget=Budget(new_tokens=300))[1]
        assert engine.facts().acceptance == "forced"
    # 120 steps, each 1 to 4 tokens: the standard error is about 0.1.
    assert abs(acceptance_length(spec) - 2.5) < 0.5


def test_a_server_killed_in_mid_block_is_named_and_leaves_nothing(
    real: RealEngine, engine: Engine, tmp_path: Path
) -> None:
    others = set(psutil.Process().children(recursive=True))
    with real.opened(tmp_path, baseline_of(engine)) as other:
        other.prefill([ids(LAWS)], draft=True)
        other.decode(SPEC, FORTY, ())
        killer = threading.Thread(
            target=kill_when_busy, args=(set(psutil.Process().children(recursive=True)) - others,)
        )
        killer.start()
        with pytest.raises(BackendError, match="was ended by signal 9"):
            other.decode(SPEC, Budget(new_tokens=900), ())
        killer.join()
    assert not [p for p in set(psutil.Process().children(recursive=True)) - others if p.is_running()]


def kill_when_busy(started: set[psutil.Process]) -> None:
    """Kill the spec server once it has decoded for a moment; its command line names the draft."""
    server = next(p for p in started if drafts(p.cmdline()))
    working = [server, *server.children(recursive=True)]
    idle = cpu_seconds(working)
    while cpu_seconds(working) < idle + 1:
        time.sleep(0.02)
    server.kill()


def drafts(command: list[str]) -> bool:
    supervised = any("supervisor" in word for word in command)
    return not supervised and any(flag in command for flag in ("-md", "--speculative-config"))


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(p.cpu_times().user + p.cpu_times().system for p in processes)


def test_another_model_than_the_one_named_is_refused(real: RealEngine, engine: Engine, tmp_path: Path) -> None:
    url = baseline_of(engine)["url.baseline"]
    with (
        pytest.raises(BackendError, match="serves specgate, not 'other': another model"),
        real.opened(tmp_path, {"url": url, "model": "other"}),
    ):
        pass


def test_starting_and_stopping_leaves_no_process_and_no_port(real: RealEngine, tmp_path: Path) -> None:
    others, port = set(psutil.Process().children(recursive=True)), free_port()
    with real.opened(tmp_path, {"servers": "apart", "port": str(port)}):
        assert not is_free(port)
    assert is_free(port) and set(psutil.Process().children(recursive=True)) <= others

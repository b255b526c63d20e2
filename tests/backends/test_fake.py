"""The fake engine: same text for every role, records that keep every identity, faults that show."""

import multiprocessing
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.fake.engine import BACKEND, EOS
from specgate.contract import BASELINE, Budget, PairRef, Role
from specgate.contract import protocols as api
from specgate.contract.acceptance import AcceptanceRecord
from specgate.errors import BackendError, InvalidResult, UsageError
from specgate.pairs.resolve import target_limits
from specgate.planning.request import Request
from specgate.planning.resolution import chosen_pair

PROMPTS = ((5, 6, 7), (8, 9), (10, 11, 12, 13))
PAIR = PairRef("none", Path("target"), Path("draft"))


def opened(**options: str) -> api.Engine:
    return BACKEND.open(api.OpenRequest(PAIR, "float32", 4, 4096, 8, False, options))


def decoded(role: Role, budget: Budget, *stop: int, **options: str) -> api.Decoded:
    engine = opened(**({"step_ns": "1000", "draft_ns": "100"} | options))  # it waits as long as its steps take
    engine.prefill(PROMPTS, draft=True)
    return engine.decode(role, budget, stop)


def record_of(role: Role, block: api.Decoded) -> AcceptanceRecord:
    emitted = sum(len(t) - 1 for t in block.tokens)
    return AcceptanceRecord.from_steps(role.k, block.accepted, block.drafted, emitted, sum(block.truncated))


def active_steps(block: api.Decoded) -> list[int]:
    return [a for row in block.accepted for a in row if a >= 0]


BUDGETS = st.one_of(
    st.builds(Budget, steps=st.integers(1, 12), ignore_eos=st.booleans()),
    st.builds(Budget, new_tokens=st.integers(1, 40), ignore_eos=st.booleans()),
)
PATTERNS = st.lists(st.integers(0, 8), min_size=1, max_size=6)


def test_it_is_a_backend_that_is_never_the_default() -> None:
    assert isinstance(BACKEND, api.Backend)
    available = BACKEND.available()
    assert (available.usable, available.rank < 0) == (True, True)


@given(k=st.integers(1, 8), budget=BUDGETS, pattern=PATTERNS, eos_at=st.none() | st.integers(0, 30))
def test_every_role_emits_the_text_of_the_baseline(
    k: int, budget: Budget, pattern: list[int], eos_at: int | None
) -> None:
    options = {"accept": ",".join(map(str, pattern))} | ({} if eos_at is None else {"eos_at": str(eos_at)})
    spec, base = (decoded(role, budget, **options) for role in (Role(k), BASELINE))
    for ours, theirs in zip(spec.tokens, base.tokens, strict=True):
        common = min(len(ours), len(theirs))
        assert ours[:common] == theirs[:common]
    if budget.new_tokens is not None:
        assert spec.tokens == base.tokens
        assert spec.finish == base.finish


@given(k=st.integers(1, 8), budget=BUDGETS, pattern=PATTERNS, eos_at=st.none() | st.integers(0, 30))
def test_the_record_keeps_every_identity(k: int, budget: Budget, pattern: list[int], eos_at: int | None) -> None:
    options = {"accept": ",".join(map(str, pattern))} | ({} if eos_at is None else {"eos_at": str(eos_at)})
    block = decoded(Role(k), budget, **options)
    steps = len(block.step_ns)
    if steps:
        record_of(Role(k), block).check()
    assert len(block.accepted) == len(block.drafted) == steps
    assert block.elapsed_ns == sum(block.step_ns) == sum(block.phase_ns.values())
    assert block.counters["rewound_tokens"] == sum(k - a for a in active_steps(block))
    assert [a == -1 for row in block.accepted for a in row] == [d == -1 for row in block.drafted for d in row]


@given(budget=BUDGETS)
def test_a_baseline_emits_one_token_per_step_and_drafts_nothing(budget: Budget) -> None:
    block = decoded(BASELINE, budget)
    assert set(active_steps(block)) <= {0}
    assert {d for row in block.drafted for d in row} <= {0, -1}
    assert sum(len(t) - 1 for t in block.tokens) == len(active_steps(block))
    assert block.truncated == (0, 0, 0)


def test_a_step_budget_runs_exactly_so_many_steps() -> None:
    block = decoded(Role(3), Budget(steps=5), accept="3,0")
    assert block.accepted == ((3, 0, 3), (0, 3, 0), (3, 0, 3), (0, 3, 0), (3, 0, 3))
    assert [len(t) for t in block.tokens] == [1 + 5 + 9, 1 + 5 + 6, 1 + 5 + 9]
    assert block.finish == ("steps", "steps", "steps")


def test_a_token_budget_cuts_the_last_accepted_run() -> None:
    block = decoded(Role(3), Budget(new_tokens=6), accept="3")
    assert [len(t) for t in block.tokens] == [6, 6, 6]
    assert block.truncated == (3, 3, 3)
    assert block.finish == ("length", "length", "length")


def test_eos_inside_an_accepted_run_ends_it_there() -> None:
    block = decoded(Role(3), Budget(new_tokens=40, ignore_eos=False), accept="3", eos_at="6")
    assert [(len(t), t[-1]) for t in block.tokens] == [(7, EOS)] * 3
    assert block.truncated == (2, 2, 2)
    assert (block.finish, block.counters["disabled_multitoken_eos"]) == (("eos", "eos", "eos"), 3)
    past = decoded(Role(3), Budget(new_tokens=40), accept="3", eos_at="6")
    assert [(len(t), t[6]) for t in past.tokens] == [(40, EOS)] * 3


def test_a_stop_token_ends_its_slot_and_the_others_go_on() -> None:
    free = decoded(Role(3), Budget(new_tokens=20, ignore_eos=False))
    block = decoded(Role(3), Budget(new_tokens=20, ignore_eos=False), free.tokens[1][4])
    assert (block.finish[1], len(block.tokens[1])) == ("stop", 5)
    assert (block.finish[0], block.tokens[0]) == ("length", free.tokens[0])
    assert block.accepted[-1][1] == block.drafted[-1][1] == -1


def test_a_request_that_ends_with_its_prefill_token_takes_no_step() -> None:
    block = decoded(Role(3), Budget(new_tokens=40, ignore_eos=False), eos_at="0")
    assert (block.step_ns, block.elapsed_ns, block.finish) == ((), 0, ("eos", "eos", "eos"))


def test_blocks_repeat_their_tokens_and_vary_in_time_by_the_jitter_alone() -> None:
    engine = opened(jitter="0.5", step_ns="1000")
    engine.prefill(PROMPTS, draft=True)
    a, b = (engine.decode(BASELINE, Budget(steps=50), ()) for _ in range(2))
    assert a.tokens == b.tokens
    assert a.step_ns != b.step_ns
    assert all(1000 <= ns <= 1500 for ns in (*a.step_ns, *b.step_ns))


def test_the_clock_follows_the_script() -> None:
    script = {"jitter": "0", "step_ns": "1000", "draft_ns": "100"}
    assert set(decoded(BASELINE, Budget(steps=3), **script).step_ns) == {1000}
    assert set(decoded(Role(3), Budget(steps=3), **script).step_ns) == {1300}
    assert set(decoded(Role(3), Budget(steps=3), slowdown="2", **script).step_ns) == {2600}
    assert opened(prefill_ns="7").prefill(PROMPTS, draft=False) == 63


def test_other_prompts_get_other_text() -> None:
    block = decoded(BASELINE, Budget(steps=8))
    assert len(set(block.tokens)) == 3
    assert all(1 < t < 1000 for row in block.tokens for t in row)


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_token_appears_in_spec_roles_of_slot_0_only() -> None:
    budget = Budget(new_tokens=20)
    base, spec = (decoded(role, budget, wrong_token_at="7") for role in (BASELINE, Role(3)))
    assert base.tokens == decoded(BASELINE, budget).tokens
    assert [i for i, (a, b) in enumerate(zip(base.tokens[0], spec.tokens[0], strict=True)) if a != b] == [7]
    assert base.tokens[1:] == spec.tokens[1:]


def test_silently_missing_drafts_show_in_the_steps_and_nowhere_else() -> None:
    block = decoded(Role(3), Budget(steps=4), no_drafts="true")
    assert {d for row in block.drafted for d in row} == {0}
    assert block.counters["disabled_draft_error"] == 0


def test_request_steps_that_leave_multi_token_mode_are_the_first_of_a_block() -> None:
    block = decoded(Role(3), Budget(steps=3), left_multi_token="4", accept="2")
    assert block.drafted == ((0, 0, 0), (0, 3, 3), (3, 3, 3))
    assert block.accepted == ((0, 0, 0), (0, 2, 2), (2, 2, 2))
    assert block.counters["rewound_tokens"] == 5 and block.counters["rewind_steps"] == 5


def test_a_call_lasts_as_long_as_it_says() -> None:
    engine = opened(step_ns="2000000", prefill_ns="300000")
    began = time.perf_counter_ns()
    filled = engine.prefill(PROMPTS, draft=True)
    between = time.perf_counter_ns()
    block = engine.decode(BASELINE, Budget(steps=2), ())
    assert filled <= between - began and block.elapsed_ns <= time.perf_counter_ns() - between


def test_a_draft_that_cannot_be_used_is_stated_and_its_steps_are_counted() -> None:
    sound, torn = opened().facts(), opened(draft_error="torn head").facts()
    assert (sound.draft_error, sound.has_draft) == (None, True) and sound.draft_sha256
    assert (torn.draft_error, torn.has_draft, torn.draft_sha256) == ("torn head", False, None)
    block = decoded(Role(3), Budget(steps=4), draft_error="torn head")
    assert block.tokens == decoded(BASELINE, Budget(steps=4)).tokens
    assert {d for row in block.drafted for d in row} == {0}
    assert block.counters["disabled_draft_error"] == 12


def test_a_draft_can_die_between_two_blocks() -> None:
    engine = opened(draft_dies_after_blocks="1")
    engine.prefill(PROMPTS, draft=True)
    before, after = (engine.decode(Role(3), Budget(steps=4), ()) for _ in range(2))
    assert [{d for row in b.drafted for d in row} for b in (before, after)] == [{3}, {0}]
    assert [b.counters["disabled_draft_error"] for b in (before, after)] == [0, 12]


def test_lost_tokens_break_the_identity_of_emitted_tokens() -> None:
    block = decoded(Role(3), Budget(steps=4), lost_tokens="1")
    with pytest.raises(InvalidResult, match="emitted"):
        record_of(Role(3), block).check()


def test_the_margin_of_the_top_two_is_as_scripted() -> None:
    engine = opened(margin="0.25")
    engine.prefill(PROMPTS, draft=True)
    margin = engine.top2(1, (4, 5))
    assert margin is not None and margin[0] - margin[1] == 0.25


def test_it_can_refuse_to_open() -> None:
    with pytest.raises(BackendError, match="out of coffee"):
        opened(fail_open="out of coffee")
    with pytest.raises(UsageError, match="max_positions = 100, but the plan needs 4096"):
        opened(max_positions="100")


def test_a_call_out_of_order_or_too_large_is_refused() -> None:
    engine = opened()
    with pytest.raises(BackendError, match="before prefill"):
        engine.decode(BASELINE, Budget(steps=1), ())
    engine.prefill(PROMPTS, draft=False)
    with pytest.raises(BackendError, match="without the draft"):
        engine.decode(Role(1), Budget(steps=1), ())
    with pytest.raises(BackendError, match="5 prompts of up to 1 tokens"):
        engine.prefill([(1,)] * 5, draft=False)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("acept", "1", "'acept' is not known\n  did you mean 'accept'"),
        ("accept", "1,x", "accept = '1,x'\n  integers ≥ 0 with commas"),
        ("accept", "1,-1", "accept = '1,-1'\n  integers ≥ 0 with commas"),
        ("step_ns", "fast", "step_ns = 'fast'\n  an integer"),
        ("no_drafts", "yes", "no_drafts = 'yes'\n  true or false"),
        ("jitter", "big", "jitter = 'big'\n  a number"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(key: str, value: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        opened(**{key: value})
    assert says in str(caught.value)


def run_two_blocks(option: str, done: Connection) -> None:
    engine = opened(**{option: "1"})
    engine.prefill(PROMPTS, draft=True)
    for block in (1, 2):
        engine.decode(BASELINE, Budget(steps=1), ())
        done.send(block)


def started(option: str) -> tuple[SpawnProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_two_blocks, args=(option, theirs))
    process.start()
    theirs.close()
    return process, ours


def test_it_can_kill_its_own_process_after_some_blocks() -> None:
    process, done = started("die_after_blocks")
    assert done.recv() == 1
    with pytest.raises(EOFError):
        done.recv()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_it_can_hang_after_some_blocks() -> None:
    process, done = started("hang_after_blocks")
    assert done.recv() == 1
    answered, alive = done.poll(0.2), process.is_alive()
    process.kill()
    process.join()
    assert (answered, alive) == (False, True)


def test_it_stands_for_a_pair_without_weights_unless_another_is_named(tmp_path: Path) -> None:
    for folder in ("target", "draft"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
    request = Request(kind="micro", argv=(), plain=True, out=tmp_path, backend="fake")
    assert target_limits(chosen_pair(request, (), "fake"), None) == (1 << 20, 1000)
    named = replace(request, pair=str(tmp_path))
    assert chosen_pair(named, (), "fake").target == tmp_path / "target"

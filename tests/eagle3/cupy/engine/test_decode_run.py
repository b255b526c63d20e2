"""State at the beginning of a stretch, and results after it; the steps between need a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.engine.decode_run import (
    AHEAD,
    STEPS_PER_GRAPH,
    StartState,
    StopRule,
    enqueue,
    experts_of,
    graph_sizes,
    pace,
    read,
    rows_of_slots,
    step_times,
    widths,
)
from specgate.backends.eagle3.cupy.engine.phase_trace import PhaseTrace
from specgate.backends.eagle3.cupy.engine.run_parts import ended_early
from specgate.backends.eagle3.cupy.kernels.state.slots import MAX_ENDS, Fault, Slots, Stamp
from specgate.backends.eagle3.cupy.step.partial import PLAIN
from specgate.errors import EnvironmentRefused, UsageError

SLOTS, ROWS, CAPACITY = 4, 3, 16
tokens = st.integers(0, 6)
rules = st.builds(
    StopRule, st.lists(tokens, max_size=3).map(tuple), st.lists(tokens, max_size=3).map(tuple), st.integers(1, CAPACITY)
)


def used() -> Slots:
    """As a stretch may leave them: every number something that must not survive."""
    slots = Slots.allocate(SLOTS, ROWS, CAPACITY, "cpu")
    for name in Slots.__dataclass_fields__:
        getattr(slots, name).fill_(3)
    return slots


@given(rules, st.lists(st.tuples(st.integers(1, 9), tokens), min_size=1, max_size=SLOTS))
def test_a_rewind_leaves_nothing_of_the_stretch_before(rule: StopRule, prompts: list[tuple[int, int]]) -> None:
    slots, count = used(), len(prompts)
    lengths, first = (tuple(values) for values in zip(*prompts, strict=True))
    StartState(lengths, first).rewind(slots, rule)
    assert slots.length[:count].tolist() == list(lengths)
    for state in (slots.last_token[:count], slots.out[:count, 0], slots.pending[:count, 0]):
        assert state.tolist() == list(first)
    assert slots.emitted[:count].tolist() == slots.counts[:count].tolist() == [1] * count
    for zero in (slots.truncated, slots.accepted, slots.step, slots.fault):
        assert not zero.any()
    assert (slots.accepted_log == -1).all()


@given(rules, st.lists(tokens, min_size=1, max_size=SLOTS))
def test_only_slots_that_their_first_token_has_not_ended_are_active(rule: StopRule, first: list[int]) -> None:
    slots = used()
    StartState((5,) * len(first), tuple(first)).rewind(slots, rule)
    going_on = [s for s, t in enumerate(first) if rule.limit > 1 and t not in rule.eos and t not in rule.stop]
    assert slots.active[: int(slots.active_count)].tolist() == going_on
    assert [s for s, code in enumerate(slots.finish[: len(first)].tolist()) if code == 0] == going_on


def test_the_limit_ends_before_eos_and_eos_before_a_stop_token() -> None:
    assert [StopRule((4,), (4, 5), 1).code(token) for token in (3, 4, 5)] == [3, 3, 3]
    assert [StopRule((4,), (4, 5), 2).code(token) for token in (3, 4, 5)] == [0, 1, 2]


@given(rules)
def test_the_rules_words_are_limit_counts_and_ids(rule: StopRule) -> None:
    slots = used()
    StartState((1,), (0,)).rewind(slots, rule)
    limit, eos, stop, *ids = slots.rule.tolist()
    assert (limit, tuple(ids[:eos]), tuple(ids[eos : eos + stop])) == (rule.limit, rule.eos, rule.stop)


def test_more_end_tokens_than_a_rule_holds_are_refused() -> None:
    most = tuple(range(MAX_ENDS))
    StartState((1,), (0,)).rewind(used(), StopRule(most[1:], most[:1], 9))
    with pytest.raises(UsageError, match=rf"{MAX_ENDS + 1} EOS and stop tokens\n  at most {MAX_ENDS}"):
        StopRule(most, (9,), 9)


def test_what_a_stretch_has_left_is_read_in_the_harness_words() -> None:
    slots = Slots.allocate(SLOTS, ROWS, CAPACITY, "cpu")
    # Two slots, spec-2: slot 0 accepts both drafts, then one; slot 1 accepts none and ends with EOS after one step.
    slots.step[0] = 2
    slots.accepted_log.fill_(-1)
    slots.accepted_log[:2, :2] = torch.tensor([[2, 0], [1, -1]])
    slots.out[:2, :6] = torch.tensor([[9, 1, 2, 3, 4, 5], [8, 7, 0, 0, 0, 0]])
    slots.emitted[:2] = torch.tensor([6, 2])
    slots.finish[:2] = torch.tensor([0, 1])
    slots.stamps[:2] = torch.tensor([[0, 10, 50, 52, 60], [100, 115, 150, 151, 160]])
    slots.fault[0] = Fault.DRAFT_NOT_FINITE | Fault.KV_INTEGRITY
    decoded, fault = read(slots, 2, 2, [1, 1, 1], [60_000, 61_000, 62_000])
    assert decoded.step_ns == (60_000, 61_000)
    assert decoded.elapsed_ns == 121_000
    assert decoded.tokens == ((9, 1, 2, 3, 4, 5), (8, 7))
    assert decoded.accepted == ((2, 0), (1, -1))
    assert decoded.drafted == ((2, 2), (2, -1))
    assert decoded.truncated == (0, 0)
    assert decoded.finish == ("steps", "eos")
    assert decoded.phase_ns == {"draft": 25, "verify": 75, "accept": 3, "commit": 17}
    assert fault == Fault.DRAFT_NOT_FINITE | Fault.KV_INTEGRITY


def test_a_stretch_that_ends_within_a_graph_takes_no_longer_than_its_own_steps() -> None:
    slots = Slots.allocate(SLOTS, ROWS, CAPACITY, "cpu")
    slots.step[0] = 3
    slots.emitted[:1] = 4
    slots.stamps[:3] = torch.tensor([[0, 10, 50, 52, 60], [70, 85, 120, 121, 130], [200, 210, 250, 251, 260]])
    decoded, _ = read(slots, 1, 0, [2, 4], [150, 9_000])
    assert decoded.step_ns == (70, 80, 60)
    assert sum(decoded.phase_ns.values()) == 180 <= decoded.elapsed_ns == 210


def test_a_baseline_has_no_speculation_counters() -> None:
    slots = Slots.allocate(SLOTS, 1, CAPACITY, "cpu")
    StartState((5, 6), (1, 2)).rewind(slots, StopRule((), (), 9))
    decoded, fault = read(slots, 2, 0, [], [])
    assert (decoded.tokens, decoded.accepted, decoded.counters, fault) == (((1,), (2,)), (), {}, Fault(0))


@given(st.integers(0, 5 * STEPS_PER_GRAPH))
def test_graphs_run_as_many_steps_as_are_asked_for(steps: int) -> None:
    graphs = graph_sizes(steps)
    assert sum(graphs) == steps and set(graphs) <= {1, STEPS_PER_GRAPH}
    assert len(graphs) <= steps // STEPS_PER_GRAPH + STEPS_PER_GRAPH - 1


def stamps_of(steps: list[tuple[int, int]]) -> torch.Tensor:
    """Of steps that work for so long, and then leave the GPU idle for so long."""
    stamps, now = torch.zeros(len(steps), len(Stamp), dtype=torch.int64), 1_000
    for row, (work, idle) in zip(stamps, steps, strict=True):
        row[Stamp.STEP_BEGAN], row[Stamp.COMMITTED] = now, now + work
        now += work + idle
    return stamps


durations = st.tuples(st.integers(1, 10_000), st.integers(0, 500))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_the_steps_of_a_graph_take_together_what_the_graph_took(graphs: list[int], data: st.DataObject) -> None:
    steps = data.draw(st.lists(durations, min_size=sum(graphs), max_size=sum(graphs)))
    elapsed, first = list[int](), 0
    for size in graphs:
        launch = data.draw(st.integers(0, 9_000))
        elapsed.append(launch + sum(map(sum, steps[first : first + size])))
        first += size
    times = step_times(graphs, elapsed, stamps_of(steps))
    first = 0
    for size, whole in zip(graphs, elapsed, strict=True):
        mine = times[first : first + size]
        assert sum(mine) == whole
        assert mine[:-1] == tuple(map(sum, steps[first : first + size - 1]))
        first += size


@given(st.lists(durations, max_size=11))
def test_a_step_that_ended_a_stretch_early_does_not_pay_for_the_idle_ones_behind_it(
    steps: list[tuple[int, int]],
) -> None:
    graphs, idle = [4, 4, 4], 200_000
    whole = [sum(map(sum, steps[first : first + 4])) + idle for first in (0, 4, 8)]
    times = step_times(graphs, whole, stamps_of(steps))
    assert len(times) == len(steps)
    if len(steps) % 4:
        assert times[-1] == steps[-1][0]
        assert times[len(steps) // 4 * 4 : -1] == tuple(map(sum, steps[len(steps) // 4 * 4 : -1]))


def test_experts_are_counted_per_step_and_where_no_slot_ran_none_are() -> None:
    touched = torch.tensor([[4, 6], [3, 3], [9, 9]])
    counts = experts_of(touched, [(2, 0), (1, -1), (-1, -1)])
    assert counts.touched == (10, 6, 0)


# ── what the host enqueues ───────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 60), st.integers(0, 7), st.integers(1, 70), st.integers(2, AHEAD))
def test_no_graph_is_enqueued_long_after_the_one_that_ended_the_last_slot(
    whole: int, single: int, last: int, ahead: int
) -> None:
    """`whole`, `single`: graphs of several steps, and those of one step after them. `last`: the graph, counted from 1,
    within which the last slot ends. `ahead`: what is asked for once the first graph's time is known.
    """
    graphs = whole + single
    texts: list[str] = []

    def running(number: int) -> int:
        texts.append(f"look {number}")
        return number < last

    count = len(
        enqueue(
            [(PLAIN, PLAIN)] * whole + [(PLAIN,)] * single,
            lambda of, running: texts.append("launch"),
            lambda number: texts.append(f"mark {number}"),
            running,
            lambda: (ahead, False),
        )
    )
    stopped = AHEAD if last == 1 else max(AHEAD + 1, last + ahead - 1)
    assert count == (stopped if stopped < whole else graphs)
    assert [word for word in texts if word != "launch" and "look" not in word] == [
        f"mark {n + 1}" for n in range(count)
    ]
    looked = [int(word.split()[1]) for word in texts if word.startswith("look")]
    assert looked == [1, *range(AHEAD - ahead + 2, AHEAD - ahead + 1 + len(looked))][: len(looked)]
    for number in looked:  # while the host looks at one graph, others are there to run
        before = texts[: texts.index(f"look {number}")]
        assert before.count("launch") - number == (AHEAD if number == 1 else ahead) - 1


@pytest.mark.parametrize(
    ("graph_ms", "ahead", "alone"),
    [(0.1, 4, 0), (3.6, 4, 0), (5.1, 3, 0), (10, 2, 0), (26, 2, 0), (27, 2, 4), (40, 2, 3), (300, 2, 2)],
)
def test_long_graphs_are_enqueued_later_and_of_long_steps_one_by_one_if_fewer_slots_are_faster(
    graph_ms: float, ahead: int, alone: int
) -> None:
    """`alone`: so many graphs of one step are enqueued ahead; 0: graphs stay as they are."""
    assert pace(graph_ms * 1e6, STEPS_PER_GRAPH, narrows=False) == (ahead, False)
    assert pace(graph_ms * 1e6, STEPS_PER_GRAPH, narrows=True) == (alone or ahead, alone > 0)


@pytest.mark.parametrize("single", [False, True])
def test_every_graph_is_for_as_many_slots_as_ran_when_the_host_looked_last(single: bool) -> None:
    """Never for fewer than run: the number that the host has seen is an older one, and slots only end."""
    left, ran = 9, list[tuple[int, int | None]]()
    ends = {step: 9 - step // 3 for step in range(1, 28)}  # slots that run behind each step

    def running_after(number: int) -> int:
        return ends[sum(steps for steps, _ in ran[:number])]

    graphs = [(PLAIN, PLAIN)] * 12 + [(PLAIN,)] * 3
    done = enqueue(graphs, lambda of, n: ran.append((len(of), n)), lambda n: None, running_after, lambda: (2, single))
    steps = [steps for steps, _ in ran]
    assert steps == [*map(len, done)] == [2] * AHEAD + ([1] * 19 if single else [2] * 8 + [1] * 3)
    for number, (_, seen) in enumerate(ran):
        begun = sum(steps[:number])
        left = ends[begun] if begun else 9
        assert seen is None if number < AHEAD else seen is not None and left <= seen <= left + 2


@pytest.mark.parametrize(
    ("count", "rows", "slots"),
    [
        (8, 4, (4, 8)),
        (8, 1, (8,)),
        (16, 1, (16,)),
        (32, 4, (4, 8, 16, 32)),
        (5, 4, (4, 5)),
        (4, 64, (1, 4)),
        (1, 64, (1,)),
    ],
)
def test_steps_are_captured_for_as_many_slots_as_products_are_divided_for(
    count: int, rows: int, slots: tuple[int, ...]
) -> None:
    assert widths(count, rows) == slots


def test_a_run_that_nobody_watches_is_enqueued_whole() -> None:
    marked: list[int] = []
    assert len(enqueue([(PLAIN,) * 8] * 40, lambda of, running: None, marked.append)) == 40
    assert marked == list(range(1, 41))


def test_rows_belong_to_the_slots_that_ran_in_the_order_of_the_step() -> None:
    logits = torch.arange(8 * 5, dtype=torch.float32).view(8, 5)
    rows = rows_of_slots(logits, [3, 1], of_slot=2)
    assert {slot: own.tolist() for slot, own in rows.items()} == {3: logits[:2].tolist(), 1: logits[2:4].tolist()}


def test_rows_of_a_tree_are_those_of_the_accepted_path() -> None:
    logits = torch.arange(8 * 5, dtype=torch.float32).view(8, 5)
    path = torch.tensor([[0, 9, 9], [0, 2, 3], [0, 0, 0], [0, 3, 99]], dtype=torch.int32)  # beyond a path: anything
    rows = rows_of_slots(logits, [3, 1], of_slot=4, path=path)
    assert rows[3].tolist() == logits[[0, 3, 3]].tolist()
    assert rows[1].tolist() == logits[[4, 6, 7]].tolist()


def test_chains_shorter_than_the_roles_are_counted_with_the_tokens_that_they_drafted() -> None:
    """Two slots over three steps of spec-3; the second has ended before the last. What a step logs of a slot that has
    ended is that of an earlier one.
    """
    slots = Slots.allocate(SLOTS, ROWS, CAPACITY, "cpu")
    slots.step[0] = 3
    slots.accepted_log[:3, :2] = torch.tensor([[1, 0], [0, 2], [3, -1]])
    whole, _ = read(slots, 2, 3, [3], [1000])
    assert whole.drafted == ((3, 3), (3, 3), (3, -1)) and ended_early(whole, 5) == {"chains_ended_early": 5}
    assert ended_early(whole, 3) == {"chains_ended_early": 0}


BEGAN = 1_764_000_000_000_000_123
STAMPS = torch.tensor([[0, 100, 900, 950, 1000], [1500, 1600, 2400, 2450, 2500]]) + BEGAN


def test_a_steps_phases_lie_in_it_at_the_gpus_own_times_and_a_second_engine_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "phases.json"
    PhaseTrace(file, "a GPU").add("BASE_DECODE_STEP", STAMPS[:0])
    assert not file.exists()
    PhaseTrace(file, "a GPU").add("EAGLE_CYCLE_SPEC_3", STAMPS)
    PhaseTrace(file, "a GPU").add("BASE_DECODE_STEP", STAMPS[1:] + 10_000)
    first, *events = json.loads(file.read_text().rstrip(",\n") + "]")
    assert first["args"] == {"name": "a GPU", "base_ns": BEGAN}
    times = [(event["name"], event["ts"], event["dur"]) for event in events]
    assert times[:5] == [
        ("EAGLE_CYCLE_SPEC_3", 0.0, 1.0),
        ("EAGLE_DRAFT", 0.0, 0.1),
        ("TARGET_VERIFY", 0.1, 0.8),
        ("EAGLE_ACCEPT", 0.9, 0.05),
        ("EAGLE_TAIL_COMMIT", 0.95, 0.05),
    ]
    assert times[5][:2] == ("EAGLE_CYCLE_SPEC_3", 1.5) and times[10][:2] == ("BASE_DECODE_STEP", 11.5)
    assert [event["args"]["step"] for event in events[::5]] == [0, 1, 0]


@pytest.mark.parametrize("content", ["", "[]", "[1,2]", '[{"name": "x", "args": {}},', "text"])
def test_a_file_that_holds_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    (file := tmp_path / "other.json").write_text(content)
    with pytest.raises(UsageError, match=r"option phase_trace = .*other\.json: holds no such trace\n  name a new file"):
        PhaseTrace(file, "a GPU")
    assert file.read_text() == content


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match=r"option phase_trace = .*gone/phases\.json: No such file"):
        PhaseTrace(tmp_path / "gone" / "phases.json", "a GPU").add("BASE_DECODE_STEP", STAMPS)

"""Texts of a run are held against the keys beside their prompts: the first text of every cell, prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from specgate.analysis.quality.answers import answers_of
from specgate.analysis.quality.scores import with_quality
from specgate.contract import Block, Budget, Finish, Rule, State
from specgate.contract.samples.answers import Answered
from specgate.contract.samples.counters import AS_TEXTS
from specgate.gates.quality import GATE
from tests.support.factories import blocks_of, plan_of, run_of, scenario

PLAN = plan_of(replace(scenario(batch=(2,), prompt_sets=2), kind="full", budget=Budget(new_tokens=8)))
KEY = {"kind": "number", "value": "7"}
ABOUT: Mapping[str, Mapping[str, object]] = {PLAN.points[0].key: {"answers": [[KEY, None], [KEY, KEY]]}}


class Tokenizer:
    """Says `7` for a text whose first token is even; encodes nothing back."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return f"so it is {'7' if ids[0] % 2 == 0 else '8'}."

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        return type("Encoding", (), {"ids": [1]})


def answers(blocks: Sequence[Block]) -> list[Answered]:
    return list(answers_of(PLAN, ABOUT, blocks, lambda: cast(Any, Tokenizer())))


def saying(block: Block, *first: int) -> Block:
    return replace(block, tokens=tuple((n, *text[1:]) for n, text in zip(first, block.tokens, strict=True)))


BLOCKS = [saying(b, 2, 3) if not b.role.speculative else saying(b, 2, 2) for b in blocks_of(PLAN)]


def test_each_question_with_a_key_has_one_answer_per_cell() -> None:
    read = answers(BLOCKS)
    baseline, spec = ([a for a in read if a.cell.endswith(role)] for role in ("baseline", "spec-3"))
    assert [(a.prompt_set, a.prompt, a.got, a.right) for a in baseline] == [
        (0, 0, "7", True),
        (1, 0, "7", True),
        (1, 1, "8", False),
    ]
    assert all(a.right for a in spec) and len(spec) == 3
    changed = answers([saying(b, 3, 3) if b.round else b for b in BLOCKS])
    assert changed == read, "later rounds ask the same questions"


def test_a_line_of_a_file_that_a_load_sends_again_is_one_question() -> None:
    about = {key: {"answers": [[KEY, KEY], [KEY, KEY]], "lines": [[4, 9], [9, 4]], "repeated": 2} for key in ABOUT}
    read = list(answers_of(PLAN, about, BLOCKS, lambda: cast(Any, Tokenizer())))
    assert [(a.prompt_set, a.prompt) for a in read if a.cell.endswith("baseline")] == [(0, 0), (0, 1)]


def test_questions_count_that_every_cell_of_a_point_has_answered() -> None:
    """Of ten answers of spec, eight right, the baseline has six, the last ones, all right."""
    plan = plan_of(scenario())
    run = run_of(plan, blocks_of(plan))
    baseline, spec = (r.cell.key for r in run.cells)
    made = [Answered(f"{spec}#{n}", spec, n, 0, "7", n < 8) for n in range(10)]
    made += [Answered(f"{baseline}#{n}", baseline, n, 0, "7", True) for n in range(4, 10)]
    run = replace(run, cells=with_quality(run.cells, made))
    assert [(r.values["exact_match"].value, r.values["exact_match"].n) for r in run.cells] == [(1, 6), (4 / 6, 6)]
    (verdict,) = GATE.judge(Rule("quality", "quality", True, params={"max_loss": 0.02}), run)
    assert "66.7 % of 6 answers are right, 100.0 % without speculation: 2 lost, 0 won" in verdict.message


def test_an_answer_that_the_budget_cut_is_marked() -> None:
    cut = [replace(b, finish=(Finish.LENGTH, Finish.EOS)) for b in BLOCKS]
    assert {(a.prompt, a.cut) for a in answers(cut)} == {(0, True), (1, False)}


def test_tokens_that_were_made_of_texts_are_not_read_as_ids() -> None:
    assert answers([replace(b, counters={AS_TEXTS: 1}) for b in BLOCKS]) == []


def test_without_keys_or_a_tokenizer_nothing_is_read() -> None:
    def refused() -> None:
        raise AssertionError("no tokenizer is opened")

    assert list(answers_of(PLAN, {}, BLOCKS, refused)) == []
    assert list(answers_of(PLAN, ABOUT, BLOCKS, lambda: None)) == []


def judged(lost: int, won: int, both: int, margin: float) -> Any:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan))
    counts = {(True, False): lost, (False, True): won, (True, True): both}
    pairs = [pair for pair, times in counts.items() for _ in range(times)]
    made = [
        Answered(f"{cell.key}#{n}", cell.key, n, 0, "7", pair[cell.role.speculative])
        for n, pair in enumerate(pairs)
        for cell in plan.cells
    ]
    run = replace(run, cells=with_quality(run.cells, made))
    (verdict,) = GATE.judge(Rule("quality", "quality", True, params={"max_loss": margin}), run)
    return verdict


@pytest.mark.parametrize(
    ("lost", "won", "both", "state"),
    [(3, 3, 994, State.PASS), (100, 3, 897, State.FAIL), (3, 1, 46, State.INCONCLUSIVE), (0, 0, 0, State.NOT_JUDGED)],
)
def test_a_loss_is_judged_against_the_margin_by_its_interval(lost: int, won: int, both: int, state: State) -> None:
    verdict = judged(lost, won, both, 0.02)
    assert verdict.state is state and verdict.gate == "quality"
    if state is not State.NOT_JUDGED:
        assert f"{lost} lost, {won} won" in verdict.message
        assert (verdict.evidence["questions"], verdict.evidence["lost"]) == (lost + won + both, lost)


def test_an_open_verdict_says_about_how_many_questions_decide() -> None:
    open_ = judged(3, 1, 46, 0.1)
    step = str(open_.next_step)
    needed = int(step.split("about ")[1].split(" in")[0].replace(",", ""))
    factor = needed / 50
    assert judged(round(3 * factor), round(factor), round(46 * factor), 0.1).state in (State.PASS, State.INCONCLUSIVE)
    assert judged(round(6 * factor), round(2 * factor), round(92 * factor), 0.1).state is State.PASS

"""Requests of stored runs: the same figures as the runs' own, classes of prompts, pairs by their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from specgate.analysis.prompt_acceptance import record_of
from specgate.archive.comparing.acceptance import (
    MIXED,
    SEVERAL,
    UNNAMED,
    acceptance_of,
    class_of,
    pair_names,
    requests_of,
)
from specgate.archive.stored_runs import StoredRun, load_run
from specgate.contract import Block, EngineIdentity, Point, RefusedRequest, Run, Served, ServedRequest
from specgate.errors import UsageError
from tests.support.factories import blocks_of, corrupt, plan_of, run_of, scenario
from tests.support.kept_runs import unpacked
from tests.support.stored_runs import changed, store

KEPT = ("2026-11-30-h200/run-merge-32k.tar.xz", "2026-11-30-h200/run-120b-1k.tar.xz")
UNPACKED = TemporaryDirectory()  # until the process ends: a stored run reads its files when they are asked for


@cache
def stored(name: str) -> StoredRun:
    """The run in that archive."""
    return load_run(unpacked(name, Path(UNPACKED.name) / name.replace("/", "-")))


@pytest.mark.parametrize("name", KEPT)
def test_the_rows_of_single_cells_are_the_cells_figures_in_run_json(name: str) -> None:
    one = stored(name)
    for row in acceptance_of([one]).layouts[0].rows:
        (cell,) = [c for c in one.run.cells if c.acceptance]
        assert cell.acceptance is not None
        assert (row.num_drafts, row.total_accepted_tokens) == (cell.acceptance.steps, cell.acceptance.accepted)
        for figure in (
            "acceptance_length",
            "draft_acceptance_rate",
            "acceptance_at_pos[2]",
            "cond_acceptance_at_pos[3]",
        ):
            mine, theirs = row.values[figure], cell.values[figure]
            assert (mine.value, mine.n) == (theirs.value, theirs.n)
            assert (mine.ci_low, mine.ci_high) == (theirs.ci_low, theirs.ci_high)


def test_rows_are_laid_out_by_engine_class_and_context_and_loops_are_said(tmp_path: Path) -> None:
    def looping(made: Block) -> Block:
        return replace(made, tokens=tuple(tuple((1, 2) * len(text))[: len(text)] for text in made.tokens))

    def laid_out(context: int, kind: object, change: Callable[[Block], Block]) -> StoredRun:
        small_scenario = scenario(context=(context,))
        (point,) = plan_of(small_scenario).points
        prompts = {point.key: {"sources": [[[kind]]] * 4, "source": "mixed"}}
        return load_run(
            store(tmp_path / str(context), scenarios=(small_scenario,), change=change, changes={"prompts": prompts})
        )

    one, other = laid_out(64, CODE, lambda b: b), laid_out(32, PROSE, looping)
    engines = {k: replace(f, identity=EngineIdentity("vLLM", "0.25.1")) for k, f in other.run.engines.items()}
    acceptance = acceptance_of([one, changed(other, engines=engines)])
    whole, *others = acceptance.layouts
    assert [layout.by for layout in others] == ["engine", "class", "context", "position"]
    assert [s.group.value for s in others[1].rows] == ["code", "prose"]
    by_context = {s.group.value: s for s in others[2].rows}
    assert by_context[32].looping_prompts == 4 and by_context[32].without_loops is None
    assert by_context[64].looping_prompts == 0
    assert whole.rows[0].num_drafts == sum(s.num_drafts for s in others[2].rows)
    assert others[0].unlike == ("prompts of fake 0.25.1 float32 4, fake float32 4; 0 in common",)


# ── classes of prompts ───────────────────────────────────────────────────────────────────────────────────────────────

POINT = Point("demo-64", "fake", 64, 1)
CODE, PROSE = {"corpus": "django", "path": "a.py"}, {"corpus": "sotu", "path": "b.txt"}


def with_prompts(**about: object) -> Run:
    plan = plan_of()
    return replace(run_of(plan, blocks_of(plan)), prompts={POINT.key: about})


@pytest.mark.parametrize(
    ("about", "texts"),
    [
        ({"categories": [["math", None]]}, ("math", UNNAMED, SEVERAL)),
        ({"sources": [[[CODE, CODE], [PROSE]]], "source": "mixed"}, ("code", "prose", SEVERAL)),
        ({"sources": [[[CODE, PROSE], [{"corpus": "a-corpus-of-mine"}]]]}, (MIXED, "a-corpus-of-mine", SEVERAL)),
        ({"sources": [[[], []]], "source": "code"}, ("code", "code", "code")),
        ({"sources": ["one/a.py"]}, ("random", "random", "random")),
        ({"sources": [[["no mapping"], []]]}, ("random", "random", "random")),
    ],
)
def test_the_class_is_the_category_or_the_kind_of_text(about: dict[str, object], texts: tuple[str, ...]) -> None:
    run = with_prompts(**about)
    assert tuple(class_of(run, POINT, 0, slots) for slots in ([0], [1], [0, 1])) == texts


# ── pairs and engines ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """A stored run of the usual scenario."""
    return load_run(store(tmp_path_factory.mktemp("runs") / "one"))


def test_another_draft_of_the_same_name_is_another_pair(one: StoredRun) -> None:
    def with_draft(name: str, draft: str) -> StoredRun:
        engines = {key: replace(facts, draft_sha256=draft * 64) for key, facts in one.run.engines.items()}
        return changed(one, id=name, engines=engines)

    rows = acceptance_of([with_draft("one", "b"), with_draft("other", "c")]).layouts[0].rows
    assert [s.group.pair for s in rows] == ["demo (aaaaaaaa bbbbbbbb)", "demo (aaaaaaaa cccccccc)"]


def test_the_same_weights_under_two_names_are_one_pair(one: StoredRun) -> None:
    renamed = changed(one, id="other", pair=replace(one.run.pair, name="a copy"))
    (row,) = acceptance_of([one, renamed]).layouts[0].rows
    assert (row.group.pair, row.runs) == ("demo", 2)


def test_a_pair_that_nobody_hashed_goes_by_its_name() -> None:
    plan = plan_of()
    assert pair_names([replace(run_of(plan, blocks_of(plan)), engines={})]) == {("demo",): "demo"}


def test_somebody_elses_engine_has_its_version_in_its_name(one: StoredRun) -> None:
    engines = {key: replace(f, identity=EngineIdentity("vLLM", "0.25.1")) for key, f in one.run.engines.items()}
    renamed = changed(one, engines=engines)
    names = pair_names([renamed.run])
    assert {request.engine for request in requests_of(renamed, names)} == {"fake 0.25.1 float32"}


def test_a_request_to_a_server_under_load_goes_by_the_prompt_that_it_answers(one: StoredRun) -> None:
    """Of two prompts, the first was refused: slot 0 answers prompt 1."""
    run = replace(one.run, prompts={POINT.key: {"categories": [["math", "poem"]] * 4, "set_sha256": list("abcd")}})
    block = next(b for b in one.blocks() if b.role.speculative)
    answered = ServedRequest(0, (5, 9), (1, len(block.tokens[0]) - 1))
    served = Served((answered,), record_of([block], 0), (RefusedRequest(0, 429, 1),), (1,))
    loaded_block = replace(block, served=served, accepted=(), drafted=(), step_ns=(), counters={"undrafted_steps": 0})

    class Answered(StoredRun):
        def blocks(self) -> list[Block]:
            return [loaded_block]

    (request,) = requests_of(Answered(one.path, run, one.config), pair_names([run]))
    assert (request.prompt, request.prompt_class) == (("a", 1), "poem")


# ── what is left out, and what is said ───────────────────────────────────────────────────────────────────────────────


def test_cells_whose_records_are_no_evidence_are_left_out_and_named(tmp_path: Path) -> None:
    one = load_run(store(tmp_path / "one", scenarios=[scenario(), scenario("other-64")]))
    failed = [
        replace(c, status="failed", reason="its records contradict themselves\nat length")
        if c.cell.point.scenario == "other-64"
        else c
        for c in one.run.cells
    ]
    acceptance = acceptance_of([changed(one, cells=tuple(failed))])
    (run,) = acceptance.runs
    assert run.left_out == {"other-64/fake/c64/b1/spec-3": "its records contradict themselves"}
    assert acceptance.layouts[0].rows[0].cells == 1


def test_a_text_that_is_not_the_baselines_is_named(tmp_path: Path) -> None:
    def wrong(block: Block) -> Block:
        return corrupt(block) if block.prompt_set == 1 else block

    (run,) = acceptance_of([load_run(store(tmp_path / "one", change=wrong))]).runs
    assert run.other_text == ("demo-64/fake/c64/b1/spec-3",)


def test_runs_without_a_spec_block_have_nothing_to_sum_up(one: StoredRun) -> None:
    nothing = changed(one, cells=tuple(replace(c, status="failed", reason="hung") for c in one.run.cells))
    with pytest.raises(UsageError, match="no spec block that can be summed up was measured in one"):
        acceptance_of([nothing])

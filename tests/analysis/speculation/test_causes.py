"""Each known cause is found where it is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specgate.analysis.speculation.causes import CAUSES, findings_of
from specgate.analysis.speculation.evidence import Evidence, HeadReading
from specgate.contract import MAY_NOT_DRAFT, Budget, Finish, LogCause
from specgate.contract.samples.counters import NO_DRAFT_COUNTERS
from tests.analysis.speculation.evidence import FACTS, PAIR, evidence, served, stepped

GOOD = stepped([3, 1, 2, 0, 3, 2])
NOTHING = stepped([0] * 20)
OFF = stepped([0] * 20, drafted=0)
NO_COUNTERS = "no counters: http://127.0.0.1:1/metrics: HTTP 404\n  the server needs its metrics: leave out --x"
OTHER_K = "k = 3 needs 4 histogram bins and 3 positions, got 6 and 0"
WARNING = "vllm feeds this draft boundaries [2, 3, 5] (…), but it was made for [2, 4, 5] (…): one layer off"


def log(cause: str, silent: bool = True) -> tuple[LogCause, ...]:
    return (LogCause(cause, "a line of the log", silent),)


def pair(**changes: Any) -> Any:
    return replace(PAIR, **changes)


def forced(hist: list[int], length: float) -> Evidence:
    """vLLM, told to accept `length` tokens per step."""
    facts = replace(FACTS, acceptance="forced")
    return evidence(served(hist), backend="vllm", facts=facts, options={"force_al": f"{length:g}"})


CASES: dict[str, tuple[Evidence, set[str]]] = {
    "draft error": (evidence(OFF, facts=replace(FACTS, draft_error="bad")), {"draft_not_loaded", "silently_off"}),
    "weights not initialised, by the log": (
        evidence(OFF, log=log("draft not loaded: tensors of it have other names")),
        {"draft_not_loaded", "silently_off"},
    ),
    "draft dies": (
        evidence(stepped([0] * 9, 0, counters={"disabled_draft_error": 9})),
        {"draft_not_loaded", "silently_off"},
    ),
    "switched off, by the log": (evidence(None, facts=None, log=log("speculation is off")), {"switched_off"}),
    "switched off, by the engine's reasons": (
        evidence(stepped([0] * 20, 0, counters={"disabled_multitoken_other": 20})),
        {"switched_off", "silently_off"},
    ),
    "a server without speculation": (evidence(served([0] * 4, 30, {NO_DRAFT_COUNTERS: 1})), {"baseline_server"}),
    "metrics off": (evidence(None, facts=None, error=NO_COUNTERS), {"counters_off"}),
    "another draft length": (evidence(GOOD, stated={"k": 5}), {"options"}),
    "a schedule by batch size": (evidence(OFF, stated={"varies": "by batch size"}), {"options", "silently_off"}),
    "tp in TurboMind": (
        evidence(stepped([1, 0, 1, 1], drafted=1), stated={"tp": 2}, options={"engine": "turbomind"}),
        {"options", "single_token"},
    ),
    "another width": (evidence(None, pair=pair(made_for_hidden=32), error="bad"), {"wrong_target"}),
    "another vocabulary": (evidence(None, pair=pair(made_for_vocab=999), error="bad"), {"wrong_target"}),
    "other layers": (evidence(NOTHING, pair=pair(made_for_layers=7)), {"wrong_target", "zero_acceptance"}),
    "other weights": (evidence(NOTHING, pair=pair(made_for_sha256="zz")), {"wrong_target", "zero_acceptance"}),
    "width error, by the log": (evidence(None, facts=None, log=log("width error: …", False)), {"wrong_target"}),
    "draft vocabulary too large": (evidence(None, pair=pair(draft_vocab=2000), error="bad"), {"vocabulary"}),
    "d2t of ids": (
        evidence(NOTHING, pair=pair(vocabulary_map="d2t looks like a table of absolute target ids")),
        {"vocabulary", "zero_acceptance"},
    ),
    "d2t, by the error": (evidence(None, error="the draft: d2t has 9 rows"), {"vocabulary"}),
    "no weights, in a folder with a telling name": (
        evidence(
            None,
            error="/x/d2t-missing: no weights",
            pair=pair(head=HeadReading("unread", "/x/d2t-missing: no weights", "fetch them")),
        ),
        {"draft_not_loaded"},
    ),
    "a target without weights, too": (evidence(None, error="/d2t/t2d/target-missing: no weights"), set()),
    "a folder of random letters": (evidence(GOOD, error="log: /tmp/specgate-xd2tq/t2d_1/vllm.log"), set()),
    "another tokenizer": (
        evidence(NOTHING, pair=pair(tokenizers="12 tokens have other ids")),
        {"tokenizer", "zero_acceptance"},
    ),
    "weights that are no numbers": (
        evidence(NOTHING, pair=pair(weights="not finite: fc.weight")),
        {"weights", "zero_acceptance"},
    ),
    "one layer off": (evidence(GOOD, facts=replace(FACTS, warnings=(WARNING,))), {"auxiliary_layers"}),
    "beyond the draft's positions": (
        evidence(NOTHING, prompt_tokens=3000, pair=pair(draft_positions=2048)),
        {"draft_positions", "zero_acceptance"},
    ),
    "beyond the window": (
        evidence(GOOD, pair=pair(window=64), facts=replace(FACTS, warnings=("x reads no window of a draft …",))),
        {"window_ignored"},
    ),
    "too few positions": (
        evidence(None, facts=None, prompt_tokens=5000, pair=pair(draft_positions=9999), error="bad"),
        {"positions"},
    ),
    "no memory": (evidence(None, facts=None, log=log("memory ran out: …", False)), {"memory"}),
    "an illegal address": (evidence(None, facts=None, log=log("CUDA error: a kernel …", False)), {"cuda_error"}),
    "a launch that failed, by the error": (evidence(None, error="decode: CUDA error: invalid"), {"cuda_error"}),
    "cached prefixes cut": (evidence(GOOD, log=log("prefix cache: a text has …", False)), {"prefix_clamped"}),
    "no room": (evidence(stepped([0, 0]), budget=Budget(new_tokens=3)), {"too_short"}),
    "ended at once": (evidence(stepped([1], finish=Finish.EOS)), {"ended_at_once"}),
    "another K": (evidence(error=f"acceptance record: {OTHER_K}"), {"other_k"}),
    "a longer event": (
        evidence(error="slot 0: an event holds 7 tokens, more than a step with a draft of 4 gives"),
        {"other_k"},
    ),
    "chat alone": (evidence(error="http://h:1/v1/completions: HTTP 404: {}"), {"chat_only"}),
    "no head": (evidence(error="draft: tensors do not fit the config: missing: lm_head.weight"), {"misfits"}),
    "a head with a hole": (
        evidence(None, pair=pair(head=HeadReading("misfit", "draft: missing: fc.weight")), error="bad"),
        {"misfits"},
    ),
    "a head with a hole that an engine drafts with": (
        evidence(GOOD, pair=pair(head=HeadReading("misfit", "draft: missing: fc.weight"))),
        set(),
    ),
    "a head of another kind": (
        evidence(
            None,
            pair=pair(head=HeadReading("unsupported", "draft: Medusa heads", "an EAGLE-3 head")),
            error="draft: Medusa heads",
        ),
        {"draft_not_loaded"},
    ),
    "a head of another kind that an engine drafts with": (
        evidence(GOOD, pair=pair(head=HeadReading("unsupported", "draft: Medusa heads"))),
        set(),
    ),
    "a head of another target": (
        evidence(None, pair=pair(head=HeadReading("other target", "draft: of another target")), error="bad"),
        {"wrong_target"},
    ),
    "next to nothing accepted": (evidence(NOTHING), {"zero_acceptance"}),
    "one token per step": (evidence(stepped([1, 0, 1, 1], drafted=1)), {"single_token"}),
    "no drafts, and not a word": (evidence(served([0] * 4, 30)), {"silently_off"}),
    "an engine that takes no draft": (
        evidence(served([0] * 4, 30), facts=replace(FACTS, warnings=(f"{MAY_NOT_DRAFT}it takes none",))),
        {"switched_off", "silently_off"},
    ),
    "an engine that might take none, and does": (
        evidence(GOOD, facts=replace(FACTS, warnings=(f"{MAY_NOT_DRAFT}it takes none",))),
        set(),
    ),
    "pauses": (evidence(served([2, 2, 2, 4], 20)), {"steps_without_drafts"}),
    "short drafts": (evidence(stepped([2, 1, 2, 0, 2, 1], drafted=2)), {"short_drafts"}),
    "forced, with the right mean and too wide": (forced([5, 0, 0, 5], 2.5), {"made_up", "forced_shape"}),
    "forced without a word": (evidence(served([0, 70, 0, 0])), {"looks_made_up"}),
    "a loop": (evidence(stepped([3] * 20, tokens=[5, 6, 7, 8] * 20 + [5])), {"looping"}),
    "committed tokens rewound": (evidence(served([2, 3, 4, 1], 0, {"rewound_tokens": 17})), {"unexpected_rewind"}),
    "rejected tokens rewound": (evidence(served([2, 3, 4, 1], 0, {"rewound_tokens": 16})), set()),
    "forced": (evidence(GOOD, facts=replace(FACTS, acceptance="forced")), {"made_up"}),
    "another text": (evidence(GOOD, baseline=stepped([0] * 17, 0, tokens=[1, 2, 9, *range(4, 19)])), {"other_text"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cause_is_found_where_it_is(case: str) -> None:
    known, expected = CASES[case]
    data = {finding.cause: finding for finding in findings_of(known) if finding.state == "found"}
    assert set(data) == expected
    assert all(finding.checked and finding.seen and finding.todo for finding in data.values())


def test_that_nothing_may_be_drafted_is_no_warning_once_something_was() -> None:
    facts = replace(FACTS, warnings=(f"{MAY_NOT_DRAFT}it takes none", "another"))
    assert evidence(GOOD, facts=facts).warnings == ("another",)
    assert len(evidence(served([0] * 4, 30), facts=facts).warnings) == 2


def test_of_a_good_run_no_cause_is_found() -> None:
    for block in (GOOD, served([1, 1, 2, 2], 1)):
        findings = findings_of(evidence(block, log=(), baseline=stepped([0] * 3, 0)))
        assert not [f for f in findings if f.state == "found"]


def test_every_cause_is_found_by_some_case() -> None:
    assert {cause for _, expected in CASES.values() for cause in expected} == set(CAUSES)


def test_the_k_that_the_engine_drafts_is_the_one_to_give() -> None:
    (cause,) = (f for f in findings_of(evidence(error=OTHER_K)) if f.state == "found")
    assert cause.todo == "--spec 5" and "up to 5" in cause.seen


def test_without_anything_known_nothing_is_claimed() -> None:
    from specgate.analysis.speculation.evidence import PairConfigs

    unknown = evidence(None, facts=None, pair=PairConfigs())
    assert not [f for f in findings_of(unknown) if f.state == "found"]
    assert all(not f.todo for f in findings_of(unknown))


@pytest.mark.parametrize(
    ("hist", "length"), [([0, 5, 5, 0], 2.5), ([0, 0, 9, 0], 3.0), ([0, 0, 0, 7], 4.0), ([7, 0, 0, 0], 1.0)]
)
def test_forced_acceptance_of_the_documented_shape_is_right(hist: list[int], length: float) -> None:
    shape = next(f for f in findings_of(forced(hist, length)) if f.cause == "forced_shape")
    assert shape.state == "ruled out"


def test_an_engine_as_a_library_has_the_switches_of_its_server() -> None:
    def todo_of(backend: str) -> str:
        findings = findings_of(evidence(served([0] * 4, 30), backend=backend))
        return next(f.todo for f in findings if f.cause == "silently_off")

    assert todo_of("lmdeploy-pipeline") == todo_of("lmdeploy") != todo_of("cupy")
    assert todo_of("vllm-offline") == todo_of("vllm") != todo_of("cupy")


def test_a_target_that_differs_by_its_hash_alone_may_have_an_edited_config() -> None:
    def todo_of(**changes: object) -> str:
        findings = findings_of(evidence(GOOD, pair=pair(**changes)))
        return next(f.todo for f in findings if f.cause == "wrong_target")

    assert "config.json" in todo_of(made_for_sha256="zz")
    assert "config.json" not in todo_of(made_for_sha256="zz", made_for_layers=7)

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.contract import PairRef, Rope
from specgate.errors import UsageError
from specgate.files.yamlfile import load
from specgate.planning.ad_hoc import LONGEST_NAME, Question, asked, named, stretched
from specgate.planning.request import Request
from specgate.planning.resolution import chosen_scenarios, read_back
from specgate.planning.scenario import dump, find, load_scenario, shipped
from specgate.promotion.claim import digests

POLICIES = sorted((Path(__file__).parents[2] / "gates" / "policies").glob("*.yaml"))

# A format without a file of prompts is refused before there is a name.
AXIS = st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True).map(lambda v: tuple(sorted(v)))
QUESTIONS = st.builds(
    Question,
    context=st.none()
    | st.just("own")
    | st.lists(st.integers(1, 1 << 24), min_size=1, max_size=30).map(lambda v: tuple(sorted({*v}))),
    batch=st.none() | AXIS,
    spec=st.none() | AXIS,
    prompts=st.none() | st.text(max_size=40).map(Path),
    format=st.none() | st.just("mt-bench"),
    prompt_sets=st.none() | st.integers(1, 10_000),
).filter(lambda q: set(q.options()) - {"--format"})


@pytest.mark.parametrize(
    ("batch", "spec", "steps"), [((1,), (3,), 24), ((1, 4), (3,), 40), ((4,), (3, 16), 170), ((4,), None, 40)]
)
def test_requests_of_a_batch_last_long_enough_to_be_decoded_together(
    batch: tuple[int, ...], spec: tuple[int, ...] | None, steps: int
) -> None:
    """A server's step with drafts sends up to K + 1 tokens, and a few steps of all requests are needed."""
    (own,) = asked(Question(batch=batch, spec=spec), None, "micro", "cpu")
    assert own.budget.steps == steps


def test_without_a_scenario_a_small_one_for_the_machine_is_asked() -> None:
    question = Question(context=(512, 2048), batch=(1, 4), spec=(2, 5))
    (own,) = chosen_scenarios(question, (), None, "micro", "cpu")
    base = find("cpu-1k-single")
    assert own.grid.context == (512, 2048) and own.grid.batch == (1, 4) and own.grid.spec == (2, 5)
    assert (own.kind, own.pair, own.dtype, own.workload.source) == ("micro", base.pair, base.dtype, "mixed")
    assert own.name == "own-c512_2048.b1_4.s2_5" and own.source_file is None and not own.default
    (gpu,) = chosen_scenarios(question, (), None, "full", "gpu")
    assert (gpu.kind, gpu.needs, gpu.perf_mode, gpu.budget.new_tokens) == ("full", "gpu", True, 256)


@pytest.mark.parametrize(("batch", "sets"), [(1, 8), (8, 8), (16, 4), (64, 2)])
def test_own_questions_have_eight_prompt_sets_or_as_many_as_sixty_four_prompts_make(batch: int, sets: int) -> None:
    (own,) = asked(Question(batch=(batch,)), None, "micro", "cpu")
    assert own.workload.prompt_sets == sets and own.until_decided


def test_a_level_of_load_keeps_a_fixed_number_of_rounds() -> None:
    (own,) = asked(Question(batch=(8,)), None, "load", "cpu")
    assert not own.until_decided and own.workload.prompt_sets * own.rounds == 4


def test_a_scenario_keeps_what_the_question_does_not_say() -> None:
    before = find("micro-16k-b4")
    (own,) = asked(Question(spec=(2,), new_tokens=None, steps=64, prompt_sets=2), [before], "micro", "gpu")
    assert (own.grid.context, own.grid.batch, own.grid.spec) == (before.grid.context, before.grid.batch, (2,))
    assert (own.rope, own.budget.steps, own.workload.prompt_sets) == (before.rope, 64, 2)
    assert own.name == "own-micro-16k-b4.s2.p2.st64" and "as in micro-16k-b4" in own.question
    assert asked(Question(steps=128, spec=(3,)), [before], "micro", "gpu") == [before], "the same is measured"


def test_what_was_asked_can_be_written_down_and_read_back(tmp_path: Path) -> None:
    (own,) = asked(Question(context=(96,), shared_prefix=32, batch=(4,)), None, "micro", "cpu")
    file = tmp_path / f"{own.name}.yaml"
    file.write_text(dump(own))
    assert load_scenario(file).workload == own.workload and load_scenario(file).grid == own.grid
    assert digests([load_scenario(file)]) == digests([own])


@settings(max_examples=60)
@given(QUESTIONS, st.sampled_from([None, *(s.name for s in shipped())]))
def test_its_name_is_nobody_elses_and_a_name_that_a_file_can_have(question: Question, scenario: str | None) -> None:
    name = named(question, scenario)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and len(name) <= LONGEST_NAME
    globs = {rule["scenario"] for file in POLICIES for rule in rules_of(file) if "scenario" in rule}
    assert globs and not any(fnmatchcase(name, glob) for glob in globs - {"*"})


def rules_of(file: Path) -> list[dict[str, str]]:
    rules = load(file).data.get("rules", [])
    assert isinstance(rules, list)
    return rules


def test_another_question_has_another_digest() -> None:
    before = find("cpu-1k-single")
    for question in (Question(context=(2048,)), Question(batch=(2,)), Question(spec=(2,)), Question(prompt_sets=10)):
        (own,) = asked(question, [before], "micro", "cpu")
        assert digests([own]).keys() != digests([before]).keys()
    (longer,) = asked(Question(context=(2048,)), [before], "micro", "cpu")
    (other,) = asked(Question(context=(4096,)), [before], "micro", "cpu")
    assert digests([longer]) != digests([other])


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (Question(prompt_sets=2), "command line:1: workload.prompt_sets: 2: 2 × batch 1 = 2 different prompts; 8 are"),
        (Question(prompt_sets=9, spec=(1,)), None),
        (Question(new_tokens=64), "command line:1: budget: {'new_tokens': 64}: a micro scenario counts engine steps"),
        (Question(steps=4, new_tokens=64), "set exactly one of steps"),
        (Question(context="own"), "grid.context: 'own': exact prompt lengths are needed"),
        (Question(shared_prefix=8), "workload.shared_prefix: 8: sets of one prompt share nothing"),
        (Question(format="gsm8k"), "--format without --prompts"),
        (Question(prompts=Path("nowhere.jsonl")), "nowhere.jsonl: no such file"),
    ],
)
def test_a_question_that_cannot_be_put_is_refused_as_a_file_would_be(question: Question, says: str | None) -> None:
    if says is None:
        assert asked(question, None, "micro", "cpu")[0].workload.prompt_sets == 9
        return
    with pytest.raises(UsageError) as caught:
        asked(question, None, "micro", "cpu")
    assert says in str(caught.value)


def test_the_demo_target_is_stretched_as_far_as_a_context_needs_and_no_other(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "vocab_size": 320,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (own,) = asked(Question(context=(8192, 32768)), None, "micro", "gpu")
    demo = PairRef("demo", tmp_path, tmp_path)
    assert stretched(own, demo).rope == Rope("yarn", 5.0)
    assert stretched(own, PairRef("mine", tmp_path, tmp_path)).rope is None
    (short,) = asked(Question(context=(1024,)), None, "micro", "gpu")
    assert stretched(short, demo).rope is None


def test_a_run_that_is_continued_takes_no_question(tmp_path: Path) -> None:
    request = Request("micro", (), True, tmp_path, resume=tmp_path, question=Question(context=(8,), prompts=Path("p")))
    with pytest.raises(UsageError, match="--resume with --context, --prompts"):
        read_back(request)

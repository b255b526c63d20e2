"""An engine's answers are checked before they are used: each fault is a BackendError that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import BASELINE, Budget, EngineFacts, Finish, PairRef, Role, Sampling, Score
from specgate.contract.draws import TokenLaw
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Decoded, OpenRequest, Text
from specgate.contract.routing import ExpertCounts
from specgate.contract.samples import spans
from specgate.errors import BackendError, CheckpointError, SpecgateError, UsageError
from specgate.run.engine_process import failures, wire
from specgate.run.engine_process.blocks import Decode, Open, Prefill, Trace, wrong_in_block
from specgate.run.engine_process.client import EngineCalls
from specgate.run.engine_process.wire import Call, answer_message, request_message, request_of
from tests.run.engine_process.conftest import Opened, request_in
from tests.support.command import Cli
from tests.support.in_process import EngineHere

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
BUDGET = Budget(steps=4)
HUGE = "10**400"

BLOCKS = [
    # (what is changed, to what; the field and the value that are named; what would be right)
    ("elapsed_ns", "0", "elapsed_ns: 0", "greater than 0"),
    ("elapsed_ns", "-5", "elapsed_ns: -5", "at least 0"),
    ("elapsed_ns", HUGE, "elapsed_ns: 1000000000", "at most 9223372036854775807"),
    ("elapsed_ns", "1.5e9", "elapsed_ns: 1500000000.0", "must be an integer"),
    ("elapsed_ns", "True", "elapsed_ns: true", "must be an integer"),
    ("elapsed_ns", "None", "elapsed_ns: null", "must be an integer"),
    ("elapsed_ns", "np.int64(5)", "elapsed_ns: numpy.int64: np.int64(5)", "must be an integer"),
    ("elapsed_ns", "'5'", 'elapsed_ns: "5"', "must be an integer"),
    ("step_ns", "(*honest[:-1], -1)", "step_ns[3]: -1", "at least 0"),
    ("step_ns", "honest[:-1]", "accepted: a list of 4", "one for each of the 3 steps"),
    ("step_ns", "7", "step_ns: 7", "must be a list"),
    ("tokens", "honest[:1]", "tokens: a list of 1", "one for each of the 2 prompts"),
    ("tokens", "(honest[0], (*honest[1], -3))", "tokens[1][11]: -3", "at least 0"),
    ("tokens", "(honest[0], (None,))", "tokens[1][0]: null", "must be an integer"),
    ("tokens", "np.arange(3)", "tokens: numpy.ndarray: array([0, 1, 2])", "must be a list"),
    ("tokens", "(honest[0], ())", "tokens[1]: a list of 0", "must not be empty"),
    ("accepted", "honest[1:]", "accepted: a list of 3", "one for each of the 4 steps"),
    ("accepted", "((0,), *honest[1:])", "accepted[0]: a list of 1", "one for each of the 2 prompts"),
    ("accepted", "((0, -2), *honest[1:])", "accepted[0][1]: -2", "at least -1"),
    ("drafted", "()", "drafted: a list of 0", "one for each of the 4 steps"),
    ("truncated", "(0,)", "truncated: a list of 1", "one for each of the 2 prompts"),
    ("truncated", "(0, -1)", "truncated[1]: -1", "at least 0"),
    ("finish", "('done', 'steps')", 'finish[0]: "done"', "'steps', 'length', 'eos' or 'stop'"),
    ("finish", "('steps',) * 3", "finish: a list of 3", "one for each of the 2 prompts"),
    ("counters", "{'rewound_tokens': -1}", "counters.rewound_tokens: -1", "at least 0"),
    ("counters", "{'rewound_tokens': nan}", "counters.rewound_tokens: NaN", "must be an integer"),
    ("phase_ns", "[]", "phase_ns: a list of 0", "a mapping was expected"),
    ("prefill_ns", "-1", "prefill_ns: -1", "at least 0"),
    ("began_ns", "-1", "began_ns: -1", "at least 0"),
    ("began_ns", "5", "began_ns: 5", "null without prefill_ns"),
    ("served", "{}", "served.requests: missing", "required"),
    ("experts", "{'touched': [4], 'fresh': []}", "experts.touched: a list of 1", "each of the 4 steps"),
    ("experts", "{'touched': [4] * 4, 'fresh': [-1]}", "experts.fresh[0]: -1", "at least 0"),
]


@pytest.mark.parametrize(("field", "lie", "message", "right"), BLOCKS)
def test_a_malformed_block_is_named_with_field_and_value(
    here: Opened, field: str, lie: str, message: str, right: str
) -> None:
    with here(**{f"decode.{field}": lie}) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError) as error:
            engine.decode(Role(3), BUDGET, ())
    assert error.value.message.startswith(f"back end lying: malformed answer to decode: {message}")
    assert right in str(error.value.hint) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    "answer", ["None", "honest.tokens", "{'elapsed_ns': 5}", "type('Decoded', (), {'__module__': 'own'})()"]
)
def test_a_block_that_is_no_block_is_named_with_its_type(here: Opened, answer: str) -> None:
    with here(decode=answer) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match=r"decode returned \S+: .*\n  a specgate Decoded is needed"):
            engine.decode(BASELINE, BUDGET, ())


DUE = (1_000_000, 5_000_000, 9_000_000)
OPEN, CLOSED = OfferedLoad(arrivals_ns=DUE), OfferedLoad(clients=2)


def request(slot: int, change: str) -> str:
    """The honest requests of a block, of which one is changed."""
    changed = f"replace(honest.requests[{slot}], {change})"
    return f"replace(honest, requests=(*honest.requests[:{slot}], {changed}, *honest.requests[{slot + 1}:]))"


@pytest.mark.parametrize(
    ("offered", "lie", "message", "right"),
    [
        (OPEN, request(1, "due_ns=6_000_000"), "served.requests[1].due_ns: 6000000", "5000000, as request 1 was"),
        (OPEN, request(2, "due_ns=None"), "served.requests[2].due_ns: null", "9000000, as request 2 was"),
        (OPEN, request(2, "sent_ns=7_999_999"), "served.requests[2].sent_ns: 7999999", "not before it was due, at 9"),
        (OPEN, request(0, "sent_ns=6_000_001"), "served.requests[1].sent_ns: 5000000", "which was sent at 6000001"),
        (CLOSED, request(0, "due_ns=0"), "served.requests[0].due_ns: 0", "null: in a closed loop"),
        (CLOSED, "None", "served: null", "has its requests"),
    ],
)
def test_requests_under_load_are_sent_when_the_harness_had_them_due(
    here: Opened, offered: OfferedLoad, lie: str, message: str, right: str
) -> None:
    with here(**{"serve.served": lie}) as engine, pytest.raises(BackendError) as error:
        engine.serve(BASELINE, [[1, 2], [3, 4], [5, 6]], Budget(new_tokens=4), offered, ())
    assert error.value.message == f"back end lying: malformed answer to serve: {message}"
    assert right in str(error.value.hint)


@pytest.mark.parametrize("change", ["sent_ns=8_000_000", "sent_ns=10**12, chunk_ns=(10**12,)"])
def test_a_request_may_be_sent_late_or_by_what_two_clocks_differ_too_early(here: Opened, change: str) -> None:
    with here(**{"serve.served": request(2, change)}) as engine:
        block = engine.serve(BASELINE, [[1, 2], [3, 4], [5, 6]], Budget(new_tokens=4), OPEN, ())
    assert block.served is not None and tuple(r.due_ns for r in block.served.requests) == DUE


@pytest.mark.parametrize("lie", ["-1", HUGE, "None", "1.0", "np.int64(3)", "True", "10**5000"])
def test_a_prefill_that_takes_no_number_of_nanoseconds_is_refused(here: Opened, lie: str) -> None:
    with here(prefill=lie) as engine, pytest.raises(BackendError, match="prefill"):
        engine.prefill(PROMPTS, draft=True)


@pytest.mark.parametrize(
    "lie", ["(nan, 1.0)", "(inf, 1.0)", "(2.0,)", "(1.0, 2.0)", "(np.float32(2), 1.0)", "5", "'ab'"]
)
def test_top2_is_two_finite_logits_with_the_larger_one_first(here: Opened, lie: str) -> None:
    with here(top2=lie) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match="malformed answer to top2: logits"):
            engine.top2(0, [1, 2])


def routed(change: str) -> str:
    """Traffic with a mixture of experts, one thing about them changed."""
    experts = f"dict(dict(layers=4, count=8, active=2, expert_bytes=100), {change})"
    target = f"{{'weight_bytes': 1000, 'token_bytes': 0, 'attention': [], 'experts': {experts}}}"
    return f"{{'target': {target}, 'draft': None}}"


def test_experts_that_can_be_are_believed(here: Opened) -> None:
    with here(**{"facts.traffic": routed("active=8")}) as engine:
        traffic = engine.facts().traffic
    assert traffic is not None and traffic.target.experts is not None and traffic.target.experts.active == 8


@pytest.mark.parametrize(
    ("field", "lie"),
    [
        ("vocab", "0"),
        ("vocab", HUGE),
        ("eos_token_ids", "5"),
        ("details", "{'x': nan}"),
        ("details", "{'x': None}"),
        ("acceptance", "'genuine'"),
        ("has_draft", "1"),
        ("warnings", "'one text'"),
        ("traffic", "{'target': {}}"),
        ("least_weight_bytes", "5"),
        ("follows", "True"),
        ("traffic", routed("layers=0")),
        ("traffic", routed("active=0")),
        ("traffic", routed("active=9")),
        ("traffic", routed("expert_bytes=0")),
    ],
)
def test_facts_of_another_form_are_refused_when_the_engine_opens(here: Opened, field: str, lie: str) -> None:
    with pytest.raises(BackendError, match=f"malformed answer to open: facts.{field}"), here(**{f"facts.{field}": lie}):
        pass


@pytest.mark.parametrize(
    "lies",
    [
        {"trace": "honest[0]"},
        {"trace": "(honest[1], honest[0])"},
        {"activity.kernels": "{'k': -1}"},
        {"activity.unseen": "0"},
        {"activity": "None"},
    ],
)
def test_a_trace_is_a_block_and_what_was_observed_of_it(here: Opened, lies: dict[str, str]) -> None:
    with here(**lies) as engine:
        engine.prefill(PROMPTS, draft=True)
        with pytest.raises(BackendError, match="trace"):
            engine.trace(Role(3), BUDGET)


TEXT = "api.Text(((1, 2), (3,)), ('steps', 'eos'))"
DIGEST = "'" + "0a" * 32 + "'"
SPANS = (
    "spans.ShownSpans(16, 8, ((1,), (2,)), tuple("
    "spans.StepSpans(n, (3, 4), ((0,), (1,)), ((3, 7), (4, 8)), (2,)) for n in (1, 4)))"
)
OPTIONAL = [
    ("extend", TEXT.replace("(3,)", "()"), "text.tokens[1]: a list of 0"),
    ("extend", TEXT.replace(", (3,)", ","), "tokens: a list of 1"),
    ("extend", TEXT.replace(", 'eos'", ","), "finish: a list of 1"),
    ("extend", "5", "extend returned int: 5"),
    ("logits", "((), ())", "logits[0]: a list of 0"),
    ("logits", f"(((7, {DIGEST}),),)", "logits: a list of 1"),
    ("logits", "(((7, 'no hash'),), ())", 'logits[0][0][1]: "no hash"'),
    ("logits", f"(((-7, {DIGEST}),), ())", "logits[0][0][0]: -7"),
    ("spans", SPANS.replace("(1, 4)", "(1, 3)"), "spans.steps: [1, 3]"),
    ("spans", SPANS.replace("((1,), (2,))", "((1,),)"), "spans.tokens: a list of 1"),
    ("spans", SPANS.replace("((0,), (1,))", "((0,),)"), "spans.steps[0].tables: a list of 1"),
    ("spans", SPANS.replace("(3, 7)", "(3, 7, 9)"), "spans.steps[0].writes[0]: a list of 3"),
    ("spans", SPANS.replace("(3, 4)", "(3, -2)"), "spans.steps[0].lengths[1]: -2"),
    ("spans", SPANS.replace("16, 8", "0, 8"), "spans.block: 0"),
    ("spans", SPANS.replace(" (2,)) for", " (2,), ((0,),), (((0,),),)) for"), "spans.steps[0].parents: a list of 1"),
    ("score", "()", "scores: a list of 0"),
    ("score", "(core.Score(1, 2.0, 3.0),)", "scores[0].logit: 3.0"),
    ("score", "(core.Score(1, nan, 3.0),)", "scores[0].best_logit: NaN"),
    ("score", "(1.0,)", "scores[0]: 1.0"),
    ("draw", "((1, 2, 3),)", "texts: a list of 1"),
    ("draw", "((1, 2, 3), (1, 2))", "texts[1]: a list of 2"),
    ("draw", "((1, 2, 3), (1, -2, 3))", "texts[1][1]: -2"),
    ("distribution", "draws.TokenLaw((9,), (1,), (0.5,))", "given: [9]"),
    ("distribution", "draws.TokenLaw((4,), (1, 2), (0.5,))", "2 tokens, but 1 probabilities"),
    ("distribution", "draws.TokenLaw((4,), (1, 2), (0.5, 0.6))", "sum to 1.1, more than 1"),
    ("distribution", "draws.TokenLaw((4,), (1,), (nan,))", "law.probabilities[0]: NaN"),
    ("distribution", "draws.TokenLaw((4,), (1,), (-0.5,))", "law.probabilities[0]: -0.5"),
    ("distribution", "0.5", "distribution returned float: 0.5"),
]


def ask(engine: EngineCalls, call: str) -> object:
    engine.prefill(PROMPTS, draft=True)
    calls: dict[str, Callable[[], object]] = {
        "extend": lambda: engine.extend(4),
        "logits": lambda: engine.logits(Role(3), [2]),
        "spans": lambda: engine.spans(Role(3), BUDGET, [1, 4]),
        "draw": lambda: engine.draw(Role(3), [5, 6], 3, 0, 2),
        "distribution": lambda: engine.distribution([5, 6], [4], 0.0),
    }
    return calls.get(call, lambda: engine.score([1], [2, 3], [1]))()


@pytest.mark.parametrize(("call", "lie", "message"), OPTIONAL)
def test_what_tokens_are_checked_by_is_checked_itself(here: Opened, call: str, lie: str, message: str) -> None:
    with here(**{call: lie}) as engine, pytest.raises(BackendError, match=re.escape(message)):
        ask(engine, call)


@pytest.mark.parametrize("call", ["extend", "logits", "spans", "score", "draw", "distribution"])
def test_an_engine_need_not_be_able_to_do_what_is_optional(here: Opened, call: str) -> None:
    with here() as engine:
        assert ask(engine, call) is None


def test_what_an_able_engine_says_comes_through_as_it_was(here: Opened) -> None:
    shown = f"(((7, {DIGEST}),), ((8, {DIGEST}),))"
    able = {"extend": TEXT, "logits": shown, "spans": SPANS, "score": "(core.Score(*honest[2], 2.5, -1.0),)"}
    able |= {
        "draw": "(honest[1] + (7,),) * honest[4]",
        "distribution": "draws.TokenLaw(honest[1], (3, 1), (0.5, 0.25))",
    }
    with here(**able) as engine:
        assert ask(engine, "extend") == Text(((1, 2), (3,)), (Finish.STEPS, Finish.EOS))
        assert ask(engine, "logits") == eval(shown)
        assert ask(engine, "spans") == eval(SPANS, {"spans": spans})
        assert ask(engine, "score") == (Score(1, 2.5, -1.0),)
        assert ask(engine, "draw") == ((5, 6, 7), (5, 6, 7))
        assert ask(engine, "distribution") == TokenLaw((4,), (3, 1), (0.5, 0.25))


def test_an_honest_engine_is_believed(here: Opened) -> None:
    with here() as engine:
        assert engine.scripted
        assert engine.prefill(PROMPTS, draft=True) == 7000
        block, activity = engine.trace(Role(3), BUDGET)
        assert engine.decode(Role(3), BUDGET, ()).tokens == block.tokens
        assert activity.kernels == {"fake_step": 4} and engine.top2(0, [1])


def test_a_block_in_which_nothing_was_decoded_may_take_no_time(here: Opened) -> None:
    nothing = "elapsed_ns=0, step_ns=(), accepted=(), drafted=(), tokens=((1,), (1,)), finish=('eos', 'eos')"
    with here(decode=f"replace(honest, {nothing})") as engine:
        engine.prefill(PROMPTS, draft=False)
        assert engine.decode(BASELINE, BUDGET, ()).elapsed_ns == 0


@pytest.mark.usefixtures("lying")
def test_a_run_loses_the_cell_of_a_malformed_answer_and_nothing_else(cli: Cli) -> None:
    cli.write("tiny.yaml", (cli.folder / "tiny.yaml").read_text().replace("context: [24]", "context: [24, 32]"))
    lie = "-1 if honest == 48000 else honest"  # two prompts of 24 tokens, at 1000 ns each: the first point only
    done = cli.micro("--backend", "lying", "-o", f"prefill={lie}", code=7)
    assert "malformed answer to prefill: ns: -1" in done.stdout
    record = json.loads((cli.newest() / "run.json").read_text())
    assert {c["status"] for c in record["cells"]} == {"failed", "ok"}


# ── the messages themselves ──────────────────────────────────────────────────────────────────────────────────────────

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)
PREFILL = Prefill(((1,),), False)
DECODE = Decode(BASELINE, BUDGET, ())
OPEN_FAKE = Open(PairRef("fake", Path("/nowhere"), None), "float32", 2, 256, 3, False, backend="fake")


def read(request: Call[Any], body: bytes) -> Any:
    return wire.read(request, body, 1, "fuzzed")


@pytest.mark.parametrize("request_", [OPEN_FAKE, PREFILL, DECODE, Trace(BASELINE, BUDGET)], ids=lambda r: r.kind)
@given(data=st.data())
def test_no_answer_raises_anything_but_a_specgate_error(request_: Call[Any], data: st.DataObject) -> None:
    names = [field.name for field in fields(wire.message_of(request_.kind))]
    answer = data.draw(
        st.fixed_dictionaries(
            {"id": st.just(1), "kind": st.just("answer")},
            optional={name: JSON for name in names if name not in ("id", "kind")},
        )
    )
    body = data.draw(st.just(json.dumps(answer).encode()) | JSON.map(lambda j: json.dumps(j).encode()) | st.binary())
    try:
        read(request_, body)
    except SpecgateError as error:
        assert isinstance(error, BackendError) and len(error.message) < 600


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(BackendError, match="malformed answer to prefill"):
        read(PREFILL, b'{"id":1,"kind":"answer","ns":' + b"[" * 1_000_000)


def test_an_answer_to_another_request_is_refused() -> None:
    with pytest.raises(BackendError, match="id: 2\n  it answers request 1"):
        read(PREFILL, b'{"id":2,"kind":"answer","ns":5}')


def test_a_field_that_no_noun_has_is_refused() -> None:
    with pytest.raises(BackendError, match="malformed answer to prefill: more: 6"):
        read(PREFILL, b'{"id":1,"kind":"answer","ns":5,"more":6}')


COUNTS = st.integers(0, (1 << 63) - 1)


@st.composite
def blocks(draw: st.DrawFn) -> Decoded:
    slots, steps, prefill = draw(st.integers(1, 3)), draw(st.integers(0, 4)), draw(st.none() | COUNTS)
    row = st.tuples(*[st.integers(-1, 8)] * slots)
    table = st.tuples(*[row] * steps)
    return Decoded(
        elapsed_ns=draw(st.integers(1, 1 << 62)),
        step_ns=draw(st.tuples(*[COUNTS] * steps)),
        tokens=draw(st.tuples(*[st.lists(COUNTS, min_size=1, max_size=5).map(tuple)] * slots)),
        accepted=draw(table),
        drafted=draw(table),
        truncated=draw(st.tuples(*[COUNTS] * slots)),
        finish=draw(st.tuples(*[st.sampled_from(Finish)] * slots)),
        counters=draw(st.dictionaries(st.text(max_size=9), COUNTS, max_size=3)),
        prefill_ns=prefill,
        experts=draw(st.none() | expert_counts(steps)),
        began_ns=None if prefill is None else draw(st.none() | COUNTS),
    )


def expert_counts(steps: int) -> st.SearchStrategy[ExpertCounts]:
    fresh = st.lists(COUNTS, max_size=3).map(tuple)
    return st.builds(ExpertCounts, st.tuples(*[COUNTS] * steps), fresh)


@given(block=blocks())
def test_every_well_formed_block_comes_through_as_it_was(block: Decoded) -> None:
    assert read(DECODE, answer_message(1, DECODE, block)) == block
    assert not list(wrong_in_block(block, len(block.tokens)))


def test_a_request_to_open_comes_through_as_it_was() -> None:
    rope: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    pair = PairRef("a pair", Path("/a/target"), Path("/a/draft"), "planted", rope)
    request = OpenRequest(pair, "bfloat16", 8, 1024, 5, perf_mode=True, options={"a": "1"}, logs=Path("/a/folder"))
    request = replace(request, sampling=Sampling(0.5, logit_bias=((3, -1.5),), method="rejection", seed=2**63 - 1))
    number, received = request_of(request_message(1, Open.of("cupy", request)))
    assert number == 1 and isinstance(received, Open) and received.backend == "cupy"
    assert received.request == request and repr(received.pair.rope) == repr(rope)


def test_a_back_end_that_decodes_greedily_is_not_opened_to_sample(lying: None, tmp_path: Path) -> None:
    """Also where nobody has asked it before: in an environment of its own."""
    changed = replace(request_in(tmp_path, {}), sampling=Sampling())
    with pytest.raises(UsageError, match="back end 'lying' decodes greedily"):
        EngineHere("lying", changed, 60, tmp_path / "worker.log")


def test_an_engine_keeps_its_facts(here: Opened) -> None:
    with here() as engine:
        facts = engine.facts()
    assert isinstance(facts, EngineFacts) and facts.details["accept"] == "(3, 1, 2, 5, 0, 3)"


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def error_of(engine: EngineCalls) -> SpecgateError:
    with pytest.raises(SpecgateError) as error:
        engine.decode(BASELINE, BUDGET, ())
    return error.value


RAISES = "from specgate import errors; raise errors.{}('what is wrong', hint='what would be right')"


@pytest.mark.parametrize("name", sorted(failures.KINDS))
def test_an_error_comes_through_with_its_kind_and_hint(here: Opened, name: str) -> None:
    with here(run=RAISES.format(name)) as engine:
        error = error_of(engine)
    assert type(error).__name__ == name
    assert (error.message, error.hint) == ("what is wrong", "what would be right")


@pytest.mark.parametrize("name", ["OrderRefused", "WorkerLost", "SpecgateError"])
def test_an_engine_cannot_raise_what_only_the_harness_may(here: Opened, name: str) -> None:
    with here(run=RAISES.format(name)) as engine:
        assert type(error_of(engine)) is BackendError


def test_a_class_of_the_engines_own_becomes_the_nearest_in_the_table(here: Opened) -> None:
    own = "from specgate.errors import CheckpointError\nclass Mine(CheckpointError): pass\nraise Mine('no tensor')"
    with here(run=own) as engine:
        assert type(error_of(engine)) is CheckpointError


def test_a_kind_that_is_not_in_the_table_becomes_a_backend_error() -> None:
    assert type(failures.from_data("OSError", "a", None)) is BackendError
    assert type(failures.from_data("UsageError", "a", None)) is UsageError


@pytest.mark.parametrize("raised", ["1 / 0", "raise SystemExit(3)", "raise KeyboardInterrupt", "raise BaseException"])
def test_any_other_error_is_a_backend_error_with_its_traceback_in_the_log(
    here: Opened, tmp_path: Path, raised: str
) -> None:
    with here(run=raised) as engine:
        error = error_of(engine)
    assert type(error) is BackendError and "engine failed in decode" in error.message
    assert "Traceback" in (tmp_path / "worker.log").read_text()


def test_an_error_text_without_end_or_encoding_is_shortened_and_readable(here: Opened) -> None:
    with here(run="raise ValueError('\\udc80' + 'x' * 10**6)") as engine:
        assert len(str(error_of(engine))) < 2 * failures.LONGEST

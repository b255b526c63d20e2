"""Two libraries through the harness's protocol, on stand-ins with the real ones' names, in real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from specgate.analysis.checks.clocks import check_times
from specgate.analysis.checks.identities import check_block
from specgate.analysis.speculation.drafting import check_draft_counts
from specgate.analysis.speculation.rewinds import check_rewinds
from specgate.analysis.tokens.last_place import unit_of
from specgate.backends.offline.engine import OfflineEngine
from specgate.checkpoints.files import files_sha256
from specgate.contract import BASELINE, MAY_NOT_DRAFT, Block, Budget, Finish, Point, Role, Round
from specgate.contract.protocols import Decoded, FollowsText, RanksAgain, RanksTokens
from specgate.errors import CheckpointError, UsageError
from specgate.plugins import backend
from specgate.run.point_blocks import make_block
from specgate.run.token_evidence import CANDIDATES
from tests.backends.offline.helpers import opened, request_of
from tests.backends.offline.stand_ins.rule import accepted, ranking, token
from tests.support.engines.converted import convert_draft, convert_target

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
LOADED = time.monotonic_ns()
SPEC = Role(3)
STEPS, TOKENS = Budget(steps=6), Budget(new_tokens=21)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offline")


@pytest.fixture(scope="module")
def vllm(pair: tuple[Path, Path], folder: Path) -> Iterator[OfflineEngine]:
    with opened("vllm-offline", request_of(pair, folder, {})) as engine:
        assert engine.prefill(PROMPTS, draft=True) == 0
        yield engine


@pytest.fixture(scope="module", params=["pytorch", "turbomind"])
def lmdeploy(request: pytest.FixtureRequest, pair: tuple[Path, Path], folder: Path) -> Iterator[OfflineEngine]:
    """LMDeploy's PyTorch engine on a pair in Hugging Face folders, and TurboMind on the same pair, converted."""
    if request.param == "turbomind":
        pair = convert_target(pair[0], folder / "target"), convert_draft(pair[1], folder / "draft")
    with opened("lmdeploy-pipeline", request_of(pair, folder, {"engine": request.param})) as engine:
        engine.prefill(PROMPTS, draft=True)
        yield engine


def test_turbomind_is_told_the_perf_mode_and_the_steps_of_a_micro_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Its own variables are set where its files name them; what somebody set is another engine."""
    somebodys = {"env.LMDEPLOY_EAGLE_KV_DEBUG": "1", "env.TM_NO_SUCH_KNOB": "8", "env.OMP_NUM_THREADS": "1"}
    request = request_of(pair, tmp_path, {"engine": "turbomind", **somebodys})
    with opened("lmdeploy-pipeline", replace(request, perf_mode=True, steps=6)) as engine:
        engine.prefill(PROMPTS, draft=True)
        engine.decode(SPEC, STEPS, ())
        facts = engine.facts()
        log = "".join(file.read_text() for file in tmp_path.glob("*spec-3.log"))
    assert "[EAGLE3] perf_mode=1 micro_steps=6" in log and "[EAGLE][KVRewind]" in log
    shown = {name.removeprefix("env "): value for name, value in facts.details.items() if name.startswith("env ")}
    set_by_somebody = {"LMDEPLOY_EAGLE_KV_DEBUG": "1", "TM_NO_SUCH_KNOB": "8"}
    assert shown == {**set_by_somebody, "LMDEPLOY_EAGLE_PERF_MODE": "1", "LMDEPLOY_EAGLE_MICRO_STEPS": "6"}
    assert facts.identity is not None and facts.identity.environment == set_by_somebody
    assert facts.identity.fingerprint["engine:env.TM_NO_SUCH_KNOB"] == "8"
    assert "engine:env.LMDEPLOY_EAGLE_MICRO_STEPS" not in facts.identity.fingerprint, "the scenario has it"
    (ignored,) = (text for text in facts.warnings if "environment variable" in text)
    assert ignored.startswith("TM_NO_SUCH_KNOB=8: no file of lmdeploy names this environment variable")


def test_what_somebody_set_counts_and_an_engine_without_eagle_is_told_nothing(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    mine = {"engine": "turbomind", "env.LMDEPLOY_EAGLE_MICRO_STEPS": "64"}
    for options, environment in ((mine, {"LMDEPLOY_EAGLE_MICRO_STEPS": "64"}), ({"engine": "pytorch"}, {})):
        request = replace(request_of(pair, tmp_path, options, max_k=0), perf_mode=True, steps=6)
        with opened("lmdeploy-pipeline", replace(request, pair=replace(request.pair, draft=None))) as engine:
            facts = engine.facts()
        assert facts.identity is not None and facts.identity.environment == environment
        assert facts.details.get("env LMDEPLOY_EAGLE_MICRO_STEPS") == environment.get("LMDEPLOY_EAGLE_MICRO_STEPS")
        assert ("env LMDEPLOY_EAGLE_PERF_MODE" in facts.details) is (options == mine)


def text(length: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token(prompt, i) for i in range(length)) for prompt in PROMPTS)


def sound(decoded: Decoded, role: Role, budget: Budget, engine: OfflineEngine) -> Block:
    """The block that the harness makes of it, which holds by itself."""
    round_, now = Round(Point("s", "vllm-offline", 3, 2), 0, 0, (BASELINE, role), False), time.monotonic_ns()
    block = make_block(round_, 0, role, 1, 0, decoded)
    assert block.began_ns is not None and LOADED < block.began_ns < now - block.prefill_ns - block.elapsed_ns
    check_block(block, budget, engine.facts())
    check_times(block, whole=False)
    return block


def test_a_budget_of_steps_gives_so_many_steps_in_every_role(vllm: OfflineEngine) -> None:
    blocks = {role: sound(vllm.decode(role, STEPS, ()), role, STEPS, vllm) for role in (BASELINE, SPEC)}
    assert blocks[BASELINE].tokens == text(7) and set(blocks[BASELINE].accepted) == {(0, 0)}
    spec = blocks[SPEC]
    assert spec.accepted == tuple(tuple(accepted(p, i, 3) for p in PROMPTS) for i in range(6))
    assert set(spec.drafted) == {(3, 3)} and spec.truncated == (0, 0)
    assert spec.tokens == tuple(
        tuple(token(p, i) for i in range(1 + 6 + sum(row[s] for row in spec.accepted))) for s, p in enumerate(PROMPTS)
    )
    for block in blocks.values():
        assert len(block.step_ns) == 6 and sum(block.step_ns) == block.elapsed_ns and min(block.step_ns) > 0
        assert block.prefill_ns > 0 and block.own_prefill and block.served is None
        assert block.finish == (Finish.STEPS, Finish.STEPS) and block.counters["cache_hit_tokens"] == 0


def test_a_budget_of_tokens_truncates_what_the_last_step_had_left(vllm: OfflineEngine) -> None:
    baseline = sound(vllm.decode(BASELINE, TOKENS, ()), BASELINE, TOKENS, vllm)
    spec = sound(vllm.decode(SPEC, TOKENS, ()), SPEC, TOKENS, vllm)
    assert baseline.tokens == spec.tokens == text(21) and spec.finish == (Finish.LENGTH, Finish.LENGTH)
    for slot, prompt in enumerate(PROMPTS):
        rows = [row[slot] for row in spec.accepted if row[slot] >= 0]
        assert rows == [accepted(prompt, i, 3) for i in range(len(rows))]
        assert spec.truncated[slot] == len(rows) + sum(rows) - 20
    assert spec.accepted[-1][1] == -1, "the second request ends a step before the first"


def test_an_end_token_ends_a_request_and_the_others_go_on(vllm: OfflineEngine) -> None:
    stop, until = token(PROMPTS[0], 9), Budget(new_tokens=21, ignore_eos=False)
    block = vllm.decode(SPEC, until, (stop,))
    assert block.finish == ("stop", "length") and block.tokens[0] == text(10)[0] and block.tokens[1] == text(21)[1]


def test_blocks_repeat_their_tokens(vllm: OfflineEngine) -> None:
    first, second = (vllm.decode(SPEC, STEPS, ()) for _ in range(2))
    assert (first.tokens, first.accepted) == (second.tokens, second.accepted)


def test_a_block_names_the_process_of_its_role_and_the_size_of_its_cache(
    vllm: OfflineEngine, lmdeploy: OfflineEngine
) -> None:
    memories = [vllm.decode(role, STEPS, ()).memory for role in (BASELINE, SPEC)]
    assert [memory and memory.kv_tokens for memory in memories] == [8192, 4096]
    processes = [memory.process for memory in (*memories, lmdeploy.decode(SPEC, TOKENS, ()).memory) if memory]
    assert len(set(processes)) == 3 and all(psutil.Process(p).is_running() for p in processes)


def test_margins_come_from_the_baselines_process(vllm: OfflineEngine, lmdeploy: OfflineEngine) -> None:
    assert vllm.top2(0, (9, 9)) == lmdeploy.top2(1, ()) == (-0.25, -1.75)
    assert vllm.decode(BASELINE, STEPS, ()).tokens == text(7), "the prompts are those of the block again"


def test_the_likeliest_tokens_are_named_and_show_the_unit_of_the_logits(
    vllm: OfflineEngine, lmdeploy: OfflineEngine
) -> None:
    for engine in (vllm, lmdeploy):
        assert isinstance(engine, RanksTokens)
        top = engine.ranked(1, (9, 8), CANDIDATES)
        assert top is not None and len(top.values) == CANDIDATES and unit_of(top.values) == 2**-4
        assert list(zip(top.tokens, top.values, strict=True)) == ranking([*PROMPTS[1], 9, 8], 0)[:CANDIDATES]


def test_a_second_pass_is_led_along_the_text_and_rounds_by_itself(vllm: OfflineEngine, lmdeploy: OfflineEngine) -> None:
    text_, (_, prompt) = tuple(token(PROMPTS[1], i) for i in range(3)), PROMPTS
    for engine in (vllm, lmdeploy):
        assert isinstance(engine, RanksAgain)
        again = engine.ranked_again(1, text_, CANDIDATES)
        if engine.options.common.own.get("engine") == "turbomind":
            assert again is None, "it shows no more tokens than it chooses from"
            continue
        assert (
            again is not None and list(zip(again.tokens, again.values, strict=True)) == ranking(prompt, 3)[:CANDIDATES]
        )
        assert again.values != tuple(value for _, value in ranking(prompt, 0)[:CANDIDATES])
        assert engine.ranked_again(1, (9, 9), CANDIDATES) is None, "it cannot be led along another text"
        assert engine.ranked_again(1, (), CANDIDATES) is None, "nothing is decoded before the first token"


def test_plain_decoding_goes_on_from_any_text(vllm: OfflineEngine, lmdeploy: OfflineEngine) -> None:
    for engine in (vllm, lmdeploy):
        assert isinstance(engine, FollowsText)
        assert engine.follow(0, (9, 8, 7), 5) == tuple(token([*PROMPTS[0], 9, 8, 7], i) for i in range(5))


def test_vllm_is_asked_for_no_more_tokens_than_it_shows(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with opened("vllm-offline", request_of(pair, tmp_path, {"llm.max_logprobs": "5"}, max_k=0)) as engine:
        engine.prefill(PROMPTS, draft=False)
        top = engine.ranked(0, (), CANDIDATES)
        assert top is not None and len(top.values) == 5 and unit_of(top.values) is None


def test_what_the_engine_is_stands_in_its_facts(vllm: OfflineEngine) -> None:
    facts = vllm.facts()
    assert (facts.backend, facts.engine_version) == ("vllm-offline", "0.25.1+g752a3a504")
    assert facts.details["blocks show"] == "steps" and facts.details["torch"] == "2.11.0+stand.in"
    assert facts.has_draft and facts.capture_rule is not None and facts.identity is not None
    assert (facts.identity.engine, facts.identity.build, facts.identity.told_by) == ("vllm", "752a3a504", "version")
    assert facts.identity.settings == {
        "attention": "FLASH_ATTN",
        "cuda_graphs": "FULL_AND_PIECEWISE",
        "dtype": "bfloat16",
        "quantization": "None",
        "kv_cache_dtype": "auto",
    }


def test_arguments_reach_the_library_and_its_output_a_log(vllm: OfflineEngine, folder: Path) -> None:
    log = (folder / "vllm-offline-spec-3.log").read_text()
    assert "'max_model_len': 128" in log and "'enable_prefix_caching': False" in log
    assert "'method': 'eagle3'" in log and "noise of the engine" in log
    assert "speculative_config" not in (folder / "vllm-offline-baseline.log").read_text()


def test_a_pipelines_block_is_like_that_of_a_server(lmdeploy: OfflineEngine) -> None:
    blocks = {role: sound(lmdeploy.decode(role, TOKENS, ()), role, TOKENS, lmdeploy) for role in (BASELINE, SPEC)}
    assert all(block.tokens == text(21) and not block.step_ns for block in blocks.values())
    served = blocks[SPEC].served
    assert served is not None and served.acceptance is not None and served.acceptance.k == 3
    record, counters = served.acceptance, blocks[SPEC].counters
    record.check()
    steps = [(p, i) for p, r in zip(PROMPTS, served.requests, strict=True) for i in range(len(r.chunk_ns) - 1)]
    took = [accepted(p, i, 3) for p, i in steps]
    assert record.steps == len(steps) and counters["undrafted_steps"] == 0
    if lmdeploy.options.own["engine"] == "pytorch":
        assert record.hist == tuple(took.count(i) for i in range(4)) and record.drafted == 3 * len(steps)
        assert "rewound_tokens" not in counters
        return
    rows = [row for prompt in PROMPTS for row in turbomind_steps(prompt, 21)]
    kept = [max(took, 1) for _, took in rows]
    assert record.emitted == 40 == sum(kept) and record.accepted == 40 - len(rows) and not record.hist
    assert counters == {
        "undrafted_steps": 0,
        "cache_hit_tokens": 0,
        "reported_accepted_tokens": sum(took for _, took in rows),
        "rewound_tokens": sum(planned for planned, _ in rows) - 40,
        "rewind_steps": sum(planned > k for (planned, _), k in zip(rows, kept, strict=True)),
        "steps_accept_ge2": sum(k >= 2 for k in kept),
        "committed_extras": record.accepted,
        "max_tokens_per_seq": 3,
        "max_accepted_len": 3,
    }


def turbomind_steps(prompt: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """(draft tokens, accepted ones) of every step. The first draft token stands in the place of the step's own."""
    made, cycle = 1, 0
    while made < limit:
        planned = min(3, limit - made)
        yield planned, accepted(prompt, cycle, planned)
        made, cycle = made + max(1, accepted(prompt, cycle, planned)), cycle + 1


def test_a_pipelines_engine_tells_what_its_configuration_has(lmdeploy: OfflineEngine) -> None:
    facts, kind = lmdeploy.facts(), lmdeploy.options.own["engine"]
    assert facts.identity is not None and facts.identity.engine == "lmdeploy" and facts.details["engine"] == kind
    graphs = {"cuda_graphs": "on"} if kind == "pytorch" else {}
    assert facts.identity.settings == {"dtype": "float32", **graphs} and facts.identity.build is None


def test_turbomind_is_given_the_draft_in_both_places(lmdeploy: OfflineEngine, folder: Path) -> None:
    log = (folder / "lmdeploy-pipeline-spec-3.log").read_text().splitlines()
    turbomind = lmdeploy.options.own["engine"] == "turbomind"
    [lines] = [line for line in log if line.startswith("config: T" if turbomind else "config: P")]
    assert lines.count("num_speculative_tokens=3") == (2 if turbomind else 1) and "enable_metrics=True" in lines


def test_a_converted_pair_is_in_the_facts_by_its_content_and_its_layers(lmdeploy: OfflineEngine) -> None:
    facts, (target, draft) = lmdeploy.facts(), (lmdeploy.request.pair.target, lmdeploy.request.pair.draft)
    assert draft is not None and facts.vocab == 320
    if lmdeploy.options.own["engine"] == "turbomind":
        assert facts.draft_sha256 == files_sha256(sorted(draft.iterdir()))
        files = [target / "config.json", *sorted((target / "triton_models" / "weights").iterdir())]
        assert facts.target_sha256 == files_sha256(files)
        assert facts.capture_rule == "eagle_capture_layers [0, 1, 2] are outputs of layers: boundaries [1, 2, 3]"
    else:
        assert facts.draft_sha256 == files_sha256([draft / "config.json", draft / "model.safetensors"])


@pytest.mark.parametrize("name", ["lmdeploy-pipeline", "vllm-offline", "reference"])
def test_engines_that_read_no_converted_draft_refuse_it(pair: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    request = request_of((pair[0], convert_draft(pair[1], tmp_path / "draft")), tmp_path, {})
    if name == "reference":
        pytest.importorskip("torch")
        request = replace(request, options={})
    message = r"draft: converted for TurboMind|draft/config\.json: no such file"
    with pytest.raises((UsageError, CheckpointError), match=message) as caught:
        backend(name).open(request)
    assert "Hugging Face" in (caught.value.hint or "")


def test_a_tree_of_a_library_is_counted_by_its_accepted_path(pair: tuple[Path, Path], tmp_path: Path) -> None:
    options = {"engine": "turbomind", "spec.enable_target_tree": "true", "spec.max_decoding_tokens": "8"}
    with opened("lmdeploy-pipeline", request_of(pair, tmp_path, options, fault="tree_nodes=7")) as engine:
        engine.prefill(PROMPTS, draft=True)
        block = sound(engine.decode(SPEC, TOKENS, ()), SPEC, TOKENS, engine)
        assert engine.facts().details["draft tree"] == "target tree of up to 7 draft tokens"
    assert block.served is not None and block.served.acceptance is not None
    record = block.served.acceptance
    assert record.drafted == 3 * record.steps and block.counters["tree_tokens"] == 7 * record.steps
    check_draft_counts([block])
    check_rewinds([block])
    assert block.counters["rewound_tokens"] > record.drafted - record.accepted


def test_a_speculative_config_that_breaks_a_rule_is_refused_before_anything_is_loaded(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    request = request_of(pair, tmp_path, {"engine": "turbomind", "spec.max_path_len": "2"})
    with pytest.raises(UsageError, match=r"spec-3: .*max_path_len = 2 is less than num_speculative_tokens = 3"):
        backend("lmdeploy-pipeline").open(request)
    assert not list(tmp_path.glob("*.log"))


def test_a_converted_draft_that_was_cut_is_refused_before_anything_is_loaded(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    draft = convert_draft(pair[1], tmp_path / "draft")
    os.truncate(draft / "norm.weight", 2)
    with pytest.raises(CheckpointError, match=r"norm\.weight has 2 bytes, eagle_draft_hidden \(64\) × 2 are 128"):
        backend("lmdeploy-pipeline").open(request_of((pair[0], draft), tmp_path, {"engine": "turbomind"}))


def test_known_lines_of_the_engines_log_are_evidence_beside_the_block(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (log := tmp_path / "engine.log").write_text("No feasible kernel found for the problem\n")
    options = {"engine": "turbomind", "log.spec-3": str(log)}
    with opened("lmdeploy-pipeline", request_of(pair, tmp_path, options, fault="says=No valid kernel found")) as engine:
        engine.prefill(PROMPTS, draft=True)
        _, seen = engine.trace(SPEC, TOKENS)
    assert seen.unseen and [(f.invariant, f.where) for f in seen.findings] == [
        ("I2", "lmdeploy-pipeline-spec-3.log:1"),
        ("I1", "engine.log:1"),
    ]


@pytest.mark.parametrize(
    ("fault", "options", "counted"),
    [
        ("", {"spec.enable_target_tree": "true"}, ("tree_draft_tokens", "tree_target_tokens", "tree_accepted_tokens")),
        ("", {"config.tp": "2"}, ("rewound_tokens", "committed_extras")),
    ],
)
def test_what_turbomind_counts_besides_is_kept(
    fault: str, options: dict[str, str], counted: tuple[str, ...], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    request = request_of(pair, tmp_path, {"engine": "turbomind", **options}, fault=fault)
    with opened("lmdeploy-pipeline", request) as engine:
        engine.prefill(PROMPTS, draft=True)
        block = sound(engine.decode(SPEC, TOKENS, ()), SPEC, TOKENS, engine)
    assert block.served is not None and block.served.acceptance is not None
    record, numbers = block.served.acceptance, [block.counters[name] for name in counted]
    if options.get("config.tp"):  # one draft token per step, which is the step's own
        assert record.drafted == record.steps == 40 and record.accepted == 0 and numbers == [0, 0]
    else:
        assert numbers == [record.drafted, record.drafted, block.counters["reported_accepted_tokens"]]


def test_what_turbomind_logs_of_its_steps_stands_beside_the_invariants(pair: tuple[Path, Path], tmp_path: Path) -> None:
    options = {
        "engine": "turbomind",
        "spec.eagle_metrics_debug": "true",
        "env.LMDEPLOY_EAGLE_KV_DEBUG": "1",
        "env.TM_EAGLE3_FMHA_TILE_STATS": "1",
    }
    with opened("lmdeploy-pipeline", request_of(pair, tmp_path, options)) as engine:
        engine.prefill(PROMPTS, draft=True)
        block, seen = engine.trace(SPEC, TOKENS)
    of = {f.reason_code: f for f in seen.findings}
    assert set(of) == {"tiles_logged", "rewinds_logged", "steps_logged"}
    rewound, accepted_ = block.counters["rewound_tokens"], block.counters["reported_accepted_tokens"]
    assert of["rewinds_logged"].text == f"slots {block.counters['rewind_steps']}, rewound_tokens {rewound}"
    assert of["steps_logged"].text.endswith(f"accepted_tokens {accepted_}")
    assert of["tiles_logged"].text == "tiles 96, outside_spans 12, masked 4, computed 80"


def test_a_turbomind_that_takes_no_draft_leaves_an_empty_record_and_a_warning(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    request = request_of(pair, tmp_path, {"engine": "turbomind"}, fault="released")
    with opened("lmdeploy-pipeline", request) as engine:
        engine.prefill(PROMPTS, draft=True)
        block = engine.decode(SPEC, TOKENS, ())
        assert block.served is not None and block.served.acceptance is not None
        assert block.served.acceptance.steps == 0 and block.counters["undrafted_steps"] == 40
        assert any(w.startswith(MAY_NOT_DRAFT) for w in engine.facts().warnings)


def test_requests_that_are_shown_like_a_servers_have_the_same_tokens_and_counts(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also where prompts are prefilled in different steps."""
    request = request_of(pair, tmp_path, {"show": "requests"}, fault="mixed,cached=2")
    with opened("vllm-offline", request) as engine:
        engine.prefill(PROMPTS, draft=True)
        block = sound(engine.decode(SPEC, STEPS, ()), SPEC, STEPS, engine)
        assert engine.facts().details["blocks show"] == "requests"
    assert block.served is not None and block.served.acceptance is not None and block.tokens == text(7)
    record = block.served.acceptance
    assert sum(record.hist) == record.steps and record.emitted == 12 and block.counters["cache_hit_tokens"] == 4


def test_processes_apart_run_one_at_a_time_and_show_requests(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with opened("vllm-offline", request_of(pair, tmp_path, {"servers": "apart"})) as engine:
        assert engine.facts().details["blocks show"] == "requests"
        engine.prefill(PROMPTS, draft=True)
        for role in (SPEC, BASELINE):
            assert engine.decode(role, STEPS, ()).tokens == text(7)
            assert list(engine.processes) == [role]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": "apart"}, "a block may begin with the start of an engine"),
        ({"llm.max_num_batched_tokens": "200"}, "a step of this engine takes 200 tokens"),
    ],
)
def test_steps_that_cannot_be_told_apart_are_refused(
    options: dict[str, str], message: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        opened("vllm-offline", request_of(pair, tmp_path, {"show": "steps", **options}, max_k=0)).__enter__()


def test_nothing_is_left_running(pair: tuple[Path, Path], tmp_path: Path) -> None:
    others = set(psutil.Process().children(recursive=True))
    with opened("vllm-offline", request_of(pair, tmp_path, {})):
        assert len(set(psutil.Process().children(recursive=True)) - others) == 4, "two engines, each supervised"
    assert not set(psutil.Process().children(recursive=True)) - others

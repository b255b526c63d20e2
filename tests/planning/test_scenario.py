"""Scenario files: what ships, what is refused and how, what `extends` and the selection do."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgate.contract import Budget, Draws, Grid, LatencyLimits, Rope, Sampling, Scenario, Schedule, Workload
from specgate.errors import EnvironmentRefused, UsageError
from specgate.planning.scenario import (
    SHIPPED,
    dump,
    find,
    load_scenario,
    load_scenarios,
    meant_for,
    override,
    select,
    shipped,
)

GOOD = """# What is asked?
schema: specgate.scenario/v1
kind: micro
family: single
needs: cpu
pair: demo
dtype: float32
grid: {context: [64], batch: [1], spec: [1, 3]}
workload: {source: mixed, seed: 1, prompt_sets: 8, warmup_sets: 1}
budget: {steps: 4}
schedule: {rounds: 2, warmup_rounds: 1}
timeout_s: 30
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_scenario(path)
    return str(caught.value)


# ── what ships ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scenario", shipped(), ids=lambda s: s.name)
def test_a_shipped_scenario_asks_a_question_and_survives_being_dumped(scenario: Scenario, tmp_path: Path) -> None:
    assert scenario.question.endswith("?")
    again = load_scenario(written(tmp_path, dump(scenario), f"{scenario.name}.yaml"))
    assert replace(again, source_file=None) == replace(scenario, source_file=None)


@pytest.mark.parametrize(
    ("name", "context", "batch", "steps"), [("micro-16k-b4", 16384, 4, 128), ("micro-32k-single", 32768, 1, 512)]
)
def test_the_micro_gates_are_spec_3_in_perf_mode(name: str, context: int, batch: int, steps: int) -> None:
    scenario = find(name)
    assert scenario.grid == Grid((context,), (batch,), (3,))
    assert scenario.budget == Budget(steps=steps)
    assert (scenario.kind, scenario.needs, scenario.perf_mode) == ("micro", "gpu", True)


def test_every_family_is_covered_over_draft_lengths_two_to_five() -> None:
    data = {
        s.family: (s.grid.context, s.grid.batch)
        for s in shipped()
        if s.grid.spec == (2, 3, 4, 5) and (s.kind, s.needs) == ("full", "gpu")
    }
    assert data == {
        "baseline": ((8192,), (1,)),
        "single": ((32768,), (1,)),
        "batch": ((8192,), (4, 8)),
        "large-context": ((16384,), (4,)),
        "stress": ((32773, 65536), (1,)),
    }


@pytest.mark.parametrize(("micro", "full"), [("micro-16k-b4", "full-16k-b4"), ("micro-32k-single", "full-32k-single")])
def test_a_full_counterpart_measures_the_cell_of_its_micro_gate(micro: str, full: str) -> None:
    a, b = find(micro), find(full)
    assert set(a.grid.spec) <= set(b.grid.spec)
    assert (replace(a.grid, spec=b.grid.spec), a.rope, a.pair, a.dtype) == (b.grid, b.rope, b.pair, b.dtype)


def test_the_stress_family_gives_lmdeploys_cache_two_shares_of_the_memory() -> None:
    chosen = select(("stress",), None, "full", "gpu")
    shares = {s.name: s.options.get("config.cache_max_entry_count") for s in meant_for("lmdeploy-pipeline", chosen)}
    assert shares == {"stress": None, "stress+kv-0.75": "0.75", "stress+kv-0.9": "0.9"}
    assert [s.name for s in meant_for("cupy", chosen)] == ["stress"], "it has no such pool"
    with pytest.raises(UsageError, match=r"stress\+kv-0.9: backend: 'lmdeploy-pipeline': not 'cupy'"):
        meant_for("cupy", chosen[2:])


def test_the_catalogue_in_the_package_docstring_is_complete() -> None:
    text = (SHIPPED / "__init__.py").read_text()
    assert all(f"`{s.name}`" in text for s in shipped())


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_good_file_becomes_a_scenario(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    assert load_scenario(path) == Scenario(
        name="mine",
        question="What is asked?",
        kind="micro",
        family="single",
        needs="cpu",
        pair="demo",
        dtype="float32",
        grid=Grid((64,), (1,), (1, 3)),
        workload=Workload(1, 8, 1, "mixed"),
        budget=Budget(steps=4),
        schedule=Schedule(2, 1),
        perf_mode=False,
        timeout_s=30,
        source_file=path,
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("grid: {context", "grid: {contxt", 8, "grid.contxt: [64]: no such key; did you mean 'context'? known: b"),
        ("budget:", "bugdet:", 10, "bugdet: {'steps': 4}: no such key; did you mean 'budget'? known: "),
        ("kind: micro", "kind: mikro", 3, "kind: 'mikro': not one of 'micro', 'full' or 'load'"),
        ("schema: specgate.scenario/v1", "schema: specgate.scenario/v9", 2, "schema: 'specgate.scenario/v9': not one"),
        ("batch: [1]", "batch: [0]", 8, "grid.batch[0]: 0: must be at least 1"),
        ("batch: [1]", "batch: 1", 8, "grid.batch: 1: must be a list"),
        ("batch: [1]", "batch: [true]", 8, "grid.batch[0]: True: must be an integer"),
        ("context: [64]", "context: ['64']", 8, "grid.context[0]: '64': must be an integer"),
        ("spec: [1, 3]", "spec: []", 8, "grid.spec: []: must not be empty"),
        ("spec: [1, 3]", "spec: [3, 1]", 8, "grid.spec: [3, 1]: must ascend without repeats: [1, 3]"),
        ("spec: [1, 3]", "spec: [3, 3]", 8, "grid.spec: [3, 3]: must ascend without repeats: [3]"),
        ("spec: [1, 3]", "spec: [65]", 8, "grid.spec[0]: 65: must be at most 64"),
        ("{steps: 4}", "{steps: 4, new_tokens: 9}", 10, "budget: {'steps': 4, 'new_tokens': 9}: set exactly one of"),
        ("{steps: 4}", "{ignore_eos: true}", 10, "budget: {'ignore_eos': True}: set exactly one of"),
        ("{steps: 4}", "{new_tokens: 9}", 10, "a micro scenario counts engine steps"),
        ("timeout_s: 30", "timeout_s: 30\nsampling: {temperature: -1}", 13, "sampling.temperature: -1"),
        ("timeout_s: 30", "timeout_s: 30\nsampling: {top_p: 0}", 13, "sampling.top_p: 0"),
        ("timeout_s: 30", "timeout_s: 30\nsampling: {top_p: 1.5}", 13, "sampling.top_p: 1.5"),
        ("timeout_s: 30", "timeout_s: 30\nsampling: {method: greedy}", 13, "sampling.method: 'greedy'"),
        ("timeout_s: 30", "timeout_s: 30\nsampling: {logit_bias: [[-3, 1.0]]}", 13, "sampling.logit_bias"),
        ("timeout_s: 30", "timeout_s: 30\nsampling: {logit_bias: [[3, 1.0], [3, 2.0]]}", 13, "every token once"),
        ("timeout_s: 30", "timeout_s: 30\ndraws: {texts: 9}", 13, "greedy decoding draws nothing"),
        ("needs: cpu", "needs: gpu\nsampling: {top_p: 0.9}\ndraws: {texts: 9}", 7, "part at a filter's last token"),
        ("timeout_s: 30", "timeout_s: 30\ngoodput: {ttft_ms: 9}", 13, "a micro scenario measures no whole requests"),
        ("timeout_s: 30", "timeout_s: 30\ngoodput: {}", 13, "set at least one of ttft_ms, tpot_ms and e2e_ms"),
        ("timeout_s: 30", "timeout_s: 30\ngoodput: {itl_ms: 9}", 13, "goodput.itl_ms: 9: no such key"),
        ("timeout_s: 30", "timeout_s: 30\ngoodput: {tpot_ms: 0}", 13, "goodput.tpot_ms: 0"),
        ("{steps: 4}", "7", 10, "budget: 7: a mapping was expected; keys: steps, new_tokens, ignore_eos"),
        ("prompt_sets: 8", "prompt_sets: 7", 9, "7 × batch 1 = 7 different prompts; 8 are needed: 8 or more"),
        ("context: [64]", "context: [400000000]", 8, "grid.context[0]: 400000000: must be at most"),
        ("batch: [1]", "batch: [400000000]", 8, "grid.batch[0]: 400000000: must be at most 4096"),
        ("context: [64]", f"context: [{'9' * 90}]", 8, "must be at most 16777216"),
        ("context: [64]", "context: [10000000]", 8, "9 prompt sets × batch 1 × context 10000000 = 90000000 token ids"),
        ("{steps: 4}", "{steps: 100000000}", 10, "budget.steps: 100000000: must be at most"),
        ("prompt_sets: 8", "prompt_sets: 100000000", 9, "prompt_sets: 100000000: must be at most"),
        ("prompt_sets: 8", "prompt_sets: 1:2:3", 9, "1:2:3: not valid YAML here: version 1.1 reads a num"),
        ("timeout_s: 30", "timeout_s: 1.0e+7", 12, "timeout_s: 10000000.0: must be at most"),
        ("timeout_s: 30", "timeout_s: 030", 12, "timeout_s: 030: a number with a leading 0 is octal in YAML 1.1"),
        ("timeout_s: 30", "perf_mode: yes", 12, "perf_mode: yes: not valid YAML here: version 1.1 reads true or false"),
        ("timeout_s: 30", "timeout_s: 0", 12, "timeout_s: 0: must be more than 0"),
        ("timeout_s: 30", "timeout_s: .inf", 12, "timeout_s: inf: must be a finite number"),
        ("timeout_s: 30", "rope: {rope_type: yarn, factor: 0.5}", 12, "rope.factor: 0.5: must be at least"),
        ("timeout_s: 30", "rope: {rope_type: yarn}", 12, "rope.factor: this key is required"),
        ("timeout_s: 30", "rope: {rope_type: linear, factor: 2, beta_fast: 1}", 12, "linear has no beta_fast"),
        ("timeout_s: 30", "rope: {rope_type: llama3, factor: 2}", 12, "needs low_freq_factor and high_freq_factor"),
        ("timeout_s: 30\n", "", 1, "timeout_s: this key is required"),
        ("# What is asked?", "", 1, "the first line must be a comment"),
    ],
)  # fmt: skip
def test_a_bad_key_or_value_is_named_with_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    message = refused(path)
    assert f"{path}:{line}: " in message
    assert says in message


def test_an_odd_number_of_rounds_over_odd_prompt_sets_cannot_balance(tmp_path: Path) -> None:
    text = GOOD.replace("prompt_sets: 8", "prompt_sets: 9").replace("rounds: 2", "rounds: 1")
    assert "schedule.rounds: 1: with 9 prompt sets" in refused(written(tmp_path, text))


def test_all_problems_of_a_file_come_in_one_message_in_file_order(tmp_path: Path) -> None:
    text = GOOD.replace("# What is asked?", "").replace("micro", "mikro").replace("spec:", "spek:").replace("30", "-1")
    lines = refused(written(tmp_path, text, "two words.yaml")).splitlines()
    assert lines[0].endswith("6 problems")
    places = [int(line.split(".yaml:")[1].split(":")[0]) for line in lines[1:]]
    assert places == [1, 1, 3, 8, 8, 12]


# ── extends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_may_extend_another_and_says_where_a_bad_value_really_stands(tmp_path: Path) -> None:
    base = written(tmp_path, GOOD.replace("timeout_s: 30", "timeout_s: -1"), "base.yaml")
    top = "# Bigger?\nschema: specgate.scenario/v1\nextends: base.yaml\ngrid: {context: [128]}\n"
    assert refused(written(tmp_path, top)).startswith(f"{base}:12: timeout_s: -1: ")
    scenario = load_scenario(written(tmp_path, top + "timeout_s: 5\n"))
    assert (scenario.grid, scenario.question) == (Grid((128,), (1,), (1, 3)), "Bigger?")


def test_of_several_bases_the_last_is_on_top(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "a.yaml")
    written(tmp_path, "family: batch\nbudget: {steps: 9}\n", "b.yaml")
    scenario = load_scenario(written(tmp_path, "# Both?\nextends: [a.yaml, b.yaml]\n"))
    assert (scenario.family, scenario.budget.steps, scenario.grid.context) == ("batch", 9, (64,))


def test_a_shipped_base_is_extended_by_name(tmp_path: Path) -> None:
    text = "# Mine?\nextends: cpu-1k-single\ngrid: {context: [32]}\n"
    expected = replace(find("cpu-1k-single"), name="mine", question="Mine?", grid=Grid((32,), (1,), (3,)))
    assert replace(load_scenario(written(tmp_path, text)), source_file=None) == replace(expected, source_file=None)


@pytest.mark.parametrize(
    ("extends", "says"),
    [
        ("mine.yaml", "a scenario cannot extend itself: mine.yaml → mine.yaml"),
        ("other.yaml", "a scenario cannot extend itself: mine.yaml → other.yaml → mine.yaml"),
        ("base/cpuu", "extends: 'base/cpuu': no such base; did you mean 'base/cpu'?"),
        ("7", "a name, a file, or a list of them was expected"),
        ("[1]", "a name, a file, or a list of them was expected"),
    ],
)
def test_a_base_that_cannot_be_meant_is_refused(tmp_path: Path, extends: str, says: str) -> None:
    written(tmp_path, "extends: mine.yaml\n", "other.yaml")
    assert says in refused(written(tmp_path, f"# Q?\nextends: {extends}\n"))


# ── which ones run ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_names_the_scenarios_of_the_machine_run() -> None:
    assert [s.name for s in select((), None, "micro", "cpu")] == ["cpu-first"]
    assert [s.name for s in select((), None, "micro", "gpu")] == ["micro-16k-b4", "micro-32k-single"]
    assert [s.name for s in select((), None, "full", "cpu")] == ["cpu-full-512"]


def test_a_family_is_what_runs_of_it_by_default_on_this_machine() -> None:
    families = "baseline,single,batch,large-context,stress"
    full = [s.name for s in meant_for("cupy", select((families,), None, "full", "gpu"))]
    assert full == ["baseline", "full-32k-single", "batch", "full-16k-b4", "stress"]
    assert [s.name for s in select(("large-context", "single"), None, "micro", "gpu")] == [
        *("micro-16k-b4", "micro-32k-single")
    ]
    assert [s.name for s in select(("single",), None, "micro", "cpu")] == ["cpu-first"]
    with pytest.raises(EnvironmentRefused, match=r"16k-b4\.yaml: needs: 'gpu'"):
        select(("large-context",), None, "micro", "cpu")
    with pytest.raises(UsageError, match="run `specgate full`"):
        select(("baseline",), None, "micro", "gpu")
    with pytest.raises(UsageError, match="did you mean 'large-context'"):
        select(("large-contxt",), None, "full", "gpu")


KINDS = GOOD.replace(
    "kind: micro", "kinds: {micro: {budget: {steps: 4}}, full: {grid: {spec: [2]}, budget: {new_tokens: 9}}}"
)
KINDS = KINDS.replace("budget: {steps: 4}\nschedule", "schedule")


def test_a_file_may_hold_its_question_to_several_commands(tmp_path: Path) -> None:
    path = written(tmp_path, KINDS)
    micro, full = load_scenarios(path)
    assert [(s.name, s.kind, s.grid.spec, s.question) for s in (micro, full)] == [
        ("micro-mine", "micro", (1, 3), "What is asked?"),
        ("full-mine", "full", (2,), "What is asked?"),
    ]
    assert (micro.budget.steps, full.budget.new_tokens, full.source_file) == (4, 9, path)
    assert select((str(path),), None, "micro", "cpu") == [micro]
    assert select((str(path),), None, "full", "cpu") == [full]
    one = written(tmp_path, "# Another?\nextends: mine.yaml\nkind: full\nfamily: other\n", "other.yaml")
    assert load_scenario(one) == replace(full, name="other", question="Another?", family="other", source_file=one)
    with pytest.raises(UsageError, match="holds 2 scenarios"):
        find(str(path))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kinds: {micro:", "kinds: {macro:", ":3: kinds.macro: {'budget': {'steps': 4}}: not one of micro, full, load"),
        ("new_tokens: 9", "new_tokens: 0", ":3: budget.new_tokens: 0: must be at least 2"),
        ("family:", "kind: load\nfamily:", ":4: kind: 'load': kinds has only micro, full"),
    ],
)
def test_a_kind_that_cannot_be_meant_is_refused_where_it_stands(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_scenarios(written(tmp_path, KINDS.replace(old, new)))
    assert says in str(caught.value)
    assert "kinds: [1]: a mapping was expected" in refused(written(tmp_path, GOOD.replace("kind: micro", "kinds: [1]")))


def test_names_may_come_with_commas_and_only_narrows_them() -> None:
    names = ("cpu-1k-single,cpu-512-batch4", "cpu-spec-sweep")
    assert [s.name for s in select(names, None, "micro", "cpu")] == [
        "cpu-1k-single",
        "cpu-512-batch4",
        "cpu-spec-sweep",
    ]
    assert [s.name for s in select(names, "*-s*", "micro", "cpu")] == ["cpu-1k-single", "cpu-spec-sweep"]
    assert [s.name for s in select(("cpu-1k-single", "cpu-1k-single"), None, "micro", "cpu")] == ["cpu-1k-single"]


def test_a_selection_that_cannot_be_meant_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'cpu-1k-single'"):
        select(("cpu-1k-singel",), None, "micro", "cpu")
    with pytest.raises(UsageError, match="run `specgate full`"):
        select(("cpu-full-512",), None, "micro", "cpu")
    with pytest.raises(UsageError, match="--scenario ', ': names none"):
        select((", ",), None, "micro", "cpu")
    with pytest.raises(UsageError, match="it narrows: cpu-first"):
        select((), "nothing*", "micro", "cpu")
    with pytest.raises(EnvironmentRefused, match="meant for a CPU: cpu-1k-single"):
        select(("micro-16k-b4",), None, "micro", "cpu")
    mine = written(tmp_path, GOOD, "cpu-1k-single.yaml")
    with pytest.raises(UsageError, match="two scenario files have one name"):
        select((str(mine), "cpu-1k-single"), None, "micro", "cpu")


def test_a_command_line_overrides_the_schedule_but_not_its_balance() -> None:
    scenario = find("cpu-1k-single")
    changed = override(scenario, warmup_runs=0, measurement_runs=3, perf_mode=True)
    assert (changed.schedule, changed.perf_mode) == (Schedule(3, 0), True)
    assert override(scenario) == scenario
    odd = replace(scenario, workload=replace(scenario.workload, prompt_sets=9))
    with pytest.raises(UsageError, match="9 prompt sets × 3 measurement runs is odd"):
        override(odd, measurement_runs=3)
    with pytest.raises(UsageError, match="at least 1"):
        override(scenario, measurement_runs=0)


COUNTS = st.integers(1, 10_000)
AXES = st.sets(COUNTS, min_size=1, max_size=4).map(lambda s: tuple(sorted(s)))
MS = st.floats(0.001, 1e9)
BATCHES = st.sets(st.integers(1, 512), min_size=1, max_size=4).map(lambda s: tuple(sorted(s)))


@given(
    context=AXES,
    batch=BATCHES,
    spec=st.sets(st.integers(1, 8), min_size=1).map(lambda s: tuple(sorted(s))),
    new_tokens=st.integers(2, 9999),
    ignore_eos=st.booleans(),
    timeout_s=st.floats(0.001, 1e6),
    factor=st.floats(1, 100),
    limits=st.none() | st.builds(LatencyLimits, st.none() | MS, MS, st.none() | MS),
    sampling=st.none()
    | st.builds(
        Sampling,
        temperature=st.floats(0, 100),
        top_p=st.floats(0.001, 1),
        top_k=COUNTS,
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0.1, 10),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        logit_bias=st.dictionaries(COUNTS, st.floats(-100, 100), max_size=3).map(lambda d: tuple(sorted(d.items()))),
        method=st.sampled_from(["coupled", "rejection"]),
        seed=st.integers(0, 2**62),
    ),
    draws=st.builds(Draws, COUNTS, st.integers(1, 99), st.integers(1, 99)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_any_scenario_survives_being_dumped_and_read(
    tmp_path: Path,
    context: tuple[int, ...],
    batch: tuple[int, ...],
    spec: tuple[int, ...],
    new_tokens: int,
    ignore_eos: bool,
    timeout_s: float,
    factor: float,
    limits: LatencyLimits | None,
    sampling: Sampling | None,
    draws: Draws | None,
) -> None:
    scenario = replace(
        find("cpu-full-512"),
        name="mine",
        grid=Grid(context, batch, spec),
        budget=Budget(new_tokens=new_tokens, ignore_eos=ignore_eos),
        timeout_s=timeout_s,
        rope=Rope("yarn", factor),
        source_file=None,
        goodput=limits,
        sampling=sampling,
        draws=draws if sampling else None,
    )
    assert replace(load_scenario(written(tmp_path, dump(scenario))), source_file=None) == scenario

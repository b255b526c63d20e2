"""Speculative configs as engines write them: the same decoder is read as the same decoder, bad values are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.checkpoints.spec_config.alignment import align
from specgate.checkpoints.spec_config.formats.static_trees import static_tree
from specgate.checkpoints.spec_config.sources import read_source
from specgate.errors import UsageError
from tests.support.engines.converted import GPT_OSS, edit_config, write_config

SGLANG = "sglang:--model-path T --speculative-algorithm EAGLE3 --speculative-draft-model-path D"
CHAINS = {
    "vllm": 'vllm serve T --speculative-config \'{"method": "eagle3", "model": "D", "num_speculative_tokens": %d}\'',
    "vllm, key by key": "vllm serve T --speculative-config.method eagle3 --speculative-config.model D "
    "--speculative_config.num_speculative_tokens=%d",
    "sglang": "python3 -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path D --speculative-num-steps %d --speculative-eagle-topk 1",
    "trtllm": '{"model": "T", "speculative_config": {"decoding_type": "Eagle3", "max_draft_len": %d, '
    '"speculative_model": "/models/D"}}',
    "lmdeploy": "lmdeploy serve api_server T --speculative-algorithm eagle3 --speculative-draft-model D "
    "--speculative-num-draft-tokens %d",
    "llamacpp": "llama-server -m T -md D --spec-type draft-eagle3 --spec-draft-n-max %d",
}


@pytest.mark.parametrize("form", CHAINS)
@settings(max_examples=5)
@given(k=st.integers(1, 12))
def test_a_chain_is_the_same_chain_in_every_format(form: str, k: int) -> None:
    config = read_source(CHAINS[form] % k)
    assert config.engine == form.partition(",")[0]
    terms = ("method", "k", "path_len", "verified", "topk", "tree", "draft_model")
    data = {term: config.value(term) for term in terms}
    assert data == {
        "method": "eagle3", "draft_model": "D",
        "k": k, "path_len": k + 1, "verified": k + 1, "topk": 1, "tree": "chain",
    }  # fmt: skip
    assert not config.notes and not list(config.broken())


@settings(max_examples=30)
@given(st.sets(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12))
def test_a_static_tree_has_the_sizes_that_walking_it_gives(leaves: set[tuple[int, ...]]) -> None:
    paths = sorted({leaf[: i + 1] for leaf in leaves for i in range(len(leaf))})
    config = read_source("trtllm:" + json.dumps({"decoding_type": "Eagle", "eagle_choices": paths}))
    children = {node: [p for p in paths if p[:-1] == node] for node in [(), *paths]}
    depths = [sum(bool(children[node]) for node in children if len(node) == d) for d in range(5)]
    assert config.value("verified") == len(paths) + 1
    assert config.value("k") == max(map(len, paths))
    assert config.value("topk") == max(map(len, children.values()))
    assert config.value("non_leaves") == max(depths)
    assert config.value("tree") == ("chain" if len(paths) == max(map(len, paths)) else "static tree")
    assert static_tree.__doc__


def test_sglangs_tree_is_no_chain() -> None:
    tree = read_source(
        f"{SGLANG} --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8 --tp 2"
    )
    terms = ("k", "path_len", "verified", "topk", "tp", "tree")
    assert [tree.value(term) for term in terms] == [5, 6, 8, 4, 2, "dynamic tree"]


def test_draft_tokens_that_sglang_would_change_are_changed_and_said() -> None:
    config = read_source(
        f"{SGLANG} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 9"
    )
    assert config.value("verified") == 4
    assert config.notes == ("--speculative-num-draft-tokens 9: SGLang makes it 4, num_steps + 1, where topk is 1",)


def test_turbominds_defaults_are_filled_in() -> None:
    config = read_source('turbomind:{"method": "eagle3", "model": "D", "num_speculative_tokens": 3, "tp": 2}')
    assert [config.value(t) for t in ("k", "path_len", "verified", "non_leaves")] == [3, 5, 6, 10]
    assert "drafts one token per step then" in config.notes[0] and not list(config.broken())


def test_former_trtllm_builds_name_their_paths() -> None:
    config = read_source('{"max_path_len": 4, "max_decoding_draft_tokens": 3, "decoding_type": "Eagle"}')
    assert [config.value(t) for t in ("k", "path_len", "verified")] == [3, 4, 4]


def test_a_config_without_speculation_says_so() -> None:
    for text in ("vllm serve T", "vllm:--dtype auto", "llama-server -m T", "sglang:--model-path T", "trtllm:{}"):
        assert not read_source(text).speculative
    stray = read_source("sglang:--speculative-num-steps 3")
    assert stray.notes == ("--speculative-num-steps without --speculative-algorithm: SGLang does not speculate",)


def test_a_yaml_file_and_one_with_a_command_line_are_read(tmp_path: Path) -> None:
    (file := tmp_path / "extra.yaml").write_text(
        "speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 4\n  speculative_model: /d/D\n"
        "kv_cache_config:\n  enable_block_reuse: false\n"
    )
    assert (read_source(str(file)).value("k"), read_source(str(file)).value("prefix_cache")) == (4, False)
    (script := tmp_path / "serve.txt").write_text(
        '# the server\nvllm serve T \\\n  --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 5}\'\n'
    )
    assert read_source(str(script)).value("k") == 5
    assert read_source(f"trtllm-serve T --config {file} --tp_size 2").value("tp") == 2


def test_a_draft_folder_of_turbomind_is_checked(tmp_path: Path) -> None:
    write_config(tmp_path, GPT_OSS)
    config = read_source(str(tmp_path))
    assert (config.value("draft_hidden"), config.value("capture")) == (2880, "layers [1, 17, 32]")
    edit_config(tmp_path, eagle_q_size=2880)
    with pytest.raises(UsageError, match=r"model_config\.eagle_q_size = 2880"):
        read_source(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('vllm:{"method": "eagle3", "num_speculative_tokens": "3"}', "num_speculative_tokens = '3': an integer"),
        ('vllm:{"method": "eagle3", "num_speculative_tokens": true}', "num_speculative_tokens = True: an integer"),
        ('vllm:{"method": "eagle3"}', "num_speculative_tokens is missing"),
        (
            'vllm:{"method": "eagle3", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.9, "0.5"]}',
            "synthetic_acceptance_rates = .*: a list of numbers from 0 to 1",
        ),
        (
            'vllm:{"method": "eagle3", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.9, 1.5]}',
            "synthetic_acceptance_rates = .*: a list of numbers from 0 to 1",
        ),
        ("vllm serve T --speculative-config", "--speculative-config has no value"),
        ("vllm serve T --speculative-config {", "--speculative-config = '{': an object is needed"),
        (f"{SGLANG} --speculative-num-steps three", "--speculative-num-steps = 'three': an integer"),
        (f"{SGLANG} --speculative-eagle-topk 4", "--speculative-num-steps is missing"),
        ("trtllm:{}{", "not readable as JSON"),
        ('trtllm:{"decoding_type": "Eagle3"}', "max_draft_len is missing"),
        ('trtllm:{"eagle_choices": [[0], "a"]}', "eagle_choices: lists of child indices"),
        ('{"speculative_config": 3, "decoding_type": "Eagle3"}', "speculative_config is no mapping"),
        ("vlm:--x", r"vlm: is no engine .*did you mean vllm"),
        ('{"a": 1}', "of which engine are these keys: a"),
        ("--temperature 0", "of which engine are these flags"),
        ("nowhere.json", "no such file or folder"),
        ("llamacpp:{}", "llamacpp takes flags"),
        ("turbomind:--x 3", "turbomind takes a mapping"),
        ("vllm serve 'T", "not a command line"),
        ('specgate:{"num_speculative_tokens": 3, "max_path": 3}', "unknown key max_path .did you mean max_path_len"),
        ("[1, 2]", "no such file|of which engine"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_source(text)


def test_llamacpp_draws_no_eagle3_drafts_whatever_it_is_told() -> None:
    command = "llama-server -m T -md D --spec-type draft-%s --spec-draft-n-max 3 --spec-draft-sampling probabilistic"
    eagle, simple = read_source(command % "eagle3"), read_source(command % "simple")
    assert (eagle.value("verification"), simple.value("verification")) == (
        "sampled tokens must match",
        "rejection sampling",
    )
    assert "changes nothing for EAGLE-3 drafts" in " ".join(eagle.notes) and not simple.notes


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            'vllm:{"method": "eagle3", "num_spec_tokens": 3, "num_speculative_tokens": 3}',
            "did you mean num_speculative_tokens",
        ),
        (f"{SGLANG} --speculative-num-steps 3 --speculative-num-stps 4", "did you mean --speculative-num-steps"),
        ('{"decoding_type": "Eagle3", "max_draft_len": 3, "max_draft_length": 3}', "did you mean max_draft_len"),
        ("llama-server -md D --spec-draft-nmax 3 --spec-type draft-eagle3", "did you mean --spec-draft-n-max"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(text: str, note: str) -> None:
    assert note in " ".join(read_source(text).undecided)


@pytest.mark.parametrize("flag", ["--draft", "--draft-n", "--draft-max"])
def test_builds_of_llamacpp_before_april_2026_say_k_by_other_flags(flag: str) -> None:
    command = f"llama-server -m T -md D --spec-type draft-eagle3 {flag} 8"
    assert read_source(f"{command} --draft-p-min 0").value("k") == 8
    assert not read_source(f"{command} --draft-p-min 0").undecided
    assert f"{flag} is of builds until April 2026" in " ".join(read_source(command).undecided)


def test_what_trainers_put_before_the_flags_of_sglang_is_left_out() -> None:
    ours = SGLANG.replace("--speculative", "--sglang-speculative").replace("--model-path", "--sglang-model-path")
    assert read_source(ours).terms == read_source(SGLANG).terms


def test_bad_files_end_in_an_error_that_names_them(tmp_path: Path) -> None:
    for name, content in (
        ("a.json", b"{"),
        ("b.json", b"[1]"),
        ("c.yaml", b"a: [1"),
        ("d.json", b"\xff"),
        ("e.txt", b"'"),
    ):
        (file := tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=name):
            read_source(str(file))
    with pytest.raises(UsageError, match=r"config\.yaml is not in it"):
        read_source(str(tmp_path))


TEXT = st.one_of(
    st.sampled_from(["vllm", "sglang", "trtllm", "lmdeploy", "turbomind", "llamacpp", "specgate"]).flatmap(
        lambda engine: st.text(max_size=40).map(lambda rest: f"{engine}:{rest}")
    ),
    st.dictionaries(
        st.sampled_from(
            ["method", "model", "num_speculative_tokens", "max_draft_len", "decoding_type", "eagle_choices", "x"]
        ),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), st.lists, max_leaves=4),
    ).flatmap(
        lambda values: st.sampled_from(["", "vllm:", "trtllm:", "turbomind:"]).map(lambda e: e + json.dumps(values))
    ),
)


@settings(max_examples=50)
@given(TEXT, TEXT)
def test_any_two_texts_are_laid_side_by_side_or_refused_by_name(a: str, b: str) -> None:
    try:
        result = align(read_source(a), read_source(b))
    except UsageError:
        return
    assert result.aligned == align(result.second, result.first).aligned
    assert not align(result.first, result.first).differences

"""Command lines: what each engine is told, with its own unit of forced acceptance, and how it reads capture layers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from specgate.backends.servers.adapter import Launch
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.exchange import Ask
from specgate.backends.servers.facts.served import window_warning
from specgate.backends.servers.options import Options, check_forced
from specgate.backends.servers.server import checked_command
from specgate.checkpoints.hf_keys import Keys
from specgate.checkpoints.spec_config.launch_checks import stated_method
from specgate.contract import BASELINE, PairRef, Role
from specgate.errors import UsageError
from tests.backends.servers.helpers import ENGINES, own_options


def launch(name: str, folder: Path, role: Role, **options: str) -> Launch:
    parsed = Options.parse({**own_options(folder, name), **options}, adapter_named(name).own_options)
    return Launch(role, PairRef("p", Path("/t"), Path("/d")), 8123, "bfloat16", 4, 2048, parsed, folder)


@pytest.mark.parametrize("name", ENGINES)
def test_only_spec_roles_name_a_draft_and_every_server_stays_on_the_loopback(name: str, tmp_path: Path) -> None:
    for role in (BASELINE, Role(3)):
        command = adapter_named(name).command(launch(name, tmp_path, role, args="--last flag"))
        assert "127.0.0.1" in command.argv and "8123" in command.argv
        assert command.argv[-2:] == ("--last", "flag")
        command_line = " ".join(command.argv) + "".join(p.read_text() for p in tmp_path.glob(f"*-{role}.yaml"))
        assert ("/d" in command_line or "draft.gguf" in command_line) == role.speculative


@pytest.mark.parametrize(
    ("name", "flags", "k", "method"),
    [
        ("vllm", '--speculative-config \'{"method": "suffix", "num_speculative_tokens": 16}\'', 16, "suffix"),
        ("vllm", "-sc.method ngram_gpu -sc.num_speculative_tokens 8", 8, "n-gram"),
        ("vllm", '-sc \'{"method": "mtp", "num_speculative_tokens": 1}\'', 1, "MTP"),
        ("vllm", '-sc \'{"method": "draft_model", "model": "/s", "num_speculative_tokens": 4}\'', 4, "draft model"),
        ("vllm", '-sc \'{"method": "dflash", "model": "/f", "num_speculative_tokens": 15}\'', 15, "DFlash"),
        ("sglang", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 13", 12, "n-gram"),
        ("sglang", "--speculative-algorithm NEXTN --speculative-num-steps 2 --speculative-eagle-topk 1", 2, "MTP"),
        ("llamacpp", "--spec-type ngram-mod --spec-ngram-mod-n-max 64", 64, "n-gram"),
    ],
)
def test_flags_that_choose_a_method_take_the_place_of_the_drafts(
    name: str, flags: str, k: int, method: str, tmp_path: Path
) -> None:
    """The pair needs no draft, the baseline is started without speculation, and another K is refused with the right
    one.
    """
    adapter, role = adapter_named(name), Role(k)
    launched = replace(launch(name, tmp_path, role, **{f"args.{role}": flags}), pair=PairRef("p", Path("/t"), None))
    command, tree = checked_command(adapter, launched)
    assert tree is None and launched.options.drafter_of(role) == "given" and not launched.drafts
    assert command.argv[-len(shlex.split(flags)) :] == tuple(shlex.split(flags))
    assert stated_method(name, command.argv, "here")[0] == method
    plain, _ = checked_command(adapter, replace(launched, role=BASELINE))
    assert stated_method(name, plain.argv, "here") == (None, None)
    other = Role(k + 1)
    options = Options.parse({**own_options(tmp_path, name), f"args.{other}": flags}, adapter.own_options)
    if method != "n-gram":
        with pytest.raises(UsageError, match=f"--spec {k} measures"):
            checked_command(adapter, replace(launched, role=other, options=options))


def test_forced_acceptance_is_converted_to_the_unit_of_each_engine(tmp_path: Path) -> None:
    vllm, sglang, trtllm, llamacpp = (
        adapter_named(name).command(launch(name, tmp_path, Role(3), force_al="2.5"))
        for name in ("vllm", "sglang", "trtllm", "llamacpp")
    )
    config = json.loads(vllm.argv[vllm.argv.index("--speculative-config") + 1])
    assert config["rejection_sample_method"] == "synthetic" and config["synthetic_acceptance_length"] == 2.5
    assert sglang.env["SGLANG_SIMULATE_ACC_LEN"] == "2.5"
    assert trtllm.env["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] == "1.5"
    assert llamacpp.argv[llamacpp.argv.index("--spec-synth-len") + 1] == "2.5"


def test_a_forced_length_beyond_the_chain_is_refused() -> None:
    check_forced(4.0, Role(3))
    with pytest.raises(UsageError, match="1 to 4 tokens"):
        check_forced(4.5, Role(3))


def test_prefix_caches_are_off(tmp_path: Path) -> None:
    vllm, sglang = (adapter_named(n).command(launch(n, tmp_path, BASELINE)).argv for n in ("vllm", "sglang"))
    adapter_named("trtllm").command(launch("trtllm", tmp_path, BASELINE))
    assert "--no-enable-prefix-caching" in vllm and "--disable-radix-cache" in sglang
    assert yaml.safe_load((tmp_path / "trtllm-baseline.yaml").read_text())["kv_cache_config"] == {
        "enable_block_reuse": False
    }


def test_a_prefix_cache_that_is_asked_for_is_on(tmp_path: Path) -> None:
    vllm, sglang = (
        adapter_named(n).command(launch(n, tmp_path, BASELINE, prefix_cache="on")).argv for n in ("vllm", "sglang")
    )
    assert "--enable-prefix-caching" in vllm and "--no-enable-prefix-caching" not in vllm
    assert "--disable-radix-cache" not in sglang
    with pytest.raises(UsageError, match="option prefix_cache = 'maybe'"):
        Options.parse({"prefix_cache": "maybe"}, ())


def test_a_request_that_is_to_be_kept_apart_says_so_in_the_engines_words() -> None:
    alone, warm = Ask("m", (1, 2), 4, True, salt="s-1"), Ask("m", (1, 2), 4, True, reuse=True)
    key = {"vllm": "cache_salt", "sglang": "extra_key"}
    for name, word in key.items():
        adapter = adapter_named(name)
        assert adapter.request(alone)[1][word] == "s-1" and word not in adapter.request(warm)[1]
    requests = [adapter_named("llamacpp").request(ask)[1]["cache_prompt"] for ask in (alone, warm)]
    assert requests == [False, True]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_target_without_a_tokenizer_is_served_without_one(name: str, tmp_path: Path) -> None:
    """A planted pair has none, and these servers would look for one and end."""
    pair = PairRef("p", tmp_path, None)
    changed = replace(launch(name, tmp_path, BASELINE), pair=pair)
    assert "--skip-tokenizer-init" in adapter_named(name).command(changed).argv
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "--skip-tokenizer-init" not in adapter_named(name).command(changed).argv


def flags(argv: Sequence[str]) -> dict[str, str]:
    """Every word with the one that follows it."""
    return dict(pairwise(argv))


def test_llama_cpp_is_told_the_dtype_of_its_caches_and_keeps_none_of_them_aside(tmp_path: Path) -> None:
    """Its own defaults are 16-bit caches, and a copy of the last request's cache before every new one."""
    argv = adapter_named("llamacpp").command(launch("llamacpp", tmp_path, Role(3))).argv
    options = flags(argv)
    names = ("--cache-type-k", "--cache-type-v", "--spec-draft-type-k", "--spec-draft-type-v")
    assert [options[name] for name in names] == ["bf16"] * 4 and options["--cache-ram"] == "0"
    assert "--no-spec-draft-backend-sampling" in argv, "else b11434 mixes up the drafts of several requests"


@pytest.mark.parametrize("k", [1, 3, 8])
def test_llama_cpp_looks_up_no_n_gram_that_is_longer_than_its_chain(k: int, tmp_path: Path) -> None:
    """It would never draft: seen with b11434, n = 4 and chains of 3."""
    options = flags(adapter_named("llamacpp").command(launch("llamacpp", tmp_path, Role(k), drafter="ngram")).argv)
    assert int(options["--spec-ngram-simple-size-m"]) == k
    assert 1 <= int(options["--spec-ngram-simple-size-n"]) <= k


def test_turbomind_is_given_a_draft_like_the_pytorch_engine(tmp_path: Path) -> None:
    """Released versions go on without it, forks draft: the counters tell."""
    lmdeploy = adapter_named("lmdeploy")
    argv = {
        engine: lmdeploy.command(launch("lmdeploy", tmp_path, Role(3), engine=engine)).argv
        for engine in ("pytorch", "turbomind")
    }
    assert argv["pytorch"][-2:] == ("--logprobs-mode", "raw_logits"), "TurboMind has no such flag, and needs none"
    assert argv["turbomind"] == tuple("turbomind" if word == "pytorch" else word for word in argv["pytorch"][:-2])
    assert flags(argv["turbomind"])["--speculative-num-draft-tokens"] == "3"


def test_sglang_has_a_place_to_spare_so_that_the_last_prompt_in_pieces_does_not_wait(tmp_path: Path) -> None:
    made = launch("sglang", tmp_path, BASELINE)
    assert int(flags(adapter_named("sglang").command(made).argv)["--max-running-requests"]) == made.max_batch + 1


@pytest.mark.parametrize("name", ["target_gguf", "draft_gguf"])
def test_llama_cpp_needs_its_files(name: str, tmp_path: Path) -> None:
    made = launch("llamacpp", tmp_path, Role(3))
    (tmp_path / f"{name.removesuffix('_gguf')}.gguf").unlink()
    with pytest.raises(UsageError, match=f"option {name} = .*no such file"):
        adapter_named("llamacpp").command(made)


@pytest.mark.parametrize(("name", "warned"), [("llamacpp", True), ("vllm", False), ("sglang", False)])
def test_an_engine_that_is_known_to_read_no_window_says_so(name: str, warned: bool) -> None:
    """As seen with the demo draft; of SGLang nobody knows."""
    reads = adapter_named(name).reads_window
    assert window_warning(name, None, reads) is None, "there is no window"
    text = window_warning(name, 512, reads)
    assert (text is not None) == warned
    assert text is None or "512 tokens" in text


NESTED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 33]}}
TOP = {"eagle_aux_hidden_state_layer_ids": [2, 18, 34]}


@pytest.mark.parametrize(
    ("name", "config", "boundaries"),
    [
        # The table of conventions: a nested [1, 17, 33] in a target of 36 layers, a top-level list, and no list at all.
        ("sglang", NESTED, (2, 18, 34)),
        ("trtllm", NESTED, (2, 18, 34)),
        ("vllm", NESTED, (2, 18, 33)),
        ("lmdeploy", NESTED, (2, 18, 33)),
        ("vllm", TOP, (2, 18, 34)),
        ("sglang", TOP, (2, 18, 33)),
        ("trtllm", TOP, (2, 18, 33)),
        ("lmdeploy", TOP, (2, 18, 33)),
        ("llamacpp", TOP, (2, 18, 34)),
        *[(name, {}, (2, 18, 33)) for name in ENGINES],
    ],
)
def test_engines_read_capture_layers_by_their_own_convention(
    name: str, config: dict[str, object], boundaries: tuple[int, ...]
) -> None:
    layers = adapter_named(name).capture(Keys(Path("config.json"), config), 36)
    assert layers.boundaries == boundaries and layers.rule

"""The peer bench: the peers must compute a Llama, and a peer that fails must not end the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from bench.peer_runs import RUNS, Measured, Setup, extrapolated
from bench.peers import cause, main, ratios, without_peers
from bench.static_decoder import Attention, StaticDecoder
from specgate.backends.eagle3.lib.pair import load_target
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from tests.support.command import ROOT

EMBEDDING = "model.embed_tokens.weight"
SMALLEST = "transformers-eager"
Peers = Callable[..., str]


@pytest.mark.parametrize("attention", ["sdpa", "matmul"])
def test_the_plain_decoder_gives_the_logits_of_transformers(pair: tuple[Path, Path], attention: Attention) -> None:
    from transformers import LlamaForCausalLM

    geometry = target_geometry(read_config(pair[0]))
    model = StaticDecoder(geometry, geometry.layers, slots=2, positions=16, attention=attention)
    checkpoint = load_target(pair[0], torch.float32, "cpu")
    weights = checkpoint.tensors
    model.load(weights if "lm_head.weight" in weights else {**weights, "lm_head.weight": weights[EMBEDDING]})
    tokens = torch.randint(geometry.vocab, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = LlamaForCausalLM.from_pretrained(pair[0], dtype=torch.float32)(tokens).logits
        for t in range(tokens.shape[1]):
            got = model.logits(tokens[:, t : t + 1], torch.tensor([t]))[:, 0]
            torch.testing.assert_close(got, want[:, t], rtol=1e-3, atol=1e-3)


@pytest.fixture
def peers(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Peers:
    """Return what the bench prints. Each peer has a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)

    def printed(*arguments: str) -> str:
        options = ["--pair", str(pair[0].parent), "--device", "cpu", *arguments]
        monkeypatch.setattr(sys, "argv", ["bench.peers", *options])
        return CliRunner().invoke(main, options, catch_exceptions=False).stdout

    return printed


@pytest.mark.slow("processes that import torch and transformers")
def test_a_peer_that_fails_is_reported_and_the_others_run(peers: Peers) -> None:
    output = peers("--context", "5000", "--layers", "1", "--steps", "8", "--peer", "engine", "--peer", SMALLEST)
    failed, measured = output.splitlines()[1:3]
    assert failed.startswith("engine") and "max_position_embeddings = 4096" in failed
    assert measured.startswith("transformers eager") and "ms/step" in measured


def test_what_the_budget_does_not_hold_is_left_out(peers: Peers) -> None:
    assert peers("--context", "64", "--budget-seconds", "0").count("left out: the budget is spent") == len(RUNS)


def test_a_step_of_all_layers_lies_on_the_line_through_two_counts(pair: tuple[Path, Path]) -> None:
    setup = Setup(str(pair[0].parent), 64, 1, 1, 8, (1, 2), "cpu")
    whole = setup.geometry.layers
    (timing,) = extrapolated("a peer", setup, lambda layers: 3.0 + 2.0 * layers)
    assert timing.ms_per_step == timing.ms_per_token == pytest.approx(3.0 + 2.0 * whole)
    assert timing.layers == (1, 2)


def test_no_line_is_drawn_where_more_layers_took_less(pair: tuple[Path, Path]) -> None:
    setup = Setup(str(pair[0].parent), 64, 1, 1, 8, (1, 2), "cpu")
    with pytest.raises(ValueError, match=r"2 layers took 4\.000 ms, 1 layers 9\.000: no line"):
        extrapolated("a peer", setup, lambda layers: {1: 9.0, 2: 4.0}[layers])


def test_ratios_are_of_tokens_not_of_steps() -> None:
    ours = [Measured("specgate cupy, baseline", 5.0, 5.0), Measured("specgate cupy, spec-3", 6.0, 2.0)]
    assert list(ratios([*ours, Measured("torch.compile", 7.0, 7.0)])) == [
        "speed over torch.compile: baseline 1.40×, spec-3 3.50×",
        "speculating over its own baseline: 2.50×",
    ]
    assert list(ratios(ours[:1])) == []


def test_a_failure_is_told_by_its_exception() -> None:
    log = "Traceback (most recent call last):\n  in x\ntorch.OutOfMemoryError: 3 GiB\n\nSet TORCHDYNAMO_VERBOSE=1\n"
    assert cause(log) == "torch.OutOfMemoryError: 3 GiB"
    assert cause("killed\n") == "killed"
    assert cause("") == "said nothing"


def test_a_peers_process_gets_the_command_line_but_for_the_choice_of_peers() -> None:
    arguments = ["--peer", "engine", "--context", "9", "--peer=transformers-eager", "--steps", "8"]
    assert list(without_peers(arguments)) == ["--context", "9", "--steps", "8"]

"""`specgate diagnose configs`: what it prints, writes and ends with."""

from __future__ import annotations

import json

import pytest

from tests.support.command import Cli

VLLM = 'vllm:{"method": "eagle3", "model": "D", "num_speculative_tokens": %d}'


def test_two_engines_that_agree_end_with_0(cli: Cli) -> None:
    done = cli.run("diagnose", "configs", VLLM % 3, VLLM % 3, pair=False)
    assert done.returncode == 0 and "\naligned: " in done.stdout


def test_a_difference_that_matters_ends_with_1_and_says_what_follows(cli: Cli) -> None:
    done = cli.run("diagnose", "configs", VLLM % 3, VLLM % 4, pair=False, code=1)
    assert "K 3 against 4: acceptance length cannot be compared" in done.stdout


def test_what_is_not_known_ends_with_8_and_is_in_the_json(cli: Cli) -> None:
    served = f"vllm serve T -tp 2 --speculative-config '{(VLLM % 3).removeprefix('vllm:')}'"
    done = cli.run("diagnose", "configs", VLLM % 3, served, "--json", pair=False)
    stored = json.loads(done.stdout)
    assert done.returncode == 8 and stored["schema"] == "specgate.alignment/v1"
    assert len(stored["undecided"]) == 2 and not stored["aligned"] and not stored["differences"]


def test_flags_are_taken_as_they_are(cli: Cli) -> None:
    flags = "--speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 3"
    done = cli.run("diagnose", "configs", VLLM % 3, f"{flags} --speculative-eagle-topk 1", pair=False)
    assert done.returncode in (0, 1) and "B  sglang: the text given" in done.stdout


@pytest.mark.parametrize("other", ["{", "nowhere", "vllm:{}x", "--temperature 3"])
def test_what_cannot_be_read_ends_with_2(cli: Cli, other: str) -> None:
    done = cli.run("diagnose", "configs", VLLM % 3, other, pair=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ")

"""Stress finds nothing wrong with a sound engine, and every kind of defect in engines that have one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from bench.stress import rounds
from bench.stress.__main__ import main
from bench.stress.episodes import BLOCK, Episode, Sizes, before_a_border, episodes
from bench.stress.expected import cut
from bench.stress.handles.checksum import checksum
from bench.stress.handles.cupy_eagle3 import misplaced
from bench.stress.handles.open import open_handle
from bench.stress.handles.reference import NOT_A_NUMBER, ReferenceHandle
from bench.stress.memory import NOISE, Reading, leaks
from bench.stress.playing import Played, play
from bench.stress.tiny_pair import write_tiny_pair
from specgate.backends.eagle3.cupy.memory.sizes import Sizes as CacheSizes
from specgate.backends.eagle3.cupy.memory.sizes import assign_blocks
from specgate.backends.eagle3.reference.kv_planes import plain
from specgate.contract import Budget, Role
from specgate.contract.protocols import Decoded
from specgate.errors import BackendError

SIZES = Sizes(slots=2, positions=192, spec=(3,), contexts=(101,), new_tokens=12, singles=2)
SMALL = (
    *("--backend", "reference", "--pair", "tiny", "--slots", "2", "--positions", "256", "--context", "133"),
    *("--spec", "3", "--new-tokens", "8", "--singles", "2", "--cycles", "40"),
)
PLAIN = Episode("two prompts", ((5, 9, 300, 7), tuple(range(70, 140))), 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


@pytest.fixture
def handle(folder: Path) -> ReferenceHandle:
    """A handle of its own, so that a test may put a defect into its engine."""
    opened = open_handle("reference", write_tiny_pair(folder), SIZES, {})
    assert isinstance(opened, ReferenceHandle)
    return opened


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


# ── a sound engine ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow("four rounds of episodes")
def test_the_small_form_finds_nothing_wrong_with_the_reference_engine(tmp_path: Path) -> None:
    done = run(*SMALL, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    outcome = json.loads((tmp_path / "stress.json").read_text())
    assert outcome["passed"] and outcome["wrong"] == [] and outcome["rounds"] == len(outcome["readings"]) == 4
    assert outcome["cycles"] >= 40 and outcome["tokens"] > 500 and 0 < outcome["accepted"] < outcome["drafts"]
    assert {"a prompt of 133", "a cache filled to 0.75", "a cache filled to 0.90", "slots that end"} <= set(
        outcome["episodes"]
    )
    assert outcome["faults"] == {NOT_A_NUMBER: [3, 3, 3, 3]}
    assert "PASS: all as it must be" in done.output


@pytest.mark.gpu
def test_a_small_form_finds_nothing_wrong_with_the_built_in_engine() -> None:
    from bench.stress.handles.cupy_eagle3 import CupyHandle
    from tests.eagle3.cupy.gpu_pairs import SIZES as OPENED
    from tests.eagle3.cupy.gpu_pairs import engine

    sizes = Sizes(OPENED.slots, OPENED.positions, (2, 5), (1029, 1536), 64)
    lines: list[str] = []
    outcome = rounds.stress(CupyHandle(engine()), sizes, 1000, 1, lines.append)
    # Tests run side by side on one GPU, whose memory in use is also that of the others.
    own = [wrong for wrong in outcome.wrong if not wrong.startswith("device_bytes")]
    assert own == [] and outcome.cycles >= 1000 and len(outcome.faults) == 3


@pytest.mark.parametrize("kind", ["plain", "ends"])
def test_an_episode_of_a_sound_engine_has_nothing_wrong(handle: ReferenceHandle, kind: Any) -> None:
    played = play(handle, replace(PLAIN, kind=kind), (2, 3))
    assert played.wrong == [] and played.blocks == 4 and played.cycles > 0
    assert played.tokens == 3 * 24 if kind == "plain" else played.tokens < 3 * 24


def test_a_fault_is_met_after_some_steps_and_the_engine_recovers(handle: ReferenceHandle) -> None:
    played = play(handle, replace(PLAIN, kind="fault", fault=NOT_A_NUMBER, k=3), (3,))
    assert (played.wrong, played.fault_steps) == ([], 3)


# ── engines with a defect ────────────────────────────────────────────────────────────────────────────────────────────


def spoiled(handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Played:
    """The episode with an engine whose speculative runs return something else."""
    sound = handle.engine.decode

    def decode(role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        result = sound(role, budget, stop)
        return replace(result, **changes) if role.speculative else result

    monkeypatch.setattr(handle.engine, "decode", decode)
    return play(handle, PLAIN, (3,))


def test_a_wrong_token_is_found_with_its_place(handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = play_and_return(handle)
    wrong = (texts[0], (*texts[1][:7], texts[1][7] + 1, *texts[1][8:]))
    played = spoiled(handle, monkeypatch, tokens=wrong)
    assert played.wrong == ["spec-3: the text of slot 1 differs from plain decoding at 7"]


def play_and_return(handle: ReferenceHandle) -> tuple[tuple[int, ...], ...]:
    handle.engine.prefill(PLAIN.prompts, draft=True)
    return handle.engine.decode(Role(3), Budget(new_tokens=PLAIN.new_tokens), ()).tokens


def test_a_text_that_is_too_short_is_found(handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = play_and_return(handle)
    played = spoiled(handle, monkeypatch, tokens=(texts[0][:9], texts[1]))
    assert "spec-3: the text of slot 0 differs from plain decoding in length: 9 and not 12" in played.wrong


def test_a_wrong_reason_to_end_is_found(handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    played = spoiled(handle, monkeypatch, finish=("eos", "length"))
    assert played.wrong == ["spec-3: slot 0 ended for eos and not for length"]


def test_counts_that_contradict_the_text_are_found(handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    played = spoiled(handle, monkeypatch, truncated=(50, 0))
    (sentence,) = played.wrong
    assert sentence.startswith("spec-3: acceptance record: emitted = 22 but steps + accepted - truncated")


def test_a_failure_of_the_engines_own_integrity_check_is_found(
    handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spoiled(handle, monkeypatch, counters={"kv_integrity_failures": 1}).wrong == [
        "spec-3: kv_integrity_failures = 1"
    ]


def test_a_prompt_in_the_cache_that_is_written_to_is_found(
    handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By so little that no token changes."""
    sound = handle.engine.decode

    def decode(role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        result = sound(role, budget, stop)
        plain(handle.engine.cache.k[1])[1, 0, 60, 3] *= 1.000001
        return result

    monkeypatch.setattr(handle.engine, "decode", decode)
    assert play(handle, PLAIN, (3,)).wrong == ["the cache of the prompts was written to"]


def test_logits_that_differ_where_tokens_do_not_are_found(
    handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = handle.engine.logits

    def logits(role: Role, positions: Sequence[int]) -> Any:
        result = sound(role, positions)
        return result if role.k == 0 else (result[0], (result[1][0], (result[1][1][0], "0" * 64), result[1][2]))

    monkeypatch.setattr(handle.engine, "logits", logits)
    assert play(handle, PLAIN, (3,)).wrong == [
        "spec-3: the logits of token 2 of slot 1 are not those of plain decoding"
    ]


def test_a_fault_that_nobody_notices_is_found(handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.stress.handles.reference.AFTER", 10_000)
    played = play(handle, replace(PLAIN, kind="fault", fault=NOT_A_NUMBER, k=3), (3,))
    assert played.wrong == ["spec-3: nothing was noticed", "spec-3: a damaged cache was decoded from once more"]


def only(monkeypatch: pytest.MonkeyPatch, episode: Episode) -> None:
    """Have every round play one episode."""
    monkeypatch.setattr(rounds, "episodes", lambda *of_round: [episode])


def test_tensors_that_pile_up_are_a_leak(handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, leaked = handle.engine.decode, list[torch.Tensor]()

    def decode(role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        leaked.append(torch.zeros(100))
        return sound(role, budget, stop)

    only(monkeypatch, replace(PLAIN, new_tokens=8))
    monkeypatch.setattr(handle.engine, "decode", decode)
    (sentence,) = rounds.stress(handle, SIZES, 1, 1, lambda line: None).wrong
    assert sentence.startswith("tensor_bytes grew from ") and sentence.endswith(" in 2 rounds")


def test_an_engine_that_fails_ends_the_rounds_with_its_words(
    handle: ReferenceHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        raise BackendError("out of order")

    only(monkeypatch, PLAIN)
    monkeypatch.setattr(handle.engine, "decode", decode)
    outcome = rounds.stress(handle, SIZES, 1, 1, lambda line: None)
    assert outcome.wrong == ["round 1, two prompts: the engine failed: out of order"] and not outcome.passed


def test_faults_that_only_come_between_graphs_are_said(handle: ReferenceHandle) -> None:
    handle.graph_steps = 8
    outcome = rounds.Stressed(faults={"early": [8, 16], "inside": [8, 11]})
    assert rounds.unmet(handle, outcome) == ["early: never met in the middle of a graph of 8 steps, but after 8, 16"]


# ── what a round asks ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_round_fits_and_every_round_has_the_same_shapes() -> None:
    sizes = Sizes(4, 66_048, (2, 3, 4, 5), (32_773, 65_536), 256)
    sizes.check()
    plans = [episodes(sizes, 512, ("a fault",), random.Random(seed)) for seed in (1, 2)]
    shapes = [sorted((e.name, *map(len, e.prompts), e.new_tokens, e.k) for e in of_round) for of_round in plans]
    assert shapes[0] == shapes[1] and [e.name for e in plans[0]] != [e.name for e in plans[1]]
    lengths = {e.name: [len(p) for p in e.prompts] for e in plans[0]}
    assert lengths["a prompt of 32773"] == [32_773] and lengths["a prompt of 65536"] == [65_536]
    assert lengths["a cache filled to 0.75"] == [49_536] * 4 and lengths["a cache filled to 0.90"] == [59_443] * 4
    assert lengths["to the last position"] == [66_048 - 256 - 5 - 2]
    assert lengths["a ragged batch"] == [1, 63, 64, 65]
    assert len({p for e in plans[0] if e.name == "equal prompts" for p in e.prompts}) == 1


@pytest.mark.parametrize("k", range(1, 9))
def test_a_fault_in_the_next_block_is_two_steps_away_at_least_and_within_reach(k: int) -> None:
    length = before_a_border(k)
    fastest = next(n for n in range(100) if -(-(length + n * (k + 1) + k + 1) // BLOCK) > -(-length // BLOCK))
    slowest = next(n for n in range(100) if -(-(length + n + k + 1) // BLOCK) > -(-length // BLOCK))
    assert fastest >= 2 and slowest < 64


def test_a_text_is_cut_behind_its_first_end() -> None:
    text = (4, 8, 15, 16, 23, 42)
    assert cut(text, (), (), 6) == (text, "length")
    assert cut(text, (), (), 4) == ((4, 8, 15, 16), "length")
    assert cut(text, (16, 8), (23,), 6) == ((4, 8), "stop")
    assert cut(text, (42,), (15,), 6) == ((4, 8, 15), "eos")
    assert cut(text, (16,), (), 4) == ((4, 8, 15, 16), "stop")
    assert cut(text, (4,), (), 6) == ((4,), "stop")


# ── memory and accounts ──────────────────────────────────────────────────────────────────────────────────────────────


def readings(name: str, *values: int) -> list[Reading]:
    still = Reading(1000, 2000, 3000, 10, 4)
    return [replace(still, **{name: value}) for value in values]


@pytest.mark.parametrize(
    ("readings", "grew"),
    [
        (readings("tensor_bytes", 500, 1000, 1000, 1000), False),
        (readings("tensor_bytes", 500, 1000, 1200, 1000), False),
        (readings("tensor_bytes", 1000, 1000, 1000, 1001), True),
        (readings("open_files", 3, 9, 9, 10), True),
        (readings("host_bytes", 0, 10, 10 + NOISE, 11 + 2 * NOISE), True),
        (readings("host_bytes", 0, 10, 9, 11 + 2 * NOISE), False),
        (readings("device_bytes", 0, 1, 2, 3), False),
        (readings("device_bytes", 0, 1, NOISE, 3 + NOISE), True),
    ],
)
def test_growth_is_told_from_noise(readings: list[Reading], grew: bool) -> None:
    assert bool(leaks(readings)) == grew


def test_too_few_rounds_are_no_proof() -> None:
    assert leaks(readings("threads", 4, 4, 4)) == ["3 rounds are too few to see a leak: 4 are needed"]


def test_a_checksum_sees_a_bit_and_two_elements_that_change_places() -> None:
    x = torch.arange(70_000, dtype=torch.float32)
    other, swapped = x.clone(), x.clone()
    other.view(torch.int32)[12_345] ^= 1
    swapped[[3, 4]] = swapped[[4, 3]]
    sums = [checksum([t]) for t in (x, other, swapped, x.clone())]
    assert len(set(sums)) == 3 and sums[0] == sums[3]
    assert checksum([x, other]) != checksum([other, x]) and checksum([x[:0]]) == 0


def test_blocks_in_the_wrong_place_are_named() -> None:
    prompts = [[1] * 200, [2] * 70, [1] * 200]
    kv = assign_blocks(prompts, CacheSizes(slots=3, positions=512, max_rows=4)).kv
    assert misplaced(kv, 3) == []
    lost, top = int(kv.free_blocks[int(kv.free_count) - 1]), int(kv.free_count)
    kv.free_count[0] = top - 1
    assert misplaced(kv, 3) == [f"block {lost}: owner -1, 0 times on the free stack, held by slots []"]
    kv.free_count[0], kv.free_blocks[top - 1] = top, int(kv.block_table[1, 0])
    assert {sentence.partition(":")[0] for sentence in misplaced(kv, 3)} == {
        f"block {lost}",
        f"block {int(kv.block_table[1, 0])}",
    }


# ── what cannot be meant ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--spec", "3,x"), "--spec '3,x': not whole numbers above 0"),
        (("--context", "0"), "--context '0': not whole numbers above 0"),
        (("--context", "232"), "--context 232: longer than 231, which --positions 256 have room for"),
        (("--positions", "140"), "--positions 140: 8 new tokens and 3 drafts leave 115 for a prompt"),
        (("--slots", "1"), "--slots 1: a ragged batch needs two"),
        (("--backend", "vllm"), "--backend vllm: its cache cannot be reached from here"),
        (("--pair", "nonsense"), "pair 'nonsense' is not known"),
        (("--target", "nowhere"), "--target nowhere: no draft given"),
        (("-o", "device"), "-o device: no value"),
        (("-o", "nonsense=1"), "option nonsense: not known"),
    ],
)
def test_what_cannot_be_meant_ends_with_2_and_its_name(changes: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run(*SMALL, *changes, "--out", str(tmp_path))
    assert done.exit_code == 2 and message in done.output
    assert not (tmp_path / "stress.json").exists()


def test_an_engine_with_a_defect_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, replace(PLAIN, new_tokens=8))
    monkeypatch.setattr(rounds, "SHOWN", 1)
    monkeypatch.setattr(ReferenceHandle, "complaints", lambda self: ["the cache is upside down"])
    done = run(*SMALL, "--out", str(tmp_path))
    assert done.exit_code == 1 and "the cache is upside down" in done.output
    assert json.loads((tmp_path / "stress.json").read_text())["passed"] is False

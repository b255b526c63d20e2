"""A tape in whole steps: on a CPU, each kernel run from its own source, and on a GPU, in captured graphs. The reference
engine has the same counts and texts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.run_parts import OfTape
from specgate.backends.eagle3.lib.playback import Playback
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import BASELINE, Budget, PairRef, Role
from specgate.contract.protocols import OpenRequest
from specgate.contract.tape import Slots, Tape, sha256_of_ids
from specgate.errors import BackendError
from tests.eagle3.cupy.engine.tracing import NEAR_TIE, check_spans, divergences, same_prefixes
from tests.eagle3.cupy.gpu_pairs import RAGGED, SIZES, checkpoints_of, engine, engine_of, random_prompts
from tests.eagle3.cupy.kernels.host import Host
from tests.eagle3.cupy.kernels.peers.ranks_on_host import kernels_from_source
from tests.eagle3.cupy.step.decoder import LENGTHS, Decoder, made_pair
from tests.pairs.tiny import write_random_pair

PROMPTS = random_prompts(RAGGED)
STEPS = 27
"""Of graphs of several steps, and of one."""
COUNTS: Slots = ((3, 0, 1), (2,), (), (0, 0, 3, 3, 1), (3,), (0,), (1, 2), (2, 3, 0, 1))
TAPE = Tape({"run": "r1"}, ("others",), {3: (COUNTS,)})


def test_a_tape_makes_the_reference_engines_counts_and_tokens_of_a_step(host: Host) -> None:
    prompts, playback = random_prompts(LENGTHS), Playback(TAPE)
    pair = made_pair(torch.float32)
    reference = ReferenceEngine(*pair, max_batch=3, max_positions=400, device="cpu", playback=playback)
    reference.prefill(prompts, draft=True)
    want = reference.decode(Role(3), Budget(steps=6), ())
    with kernels_from_source(host):
        decoder = Decoder.of(None, forced=True)
        assert decoder.b.forced is not None
        decoder.b.forced[:6] = playback.accepted(3, 6, 3, "cpu")
        forced, _ = decoder.decode(3, 6)
        plain, _ = decoder.decode(0, 6)
    assert (forced.accepted, forced.finish) == (want.accepted, want.finish)
    # Another CPU adds up in another order: a text may part where two logits are nearly equal, others may not.
    parted = divergences(forced.tokens, want.tokens, reference)
    assert len(parted) < len(prompts) and all(one.gap <= NEAR_TIE for one in parted)
    assert not same_prefixes(forced.tokens, plain.tokens)


@cache
def taped() -> CupyEngine:
    return engine_of(*checkpoints_of("4:1 of 64", "A", torch.bfloat16), replace(SIZES, forced=True))


def play(made: CupyEngine, tape: Tape) -> None:
    made.parts[:] = [*(part for part in made.parts if not isinstance(part, OfTape)), OfTape(Playback(tape))]


def playing(tape: Tape) -> CupyEngine:
    made = taped()
    play(made, tape)
    made.prefill(PROMPTS, draft=True)
    return made


@pytest.mark.gpu
def test_counts_are_the_tapes_and_texts_the_reference_engines() -> None:
    """bfloat16 may leave float32 at a near tie, and does not come back; wrong rules would do so within two steps."""
    made, target = playing(TAPE), checkpoints_of("4:1 of 64", "A", torch.float32)
    reference = ReferenceEngine(*target, max_batch=8, max_positions=2048, device="cuda", playback=Playback(TAPE))
    reference.prefill(PROMPTS, draft=True)
    for budget in (Budget(steps=STEPS), Budget(new_tokens=50)):
        block, want = made.decode(Role(3), budget, ()), reference.decode(Role(3), budget, ())
        assert (block.accepted, block.finish, block.truncated) == (want.accepted, want.finish, want.truncated)
        pairs = [[*zip(*texts, strict=True)] for texts in zip(block.tokens, want.tokens, strict=True)]
        equal = [len([*takewhile(lambda pair: pair[0] == pair[1], of)]) for of in pairs]
        print(f"equal tokens of {[*map(len, block.tokens)]}: {equal}")
        assert 2 * sum(equal) > sum(map(len, block.tokens)) and min(equal) > 4
        check_spans(made, Role(3), budget, block)


@pytest.mark.gpu
def test_a_tape_of_the_engines_own_run_says_its_text_and_one_of_nothing_the_baselines() -> None:
    plain = engine()
    plain.prefill(PROMPTS, draft=True)
    own = plain.decode(Role(3), Budget(steps=STEPS), ())
    recorded = tuple(tuple(row[slot] for row in own.accepted) for slot in range(len(PROMPTS)))
    tape = Tape({}, (sha256_of_ids(PROMPTS), "others"), {3: (recorded, ((0,),))})
    made = playing(tape)
    again = made.decode(Role(3), Budget(steps=STEPS), ())
    assert (again.tokens, again.accepted) == (own.tokens, own.accepted)
    positions = (1, 9)
    assert made.logits(Role(3), positions) == plain.logits(Role(3), positions)
    graphs = {*made.graphs}
    play(made, replace(tape, prompts=("others", "more")))  # the same graphs, with other counts
    made.prefill(PROMPTS[1:], draft=True)
    made.prefill(PROMPTS, draft=True)
    nothing = made.decode(Role(3), Budget(steps=STEPS), ())
    assert {a for row in nothing.accepted for a in row} == {0} and {*made.graphs} == graphs
    baseline = made.decode(BASELINE, Budget(steps=STEPS), ())
    assert nothing.tokens == baseline.tokens and same_prefixes(own.tokens, baseline.tokens)
    with pytest.raises(BackendError, match="spec-2 asked for, but the tape has spec-3"):
        made.decode(Role(2), Budget(steps=2), ())


@pytest.mark.gpu
def test_an_engine_with_a_tape_says_so(tmp_path: Path) -> None:
    pair = PairRef("random", *write_random_pair(tmp_path, seed=5, heads=2, kv_heads=1, head_dim=64, intermediate=96))
    (file := tmp_path / "tape.json").write_text(TAPE.text)
    request = OpenRequest(pair, "bfloat16", 2, 256, 3, False, {"tape": str(file)})
    made = BACKEND.open(request)
    facts = made.facts()
    assert (facts.acceptance, facts.details["tape of"], facts.tape_sha256) == ("forced", "r1", TAPE.sha256)
    assert any("wrong by design" in warning for warning in facts.warnings)
    made.prefill([[5, 9, 2], [7, 1]], draft=True)
    assert made.decode(Role(3), Budget(steps=4), ()).accepted == ((3, 2), (0, 2), (1, 2), (3, 2))

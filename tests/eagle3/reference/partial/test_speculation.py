"""SpecPV in the reference engine: partial passes by hand, what a full one restores, and lossless texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.kv_planes import plain
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, LOSSY, Budget, PairRef, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import Decoded, OpenRequest
from tests.eagle3.reference.partial.by_hand import TargetByHand
from tests.pairs.tiny import write_random_pair

LENGTHS = (200, 131, 170)
SMALL = {"specpv_sink": "1", "specpv_retrieval": "2", "specpv_window": "2"}
LOSSY_6 = {"specpv": "lossy", "specpv_refresh": "6", **SMALL}
LOSSLESS = {"specpv": "lossless", **SMALL}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    folder = tmp_path_factory.mktemp("pair")
    return PairRef("tiny", *write_random_pair(folder, seed=1, layers=2, boundaries=(0, 1, 2)))


def prompts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    source = torch.Generator().manual_seed(7)
    return [torch.randint(3, 250, (length,), generator=source).tolist() for length in lengths]


def opened(pair: PairRef, options: Mapping[str, str], positions: int = 280) -> ReferenceEngine:
    return open_engine(OpenRequest(pair, "float32", 3, positions, 4, False, {"device": "cpu", **options}))


def counted(decoded: Decoded, name: str) -> int:
    return decoded.counters[f"specpv_{name}"]


class Rows:
    """A watch that keeps the logits of every step of slot 0."""

    complete = False

    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def see(self, slot: int, first: int, tokens: Sequence[int], logits: Tensor) -> None:
        if slot == 0:
            self.found.append(logits.clone())


def test_a_partial_pass_is_dense_attention_with_a_mask_over_what_was_chosen(pair: PairRef) -> None:
    engine, (prompt,) = opened(pair, {**LOSSY_6, "drafter": "none"}), prompts([75])
    engine.partial = PartialPlan(1, 1, 1, 6)
    engine.prefill([prompt], draft=True)
    watch = Rows()
    with torch.inference_mode():
        tokens = engine._decode(Role(3), Budget(steps=2), (), watch).tokens[0]
        hand = TargetByHand(engine.tw, engine.target.geometry)
        logits, _ = hand.run(prompt, 0, lambda _layer, _head, row: list(range(row + 1)))
        assert int(logits[-1].argmax()) == tokens[0]
        # The first pass is full. The drafts of `none` run as token 0, and are rejected.
        full, request = hand.run([tokens[0], 0, 0, 0], 75, lambda _layer, _head, row: list(range(75 + row + 1)))
        torch.testing.assert_close(watch.found[0], full, rtol=1e-4, atol=1e-4)
        kept: dict[tuple[int, int], list[int]] = {}
        for layer, queries in enumerate(request):
            for group in range(2):
                scores = {}
                for block in (1, 2):  # 75 // 16 = 4 whole blocks: sink 0, window from 3 on
                    own = hand.k[layer][16 * block : 16 * block + 16, group]
                    of = queries[2 * group : 2 * group + 2].reshape(8, -1)
                    scores[block] = float(torch.maximum(of @ own.amax(0), of @ own.amin(0)).mean())
                best = max((1, 2), key=lambda block: scores[block])
                kept[layer, group] = [*range(16), *range(16 * best, 16 * best + 16), *range(48, 76)]
        partial, _ = hand.run(
            [tokens[1], 0, 0, 0], 76, lambda layer, head, row: [*kept[layer, head // 2], *range(76, 76 + row + 1)]
        )
    torch.testing.assert_close(watch.found[1], partial, rtol=1e-4, atol=1e-4)
    assert {tuple(k) for k in kept.values()} != {tuple(kept[0, 0])}  # heads choose for themselves


@pytest.mark.parametrize("drafter", ["eagle3", "oracle", "random"])
def test_lossless_text_and_logits_are_the_baselines_bit_for_bit(drafter: str, pair: PairRef) -> None:
    engine, positions = opened(pair, {**LOSSLESS, "drafter": drafter}), tuple(range(1, 16, 5))
    engine.prefill(prompts(), draft=True)
    baseline, logits = engine.decode(BASELINE, Budget(new_tokens=16), ()).tokens, engine.logits(BASELINE, positions)
    for k in (1, 4):
        decoded = engine.decode(Role(k), Budget(new_tokens=16), ())
        assert decoded.tokens == baseline
        assert counted(decoded, "partial_passes") > 0
        assert engine.logits(Role(k), positions) == logits
    assert engine.decode(BASELINE, Budget(new_tokens=16), ()).tokens == baseline


def test_a_lossless_cycle_has_as_many_partly_verified_tokens_as_its_role_has_drafts(pair: PairRef) -> None:
    engine = opened(pair, {**LOSSLESS, "drafter": "oracle"})
    engine.prefill(prompts(), draft=True)
    decoded = engine.decode(Role(4), Budget(new_tokens=30), ())
    assert all(d in (4, -1) for row in decoded.drafted for d in row)
    accepted = sum(a for row in decoded.accepted for a in row if a >= 0)
    assert counted(decoded, "full_accepted") == accepted
    assert counted(decoded, "full_passes") == sum(a >= 0 for row in decoded.accepted for a in row)
    assert decoded.counters["rewound_tokens"] == sum(4 - a for row in decoded.accepted for a in row if a >= 0)


def test_a_full_pass_leaves_the_keys_and_values_of_the_whole_text(pair: PairRef) -> None:
    engine, (prompt,) = opened(pair, LOSSY_6), prompts([200])
    engine.prefill([prompt], draft=True)
    plain_engine = opened(pair, {})

    def compared(steps: int) -> tuple[Decoded, list[bool]]:
        """Of every position behind the prompt, whether all layers hold there what plain decoding would."""
        decoded = engine.decode(Role(1), Budget(steps=steps), ())
        text = [*prompt, *decoded.tokens[0][:-1]]
        plain_engine.prefill([prompt], draft=False)
        for position in range(200, len(text)):
            with torch.inference_mode():
                row = torch.tensor([[text[position]]]), torch.tensor([[position]])
                plain_engine.model.forward(slice(0, 1), *row, ())
        planes = zip((*engine.cache.k, *engine.cache.v), (*plain_engine.cache.k, *plain_engine.cache.v), strict=True)
        pairs = [(plain(a)[0, :, 200 : len(text)], plain(b)[0, :, 200 : len(text)]) for a, b in planes]
        return decoded, [all(torch.equal(a[:, p], b[:, p]) for a, b in pairs) for p in range(len(text) - 200)]

    before = next(n for n in range(3, 20) if counted(engine.decode(Role(1), Budget(steps=n), ()), "full_passes") == 2)
    _, same = compared(before - 1)
    assert same[0] and not any(same[1:])
    decoded, same = compared(before)
    assert counted(decoded, "checked") == len(same) - 1 - (decoded.accepted[-1][0] + 1) >= 6
    assert all(same)


def test_what_a_full_pass_overrules_is_what_plain_decoding_would_not_have_chosen(pair: PairRef) -> None:
    engine, (prompt,) = opened(pair, LOSSY_6), prompts([170])
    engine.prefill([prompt], draft=True)
    decoded = engine.decode(Role(2), Budget(steps=22), ())
    other, tokens, positions = opened(pair, {}), decoded.tokens[0], range(len(decoded.tokens[0]))
    wrong = [s.best != t for s, t in zip(other.score(prompt, tokens, positions), tokens, strict=True)]
    ends = [1]  # how many tokens there are after every step, the first of them the prefill's
    for (accepted,) in decoded.accepted:
        ends.append(ends[-1] + accepted + 1)
    full = [counted(engine.decode(Role(2), Budget(steps=n), ()), "full_passes") for n in range(13, 23)]
    last = 13 + max(n for n in range(1, 10) if full[n] > full[n - 1])
    assert counted(decoded, "overruled") == sum(wrong[: ends[last - 1]]) > 0
    assert counted(decoded, "overruled") <= counted(decoded, "checked")


@pytest.mark.parametrize("refresh", [1, 6, 500])
def test_a_full_pass_comes_once_so_many_tokens_are_known_in_part_alone(refresh: int, pair: PairRef) -> None:
    engine = opened(pair, {**LOSSY_6, "specpv_refresh": str(refresh), "drafter": "none"})
    engine.prefill(prompts(), draft=True)
    decoded = engine.decode(Role(2), Budget(steps=21), ())
    full = 1 + 20 // (refresh + 1)  # the first, and then one behind `refresh` partial ones of a token each
    assert counted(decoded, "full_passes") == 3 * full
    assert counted(decoded, "partial_passes") == 3 * (21 - full)
    assert counted(decoded, "checked") == 3 * refresh * (full - 1)


def test_the_positions_that_are_read_are_those_kept_of_what_there_is(pair: PairRef) -> None:
    engine = opened(pair, {**LOSSY_6, "drafter": "none"})
    engine.prefill(prompts([200]), draft=True)
    decoded = engine.decode(Role(2), Budget(steps=3), ())
    # All of 200; then block 0, two of the middle, and all from block 200 // 16 − 2 on.
    tail = 200 - (200 // 16 - 2) * 16
    assert counted(decoded, "read_positions") == 200 + (3 * 16 + tail + 1) + (3 * 16 + tail + 2)
    assert counted(decoded, "cached_positions") == 200 + 201 + 202


@pytest.mark.parametrize("options", [LOSSY_6, LOSSLESS], ids=["lossy", "lossless"])
def test_a_prompt_of_which_nothing_is_left_out_is_verified_in_full_and_counted(
    options: dict[str, str], pair: PairRef
) -> None:
    engine = opened(pair, options)
    engine.prefill(prompts([60, 40]), draft=True)
    decoded = engine.decode(Role(3), Budget(new_tokens=12), ())
    assert decoded.tokens == engine.decode(BASELINE, Budget(new_tokens=12), ()).tokens
    assert counted(decoded, "partial_passes") == 0
    assert counted(decoded, "short_passes") == counted(decoded, "full_passes") > 0


def test_beside_a_short_prompt_all_are_verified_in_full(pair: PairRef) -> None:
    engine = opened(pair, LOSSY_6)
    engine.prefill(prompts([200, 40]), draft=True)
    decoded = engine.decode(Role(3), Budget(new_tokens=12), ())
    assert decoded.tokens == engine.decode(BASELINE, Budget(new_tokens=12), ()).tokens
    assert 0 < counted(decoded, "short_passes") < counted(decoded, "full_passes")


@pytest.mark.parametrize("options", [LOSSY_6, LOSSLESS], ids=["lossy", "lossless"])
def test_the_records_identities_hold_where_slots_end_at_different_steps(options: dict[str, str], pair: PairRef) -> None:
    engine = opened(pair, {**options, "drafter": "oracle"})
    engine.prefill(prompts(), draft=True)
    free = engine.decode(Role(4), Budget(new_tokens=18), ())
    decoded = engine.decode(Role(4), Budget(new_tokens=18, ignore_eos=False), (free.tokens[1][7],))
    emitted = sum(len(tokens) - 1 for tokens in decoded.tokens)
    AcceptanceRecord.from_steps(4, decoded.accepted, decoded.drafted, emitted, sum(decoded.truncated)).check()
    again = engine.decode(Role(4), Budget(new_tokens=18, ignore_eos=False), (free.tokens[1][7],))
    assert again.tokens == decoded.tokens
    assert len(decoded.tokens[1]) <= 8


def test_only_an_engine_that_leaves_something_out_and_emits_it_says_that_tokens_may_differ(pair: PairRef) -> None:
    lossy, lossless, roomy = (opened(pair, options).facts() for options in (LOSSY_6, LOSSLESS, {"specpv": "lossy"}))
    assert LOSSY in lossy.details
    assert any("tokens of spec cells may differ" in warning for warning in lossy.warnings)
    assert LOSSY not in lossless.details and LOSSY not in roomy.details
    assert any("4,256 positions are kept, and no request here has more than 280" in w for w in roomy.warnings)
    assert "SpecPV" not in opened(pair, {}).facts().details

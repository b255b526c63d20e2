"""Whole steps that verify in part on a CPU, each kernel run from its own source, beside a target in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule, read
from specgate.backends.eagle3.cupy.engine.partial import counters_of, kinds_of
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KEPT
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN, Kind
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.weights import TargetWeights
from specgate.backends.eagle3.reference.partial import block_scores
from tests.eagle3.cupy.gpu_pairs import random_prompts
from tests.eagle3.cupy.kernels.device import relative_error, rotated
from tests.eagle3.cupy.step.decoder import Decoder, check_fewer_slots
from tests.eagle3.reference.partial.by_hand import TargetByHand

pytestmark = pytest.mark.usefixtures("whole_steps")

LENGTHS = [170, 131, 200]
K = 3
PLAN = PartialPlan(1, 2, 2, 6)
STEPS = 9


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.of(None, K, partial=PLAN, prompts=random_prompts(LENGTHS))


class Hand(TargetByHand):
    """With the engine's own angles. Its numbers are float32, and so are its keys and values."""

    rope: tuple[Tensor, Tensor]

    def turned(self, heads: Tensor, position: int) -> Tensor:
        return rotated(heads, self.rope, position)


def by_hand(made: Decoder) -> Hand:
    w = made.model.weights
    assert isinstance(w, TargetWeights)

    def exact(part: Any) -> Any:
        tensors = {name: getattr(part, name) for name in part.__dataclass_fields__}
        return replace(part, **{name: t.float() for name, t in tensors.items() if t is not None})

    layers: Any = type(w.layers)([exact(layer) for layer in w.layers])
    whole = replace(w, embed=w.embed.float(), norm=w.norm.float(), lm_head=w.lm_head.float(), layers=layers)
    hand = Hand(whole, made.model.geometry)
    hand.rope = made.model.rope
    return hand


def text_of(made: Decoder, slot: int) -> list[int]:
    return made.b.slots.out[slot, : int(made.b.slots.emitted[slot])].tolist()


def stepped(made: Decoder, kinds: Sequence[Kind]) -> Iterator[tuple[Kind, list[int], list[int]]]:
    """Take steps of these kinds; after each, its kind, and the slots' lengths and verified positions before it."""
    cycles = {kind: Cycle(made.model, made.draft, made.sizes, 3, K, kind=kind) for kind in dict.fromkeys(kinds)}
    made.prefilled.rewind(made.b, StopRule((), (), made.sizes.positions), PLAN)
    assert made.b.partial is not None
    for kind in kinds:
        before = made.b.slots.length.tolist(), made.b.partial.verified.tolist()
        cycles[kind](made.b)
        assert not made.b.slots.fault.any()
        yield kind, *before


@pytest.mark.parametrize("slot", [0, 2])
def test_every_row_has_the_logits_of_a_target_that_looks_where_the_plan_says(decoder: Decoder, slot: int) -> None:
    """A row of a partial pass at what its head keeps, one of a full pass at everything; and what heads keep are blocks
    that no other block's score is above, but for rounding.
    """
    made, hand, prompt = decoder, by_hand(decoder), list(decoder.prefilled.prompts[slot])
    b, g, kinds = made.b, made.model.geometry, kinds_of(made.sizes, K, LENGTHS, STEPS)
    assert b.partial is not None and kinds[:4] == (FULL, PARTIAL, PARTIAL, FULL)
    check_fewer_slots(made, K, kinds[:4])
    hand.run(prompt, 0, lambda _layer, _head, row: list(range(row + 1)))
    begins, lists, differing = 0, b.partial.kept.clone(), 0
    for kind, lengths, verified in stepped(made, kinds):
        length, first = lengths[slot], verified[slot] if kind == FULL else lengths[slot]
        whole = [*prompt, *text_of(made, slot)]
        drafts = b.slots.drafts[slot, :K].tolist()
        tokens = [*whole[first : length + 1], *drafts]
        per, window = (made.sizes.full_rows_of(K), None) if kind == FULL else (K + 1, begins)

        def seen(
            layer: int, head: int, row: int, first: int = first, window: int | None = window, lists: Tensor = lists
        ) -> list[int]:
            if window is None:
                return list(range(first + row + 1))
            blocks = [*range(PLAN.sink), *lists[layer, slot, head // (g.heads // g.kv_heads)].tolist()]
            return [
                *(block * KEPT + i for block in blocks for i in range(KEPT)),
                *range(window * KEPT, first + row + 1),
            ]

        wanted, request = hand.run(tokens, first, seen)
        got = b.target.layer.logits[slot * per : slot * per + len(tokens)]
        assert relative_error(got, wanted) < 0.05
        for row, logits in enumerate(wanted[length - first :]):
            chosen = int(got[length - first + row].argmax())
            assert logits[chosen] > logits.max() - 0.05 * logits.abs().max()
        if kind != FULL:
            # What it sees makes a difference: over everything it would have had other logits.
            everything, _ = hand.run(tokens, first, partial(seen, window=None))
            differing += relative_error(got, everything) > 2 * relative_error(got, wanted)
            hand.run(tokens, first, seen)
            continue
        begins, lists = PLAN.first_of_window(length), b.partial.kept.clone()
        for layer in range(g.layers):
            queries = request[layer][:, length - first :]
            for head in range(g.kv_heads):
                keys = hand.k[layer][PLAN.sink * KEPT : begins * KEPT, head].view(-1, KEPT, g.head_dim)
                of = queries[head * g.heads // g.kv_heads : (head + 1) * g.heads // g.kv_heads]
                scores = block_scores(of[None].contiguous(), keys.amax(1)[None, None], keys.amin(1)[None, None])[0, 0]
                chosen_blocks = [n - PLAN.sink for n in lists[layer, slot, head].tolist()]
                assert sorted({*chosen_blocks}) == chosen_blocks and len(chosen_blocks) == PLAN.retrieval
                others = [n for n in range(len(scores)) if n not in chosen_blocks]
                assert scores[chosen_blocks].min() > scores[others].max() - 0.03 * scores.abs().max()
    assert differing >= 3


def test_a_full_pass_leaves_the_keys_and_values_that_plain_decoding_of_the_text_would_have(decoder: Decoder) -> None:
    """But for the order in which attention adds up. Before it, those of partial passes are further from them."""
    made, b, slot = decoder, decoder.b, 0
    kinds = kinds_of(made.sizes, K, LENGTHS, 4)
    assert b.partial is not None and kinds == (FULL, PARTIAL, PARTIAL, FULL)
    tensors = dict[int, Tensor]()
    for number, _ in enumerate(stepped(made, kinds)):
        if number >= 2:
            tensors[number] = cached(made, slot, LENGTHS[slot], int(b.slots.length[slot]))
            text, end = text_of(made, slot), int(b.partial.verified[slot])
    plain = Cycle(made.model, made.draft, made.sizes, 3, 0)
    made.prefilled.rewind(b, StopRule((), (), made.sizes.positions), PLAN)
    for token in text[: end - LENGTHS[slot]]:
        b.slots.last_token[slot] = token
        plain(b)
    want = cached(made, slot, LENGTHS[slot], end)
    only_partly = tensors[2].shape[1] - 1
    full, in_part = (relative_error(tensors[n][:, 1 : only_partly + 1], want[:, 1 : only_partly + 1]) for n in (3, 2))
    assert relative_error(tensors[3][:, : want.shape[1]], want) < 1e-2 and full < in_part / 2


def cached(made: Decoder, slot: int, first: int, end: int) -> Tensor:
    """Keys and values [2 · layers, positions, …] of a slot, float32."""
    at = torch.arange(first, end)
    blocks, pages = made.b.kv.block_table[slot, at // BLOCK].long(), made.b.target.pages
    keys, values = pages.k[:, blocks, :, at % BLOCK], pages.v[:, blocks, :, :, at % BLOCK]
    return torch.cat((keys.transpose(0, 1), values.transpose(0, 1))).float()


def test_of_a_mixture_with_windows_and_sinks_both_passes_have_the_logits_of_plain_steps() -> None:
    """A full pass runs its rows anew over everything. A partial pass that leaves nothing out sees as much."""
    made = Decoder.of(None, K, partial=PLAN, prompts=random_prompts(LENGTHS), experts=True)
    b, kinds, wanted = made.b, (FULL, PARTIAL, PARTIAL, FULL), dict[tuple[int, int], Tensor]()
    assert b.partial is not None
    rows, differing = list[tuple[tuple[int, int], Tensor, bool]](), 0
    for number, (kind, lengths, verified) in enumerate(stepped(made, kinds)):
        per = made.sizes.full_rows_of(K) if kind == FULL else K + 1
        for slot in range(3):
            behind = lengths[slot] - verified[slot] if kind == FULL else 0
            for row in range(behind + 1):
                at = slot, lengths[slot] - behind + row
                rows.append((at, b.target.layer.logits[slot * per + row].clone(), kind == FULL or number == 2))
        if number == 1:  # the next pass keeps all blocks: none is dropped, and the window begins behind those
            b.partial.dropped.zero_()
            b.partial.kept.copy_(torch.arange(PLAN.sink, PLAN.sink + PLAN.retrieval).expand_as(b.partial.kept))
    texts = [text_of(made, slot) for slot in range(3)]
    plain = Cycle(made.model, made.draft, made.sizes, 3, 0)
    made.prefilled.rewind(b, StopRule((), (), made.sizes.positions), PLAN)
    for step in range(max(map(len, texts)) - 1):
        for slot, text in enumerate(texts):
            b.slots.last_token[slot] = text[min(step, len(text) - 1)]
            wanted[slot, int(b.slots.length[slot])] = b.target.layer.logits[slot]
        lengths = b.slots.length.tolist()
        plain(b)
        for slot in range(3):
            wanted[slot, lengths[slot]] = b.target.layer.logits[slot].clone()
    for at, logits, whole in rows:
        near = torch.cosine_similarity(logits, wanted[at], dim=0)
        differing += not whole and bool(near < 0.999)
        assert not whole or near > 0.999, (at, near)
    assert differing > 0 and len(rows) > 12


def test_counts_of_a_run_are_those_of_its_steps(decoder: Decoder) -> None:
    made, kinds = decoder, kinds_of(decoder.sizes, K, LENGTHS, STEPS)
    seen, read_positions, checked = 0, 0, 0
    assert made.b.partial is not None
    for kind, lengths, verified in stepped(made, kinds):
        seen += sum(lengths)
        if kind == FULL:
            read_positions += sum(verified)
            checked += sum(lengths) - sum(verified)
            dropped = made.b.partial.dropped.tolist()
        else:
            read_positions += sum(lengths) - sum(dropped)
    decoded, _ = read(made.b.slots, 3, K, [1] * STEPS, [0] * STEPS)
    overruled = int(made.b.partial.overruled.sum())
    counted = counters_of(PLAN, kinds, decoded.accepted, LENGTHS, overruled)
    assert counted["specpv_partial_passes"] == 3 * kinds.count(PARTIAL)
    assert counted["specpv_full_passes"] == 3 * kinds.count(FULL) and counted["specpv_short_passes"] == 0
    assert counted["specpv_read_positions"] == read_positions and counted["specpv_cached_positions"] == seen
    assert counted["specpv_checked"] == checked and 0 < counted["specpv_overruled"] == overruled <= checked
    accepted = counted["specpv_partial_accepted"] + counted["specpv_full_accepted"]
    assert accepted == sum(a for row in decoded.accepted for a in row)


def test_what_a_full_pass_overrules_are_tokens_that_it_would_not_have_chosen(decoder: Decoder) -> None:
    made, b, kinds = decoder, decoder.b, kinds_of(decoder.sizes, K, LENGTHS, 7)
    assert b.partial is not None
    wrong, per = [0, 0, 0], made.sizes.full_rows_of(K)
    for kind, lengths, verified in stepped(made, kinds):
        for slot in range(3) if kind == FULL else ():
            text = [*made.prefilled.prompts[slot], *text_of(made, slot)]
            logits = b.target.layer.logits[slot * per : slot * per + lengths[slot] - verified[slot]]
            after = text[verified[slot] + 1 : lengths[slot] + 1]
            wrong[slot] += sum(int(row.argmax()) != token for row, token in zip(logits, after, strict=True))
    assert b.partial.overruled.tolist() == wrong


def test_accepted_drafts_of_either_pass_go_on_and_so_do_the_features_of_their_rows(decoder: Decoder) -> None:
    """With the drafts that the target itself chooses: of all K, in both kinds of passes, and again when run anew."""
    made, b, kinds = decoder, decoder.b, (FULL, PARTIAL, FULL)
    assert b.partial is not None and b.draft is not None
    texts: list[list[int]] = [[], [], []]
    for _ in range(12):  # each time one token more of every draft is known
        cycles = {kind: Cycle(made.model, made.draft, made.sizes, 3, K, kind=kind) for kind in (FULL, PARTIAL)}
        made.prefilled.rewind(b, StopRule((), (), made.sizes.positions), PLAN)
        accepted = []
        for kind in kinds:
            cycle = cycles[kind]
            chain = cycle.drafting

            def helped(buffers: Any, chain: Any = chain, texts: Any = texts) -> None:
                chain(buffers)
                for slot, text in enumerate(texts):
                    known = text[int(b.slots.emitted[slot]) :][:K]
                    b.slots.drafts[slot, : len(known)] = torch.tensor(known, dtype=torch.int32)

            cycle.drafting = helped  # type: ignore[assignment]
            cycle(b)
            cycle.drafting = chain
            assert not b.slots.fault.any()
            accepted.append(b.slots.accepted.tolist())
        texts = [text_of(made, slot) for slot in range(3)]
        if all(a == K for row in accepted for a in row):
            break
    assert all(a == K for row in accepted for a in row), accepted
    assert b.slots.length.tolist() == [n + len(kinds) * (K + 1) for n in LENGTHS]
    assert b.partial.verified.tolist() == [n + 3 * (K + 1) for n in LENGTHS]
    assert b.slots.counts.tolist() == [K + 1] * 3 and b.draft.features.isfinite().all()


def test_a_slot_that_ends_leaves_the_others_rows_alone(decoder: Decoder) -> None:
    made, kinds, b = decoder, kinds_of(decoder.sizes, K, LENGTHS, 5), decoder.b
    for _ in stepped(made, kinds):
        pass
    texts = [text_of(made, slot) for slot in range(3)]
    stop = texts[1][3]
    cycles = {kind: Cycle(made.model, made.draft, made.sizes, 3, K, kind=kind) for kind in dict.fromkeys(kinds)}
    made.prefilled.rewind(b, StopRule((), (stop,), made.sizes.positions), PLAN)
    for kind in kinds:
        cycles[kind](b)
        assert not b.slots.fault.any()
    assert text_of(made, 1) == texts[1][: texts[1].index(stop) + 1]
    assert [text_of(made, slot) for slot in (0, 2)] == [texts[0], texts[2]]


def test_prompts_of_which_nothing_is_left_out_are_verified_as_ever() -> None:
    prompts = random_prompts([70, 40, 79])
    made = Decoder.of(None, K, partial=PLAN, prompts=prompts)
    assert kinds_of(made.sizes, K, [70, 40, 79], 6) == (PLAIN,) * 6
    plain, text = Decoder.of(None, K, prompts=prompts), None
    for each in (made, plain):
        tokens = each.decode(K, 3)[0].tokens
        assert text is None or tokens == text
        text = tokens


def test_a_shorter_role_of_the_engine_runs_its_own_rows_again(decoder: Decoder) -> None:
    """Spec-1 has as many partial passes as its two tokens a step allow, and fewer rows than the engine has room for."""
    made, b, plan = decoder, decoder.b, PLAN
    kinds = kinds_of(made.sizes, 1, LENGTHS, 5)
    assert kinds == (FULL, PARTIAL, PARTIAL, PARTIAL, FULL) and made.sizes.full_rows_of(1) == 8
    assert b.partial is not None
    cycles = {kind: Cycle(made.model, made.draft, made.sizes, 3, 1, kind=kind) for kind in (FULL, PARTIAL)}
    made.prefilled.rewind(b, StopRule((), (), made.sizes.positions), plan)
    for kind in kinds:
        before = b.slots.length.tolist()
        cycles[kind](b)
        assert not b.slots.fault.any()
        gained = [n + a + 1 for n, a in zip(before, b.slots.accepted.tolist(), strict=True)]
        assert b.slots.length.tolist() == gained
        assert kind == PARTIAL or b.partial.verified.tolist() == gained
    first = Cycle(made.model, made.draft, made.sizes, 3, 0)
    text = text_of(made, 0)[0]
    made.prefilled.rewind(b, StopRule((), (), made.sizes.positions), plan)
    first(b)
    assert text_of(made, 0)[0] == text

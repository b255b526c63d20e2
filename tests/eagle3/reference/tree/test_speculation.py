"""Tree speculation in the reference engine: the baseline's tokens from the baseline's logits, whatever the tree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv.modes import KvMode, KvModes
from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.trees.growing import Growth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.reference import tree as trees_of_engine
from specgate.backends.eagle3.reference.draft import EagleDrafter
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.ops import FEW_ROWS
from specgate.backends.eagle3.reference.sampling import Sampler
from specgate.backends.eagle3.reference.target import LlamaTarget
from specgate.backends.eagle3.reference.tree import DraftTree, TreePlan
from specgate.checkpoints.geometry import DraftGeometry
from specgate.contract import BASELINE, Budget, Role, Sampling
from specgate.contract.acceptance import AcceptanceRecord
from specgate.errors import BackendError
from tests.checkpoints.gpt_oss_folders import WINDOW, write_gpt_oss
from tests.eagle3.lib.trees.brute_force import ByHand, random_parents
from tests.eagle3.reference.by_hand import Eagle3ByHand
from tests.pairs.tiny import write_draft, write_random_pair

PROMPTS = [[5, 9, 2, 7, 7, 1, 30, 12], [3, 3, 8], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52]]
BUSHY = TreeShape.of([
    (0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0), (1, 1), (3, 0), (0, 0, 0), (1, 1, 0), (1, 1, 2), (3, 0, 0),
])  # fmt: skip
"""Three levels, with nodes of one, two and four children and leaves at every level."""


def fixed(shape: TreeShape) -> TreePlan:
    return TreePlan("tree.yaml", shape, shape.nodes, shape.depth)


def dynamic(nodes: int, width: int) -> TreePlan:
    return TreePlan(f"dynamic:{nodes}", None, nodes, 3, width)


PLANS = {
    "chain": fixed(TreeShape.chain(3)),
    "file": fixed(BUSHY),
    "dynamic": dynamic(20, 4),
    "wide": dynamic(40, 6),  # with three slots, more rows than a CPU computes bit-exactly at once
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pair whose draft vocabulary is so small that random drafts are accepted now and then."""
    return accepting(tmp_path_factory.mktemp("pair"), window=6)


def accepting(folder: Path, window: int | None) -> tuple[Path, Path]:
    return write_random_pair(folder, seed=10, layers=3, boundaries=(0, 1, 2), vocab=300, draft_vocab=8, window=window)


def open_engine(folders: tuple[Path, Path], tree: TreePlan | None, sampling: Sampling | None = None) -> ReferenceEngine:
    target = load_target(folders[0], torch.float32, "cpu")
    draft = load_draft(folders[1], target.geometry, torch.float32, "cpu")
    sampler = Sampler(sampling) if sampling else None
    engine = ReferenceEngine(target, draft, max_batch=3, max_positions=256, device="cpu", tree=tree, sampler=sampler)
    engine.prefill(PROMPTS, draft=True)
    return engine


def drafter_of(engine: ReferenceEngine) -> EagleDrafter:
    assert isinstance(engine.drafter, EagleDrafter)
    return engine.drafter


@pytest.mark.parametrize("plan", PLANS)
def test_a_tree_emits_the_baselines_tokens_from_the_baselines_logits(folders: tuple[Path, Path], plan: str) -> None:
    engine, positions, budget = open_engine(folders, PLANS[plan]), (1, 2, 5, 11), Budget(new_tokens=20)
    baseline, logits = engine.decode(BASELINE, budget, ()), engine.logits(BASELINE, positions)
    assert engine.decode(Role(3), budget, ()).tokens == baseline.tokens
    assert engine.logits(Role(3), positions) == logits
    assert engine.decode(BASELINE, budget, ()).tokens == baseline.tokens


def test_a_cpu_runs_no_more_rows_at_once_than_are_bit_exact(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, rows = open_engine(folders, dynamic(30, 6)), list[int]()
    assert isinstance(engine.model, LlamaTarget)
    forward = LlamaTarget.forward_tree

    def counted(model: LlamaTarget, slots: slice, tokens: Tensor, *others: Any) -> tuple[Tensor, Tensor | None]:
        rows.append(tokens.numel())
        return forward(model, slots, tokens, *others)

    monkeypatch.setattr(LlamaTarget, "forward_tree", counted)
    engine.decode(Role(3), Budget(steps=2), ())
    assert rows == [2 * 31, 31] * 2
    assert max(rows) <= FEW_ROWS < 3 * 31


def test_a_tree_that_is_wider_than_its_nodes_grows_up_to_the_last_position(folders: tuple[Path, Path]) -> None:
    """Caches are made of whole blocks of 512 keys: here no slack hides a row too many."""
    tree = TreePlan("dynamic:12", None, 12, 5, 4)
    positions, ran = 512 - tree.rows, 0
    target = load_target(folders[0], torch.float32, "cpu")
    draft = load_draft(folders[1], target.geometry, torch.float32, "cpu")
    engine = ReferenceEngine(target, draft, max_batch=1, max_positions=positions, device="cpu", tree=tree)
    for length in range(positions - 14, positions):
        engine.prefill([[7 * i % 300 for i in range(length)]], draft=True)
        try:
            plain, block = engine.decode(BASELINE, Budget(steps=1), ()), engine.decode(Role(5), Budget(steps=1), ())
        except BackendError as error:
            assert "positions" in str(error)
            continue
        ran = length
        assert block.tokens[0][:2] == plain.tokens[0]
    assert ran >= positions - 14


@pytest.mark.parametrize("k", [1, 2])
def test_a_shorter_role_drafts_the_trees_first_levels(folders: tuple[Path, Path], k: int) -> None:
    engine = open_engine(folders, PLANS["file"])
    baseline = engine.decode(BASELINE, Budget(new_tokens=8), ())
    decoded = engine.decode(Role(k), Budget(new_tokens=8), ())
    assert decoded.tokens == baseline.tokens
    requests = sum(a >= 0 for row in decoded.accepted for a in row)
    assert decoded.counters["tree_tokens"] == BUSHY.first_levels(k).nodes * requests


@pytest.mark.parametrize("plan", [fixed(TreeShape.chain(3)), dynamic(3, 1)], ids=["file", "dynamic"])
def test_a_chain_as_a_tree_has_the_tokens_and_the_counts_of_the_chain(tmp_path: Path, plan: TreePlan) -> None:
    folders = write_random_pair(tmp_path, seed=8, vocab=300, draft_vocab=8)  # its drafts are accepted more often
    chain = open_engine(folders, None).decode(Role(3), Budget(steps=30), ())
    tree = open_engine(folders, plan).decode(Role(3), Budget(steps=30), ())
    assert (tree.tokens, tree.accepted, tree.drafted) == (chain.tokens, chain.accepted, chain.drafted)
    assert sum(a for row in chain.accepted for a in row) > 1
    own = {"tree_tokens": 3 * 3 * 30, "mask_checked_steps": 30, "mask_integrity_failures": 0}
    assert tree.counters == {**chain.counters, **own}


# ── against EAGLE-3 by hand ──────────────────────────────────────────────────────────────────────────────────────────


def drafted_trees(
    engine: ReferenceEngine, steps: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, list[int], DraftTree]]:
    """(slot, the text before, the trees of all slots) of every cycle of a decode run with spec-3."""
    trees, drafter = list[DraftTree](), drafter_of(engine)
    grow = drafter.tree

    def recorded(growth: Growth) -> DraftTree:
        trees.append(grow(growth))
        return trees[-1]

    monkeypatch.setattr(drafter, "tree", recorded)
    decoded = engine.decode(Role(3), Budget(steps=steps), ())
    values = []
    for slot, prompt in enumerate(PROMPTS):
        emitted = 1
        for step, tree in enumerate(trees):
            values.append((slot, [*prompt, *decoded.tokens[slot][:emitted]], tree))
            emitted += decoded.accepted[step][slot] + 1
    return values


def test_every_node_of_a_file_is_what_a_cacheless_eagle3_proposes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a draft without a window; the next test's has one."""
    folders = accepting(tmp_path, window=None)
    by_hand, engine = Eagle3ByHand(folders), open_engine(folders, fixed(BUSHY))
    for slot, text, tree in drafted_trees(engine, 2, monkeypatch):
        assert tree.tokens[slot].tolist() == by_hand.tree(text, BUSHY.paths)
        assert tree.parents[slot].tolist() == list(BUSHY.parents)


def test_a_dynamic_tree_has_the_likeliest_nodes_of_a_cacheless_eagle3(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand, engine = Eagle3ByHand(folders), open_engine(folders, dynamic(9, 3))
    for slot, text, tree in drafted_trees(engine, 2, monkeypatch):
        paths = by_hand.likeliest(text, 3, 3, 9)
        assert tree.tokens[slot].tolist() == by_hand.tree(text, paths)
        assert tree.parents[slot].tolist() == list(TreeShape.of(paths).parents)


def test_the_path_of_likeliest_tokens_is_the_chain(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders, fixed(BUSHY))
    drafter = drafter_of(engine)
    with torch.inference_mode():
        drafter.rewind()
        chain = drafter.chain(None, 3)  # type: ignore[arg-type]  # the pair's own draft needs no slots
        tree = drafter.tree(fixed(BUSHY).growth(3, "cpu"))
    nodes = [BUSHY.numbers[(0,) * level] - 1 for level in (1, 2, 3)]
    assert torch.equal(tree.tokens[:, nodes], chain)


DRAWN = Sampling(temperature=2.0, top_k=40, presence_penalty=0.8, frequency_penalty=0.3)

# ── trees of which the truth is known ────────────────────────────────────────────────────────────────────────────────


class TruthfulTrees:
    """Random trees, another one for every slot and cycle, in which one path is the text that will be emitted."""

    def __init__(self, engine: ReferenceEngine, text: Sequence[Sequence[int]], nodes: int, seed: int) -> None:
        self.text, self.nodes, self.dice = text, nodes, random.Random(seed)
        self.emitted, self.vocab = [1] * len(text), len(engine.model.embed)
        self.planned = list[tuple[int, ...]]()

    def grow(self, growth: Growth) -> DraftTree:
        trees = [self.tree(slot, growth.levels) for slot in range(len(self.text))]
        self.planned.append(tuple(known for _, _, known in trees))
        for slot, (_, _, known) in enumerate(trees):
            self.emitted[slot] += known + 1
        return DraftTree(torch.tensor([t for t, _, _ in trees]), torch.tensor([p for _, p, _ in trees]))

    def tree(self, slot: int, levels: int) -> tuple[list[int], list[int], int]:
        """(draft tokens, parents, how many of them the target will follow)."""
        parents = random_parents(self.dice, self.nodes + 1, levels)
        by_hand = ByHand(parents)
        way = [0]
        while children := [node for node in range(1, len(parents)) if parents[node] == way[-1]]:
            if self.dice.random() < 0.2:
                break
            way.append(self.dice.choice(children))
        ahead = self.text[slot][self.emitted[slot] :]
        true = {node: ahead[at] for at, node in enumerate(way[1:])}
        drafts = [
            true.get(node, (ahead[len(by_hand.way(node)) - 2] + 1) % self.vocab) for node in range(1, len(parents))
        ]
        return drafts, parents, len(way) - 1


@pytest.mark.parametrize(("nodes", "seed", "sampling"), [(7, 0, None), (50, 2, None), (20, 3, DRAWN)])
def test_what_a_tree_knows_of_the_text_is_accepted_wherever_it_hangs(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, nodes: int, seed: int, sampling: Sampling | None
) -> None:
    """So every path is walked and compacted, in slots whose trees differ; a row out of place would change the text. A
    drawn text is plain sampling's, by the depth and the penalties of each node.
    """
    k, steps = 5, 14
    engine = open_engine(folders, dynamic(nodes, 10), sampling)
    text = engine.decode(BASELINE, Budget(new_tokens=85), ()).tokens
    positions = (2, 9, 17)
    logits = engine.logits(BASELINE, positions)
    truth = TruthfulTrees(engine, text, nodes, seed)
    monkeypatch.setattr(drafter_of(engine), "tree", truth.grow)
    decoded = engine.decode(Role(k), Budget(steps=steps), ())
    assert decoded.accepted == tuple(truth.planned)
    assert decoded.tokens == tuple(of[: len(choice)] for of, choice in zip(text, decoded.tokens, strict=True))
    assert sum(a for row in decoded.accepted for a in row) > steps * len(PROMPTS)
    truth.emitted = [1] * len(text)
    assert engine.logits(Role(k), positions) == logits


def test_the_draft_goes_on_from_the_features_of_the_accepted_path(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose rows lie anywhere in the tree: what is proposed next is what follows from the text alone."""
    by_hand, engine = Eagle3ByHand(folders), open_engine(folders, fixed(BUSHY))
    text = engine.decode(BASELINE, Budget(new_tokens=40), ()).tokens
    truth, drafter = TruthfulTrees(engine, text, BUSHY.nodes, 6), drafter_of(engine)
    grow, proposed = drafter.tree, list[tuple[list[int], Tensor]]()

    def both(growth: Growth) -> DraftTree:
        proposed.append((list(truth.emitted), grow(growth).tokens))
        return truth.grow(growth)

    monkeypatch.setattr(drafter, "tree", both)
    decoded = engine.decode(Role(3), Budget(steps=5), ())
    assert max(a for row in decoded.accepted[:-1] for a in row) == 3
    for emitted, tokens in proposed[1:]:
        for slot, prompt in enumerate(PROMPTS):
            assert tokens[slot].tolist() == by_hand.tree([*prompt, *text[slot][: emitted[slot]]], BUSHY.paths)


def test_ends_inside_an_accepted_path_are_those_of_the_baseline(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(folders, dynamic(20, 10))
    text = engine.decode(BASELINE, Budget(new_tokens=100), ()).tokens
    budget, stop = Budget(new_tokens=40, ignore_eos=False), (text[0][23],)
    plain = engine.decode(BASELINE, budget, stop)
    truth = TruthfulTrees(engine, text, 20, 3)
    monkeypatch.setattr(drafter_of(engine), "tree", truth.grow)
    decoded = engine.decode(Role(5), budget, stop)
    assert (decoded.tokens, decoded.finish) == (plain.tokens, plain.finish)
    assert {"stop", "length"} <= set(decoded.finish)
    assert sum(decoded.truncated) > 0
    emitted = sum(len(t) - 1 for t in decoded.tokens)
    record = AcceptanceRecord.from_steps(5, decoded.accepted, decoded.drafted, emitted, sum(decoded.truncated))
    record.check()
    assert record.acceptance_length == 1 + record.accepted / record.steps


# ── masks, experts, facts ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mask_with_a_wrong_bit_is_counted_and_nothing_is_verified_through_it(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, built, step = open_engine(folders, dynamic(20, 10)), trees_of_engine.packed_masks, count()
    text = engine.decode(BASELINE, Budget(new_tokens=60), ()).tokens

    def damaged(parents: Tensor, levels: int) -> Tensor:
        masks = built(parents, levels)
        if next(step) % 3 == 1:
            masks[1, 20, 0] ^= 1 << 20  # the row of a leaf, which is nobody's parent
            truth.emitted = [now - lost for now, lost in zip(truth.emitted, truth.planned[-1], strict=True)]
        return masks

    truth = TruthfulTrees(engine, text, 20, 7)
    monkeypatch.setattr("specgate.backends.eagle3.reference.loop.packed_masks", damaged)
    monkeypatch.setattr(drafter_of(engine), "tree", truth.grow)
    decoded = engine.decode(Role(3), Budget(steps=6), ())
    assert decoded.tokens == tuple(of[: len(choice)] for of, choice in zip(text, decoded.tokens, strict=True))
    assert [sum(row) > 0 for row in decoded.accepted] == [True, False, True, True, False, True]
    assert decoded.counters["mask_integrity_failures"] == 2
    assert decoded.counters["mask_checked_steps"] == 6


@pytest.mark.parametrize("mode", [None, "nvfp4"])
def test_a_tree_of_gpt_oss_emits_the_baselines_tokens_and_counts_no_experts(
    tmp_path: Path, mode: KvMode | None
) -> None:
    """Sinks and windows hold along paths, too, and the scales of caches in few bits are those of paths. Experts are
    counted per token that follows, which a tree has not.
    """
    folder = write_gpt_oss(tmp_path / "target", seed=3)
    target = load_target(folder, torch.float32, "cpu")
    g = target.geometry
    geometry = DraftGeometry(g.hidden, g.hidden, 3, 96, 4, 2, 16, g.vocab, 12, g.rms_eps, g.rope, g.max_positions)
    write_draft(tmp_path / "draft", geometry, (1, 2, 3), torch.Generator().manual_seed(5))
    draft = load_draft(tmp_path / "draft", g, torch.float32, "cpu")
    kv = KvModes(mode, mode)
    engine = ReferenceEngine(target, draft, tree=PLANS["dynamic"], max_batch=2, max_positions=200, device="cpu", kv=kv)
    engine.prefill([[1, 2, 3], [7] * (WINDOW + 3)], draft=True)
    plain, logits = engine.decode(BASELINE, Budget(steps=12), ()), engine.logits(BASELINE, (3, 9))
    assert plain.experts is not None
    monkey = TruthfulTrees(engine, engine.decode(BASELINE, Budget(steps=40), ()).tokens, 20, 4)
    drafter_of(engine).tree = monkey.grow  # type: ignore[method-assign]
    decoded = engine.decode(Role(4), Budget(steps=6), ())
    assert decoded.accepted == tuple(monkey.planned)
    assert all(of[: len(tokens)] == tokens[: len(of)] for of, tokens in zip(plain.tokens, decoded.tokens, strict=True))
    assert decoded.experts is None
    monkey.emitted = [1, 1]
    assert engine.logits(Role(4), (3, 9)) == logits


def test_the_facts_name_the_tree_and_say_that_its_acceptance_is_no_chains(folders: tuple[Path, Path]) -> None:
    facts = open_engine(folders, fixed(BUSHY)).facts()
    assert facts.details["draft tree"] == f"13 tokens on 3 levels, sha256 {BUSHY.sha256[:12]}"
    assert any("acceptance is that of a tree" in warning for warning in facts.warnings)
    plain = open_engine(folders, None).facts()
    assert "draft tree" not in plain.details
    assert replace(facts, details={}, warnings=()) == replace(plain, details={}, warnings=())

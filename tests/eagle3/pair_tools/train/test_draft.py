"""Whole training runs at toy size, and the acceptance they report against the engine's own counters."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.weights import pack_draft, pack_target
from specgate.backends.eagle3.pair_tools.train import command
from specgate.backends.eagle3.pair_tools.train.command import default_boundaries, train_draft
from specgate.backends.eagle3.pair_tools.train.data import parse_corpus, texts, token_stream
from specgate.backends.eagle3.pair_tools.train.evaluate import acceptance_at, spread_prompts
from specgate.backends.eagle3.pair_tools.train.loop import train
from specgate.backends.eagle3.pair_tools.train.recipe import Recipe, Strand
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget, rope_rows_upto
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.cli import cli
from specgate.contract import Budget, Role
from specgate.errors import UsageError
from tests.pairs.tiny import write_random_pair

TOY = Recipe(
    draft_vocab=120,
    window=16,
    intermediate=64,
    steps=100,
    strands=(Strand(32, 0.5), Strand(64, 0.5, own_tokens=32, sequences=64)),
    batch_tokens=192,
    piece=32,
    unroll=3,
    most_repeated=1.0,
    warmup=5,
)
LOSSES = re.compile(r"loss (\d+\.\d+)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """Target folder, folder of a draft trained on it for a few seconds, and what the run said."""
    folder = tmp_path_factory.mktemp("train")
    target, _ = write_random_pair(folder, seed=3, vocab=300)
    text = folder / "text"
    text.mkdir()
    for i in range(30):
        (text / f"{i}.txt").write_text(f"document {i}: " + "some text, some more text. " * 40, encoding="utf-8")
    sentences: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "train", partial(train, report_every=25))
        train_draft(target, folder / "draft", [parse_corpus(str(text))], TOY, "cpu", sentences.append)
    return target, folder / "draft", sentences


def test_the_loss_falls(trained: tuple[Path, Path, list[str]]) -> None:
    losses = [float(m.group(1)) for line in trained[2] if (m := LOSSES.search(line))]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0], losses


def test_the_exported_draft_is_what_the_recipe_says(trained: tuple[Path, Path, list[str]]) -> None:
    target = load_target(trained[0], torch.float32, "cpu")
    draft = load_draft(trained[1], target.geometry, torch.float32, "cpu", target_sha256=target.sha256)
    geometry = draft.geometry
    assert (geometry.draft_vocab, geometry.window, geometry.intermediate) == (120, 16, 64)
    assert draft.capture.boundaries == default_boundaries(target.geometry.layers)
    assert draft.warnings == ()


def test_reported_acceptance_is_what_the_engine_counts(trained: tuple[Path, Path, list[str]]) -> None:
    target = load_target(trained[0], torch.float32, "cpu")
    draft = load_draft(trained[1], target.geometry, torch.float32, "cpu")
    frozen = FrozenTarget(pack_target(target), target.geometry, draft.capture.boundaries)
    tokenizer = Tokenizer.from_file(str(trained[0] / "tokenizer.json"))
    held_out = token_stream(texts(parse_corpus(str(trained[0].parent / "text")), "measure"), tokenizer, 257)
    prompts = spread_prompts(held_out, 40, 6)
    target_rows, draft_rows = (rope_rows_upto(g.rope, 100, "cpu") for g in (target.geometry, draft.geometry))
    weights = pack_draft(draft, frozen.weights)
    row = acceptance_at(frozen, weights, draft.geometry, prompts, 30, 4, target_rows, draft_rows)

    target = load_target(trained[0], torch.float32, "cpu")
    draft = load_draft(trained[1], target.geometry, torch.float32, "cpu")
    engine = ReferenceEngine(target, draft, max_batch=6, max_positions=100, device="cpu")
    engine.prefill(prompts.tolist(), draft=True)
    for record in row.records:
        decoded = engine.decode(Role(record.k), Budget(new_tokens=30), ())
        accepted = [a for step in decoded.accepted for a in step if a >= 0]
        assert record.hist == tuple(accepted.count(i) for i in range(record.k + 1))
        assert record.emitted == sum(len(tokens) - 1 for tokens in decoded.tokens)
        assert record.truncated == sum(decoded.truncated)
    assert row.records[-1].accepted > 0


def test_a_draft_can_be_continued_with_its_vocabulary(trained: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    target_folder, draft_folder, _ = trained
    text = target_folder.parent / "text"
    recipe = Recipe(
        steps=2, strands=(Strand(32, 1.0),), batch_tokens=64, piece=32, unroll=2, matrix_rate=1e-9, other_rate=1e-9
    )
    train_draft(
        target_folder, tmp_path / "next", [parse_corpus(str(text))], recipe, "cpu", lambda line: None, draft_folder
    )
    geometry = load_target(target_folder, torch.float32, "cpu").geometry
    before, after = (load_draft(f, geometry, torch.float32, "cpu") for f in (draft_folder, tmp_path / "next"))
    assert before.d2t is not None and after.d2t is not None
    assert torch.equal(before.d2t, after.d2t)
    assert before.geometry == after.geometry
    for name, tensor in before.tensors.items():
        torch.testing.assert_close(after.tensors[name], tensor, rtol=2e-2, atol=1e-4)


def test_captured_layers_are_the_ones_engines_assume() -> None:
    assert default_boundaries(32) == (2, 16, 29)
    assert default_boundaries(4) == (1, 2, 3)
    with pytest.raises(UsageError, match="3 layers"):
        default_boundaries(3)


def acceptance(trained: tuple[Path, Path, list[str]], *contexts: str) -> list[str]:
    """The lines of `specgate diagnose acceptance` on the text that the draft was trained with."""
    target, draft, _ = trained
    pair = ["--target", str(target), "--draft", str(draft), "--corpus", str(target.parent / "text"), "--device", "cpu"]
    result = CliRunner().invoke(cli, ["diagnose", "acceptance", *pair, *contexts], catch_exceptions=False)
    return result.output.splitlines()


def test_the_acceptance_command_prints_a_row_per_context(trained: tuple[Path, Path, list[str]]) -> None:
    lines = acceptance(trained, "--context", "24", "--context", "48", "--prompts", "2", "--new-tokens", "16")
    assert [line.split()[1] for line in lines] == ["24", "48"]
    assert all("spec-5" in line and "repeated" in line for line in lines)


def test_a_context_beyond_the_target_is_refused(trained: tuple[Path, Path, list[str]]) -> None:
    with pytest.raises(UsageError, match="--yarn"):
        acceptance(trained, "--context", "5000")


def test_training_without_a_length_is_refused(trained: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    arguments = ["engine", "train", "--target", str(trained[0]), "--out", str(tmp_path / "d"), "--device", "cpu"]
    with pytest.raises(UsageError, match="--minutes"):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)

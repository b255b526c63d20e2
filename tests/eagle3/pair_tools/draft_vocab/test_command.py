"""From counts to a draft with another vocabulary, and what the reference engine makes of it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specgate.backends.eagle3.lib.pair import load_draft, open_draft, open_target
from specgate.backends.eagle3.pair_tools.draft_vocab.command import VocabReport, Wish, draft_vocab
from specgate.backends.eagle3.pair_tools.draft_vocab.sources import TokenSources
from specgate.backends.eagle3.pair_tools.plant.geometries import tiny
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.backends.eagle3.reference.open import open_engine
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import Budget, PairRef, Role
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.errors import UsageError
from tests.eagle3.lib.planted.recipes import RECIPE_A
from tests.eagle3.pair_tools.export.textual import change
from tests.pairs.tiny import write_random_pair
from tests.support.command import Cli

HEAD = "lm_head.weight"


@pytest.fixture
def ref(tmp_path: Path, pair: tuple[Path, Path]) -> PairRef:
    """A random pair whose draft may be changed."""
    return PairRef("tiny", pair[0], Path(shutil.copytree(pair[1], tmp_path / "draft")))


def ids_file(folder: Path, *texts: Sequence[int]) -> Path:
    (file := folder / "ids.jsonl").write_text("".join(json.dumps({"ids": list(ids)}) + "\n" for ids in texts))
    return file


def known(draft: Path) -> list[int]:
    """The target ids of a draft's rows."""
    d2t = load_file(draft / "model.safetensors")["d2t"]
    return (d2t + torch.arange(len(d2t))).tolist()


def pruned(ref: PairRef, file: Path, size: int, **wish: Any) -> tuple[VocabReport, Path]:
    result = draft_vocab(ref, Wish(TokenSources(prompts=(file,)), size, out=file.parent / "out", **wish))
    return result, file.parent / "out"


# The draft that is written


def test_of_a_pruned_draft_the_kept_rows_and_all_else_are_the_same_bits(tmp_path: Path, ref: PairRef) -> None:
    assert ref.draft is not None
    ids = known(ref.draft)
    result, out = pruned(ref, ids_file(tmp_path, ids[5:25] * 2, ids[60:70], ids[3:4]), 24)
    before, after = load_file(ref.draft / "model.safetensors"), load_file(out / "model.safetensors")
    assert result.choice is not None and result.choice.from_target == 0
    chosen = known(out)
    assert chosen == sorted(chosen) == result.choice.ids.tolist() and set(ids[5:25]) <= set(chosen)
    assert after["t2d"].nonzero().flatten().tolist() == chosen
    assert torch.equal(after[HEAD], before[HEAD][[ids.index(i) for i in chosen]])
    same = before.keys() - {HEAD, "d2t", "t2d"}
    assert after.keys() == before.keys() and all(torch.equal(before[name], after[name]) for name in same)
    report, tells = (json.loads((folder / "config.json").read_text()) for folder in (ref.draft, out))
    assert tells == report | {"draft_vocab_size": 24}


def test_the_record_says_from_what_the_draft_was_made(tmp_path: Path, ref: PairRef) -> None:
    assert ref.draft is not None
    (ref.draft / "README.md").write_text("the old card")
    (ref.draft / "LICENSE").write_text("the licence")
    file = ids_file(tmp_path, [7, 7, 300])
    result, out = pruned(ref, file, 24)
    record = json.loads((out / "DRAFT_VOCAB.json").read_text())
    counts = torch.zeros(320, dtype=torch.long).index_put_((torch.tensor([7, 300]),), torch.tensor([2, 1]))
    assert record["counts"]["sha256"] == hashlib.sha256(counts.numpy().tobytes()).hexdigest()
    (source,) = record["counts"]["sources"]
    assert (source["name"], source["tokens"]) == ("prompts ids.jsonl", 3) and record["draft_vocab_size"] == 24
    target = open_target(ref.target)
    assert record["source"]["draft"]["sha256"] == open_draft(ref.draft, target.geometry).sha256()
    assert record["source"]["target"]["sha256"] == target.sha256()
    assert (
        "24 tokens" in (out / "README.md").read_text() and record["counts"]["sha256"] in (out / "README.md").read_text()
    )
    assert (out / "README.source.md").read_text() == "the old card" and (out / "LICENSE").is_file()
    assert result.choice is not None and record["covered"] == result.choice.share


def test_names_and_config_of_another_trainer_are_kept(tmp_path: Path, ref: PairRef) -> None:
    assert ref.draft is not None
    weights = load_file(ref.draft / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in weights.items() if name != "t2d"}
    save_file(renamed, ref.draft / "model.safetensors")
    change(ref.draft / "config.json", a_key_of_theirs=[1, 2])
    _, out = pruned(ref, ids_file(tmp_path, known(ref.draft)), 40)
    assert load_file(out / "model.safetensors").keys() == renamed.keys() | {"t2d"}
    assert read_config(out).values["a_key_of_theirs"] == [1, 2]
    assert load_draft(out, open_target(ref.target).geometry, torch.float32, "cpu").geometry.draft_vocab == 40


def test_rows_that_the_draft_lacks_come_from_the_target_where_that_is_asked_for(tmp_path: Path, ref: PairRef) -> None:
    assert ref.draft is not None
    ids = known(ref.draft)
    absent = sorted(set(range(250)) - set(ids))[:10]
    result, out = pruned(ref, ids_file(tmp_path, ids[:5], absent * 2), 17, target_rows=True)
    chosen, head = known(out), load_file(out / "model.safetensors")[HEAD]
    own, target = load_file(ref.draft / "model.safetensors")[HEAD], load_file(ref.target / "model.safetensors")[HEAD]
    assert set(absent) <= set(chosen) and result.choice is not None
    assert result.choice.from_target == len(set(chosen) - set(ids)) >= 10
    for i, row in zip(chosen, head, strict=True):
        assert torch.equal(row, own[ids.index(i)] if i in ids else target[i])


@pytest.mark.parametrize("tied", [False, True])
def test_a_draft_that_uses_the_targets_head_gets_rows_of_it(tmp_path: Path, tied: bool) -> None:
    target, draft = write_random_pair(tmp_path, seed=2, vocab=300, draft_vocab=300, tied=tied)
    weights = load_file(draft / "model.safetensors")
    save_file({n: t for n, t in weights.items() if n not in (HEAD, "d2t", "t2d")}, draft / "model.safetensors")
    ref, file = PairRef("borrowing", target, draft), ids_file(tmp_path, range(100, 130))
    with pytest.raises(UsageError, match=r"no lm_head\.weight of its own.*\n.*--target-rows"):
        pruned(ref, file, 32)
    assert not (tmp_path / "out").exists()
    result, out = pruned(ref, file, 32, target_rows=True)
    matrix = load_file(target / "model.safetensors")["model.embed_tokens.weight" if tied else HEAD]
    assert torch.equal(load_file(out / "model.safetensors")[HEAD], matrix[known(out)])
    assert result.choice is not None and result.choice.from_target == 32 and set(known(out)) >= set(range(100, 130))


def test_special_tokens_are_kept_although_they_never_occur(tmp_path: Path, ref: PairRef) -> None:
    assert ref.draft is not None
    result, out = pruned(ref, ids_file(tmp_path, range(60)), 8, target_rows=True)
    assert result.special == (256, 257) and {256, 257} <= set(known(out))


def test_a_row_of_the_target_does_not_fit_a_draft_of_another_width(tmp_path: Path, ref: PairRef) -> None:
    _, draft = write_random_pair(tmp_path / "narrow", seed=2, hidden=64)
    change(draft / "config.json", target_hidden_size=32)
    wide, _ = write_random_pair(tmp_path / "wide", seed=2, hidden=32)
    weights = load_file(draft / "model.safetensors")
    weights |= {"fc.weight": torch.rand(64, 96), "embed_tokens.weight": torch.rand(320, 64)}
    save_file(weights, draft / "model.safetensors")
    odd, file = PairRef("odd", wide, draft), ids_file(tmp_path, [1, 2, 3])
    with pytest.raises(UsageError, match="hidden_size = 64, the target has 32"):
        pruned(odd, file, 24, target_rows=True)
    _, out = pruned(odd, file, 24)
    assert load_file(out / "model.safetensors")[HEAD].shape == (24, 64)


# What becomes of speculation


def decoded(pair: PairRef, k: int, prompts: Sequence[Sequence[int]], tokens: int) -> Decoded:
    engine = open_engine(
        OpenRequest(
            pair=pair, dtype="float32", max_batch=len(prompts), max_positions=len(prompts[0]) + tokens + 8, max_k=3,
            perf_mode=False, options={"device": "cpu"},
        )
    )  # fmt: skip
    engine.prefill(prompts, draft=k > 0)
    return engine.decode(Role(k), Budget(new_tokens=tokens), ())


def cycles(run: Decoded, slot: int) -> dict[int, int]:
    """Where in the text a cycle starts → draft tokens that it accepted."""
    at, results = 0, dict[int, int]()
    for row in run.accepted:
        if row[slot] >= 0:
            results[at] = row[slot]
            at += row[slot] + 1
    return results


@pytest.mark.slow("decodes a planted pair four times")
def test_pruned_speculation_emits_the_same_tokens_and_accepts_all_that_it_still_knows(tmp_path: Path) -> None:
    """What the old draft got right, the pruned one gets right too, up to the first token that it does not know. It can
    get more right: a wrong token that it does not know any more cannot win.
    """
    shape, planted = tiny(), PairRef("planted", tmp_path / "target", tmp_path / "draft", "planted")
    assert planted.draft is not None
    write_target(planted.target, shape.target, RECIPE_A, {}, written=False)
    write_draft(planted.draft, shape, RECIPE_A, {"measured": {"spec": 3}}, False, open_target(planted.target).sha256())
    prompts = torch.randint(2048, (2, 96), generator=torch.Generator().manual_seed(1)).tolist()
    baseline, before = (decoded(planted, k, prompts, 24) for k in (0, 3))
    assert before.tokens == baseline.tokens and sum(map(sum, before.accepted)) > 20
    file = ids_file(tmp_path, *(text[1:] for text in baseline.tokens))
    own = draft_vocab(planted, Wish(TokenSources(prompts=(file,)))).own
    emitted = int(torch.searchsorted(own.covered, own.covered[-1])) + 1
    for size in (emitted, emitted // 2):
        result, out = pruned(planted, file, size)
        after = decoded(replace(planted, draft=out), 3, prompts, 24)
        assert after.tokens == before.tokens
        assert result.choice is not None and (result.choice.share == result.present.own) is (size == emitted)
        inside = set(known(out))
        for slot, text in enumerate(before.tokens):
            old, new = cycles(before, slot), cycles(after, slot)
            assert len(old.keys() & new.keys()) >= 2
            for at in old.keys() & new.keys():
                right = text[at + 1 : at + 1 + old[at]]
                still = next((i for i, token in enumerate(right) if token not in inside), len(right))
                assert new[at] >= still and (size == emitted) <= (still == len(right))
        section = read_config(out).part("planted")
        assert section.text("weights") == "written" and "measured" not in section
        shutil.rmtree(out)


# The command


def test_a_table_of_80_columns_says_what_every_size_covers_and_reads(cli: Cli) -> None:
    cli.write("ids.jsonl", json.dumps({"ids": [*range(40), *range(20)]}) + "\n")
    done = cli.run("engine", "draft-vocab", "--prompts", "ids.jsonl", "--size", "16", "--out", "pruned", code=0)
    printed = done.stdout[: done.stdout.index("written:")].splitlines()
    assert max(map(len, printed)) <= 80
    rows = [line.split() for line in printed if "×" in line and line.split()[0].isdigit()]
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 320]
    assert next(line for line in printed if line.lstrip().startswith("16 ")).endswith("<- chosen")
    assert next(line for line in printed if line.lstrip().startswith("96 ")).endswith("1.000× <- now")
    assert "60 tokens counted; 40 of 320 ids occur, 20 once" in printed[0]
    assert "it can never draft" in " ".join(done.stdout.split())
    assert done.stdout.count("specgate micro --backend reference") == 2


def test_json_has_the_curve_the_choice_and_the_bytes(cli: Cli) -> None:
    cli.write("ids.jsonl", json.dumps({"ids": [*range(320), *range(20)]}) + "\n")
    done = cli.run(
        "engine", "draft-vocab", "--prompts", "ids.jsonl", "--cover", "50", "--target-rows", "--json", code=0
    )
    data = json.loads(done.stdout)
    shares = [line["covered_by_any"] for line in data["curve"]]
    assert shares == sorted(shares) and shares[-1] == 1
    size = data["chosen"]["size"]
    assert size == 2 + 20 + (170 - 2 - 40), "special tokens first, then what occurs twice, then by id"
    assert data["chosen"]["covered"] == 0.5 and data["chosen"]["tail"]["tokens"] == 170
    assert data["chosen"]["head_bytes"] == size * 64 * 4 and data["now"]["head_bytes"] == 96 * 64 * 4
    saved = data["now"]["head_bytes"] - data["chosen"]["head_bytes"]
    assert data["now"]["draft_step_bytes"] - data["chosen"]["draft_step_bytes"] == saved
    assert data["now"]["cycle_bytes"] - data["chosen"]["cycle_bytes"] == 3 * saved
    assert data["written"] is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "nothing to count"),
        (["--prompts", "ids.jsonl", "--size", "0"], "Invalid value for '--size'"),
        (["--prompts", "ids.jsonl", "--size", "97"], "draft vocabulary of 97 tokens: 2 to 96 are possible"),
        (["--prompts", "ids.jsonl", "--size", "321", "--target-rows"], "321 tokens: 2 to 320 are possible"),
        (["--prompts", "ids.jsonl", "--size", "1", "--target-rows"], "2 special tokens are always kept"),
        (["--prompts", "ids.jsonl", "--cover", "100"], "--cover 100: all 96 tokens that this draft has rows for"),
        (["--prompts", "ids.jsonl", "--cover", "nan"], "nan is not a finite number"),
        (["--prompts", "ids.jsonl", "--size", "8", "--cover", "50"], "--size together with --cover"),
        (["--prompts", "ids.jsonl", "--out", "new"], "--out new: of which size?"),
        (["--prompts", "ids.jsonl", "--size", "8", "--out", "."], "not empty"),
        (["--prompts", "ids.jsonl", "--size", "8", "--out", "ids.jsonl"], "is no folder"),
        (["--prompts", "beyond.jsonl"], "beyond.jsonl:1: ids[0]: 320"),
        (["--prompts", "."], "not a file: it is a folder, a pipe or a device"),
        (["--run", "."], "is not a run folder"),
        (["--corpus", "no-such-package"], "package 'no-such-package' is not installed"),
    ],
)
def test_what_cannot_be_done_is_named_and_ends_with_2(cli: Cli, arguments: list[str], why: str) -> None:
    cli.write("ids.jsonl", json.dumps({"ids": [*range(320)]}) + "\n")
    cli.write("beyond.jsonl", json.dumps({"ids": [320]}) + "\n")
    done = cli.run("engine", "draft-vocab", *arguments, code=2)
    assert why in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and not (cli.folder / "new").exists()

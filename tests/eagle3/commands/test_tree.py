"""`specgate engine tree inspect`, and `-o tree=FILE` of a run: what they print, write and end with."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from tests.support.command import ROOT, Cli

TREE = "choices: [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]\n"
SVG = "{http://www.w3.org/2000/svg}"


def test_a_tree_is_shown_level_by_level_within_80_columns(cli: Cli) -> None:
    cli.write("tree.yaml", TREE)
    done = cli.run("engine", "tree", "inspect", "tree.yaml", pair=False, code=0)
    assert "tree.yaml: 7 draft tokens on 3 levels, 8 rows to verify" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line[:5].strip().isdigit()]
    assert rows[:3] == [["0", "1", "1", "3", "0", "the", "root"], ["1", "3", "2", "2", "3"], ["2", "3", "1", "1", "6"]]
    assert "4 leaves. Nodes with children have 1.75 on average, 3 at most." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_chain_is_called_one(cli: Cli) -> None:
    cli.write("tree.yaml", "parents: [0, 1]\n")
    assert "a chain, 2 draft tokens on 2 levels" in cli.run("engine", "tree", "inspect", "tree.yaml", pair=False).stdout


def test_the_what_if_shows_sizes_buffers_cache_and_expectation_within_80_columns(cli: Cli) -> None:
    cli.write("tree.yaml", TREE)
    engine = ("--batch", "4", "--max-decoding-tokens", "64", "--max-path-len", "8", "--block-size", "4")
    pair = ("--target", cli.target, "--draft", cli.draft)
    options = ("--what-if", *engine, *pair, "--ranks", "0.7,0.1")
    done = cli.run("engine", "tree", "inspect", "tree.yaml", *options, pair=False, code=0)
    for line in (
        "max_decoding_tokens               8       64",
        "packed_masks        4 x 64 x 2  int32       2,048  what a row may look at",
        "64 positions per request, up to 16 blocks of 4; a chain of 3",
        "a chain of 3 2.53",
        "choices of that tree:",
    ):
        assert line in done.stdout
    assert "batch 4:" in done.stdout and "float32 logits" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_an_engine_that_does_not_hold_the_tree_ends_with_1(cli: Cli) -> None:
    cli.write("tree.yaml", TREE)
    done = cli.run(
        "engine", "tree", "inspect", "tree.yaml", "--what-if", "--max-decoding-tokens", "7", pair=False, code=1
    )
    assert "TOO SMALL: max_decoding_tokens = 7 does not hold this tree, which needs 8" in done.stdout


def test_json_has_the_tree_and_the_what_if(cli: Cli) -> None:
    cli.write("tree.yaml", TREE)
    done = cli.run("engine", "tree", "inspect", "tree.yaml", "--json", pair=False)
    data = json.loads(done.stdout)
    assert data["schema"] == "specgate.tree/v1" and "what_if" not in data
    assert data["tree"]["parents"] == [0, 0, 0, 0, 1, 1, 2, 4]
    assert (data["tree"]["draft_tokens"], data["tree"]["nodes_by_level"]) == (7, [3, 3, 1])
    options = ("--json", "--what-if", "--num-spec-tokens", "2", "--ranks", "0.5")
    done = cli.run("engine", "tree", "inspect", "tree.yaml", *options, pair=False)
    what_if = json.loads(done.stdout)["what_if"]
    assert done.returncode == 1
    assert what_if["too_small"] == ["num_speculative_tokens = 2 does not hold this tree, which needs 3"]
    assert what_if["needed"]["max_decoding_tokens"] == 8
    assert what_if["expected"]["acceptance_length"] == 1.875
    assert next(b for b in what_if["buffers"] if b["name"] == "draft_paths")["shape"] == [1, 8, 4]


def test_the_picture_has_every_node_with_its_rank_and_no_two_nodes_in_one_place(cli: Cli) -> None:
    cli.write("tree.yaml", TREE)
    done = cli.run("engine", "tree", "inspect", "tree.yaml", "--svg", "--out", "out", pair=False)
    assert "wrote out/tree.svg" in done.stdout
    root = ElementTree.parse(cli.folder / "out" / "tree.svg").getroot()
    assert root.findtext(f"{SVG}title") == "tree.yaml: 7 draft tokens on 3 levels, 4 leaves"
    places = [(float(c.get("x") or -1), float(c.get("y") or -1)) for c in root.iter(f"{SVG}use")]
    assert len(set(places)) == len(places) == 8
    labels = [t.text for t in root.iter(f"{SVG}text")]
    assert labels == ["root", "level 1", "level 2", "level 3", "0", "1", "2", "0", "1", "0", "0"]
    width, height = map(float, (root.get("viewBox") or "").split()[2:])
    assert all(0 < x < width and 0 < y < height for x, y in places)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("choices: [[0], [0]]\n", "tree.yaml:1: choices[1]: [0]: a duplicate of choices[0]"),
        ("parents: [2, 1]\n", "a cycle: the parents of node 1 → 2 → 1"),
    ],
)
def test_what_is_no_tree_ends_with_2_and_its_reason(cli: Cli, text: str, message: str) -> None:
    cli.write("tree.yaml", text)
    done = cli.run("engine", "tree", "inspect", "tree.yaml", pair=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("--batch", "4"), "--batch without --what-if"),
        (("--what-if", "--ranks", "0.1,0.5"), "--ranks '0.1,0.5': not the shares of the ranks"),
        (("--what-if", "--ranks", "nan"), "--ranks 'nan'"),
        (("--what-if", "--ranks", "0.9,0.8"), "1 in all at most"),
        (("--what-if", "--kv-dtype", "fp8"), "--kv-dtype without a pair"),
        (("--what-if", "--pair", "nowhere"), "pair 'nowhere' is not known"),
    ],
)
def test_a_what_if_that_makes_no_sense_ends_with_2(cli: Cli, texts: tuple[str, ...], message: str) -> None:
    cli.write("tree.yaml", TREE)
    done = cli.run("engine", "tree", "inspect", "tree.yaml", *texts, pair=False, code=2)
    assert message in done.stderr


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_with_a_tree_is_judged_and_says_what_was_drafted(cli: Cli) -> None:
    cli.write("tree.yaml", "choices: [[0], [1], [0, 0], [1, 0], [0, 0, 0]]\n")
    cli.micro("--backend", "reference", "-o", "device=cpu", "-o", "tree=tree.yaml", code=0)
    (folder,) = (f for f in (cli.folder / "runs").iterdir() if f.is_dir())
    assert "5 tokens on 3 levels" in (folder / "samples" / "engines.jsonl").read_text()
    blocks = [json.loads(line) for line in (folder / "samples" / "blocks.jsonl").read_text().splitlines()]
    counted = [b["counters"] for b in blocks if b["counters"].get("tree_tokens")]
    assert counted
    assert all(c["mask_integrity_failures"] == 0 < c["mask_checked_steps"] for c in counted)
    assert cli.run("runs", "verify", folder, pair=False).returncode == 0


def test_a_run_with_a_tree_that_is_none_ends_with_2(cli: Cli) -> None:
    cli.write("tree.yaml", "choices: [[0], [0]]\n")
    done = cli.micro("--backend", "reference", "-o", "device=cpu", "-o", "tree=tree.yaml", code=2)
    assert "choices[1]: [0]: a duplicate of choices[0]" in done.stderr


@pytest.mark.parametrize("backend", ["transformers", "fake"])
def test_an_engine_that_drafts_no_trees_says_so(cli: Cli, backend: str) -> None:
    done = cli.micro("--backend", backend, "-o", "tree=dynamic:8", code=2)
    assert "tree" in done.stderr and "known" in done.stderr


def test_the_example_is_read_as_the_documentation_shows_it(cli: Cli) -> None:
    done = cli.run("engine", "tree", "inspect", ROOT / "docs" / "examples" / "eagle_tree.yaml", pair=False)
    assert "16 draft tokens on 4 levels" in done.stdout.replace("\n", " ")

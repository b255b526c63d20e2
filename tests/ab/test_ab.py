"""`specgate ab` with the scripted engine: its words, its exit codes, and what makes a comparison worthless."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specgate.ab.runner import more_prefills
from specgate.backends.fake.engine import FakeEngine
from specgate.contract import Finish
from specgate.contract.protocols import Text
from tests.sandbox import needs_bubblewrap
from tests.support.command import Cli
from tests.support.in_process import EngineHere

CLOCK = ("-o", "step_ns=2000000", "-o", "draft_ns=200000")
THREE = ("--processes", "3")


def ab(cli: Cli, *arguments: str, code: int) -> str:
    """Run `specgate ab` and return its output; its exit code must be `code`."""
    fixed = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake", *CLOCK, *THREE)
    done = cli.run("ab", *fixed, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def newest(cli: Cli) -> Path:
    return max((cli.folder / "runs").glob("*-ab-*"), key=lambda folder: folder.stat().st_mtime_ns)


def result(cli: Cli) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((newest(cli) / "ab.json").read_text())
    return data


def words(cli: Cli) -> dict[tuple[str, str], str]:
    return {(q["name"], q["cell"].rpartition("/")[2]): q["word"] for q in result(cli)["quantities"] if q["decides"]}


def test_a_build_is_the_same_as_itself(cli: Cli) -> None:
    output = ab(cli, "--same", code=0)
    assert "verdict SAME (exit 0)" in output and "[1/48] " in output and "] old: 24" in output and "] new: 24" in output
    assert set(words(cli).values()) == {"SAME"}
    assert result(cli)["trouble"] == [] and [t["changed"] for t in result(cli)["texts"]] == [[], []]


def test_a_longer_step_is_slower_in_both_roles_and_in_nothing_else(cli: Cli) -> None:
    assert "verdict SLOWER (exit 1)" in ab(cli, "--new", "step_ns=2060000", code=1)
    assert words(cli) == {
        ("step_ms", "baseline"): "SLOWER",
        ("step_ms", "spec-3"): "SLOWER",
        ("acceptance_length", "spec-3"): "SAME",
    }
    ratios = {q["cell"].rpartition("/")[2]: q["ratio"] for q in result(cli)["quantities"] if q["name"] == "step_ms"}
    assert ratios["baseline"] == pytest.approx(2.06 / 2.0, rel=0.01)


def test_a_shorter_step_is_faster_and_passes(cli: Cli) -> None:
    assert "verdict FASTER (exit 0)" in ab(cli, "--old", "step_ns=2060000", code=0)


def test_a_difference_within_the_margin_is_the_same(cli: Cli) -> None:
    ab(cli, "--new", "step_ns=2060000", "--margin-pct", "5", code=0)
    assert set(words(cli).values()) == {"SAME"}


def test_a_loss_within_the_stated_bound_passes_and_every_quantity_keeps_its_word(cli: Cli) -> None:
    output = ab(cli, "--new", "step_ns=2060000", "--same-within", "4", code=0)
    assert "the same within 4 % (--same-within)" in output and "The same within 3" in output
    assert words(cli)["step_ms", "spec-3"] == "SLOWER" and result(cli)["within_pct"] == pytest.approx(3, abs=0.5)
    assert result(cli)["margins"]["device"] == "gpu"


def test_two_sides_with_other_weights_are_refused_by_name(cli: Cli) -> None:
    # What the scripted draft accepts is its weights.
    output = ab(cli, "--old", "accept=3", "--new", "accept=1", code=2)
    assert "draft_sha256: old has" in output and "the same weights" in output
    assert result(cli)["word"] is None and result(cli)["quantities"] == []


def test_wrong_tokens_of_the_new_build_make_the_comparison_invalid(cli: Cli) -> None:
    assert "not those of its own baseline" in ab(cli, "--new", "wrong_token_at=5", code=6)
    assert result(cli)["word"] is None


def test_wrong_tokens_of_the_old_build_do_not(cli: Cli) -> None:
    ab(cli, "--old", "wrong_token_at=5", code=0)
    assert [t["mismatches"] > 0 for t in result(cli)["tokens"]] == [True, False]


def test_the_order_of_an_abba_group_is_a_b_b_a_or_its_mirror_image_and_both_sides_have_as_many_blocks(cli: Cli) -> None:
    ab(cli, "--same", "--quads", "2", code=0)
    blocks = [
        (side, json.loads(line))
        for side in ("old", "new")
        for line in (newest(cli) / side / "samples" / "blocks.jsonl").read_text().splitlines()
    ]
    places: dict[tuple[object, ...], list[tuple[int, str]]] = {}
    for side, b in blocks:
        places.setdefault((b["worker_generation"], b["role"]["k"], b["round"] // 2), []).append(
            (b["position_in_round"], side)
        )
    orders = {tuple(side for _, side in sorted(place)) for place in places.values()}
    assert orders <= {("old", "new", "new", "old"), ("new", "old", "old", "new")} and len(places) == 12


def test_short_prefills_are_repeated_equally_often_and_a_fresh_process_warms_up_on_the_beginning_of_long_ones(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[tuple[EngineHere, int]] = []
    prefill = EngineHere.prefill

    def noted(engine: EngineHere, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        entries.append((engine, len(prompts[0])))
        return prefill(engine, prompts, draft=draft)

    monkeypatch.setattr(EngineHere, "prefill", noted)
    monkeypatch.setattr("specgate.ab.runner.WARM_UP_TOKENS", 1000)
    cli.write("tiny.yaml", (cli.folder / "tiny.yaml").read_text().replace("context: [24]", "context: [4070]"))
    # 4,070 tokens of each of two prompts take 814 ms: three prefills are the two seconds of a CPU.
    ab(cli, "--same", "-o", "prefill_ns=100000", "--steps", "4", code=0)
    by_process = [[n for e, n in entries if e is engine] for engine in {e for e, _ in entries}]
    assert {tuple(lengths) for lengths in by_process} == {(1000, *[4070] * 3)}


@pytest.mark.parametrize(("slowest_ns", "more"), [(0, 0), (1, 15), (20_000_000, 9), (199_999_999, 1), (10**9, 0)])
def test_a_prefill_is_repeated_until_there_is_enough_of_it(slowest_ns: int, more: int) -> None:
    assert more_prefills(slowest_ns, 200_000_000) == more


class ExtendingEngine(FakeEngine):
    """A scripted engine that can decode on after a block of six steps."""

    def extend(self, steps: int) -> Text:
        slots = range(len(self.seeds))
        return Text(
            tuple(tuple(self.token(s, i) for i in range(7 + steps)) for s in slots), (Finish.STEPS,) * len(slots)
        )


@pytest.mark.parametrize("extends", [True, False])
def test_the_baselines_text_goes_on_between_the_groups_where_the_engine_can_extend_it(
    extends: bool, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    if extends:
        monkeypatch.setattr("specgate.backends.fake.engine.FakeEngine", ExtendingEngine)
    ab(cli, "--same", code=0)
    assert all(t["compared"] == t["emitted"] > 0 and t["why"] is None for t in result(cli)["tokens"])
    for side in ("old", "new"):
        samples = newest(cli) / side / "samples"
        texts = [json.loads(line) for line in (samples / "texts.jsonl").read_text().splitlines()]
        blocks = [json.loads(line) for line in (samples / "blocks.jsonl").read_text().splitlines()]
        assert sorted(t["worker_generation"] for t in texts) == [0, 1, 2]
        for text in texts:
            last = max(b["span_ns"][1] for b in blocks if b["worker_generation"] == text["worker_generation"])
            assert (text["span_ns"][1] < last) is extends


def test_builds_that_do_not_fit_beside_each_other_run_one_after_the_other(cli: Cli) -> None:
    ab(cli, "--same", "--apart", code=0)
    assert result(cli)["beside"] is False and set(words(cli).values()) == {"SAME"}


@needs_bubblewrap
def test_in_sandboxes_never_both_builds_are_loaded_and_the_sandbox_is_stored(cli: Cli) -> None:
    ab(cli, "--same", "--isolate", code=0)
    assert result(cli)["beside"] is False
    assert '"sandbox": "bubblewrap ' in (newest(cli) / "asked.json").read_text()


def test_a_comparison_holds_and_an_edit_anywhere_is_seen(cli: Cli) -> None:
    ab(cli, "--new", "step_ns=2060000", code=1)
    folder = newest(cli)
    verified = cli.run("runs", "verify", folder, pair=False)
    assert verified.returncode == 0 and "verdict SLOWER (exit 1)" in verified.stdout
    for file, was, is_ in (
        ("ab.json", '"SLOWER"', '"FASTER"'),
        ("ab.md", "SLOWER", "FASTER"),
        ("junit.xml", "SLOWER", "FASTER"),
        ("new/samples/blocks.jsonl", '"elapsed_ns":', '"elapsed_ns":1'),
        ("asked.json", '"step_pct": null', '"step_pct": 9.5'),
    ):
        text = (folder / file).read_text()
        assert was in text, file
        (folder / file).write_text(text.replace(was, is_, 1))
        again = cli.run("runs", "verify", folder, pair=False)
        assert again.returncode == 6 and f"differs: {file}" in again.stdout, (file, again.stdout)
        (folder / file).write_text(text)
    assert cli.run("runs", "verify", folder, pair=False).returncode == 0


def test_an_edited_word_behind_a_mended_manifest_is_seen(cli: Cli) -> None:
    from specgate.files.manifest import MANIFEST, manifest_of

    ab(cli, "--new", "step_ns=2060000", code=1)
    folder = newest(cli)
    for file in ("ab.json", "ab.html", "ab.md", "junit.xml"):
        (folder / file).write_text((folder / file).read_text().replace("SLOWER", "SAME"))
    (folder / MANIFEST).write_text(manifest_of(folder))
    again = cli.run("runs", "verify", folder, pair=False)
    assert again.returncode == 6 and "recomputed" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to compare"),
        (("--same", "--base", "HEAD"), "--same together with"),
        (("--new", "step_ns=1", "--build", "true"), "--build without --base"),
        (("--new", "step_ns"), "write it as KEY=VALUE"),
        (("--new", "source=nowhere"), "no such folder"),
        (("--new", "python=no-such-python"), "no such program"),
        (("--new", "backend=nothing"), "no such backend"),
        (("--new", "stepns=3"), "option 'stepns' is not known"),
        (("--new", "step_ns=1", "--new", "step_ns=2"), "given twice"),
        (("--same", "--processes", "2"), "at least 3"),
        (("--base", "HEAD"), "not in a git checkout"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    assert message in ab(cli, *arguments, code=2)

"""Variants of a role in a whole run: measured, judged, reported, verified and resumed beside the plain roles."""

from __future__ import annotations

import csv
import json

from specgate.contract import Block
from specgate.files.run_folder import RunFolder
from tests.support.command import NOT_SCORED, POLICY, Cli, scenario_text
from tests.support.stored_runs import as_if_killed

VARIANTS = """\
variants:
  t1: {sampling: {temperature: 1.0}}
  kv-fp8: {options: {kv: fp8, draft_kv: nvfp4}}
  tree: {options: {tree: 'dynamic:6', tree_width: 2}}
"""
ROLES = [f"{role}{name}" for name in ("", "+t1", "+kv-fp8", "+tree") for role in ("baseline", "spec-3")]


def test_variants_of_a_role_stand_beside_each_other_in_one_run(cli: Cli) -> None:
    cli.write("tiny.yaml", scenario_text(spec=[3]) + VARIANTS)
    policy = POLICY.replace(NOT_SCORED, "").replace("MIN", "1.0").replace("role: baseline", 'role: "baseline*"')
    cli.write("policy.yaml", policy)
    cli.micro("--backend", "reference", "--plain", code=0)
    path = cli.newest()
    run, blocks = RunFolder.open(path).read_run(), RunFolder.open(path).lines(Block)

    # every variant is decoded by an engine of its own, with its own baseline
    assert [(r.cell.role_name, r.status) for r in run.cells] == [(role, "ok") for role in ROLES]
    assert [b.worker_generation for b in blocks] == sorted(b.worker_generation for b in blocks)
    of = {b.cell.role_name: (b.worker_generation, b.tokens) for b in blocks if (b.prompt_set, b.round) == (0, 0)}
    assert [of[role][0] for role in ROLES] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert of["baseline"][1] == of["baseline+tree"][1] != of["baseline+t1"][1]
    assert all(c.tokens.compared_tokens and not c.tokens.mismatches for c in run.comparisons)
    assert {v.cell for v in run.verdicts if v.rule == "acceptance"} == {
        f"tiny/reference/c24/b2/{role}" for role in ROLES if role.startswith("spec")
    }

    # the second engine caches in the format of the first, and so finds nothing wrong
    assert all(c.rescored and c.rescored.scored and not c.rescored.wrong for c in run.cells)
    caches = [str(facts.details.get("KV cache", "")) for facts in run.engines.values()]
    assert [c[:3] for c in caches] == ["", "", "fp8", ""]

    # page, tables and ledger name them, and say what varies
    rows = list(csv.DictReader((path / "summary.csv").read_text().splitlines()))
    assert [(r["scenario"], r["role"]) for r in rows] == [("tiny", role) for role in ROLES]
    page, text = (path / "report.html").read_text(), (path / "summary.md").read_text()
    assert "Variants beside the plain roles" in page
    details = cli.details()
    for shown in (page, text, details):
        assert "tree=dynamic:6, tree_width=2" in shown.replace("\\", "")
        assert "temperature 1" in shown
        assert "kv=fp8, draft_kv=nvfp4" in shown.replace("\\", "")
    assert "24 tokens · batch 2 · spec-3+tree (tree=dynamic:6, tree_width=2) against spec-3: " in details
    entry = json.loads((cli.folder / "runs/ledger.jsonl").read_text().splitlines()[-1])
    assert entry["gates"].keys() == {"tiny", "tiny+t1", "tiny+kv-fp8", "tiny+tree"}

    cli.run("runs", "verify", path, pair=False, code=0)
    summed = cli.run("runs", "compare", "--by", "acceptance", path, pair=False).stdout
    for variant in ("spec-3, T 1 coupled)", "spec-3, KV cache fp8, draft's KV cache nvfp4)", "spec-3, tree: "):
        assert variant in summed  # and none of them is pooled with the plain role
    as_if_killed(path, blocks=40)
    cli.run("micro", "--resume", path, pair=False, code=0)
    assert [r.status for r in RunFolder.open(path).read_run().cells] == ["ok"] * len(ROLES)


def test_an_option_of_a_variant_cannot_be_given_on_the_command_line_too(cli: Cli) -> None:
    cli.write("tiny.yaml", scenario_text(spec=[3]) + VARIANTS)
    done = cli.micro("--backend", "reference", "-o", "tree=dynamic:4", code=2)
    assert "scenario tiny+tree sets options.tree: 'dynamic:6'" in done.stderr


def test_an_option_of_a_variant_that_the_engine_does_not_know_is_named(cli: Cli) -> None:
    wrong = "variants: {x: {options: {bogus: 1}}}\n"
    cli.write("tiny.yaml", scenario_text(spec=[3]) + wrong)
    done = cli.micro("--backend", "reference", "--plain", code=2)
    assert "option bogus: not known" in done.stderr


def test_micro_gates_with_variants_are_green_only_with_all_of_them(cli: Cli) -> None:
    tree = "variants:\n  tree: {options: {tree: 'dynamic:6', tree_width: 2}}\n"
    cli.write("gate.yaml", scenario_text(spec=[3]) + tree)
    cli.write("policy.yaml", POLICY.replace("MIN", "1.0").replace("role: baseline", 'role: "baseline*"'))
    alone = cli.run("micro", "--scenario", "gate.yaml", "--only", "gate", "--policy", "policy.yaml")
    assert "runs in a row: 0 of 3" in alone.stdout
    whole = cli.run("micro", "--scenario", "gate.yaml", "--policy", "policy.yaml")
    assert "runs in a row: 1 of 3" in whole.stdout

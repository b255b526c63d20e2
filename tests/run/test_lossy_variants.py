"""SpecPV as a variant of a role: never green unasked, judged by its own rule, laid out by `specgate runs compare --by
variants`.
"""

from __future__ import annotations

import csv
import json

from specgate.files.run_folder import RunFolder
from tests.support.command import POLICY, Cli, scenario_text

VARIANTS = """\
variants:
  specpv: {options: {specpv: lossy, specpv_sink: 1, specpv_retrieval: 1, specpv_window: 1, specpv_refresh: 6}}
  exact: {options: {specpv: lossless, specpv_sink: 1, specpv_retrieval: 1, specpv_window: 1}}
"""
ASKED = """\
  - {id: share, gate: tokens, required: true, role: "spec-*+specpv", near_tie_margin: 0.0, min_equal_share: 0.01}
"""


def test_a_lossy_variant_is_not_green_until_a_rule_says_how_much_must_be_equal(cli: Cli) -> None:
    cli.write("tiny.yaml", scenario_text(context=96) + VARIANTS)
    policy = POLICY.replace("MIN", "1.0").replace("role: baseline", 'role: "baseline*"')
    cli.write("policy.yaml", policy)
    done = cli.micro("--backend", "reference", "--plain")
    assert done.returncode == 8, done.stdout + done.stderr
    assert "lossy by the engine's own word" in cli.details()
    run = RunFolder.open(cli.newest()).read_run()
    of = {c.cell.role_name: c.tokens for c in run.comparisons}
    assert of["spec-3+specpv"].lossy and of["spec-3+specpv"].mismatches
    for role in ("spec-2", "spec-3", "spec-2+exact", "spec-3+exact"):
        assert of[role].identical and not of[role].lossy
    states = {(v.rule, v.cell.rpartition("/")[2]): v.state.value for v in run.verdicts}
    assert states["tokens", "spec-3+specpv"] == "SKIPPED"
    assert states["tokens", "spec-3+exact"] == states["tokens", "spec-3"] == "PASS"
    path = cli.newest()
    verified = cli.run("runs", "verify", path, pair=False)
    assert "verdict NOT_JUDGED (exit 8)" in verified.stdout

    cli.write("asked.yaml", policy + ASKED)
    judged = cli.run("runs", "check", path / "run.json", "--policy", "asked.yaml", pair=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr

    laid_out = cli.run(
        "runs", "compare", path, "--plain", "--html", "--md", "--csv", "--json", "--out", "views", pair=False
    )
    assert laid_out.returncode == 0, laid_out.stdout + laid_out.stderr
    assert "Tokens of spec-2+specpv, spec-3+specpv may differ from the baseline's" in laid_out.stdout
    rows = {r["role"]: r for r in csv.DictReader((cli.folder / "views/variants.csv").read_text().splitlines())}
    assert list(rows) == [
        f"{role}{name}" for name in ("", "+specpv", "+exact") for role in ("baseline", "spec-2", "spec-3")
    ]
    assert rows["spec-3+exact"]["equal_to_plain"] == rows["baseline"]["equal_to_plain"] == "1.0"
    assert 0 < float(rows["spec-3+specpv"]["equal_to_plain"]) < 1
    read = {role: float(row["cache_read_bytes_per_token"]) for role, row in rows.items()}
    assert read["spec-3+specpv"] < read["spec-3"] <= read["baseline"]
    assert float(rows["spec-3+specpv"]["partial_passes_per_token"]) > 0
    data = json.loads((cli.folder / "views/variants.json").read_text())
    assert [record["role"] for record in data["roles"]] == list(rows)
    assert data["schema"] == "specgate.variants/v1"

"""SpecPV as a variant of a role: never green unasked, and judged by its own rule."""

from __future__ import annotations

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
    cli.write("tiny.yaml", scenario_text(context=96, spec=[3]) + VARIANTS)
    policy = POLICY.replace("MIN", "1.0").replace("role: baseline", 'role: "baseline*"')
    cli.write("policy.yaml", policy)
    cli.micro("--backend", "reference", "--plain", code=8)
    assert "lossy by the engine's own word" in cli.details()
    run = RunFolder.open(cli.newest()).read_run()
    of = {c.cell.role_name: c.tokens for c in run.comparisons}
    assert of["spec-3+specpv"].lossy and of["spec-3+specpv"].mismatches
    for role in ("spec-3", "spec-3+exact"):
        assert of[role].identical and not of[role].lossy
    states = {(v.rule, v.cell.rpartition("/")[2]): v.state.value for v in run.verdicts}
    assert states["tokens", "spec-3+specpv"] == "SKIPPED"
    assert states["tokens", "spec-3+exact"] == states["tokens", "spec-3"] == "PASS"
    path = cli.newest()
    verified = cli.run("runs", "verify", path, pair=False)
    assert "verdict NOT_JUDGED (exit 8)" in verified.stdout

    cli.write("asked.yaml", policy + ASKED)
    cli.run("runs", "check", path, "--policy", "asked.yaml", pair=False, code=0)

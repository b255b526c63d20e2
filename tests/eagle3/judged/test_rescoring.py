"""A second engine rounds, too: what it finds wrong in the scenario's dtype it is asked once more in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import yaml

from specgate import plugins
from specgate.contract import Rescoring, Run
from specgate.files.run_folder import RunFolder
from specgate.run.token_evidence import CANDIDATES
from tests.run.second_engines import NAMES
from tests.support.command import Cli

Scored = Callable[..., tuple[int, Run, Sequence[Rescoring]]]


@pytest.fixture
def checks() -> list[str]:
    """Lines that say what is being checked."""
    return []


@pytest.fixture
def scored(cli: Cli, monkeypatch: pytest.MonkeyPatch, checks: list[str]) -> Iterator[Scored]:
    """A micro run of the reference engine with another one that scores its tokens: (exit code, run, the scores)."""
    entries = tuple(("specgate.backends", n.title(), f"tests.run.second_engines:{n}") for n in NAMES)
    built_in = (*plugins.built_in(), *entries)
    monkeypatch.setattr(plugins, "built_in", lambda: built_in)
    plugins.registered.cache_clear()

    def run(second: str, dtype: str = "bfloat16", *options: str) -> tuple[int, Run, Sequence[Rescoring]]:
        text = (cli.folder / "tiny.yaml").read_text().replace("warmup_rounds: 1", "warmup_rounds: 0")
        cli.write("tiny.yaml", text.replace("spec: [2, 3]", "spec: [3]") + f"dtype: {dtype}\n")
        policy = yaml.safe_load((cli.folder / "policy.yaml").read_text())
        policy["rules"][1] |= {
            "near_tie_margin": 0.25,
            "cache_sigma": "fp8 0.6",
        }  # in bfloat16 the reference engine is not bit-exact
        policy["checks"] = {"rescored_by": second}
        cli.write("policy.yaml", yaml.safe_dump(policy))
        done = cli.micro("--backend", "reference", "-o", "device=cpu", "--plain", *options)
        folder = RunFolder.open(cli.newest())
        checks.extend(line for line in done.stdout.splitlines() if line.startswith("checking "))
        return done.returncode, folder.read_run(), tuple(folder.keyed(Rescoring).values())

    yield run
    plugins.registered.cache_clear()


def two_points(cli: Cli) -> None:
    tiny = cli.folder / "tiny.yaml"
    tiny.write_text(tiny.read_text().replace("context: [24]", "context: [24, 32]"))


def token_verdicts(run: Run) -> list[tuple[str, str, str]]:
    return [(v.state, v.reason_code, v.message) for v in run.verdicts if v.gate == "tokens"]


def test_a_rounding_of_the_second_engine_is_settled_by_one_engine_in_float32_for_all_points(
    scored: Scored, checks: list[str], cli: Cli
) -> None:
    two_points(cli)
    code, run, results = scored("Rough")
    assert code == 0 and len({look.point for look in results}) == 2
    for look in results:
        assert look.dtype == "bfloat16" and look.again is not None and look.again.unscored is None
        doubted = {m.place for m in look.again.places}
        assert doubted >= {(t.cell, t.prompt_set, t.round, t.slot, t.positions[0]) for t in look.texts}
        assert all(len(m.second) == len(m.float32) == len(m.top_tokens) == CANDIDATES for m in look.again.places)
    for result in run.cells:
        assert result.rescored is not None and result.rescored.wrong == 0 < result.rescored.settled
    assert {state for state, _, _ in token_verdicts(run)} == {"PASS"}
    assert len(list((cli.newest() / "logs").glob("rescoring*"))) == 2, "one log of each dtype"
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
    kinds = [line.partition(": ")[2] for line in checks]
    assert kinds == [f"Rough in {dtype} scores its tokens" for dtype in ["bfloat16"] * 2 + ["float32"] * 2]


def test_a_token_that_is_wrong_in_float32_too_stays_wrong(scored: Scored) -> None:
    code, run, (result,) = scored("Wrong")
    assert code == 6 and result.again is not None and result.again.places
    state, reason, message = token_verdicts(run)[0]
    assert (state, reason) == ("INVALID", "not_the_targets")
    assert "further off than rounding explains" in message and "standard deviations" in message


@pytest.mark.parametrize(
    ("second", "why"),
    [("Small", "4 GiB are needed, 3 are free"), ("Deaf", "back end Deaf computes in bfloat16, not in float32")],
)
def test_tokens_are_not_judged_while_float32_has_not_settled_them(
    scored: Scored, cli: Cli, second: str, why: str
) -> None:
    two_points(cli)
    code, run, result = scored(second)
    assert code == 8 and len(result) == 2
    for look in (f.again for f in result):
        assert look is not None and look.places and (look.unscored or "").splitlines()[0] == why
    verdicts = token_verdicts(run)
    assert all((state, reason) == ("NOT_JUDGED", "scores_not_settled") for state, reason, _ in verdicts)
    assert all(f"it was not asked in float32: {why}" in message for _, _, message in verdicts)


def test_a_cache_in_fewer_bits_is_looked_at_as_it_rounds_in_float32(scored: Scored) -> None:
    code, _, (result,) = scored("Rough", "bfloat16", "-o", "kv=fp8")
    assert code == 0 and result.again is not None and result.again.places
    spread = [a - b for m in result.again.places for a, b in zip(m.second, m.float32, strict=True)]
    assert any(spread), "codes differ where a number is rounded otherwise"


def test_there_is_no_second_look_in_float32(scored: Scored) -> None:
    code, run, (result,) = scored("Wrong", "float32")
    assert code == 6 and result.again is None
    assert all(r.rescored is not None and r.rescored.wrong for r in run.cells)

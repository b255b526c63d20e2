"""An engine that is not bit-exact, end to end: a model of transformers in bfloat16.

Its last hidden states are rounded to eight bits, on another grid wherever several rows go through it together, as other
kernels would. So its texts part, and the law of near ties judges by the rounding that the engine itself shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
import yaml
from torch import Tensor

from specgate import plugins
from specgate.backends.eagle3.transformers.backend import BACKEND
from specgate.contract import Margin, Run, Verdict
from specgate.contract.protocols import OpenRequest
from specgate.files.run_folder import RunFolder
from tests.support.command import Cli
from tests.support.engines.plugged import Plugged

DELTA = 0.5


class Coarse:
    def __init__(self, request: OpenRequest) -> None:
        self.engine = cast("Any", BACKEND.open(request))
        model, self.rows = self.engine.model, 1
        forward = model.forward

        def counted(slots: slice, tokens: Tensor, *others: Any) -> Any:
            self.rows = tokens.shape[1]
            return forward(slots, tokens, *others)

        def rounded(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden, scale = inputs[0], 1.0 if self.rows == 1 else 1.37
            return ((hidden * scale).to(torch.float8_e4m3fn).to(torch.float32).div(scale).to(hidden.dtype),)

        model.forward = counted
        model.model.get_output_embeddings().register_forward_pre_hook(rounded)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class Relaxed(Coarse):
    """In every fourth step with drafts it takes the second-best token, if that is within `DELTA` logits of the best."""

    def __init__(self, request: OpenRequest) -> None:
        super().__init__(request)
        verify = self.engine._verify

        def relaxed(slots: Any, drafts: Tensor, boundaries: Sequence[int]) -> Any:
            tokens, features = verify(slots, drafts, boundaries)
            best = self.engine._logits[:, 0].topk(2)
            takes = (best.values[:, 0] - best.values[:, 1] <= DELTA) & (slots.emitted % 4 == 0)
            tokens[:, 0] = best.indices[:, 1].where(takes, tokens[:, 0])
            return tokens, features

        self.engine._verify = relaxed


class Silent(Coarse):
    """It shows no second pass."""

    ranked_again = None


class Mute(Silent):
    """It names no likely tokens, either."""

    ranked = None

    def top2(self, slot: int, continuation: Sequence[int]) -> None:
        return None


COARSE, RELAXED, SILENT, MUTE = (Plugged(engine, "rounds") for engine in (Coarse, Relaxed, Silent, Mute))
Measured = Callable[..., tuple[int, Run, Verdict]]


@pytest.fixture
def measured(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    """A micro run in bfloat16: (exit code, run, the verdict on its tokens)."""
    names = ("COARSE", "RELAXED", "SILENT", "MUTE")
    built_in = (*plugins.built_in(), *(("specgate.backends", n.title(), f"{__name__}:{n}") for n in names))
    monkeypatch.setattr(plugins, "built_in", lambda: built_in)
    plugins.registered.cache_clear()

    def run(backend: str, second: str = "none", **rule: object) -> tuple[int, Run, Verdict]:
        cli.scenario(spec=[3], batch=8, sets=2, rounds=1, budget="steps: 24")
        text = (cli.folder / "tiny.yaml").read_text().replace("warmup_rounds: 1", "warmup_rounds: 0")
        cli.write("tiny.yaml", text + "dtype: bfloat16\n")
        policy = yaml.safe_load((cli.folder / "policy.yaml").read_text())
        policy["rules"][1] |= {"max_sigma": 0.15, **rule}
        policy["checks"] = {"rescored_by": second}
        cli.write("policy.yaml", yaml.safe_dump(policy))

        done = cli.micro("--backend", backend, "-o", "device=cpu", "--plain")
        measured = RunFolder.open(cli.newest()).read_run()
        (verdict,) = (v for v in measured.verdicts if v.gate == "tokens" and v.state != "SKIPPED")
        return done.returncode, measured, verdict

    yield run
    plugins.registered.cache_clear()


def test_texts_part_where_an_engine_rounds_and_its_own_rounding_explains_it(measured: Measured, cli: Cli) -> None:
    code, run, verdict = measured("Coarse")
    (comparison,) = run.comparisons
    assert len(comparison.tokens.divergences) >= 8 and {d.rule for d in comparison.tokens.divergences} == {"B"}
    assert (code, verdict.state, verdict.reason_code) == (0, "PASS", "near_tie_divergence"), verdict.message
    sigma, mean_square = (float(verdict.evidence[key] or 0) for key in ("sigma", "mean_square"))
    assert 0.02 < sigma < 0.08 and 0 < mean_square < 1.2
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


@pytest.mark.parametrize(("engine", "rule"), [("Silent", "A"), ("Mute", "C")])
def test_a_second_engine_tells_the_rounding_of_one_that_does_not_show_it(
    measured: Measured, cli: Cli, engine: str, rule: str
) -> None:
    _, run, verdict = measured(engine, "reference")
    (comparison,) = run.comparisons
    assert len(comparison.tokens.divergences) >= 3 and {d.rule for d in comparison.tokens.divergences} == {rule}
    assert verdict.reason_code == "near_tie_divergence", verdict.message
    margins = RunFolder.open(cli.newest()).lines(Margin)
    assert all(m.float32 and not m.again and bool(m.second) == (rule == "C") for m in margins)
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


def test_an_engine_that_accepts_within_half_a_logit_is_invalid(measured: Measured) -> None:
    code, _, verdict = measured("Relaxed")
    assert (code, verdict.state) == (6, "INVALID") and verdict.reason_code in ("token_mismatch", "ties_too_wide")

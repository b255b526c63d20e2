"""Margins of near ties: asked of the reference's engine, held against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specgate.archive.comparing.texts import agreement_of, with_margins
from specgate.archive.stored_runs import StoredRun, load_run
from specgate.contract import Block, Divergence, NearTies
from specgate.errors import InvalidResult
from specgate.planning.plan import build_plan
from specgate.run.beginning import fitting_prompts
from tests.support.command import Cli
from tests.support.factories import corrupt

AT = 3


class Strayed(StoredRun):
    """The run as an engine would have left it whose spec texts part from token AT on."""

    def blocks(self) -> list[Block]:
        return [corrupt(block, slot=1, at=AT) for block in super().blocks()]


@pytest.fixture(scope="module")
def run(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    cli = Cli(tmp_path_factory.mktemp("run"), *pair)
    cli.scenario(kind="full", budget="new_tokens: 6")
    done = cli.run("full", "--scenario", "tiny.yaml", "--policy", "policy.yaml", "--override-order", "a test")
    assert "run folder" in done.stdout, done.stderr
    return load_run(cli.newest())


def divergences(run: StoredRun, near_tie_margin: float, folder: Path) -> Sequence[Divergence]:
    strayed = Strayed(run.path, run.run, run.config)
    agreement = with_margins(agreement_of([run, strayed], 3.0), run, NearTies(near_tie_margin), folder)
    return [d for match in agreement.matches for d in match.divergences]


@pytest.mark.slow("loads the pair with transformers")
def test_a_margin_is_the_gap_of_the_targets_two_largest_logits(run: StoredRun, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run.config.pair.target, dtype=torch.float32)
    plan = build_plan(tuple(run.config.scenarios.values()), run.config.backend)
    (prompts,) = fitting_prompts(plan, run.config).values()
    texts = {(b.prompt_set, b.round): b.tokens for b in run.blocks()}
    result = divergences(run, 0.0, tmp_path)
    assert len(result) == 2 * 4 * 2, "spec-2 and spec-3 in four prompt sets and two rounds"
    for d in result:
        ids = [*prompts.measured[d.prompt_set].token_ids[1], *texts[d.prompt_set, d.round][1][:AT]]
        first, second = model(torch.tensor([ids])).logits[0, -1].topk(2).values.tolist()
        assert d.margin == pytest.approx(first - second, abs=1e-4)
        assert (d.slot, d.position, d.near_tie) == (1, AT, False)
    assert all(d.near_tie for d in divergences(run, 1e9, tmp_path))


def test_nothing_is_loaded_where_all_texts_are_the_same(run: StoredRun, tmp_path: Path) -> None:
    agreement = agreement_of([run, run], 3.0)
    assert with_margins(agreement, run, NearTies(), tmp_path) == agreement and not list(tmp_path.glob("reference.log"))


def test_prompts_that_cannot_be_made_again_are_refused(run: StoredRun, tmp_path: Path) -> None:
    others = {key: {**about, "sha256": "0" * 64} for key, about in run.run.prompts.items()}
    with pytest.raises(InvalidResult, match="its prompts cannot be made again"):
        divergences(StoredRun(run.path, replace(run.run, prompts=others), run.config), 0.0, tmp_path)

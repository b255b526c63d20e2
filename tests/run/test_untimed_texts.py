"""The baseline's text is decoded once more, untimed. Where that leaves the timed text at a near tie, the timed one goes
on by plain decoding from its own end, and nothing stays uncompared; everything else is INVALID as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint

import pytest

from specgate import plugins
from specgate.backends.fake.engine import BACKEND, FakeEngine
from specgate.contract import BaselineText, Block, Budget, EngineFacts, Role, Run, TopTokens
from specgate.contract.protocols import Availability, Decoded, OpenRequest
from specgate.files.run_folder import RunFolder
from tests.support.command import Cli
from tests.support.stored_runs import as_if_killed

STEPS, PARTS_AT, UNIT, FAR_OFF = 20, 7, 0.0625, 9
POLICY = """\
schema: specgate.policy/v1
checks: {rescored_by: none}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, TIES}
  - {id: acceptance, gate: acceptance, required: true, role: spec-*, min: 1.0}
  - {id: speed, gate: speed, required: true, role: spec-*, min: 1.0}
"""
LAW, MARGIN, NONE = "near_tie_margin: 0.0, max_sigma: 0.15", "near_tie_margin: 0.1", "near_tie_margin: 0.0"


class Diverging:
    """The scripted engine, whose longer baseline text is another one from a token on, in slot 0. `gap`: how many units
    that token lies below the right one; others lie far below it. `wrong_behind`: its spec texts are wrong
    behind what was timed.
    """

    def __init__(self, request: OpenRequest, gap: int, wrong_behind: bool) -> None:
        engine = BACKEND.open(request)
        assert isinstance(engine, FakeEngine)
        self.engine, self.gap, self.wrong_behind = engine, gap, wrong_behind

    def facts(self) -> EngineFacts:
        return replace(self.engine.facts(), acceptance=None, warnings=())

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        return self.engine.prefill(prompts, draft=draft)

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        made = self.engine.decode(role, budget, stop_token_ids)
        changed = None
        if role.speculative and self.wrong_behind:
            changed = STEPS + 2
        if not role.speculative and budget.steps is not None and budget.steps > STEPS:
            changed = PARTS_AT
        if changed is None:
            return made
        first, *others = made.tokens
        row = tuple(other(t) if i >= changed else t for i, t in enumerate(first))
        return replace(made, tokens=(row, *others))

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float]:
        top = self.ranked(slot, continuation, 2)
        return top.values[0], top.values[1]

    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens:
        right = self.engine.token(slot, len(continuation))
        gap = self.gap if len(continuation) == PARTS_AT else FAR_OFF
        rest = [-(2 + gap + i * (i + 1) / 2) * UNIT for i in range(18)]
        values, tokens = (0.0, -gap * UNIT, *rest), (right, other(right), *range(2000, 2018))
        return TopTokens(values[:count], tokens[:count])

    def ranked_again(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens:
        """The same tokens, with errors of half a unit."""
        top = self.ranked(slot, continuation, count)
        values = tuple(value + (UNIT if i % 2 else -UNIT) / 2 for i, value in enumerate(top.values))
        return replace(top, values=values)

    def close(self) -> None:
        self.engine.close()


class GoesOn(Diverging):
    """It can decode from any text on, too."""

    def follow(self, slot: int, continuation: Sequence[int], new_tokens: int) -> tuple[int, ...]:
        begin = len(continuation)
        return tuple(self.engine.token(slot, begin + i) for i in range(new_tokens))


def other(token: int) -> int:
    return 2 + (token - 1) % 998


@dataclass(frozen=True)
class Backend:
    name: str
    gap: int = 1
    engine: type[Diverging] = GoesOn
    wrong_behind: bool = False
    description: str = "parts"

    def available(self) -> Availability:
        return Availability(True, "needs nothing", rank=-1)

    def open(self, request: OpenRequest) -> Diverging:
        return self.engine(request, self.gap, self.wrong_behind)


NEAR, FAR = Backend("near"), Backend("far", gap=FAR_OFF)
SILENT, WRONG = Backend("silent", engine=Diverging), Backend("wrong", wrong_behind=True)


@pytest.fixture(autouse=True)
def let_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plugins.registered.cache_clear()
    names = {"near": "NEAR", "far": "FAR", "silent": "SILENT", "wrong": "WRONG"}
    here = [EntryPoint(name, f"{__name__}:{at}", "specgate.backends") for name, at in names.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: here if group == "specgate.backends" else [])
    yield
    plugins.registered.cache_clear()


def judged(cli: Cli, backend: str, ties: str) -> tuple[int, Run, dict[str, str]]:
    """(exit code, the run, role → reason code of its tokens)."""
    cli.scenario(spec=[3], budget=f"steps: {STEPS}")
    cli.write("policy.yaml", POLICY.replace("TIES", ties))
    done = cli.micro("--backend", backend)
    assert done.returncode in (0, 6), done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    return done.returncode, run, {v.cell.rpartition("/")[2]: v.reason_code for v in run.verdicts if v.gate == "tokens"}


@pytest.mark.parametrize("ties", [LAW, MARGIN])
def test_a_baseline_that_parts_at_a_near_tie_is_compared_with_how_it_goes_on(cli: Cli, ties: str) -> None:
    code, run, tokens = judged(cli, "near", ties)
    assert code == 0 and set(tokens.values()) <= {"deterministic", "tokens_equal"}, tokens
    (check,) = (c.tokens for c in run.comparisons)
    assert check.compared_tokens == check.emitted_tokens and check.whole_sets == (0, 1, 2, 3)
    baseline = next(c for c in run.cells if not c.cell.role.speculative)
    assert baseline.values["repeat_mismatches"].value == 0 and baseline.values["repeat_near_ties"].value == 4
    folder = RunFolder.open(cli.newest())
    longest = {s: max(len(t) for b in folder.lines(Block) if b.prompt_set == s for t in b.tokens) for s in range(4)}
    assert [t.prompt_set for t in folder.lines(BaselineText)] == [0, 0, 1, 1, 2, 2, 3, 3], (
        "what was decoded again, and what went on"
    )
    for text in folder.lines(BaselineText)[1::2]:
        assert max(map(len, text.tokens)) == longest[text.prompt_set]
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


@pytest.mark.parametrize(
    ("backend", "ties", "data"),
    [
        ("far", LAW, {"baseline": "nondeterministic", "spec-3": "text_not_compared"}),
        ("far", MARGIN, {"baseline": "nondeterministic", "spec-3": "text_not_compared"}),
        ("near", NONE, {"baseline": "nondeterministic", "spec-3": "text_not_compared"}),
        ("silent", LAW, {"baseline": "deterministic", "spec-3": "text_not_compared"}),
        ("wrong", LAW, {"baseline": "deterministic", "spec-3": "token_mismatch"}),
    ],
)
def test_what_no_near_tie_explains_stays_invalid(cli: Cli, backend: str, ties: str, data: dict[str, str]) -> None:
    code, _, tokens = judged(cli, backend, ties)
    assert (code, tokens) == (6, data)
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


@pytest.mark.parametrize(("backend", "opened"), [("silent", 1), ("near", 2)])
def test_an_engine_that_cannot_go_on_is_not_opened_again_to_be_asked(cli: Cli, backend: str, opened: int) -> None:
    """Continued as if the process had been killed before it wrote how the timed texts go on."""
    _, run, _ = judged(cli, backend, LAW)
    folder = cli.newest()
    assert {facts.follows for facts in run.engines.values()} == {backend == "near"}
    texts = folder / "samples" / "texts.jsonl"
    untimed = texts.read_text().splitlines(keepends=True)
    texts.write_text("".join(untimed[:: len(untimed) // 4]))
    as_if_killed(folder)
    done = cli.run("micro", "--resume", folder, pair=False)
    assert done.returncode == (0 if backend == "near" else 6), done.stdout + done.stderr
    assert len(list(folder.rglob("worker-*.log"))) == opened

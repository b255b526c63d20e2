"""The sweep over attention configurations, on an engine whose speeds are written down."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from specgate import plugins
from specgate.backends.eagle3.nouns.abilities import TunableEngine
from specgate.backends.eagle3.nouns.fmha import (
    AttentionConfig,
    PointSweep,
    RoleTrial,
    TileStatistics,
    Trial,
    parse_config,
)
from specgate.backends.eagle3.tuning.fmha_sweep import (
    SweepRequest,
    carry_out,
    disagreement,
    pair_of,
    prompts_of,
    read_grid,
    scenarios,
    shortened,
    sweep,
)
from specgate.contract import Budget, EngineFacts, Finish, PairRef, Point, Role
from specgate.contract.protocols import Availability, Decoded, OpenRequest
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.pairs.resolve import resolve_pair
from specgate.planning.scenario import find

BASELINE, SPEC = Role(0), Role(3)
DEFAULT, FAST, BROKEN, ODD = ({"kv_tile": tile, "warps": 4} for tile in (512, 256, 1024, 128))
STEP_NS = {512: 1000, 256: 800, 1024: 900, 128: 700}


class Scripted:
    """An engine whose step takes as long as `STEP_NS` says for its tile; tile 1024 breaks, 128 speculates wrongly."""

    def __init__(self) -> None:
        self.config: AttentionConfig = DEFAULT
        self.log = list[tuple[int, str]]()
        self.closed = False

    def facts(self) -> EngineFacts:
        facts: EngineFacts = SimpleNamespace(device="scripted")  # type: ignore[assignment]  # nothing else is asked
        return facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        self.batch = len(prompts)
        return 1

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        tile, steps = self.config["kv_tile"], budget.steps or 0
        if tile == 1024:
            raise BackendError("too much shared memory")
        self.log.append((tile, role.name))
        tokens = tuple(range(1 + steps * (1 if not role.k else 3)))
        if tile == 128 and role.k:
            tokens = (*tokens[:2], 99, *tokens[3:])
        accepted = tuple((2,) * self.batch if role.k else (0,) * self.batch for _ in range(steps))
        return Decoded(
            elapsed_ns=STEP_NS[tile] * steps,
            step_ns=(STEP_NS[tile],) * steps,
            tokens=(tokens,) * self.batch,
            accepted=accepted,
            drafted=tuple((role.k,) * self.batch for _ in range(steps)),
            truncated=(0,) * self.batch,
            finish=(Finish.STEPS,) * self.batch,
        )

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float]:
        return 1.0, 0.0

    def close(self) -> None:
        self.closed = True

    def attention_config(self) -> AttentionConfig:
        return DEFAULT

    def attention_configs(self) -> Sequence[AttentionConfig]:
        return [FAST, DEFAULT, BROKEN, ODD]

    def prepare_attention(self, configs: Sequence[AttentionConfig], roles: Sequence[Role]) -> Sequence[str | None]:
        return ["unknown knob" if "odd" in config else None for config in configs]

    def retile_attention(self, config: AttentionConfig) -> None:
        self.config = config

    def attention_tiles(self, role: Role) -> TileStatistics:
        return TileStatistics(total=10, span_empty=2, mask_empty=1, executed=7)


def swept(engine: Scripted, configs: Sequence[AttentionConfig], seconds: float = 60.0) -> tuple[Trial, ...]:
    engine.prefill([[1, 2]], draft=True)
    *_, last = sweep(engine, configs, [BASELINE, SPEC], 10, time.monotonic() + seconds)
    return last


def test_each_configuration_is_decoded_there_and_back_and_its_figures_are_of_all_stretches() -> None:
    engine = Scripted()
    assert isinstance(engine, TunableEngine)
    default, fast = swept(engine, [DEFAULT, FAST])
    assert [tile for tile, role in engine.log if role == "spec-3"] == [512, 512, 256, 256, 256, 256, 512, 512]
    assert default.roles["baseline"].tok_s == pytest.approx(1e9 / 1000)
    assert fast.roles["spec-3"].tok_s == pytest.approx(3e9 / 800)
    assert fast.roles["spec-3"].acceptance_length == 3.0 and fast.roles["baseline"].acceptance_length is None
    assert fast.roles["spec-3"].step_ms == pytest.approx(800e-6) and fast.roles["baseline"].tiles.executed == 7
    assert fast.score == pytest.approx(1e9 / 800)


def test_what_cannot_run_or_changes_tokens_has_failed_and_ends_nothing() -> None:
    broken, odd, unknown, fast = swept(Scripted(), [BROKEN, ODD, {"odd": 1}, FAST])
    assert broken.failed == "too much shared memory" and broken.score == 0
    assert odd.failed == "slot 0, token 2: spec-3 has 99, baseline 2"
    assert unknown.failed == "unknown knob"
    assert fast.failed is None and fast.score > 0


def test_nothing_is_begun_after_the_deadline() -> None:
    engine = Scripted()
    engine.prefill([[1]], draft=True)
    assert list(sweep(engine, [DEFAULT], [BASELINE], 10, time.monotonic() - 1)) == []


def test_tokens_are_compared_as_far_as_both_roles_go() -> None:
    def of(*tokens: int) -> Decoded:
        return Decoded(1, (1,), (tokens,), (), (), (0,), (Finish.STEPS,))

    assert disagreement({BASELINE: of(1, 2), SPEC: of(1, 2, 3)}) is None
    assert disagreement({BASELINE: of(1, 2), SPEC: of(1, 5, 3)}) == "slot 0, token 1: spec-3 has 5, baseline 2"


def trial(config: AttentionConfig, step_ms: float, tok_s: float = 1.0) -> Trial:
    return Trial(config, {"baseline": RoleTrial(tok_s, step_ms, None, TileStatistics(1, 0, 0, 1))})


def test_the_defaults_loss_is_its_distance_from_the_best() -> None:
    point = PointSweep("s", "p", 16, 1, 4, DEFAULT, (trial(DEFAULT, 1.0, tok_s=9.0), trial(FAST, 0.97)))
    assert point.best == trial(FAST, 0.97) and point.default_loss == pytest.approx(0.03)
    alone = PointSweep("s", "p", 16, 1, 4, DEFAULT, (Trial(DEFAULT, {}, "no"),))
    assert alone.best is None and alone.default_loss is None


class Backend:
    name, description = "scripted", "an engine whose speeds are written down"

    def __init__(self) -> None:
        self.engines = list[Scripted]()
        self.requests = list[OpenRequest]()

    def available(self) -> Availability:
        return Availability(True, "always")

    def open(self, request: OpenRequest) -> Scripted:
        self.requests.append(request)
        self.engines.append(Scripted())
        return self.engines[-1]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Backend:
    backend = Backend()
    monkeypatch.setattr(plugins, "backend", lambda name: backend)
    return backend


def request(out: Path, **changed: object) -> SweepRequest:
    fields: dict[str, object] = {
        "scenarios": ("cpu-1k-single", "cpu-512-batch4"), "pair": None, "configs": (), "steps": 6, "passes": 2,
        "backend": "scripted", "options": {}, "seconds": 60.0, "out": out,
    }  # fmt: skip
    return SweepRequest(**{**fields, **changed})  # type: ignore[arg-type]  # names checked by the dataclass


def test_a_sweep_is_written_with_the_best_and_what_the_default_loses(
    scripted: Backend, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "sweep.json"
    points = list(carry_out(request(out, pair=str(pair[0].parent))))
    record = json.loads(out.read_text())
    assert record["schema"] == "specgate.fmha-sweep/v1" and record["device"] == "scripted"
    assert [(p["scenario"], p["batch"]) for p in record["points"]] == [("cpu-1k-single", 1), ("cpu-512-batch4", 4)]
    for stored, point in zip(record["points"], points, strict=True):
        assert stored["best"] == FAST and stored["default"] == DEFAULT
        assert stored["default_loss"] == pytest.approx(1 - 800 / 1000) == point.default_loss
        assert [t["config"] for t in stored["trials"]] == [DEFAULT, FAST, BROKEN, ODD]
        assert [t["failed"] is None for t in stored["trials"]] == [True, True, False, False]
        assert stored["trials"][1]["roles"]["spec-3"]["tiles"]["executed"] == 7
    assert all(engine.closed for engine in scripted.engines)
    assert [r.max_batch for r in scripted.requests] == [1, 4]


def test_a_sweep_without_time_opens_no_engine(scripted: Backend, pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert list(carry_out(request(tmp_path / "s.json", pair=str(pair[0].parent), seconds=-1.0))) == []
    assert scripted.engines == []


# ── what is swept ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["", "kv_tile", "kv_tile:", "kv_tile:a", "kv_tile:1,kv_tile:2", "kv_tile:-1", ":3"])
def test_a_configuration_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="KNOB:NUMBER"):
        parse_config(text)


def test_a_grid_is_every_combination_of_its_values(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("schema: specgate.fmha-grid/v1\ngrid: {kv_tile: [256, 512], warps: [2, 4]}\n")
    assert read_grid(file) == tuple(parse_config(f"kv_tile:{t},warps:{w}") for t in (256, 512) for w in (2, 4))
    for wrong in ("grid: {}", "grid: {kv_tile: []}", "grid: {kv_tile: [a]}", "tiles: [1]"):
        file.write_text(f"schema: specgate.fmha-grid/v1\n{wrong}\n")
        with pytest.raises(UsageError, match=r"grid\.yaml:"):
            read_grid(file)


def test_without_names_both_regimes_are_swept_on_the_pair_that_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise EnvironmentRefused("not fetched")

    monkeypatch.setattr("specgate.backends.eagle3.tuning.fmha_sweep.resolve_pair", missing)
    assert [s.name for s, pair in scenarios(()) if pair is None] == ["micro-8b-16k-b4", "micro-8b-32k-single"]
    demo = PairRef("demo", Path("target"), Path("draft"))
    monkeypatch.setattr("specgate.backends.eagle3.tuning.fmha_sweep.resolve_pair", lambda *arguments: demo)
    assert [(s.name, pair) for s, pair in scenarios(())] == [("micro-16k-b4", demo), ("micro-32k-single", demo)]


def test_budgets_are_of_steps_and_only_shortened() -> None:
    assert shortened(find("micro-16k-b4"), None).budget.steps == 128
    assert shortened(find("micro-16k-b4"), 20).budget.steps == 20
    assert shortened(find("micro-16k-b4"), 2000).budget.steps == 128
    with pytest.raises(UsageError, match="--steps"):
        shortened(find("full-16k-b4"), None)
    assert shortened(find("full-16k-b4"), 9).budget.steps == 9


def test_prompts_of_a_random_source_differ_and_are_as_long_as_asked(pair: tuple[Path, Path]) -> None:
    named = resolve_pair(str(pair[0].parent), None, None)
    scenario = find("micro-8b-16k-b4")
    point = Point(scenario.name, "cupy", context=100, batch=3)
    prompts = prompts_of(scenario, point, named)
    assert [len(p) for p in prompts] == [100] * 3 and len(set(prompts)) == 3


def test_a_scenarios_rope_belongs_to_its_own_pair_only(pair: tuple[Path, Path]) -> None:
    scenario = find("micro-16k-b4")
    assert scenario.rope is not None
    own = resolve_pair(str(pair[0].parent), None, None)
    assert pair_of(scenario, None, own).rope == scenario.rope_keys
    assert pair_of(scenario, str(pair[0].parent), None).rope is None

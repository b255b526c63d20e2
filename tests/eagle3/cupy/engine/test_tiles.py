from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.tiles import config_of, counted_tiles
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.contract import Budget, Role
from specgate.contract.samples.counters import FMHA_TILES
from specgate.errors import UsageError
from tests.eagle3.cupy.bench.staged import no_launches, staged


def test_knobs_that_are_not_named_keep_their_default() -> None:
    assert config_of({"kv_tile": 256}) == FmhaConfig(kv_tile=256)
    assert config_of({}) == FmhaConfig()


@pytest.mark.parametrize(("knobs", "message"), [({"tile": 1}, "no knob 'tile'"), ({"kv_tile": 100}, "multiple of 64")])
def test_a_knob_or_value_that_attention_does_not_have_is_refused(knobs: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config_of(knobs)


def test_all_attention_of_a_step_runs_again_to_count_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = no_launches(monkeypatch)
    stage = staged(2, device="cpu", context=64)
    launched.clear()
    assert set(counted_tiles(stage.cycle, stage.b, stage.reset).values()) == {0}
    of_a_step = stage.geometry.target.layers + 2
    assert launched.count("attention") == 2 * of_a_step and launched.count("commit") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("config", [FmhaConfig(128, 2, 2), FmhaConfig(1024, 4, 3)], ids=str)
def test_an_engine_counts_its_tiles_and_speculates_the_same_tokens_however_its_attention_is_tiled(
    config: FmhaConfig,
) -> None:
    from tests.eagle3.cupy.gpu_pairs import RECIPE_A, checkpoints, engine_of, random_prompts, shape

    engine = engine_of(*checkpoints(shape(8, 2, 64), RECIPE_A), Sizes(2, 2048, 4, config))
    engine.prefill(random_prompts([700, 900]), draft=True)
    engine.counts_tiles = True
    plain, drafted = (engine.decode(role, Budget(steps=12), ()) for role in (Role(0), Role(3)))
    for want, got in zip(plain.tokens, drafted.tokens, strict=True):
        assert got[: len(want)] == want[: len(got)]
    for decoded in (plain, drafted):
        total, *parts = (decoded.counters[name] for name in FMHA_TILES.values())
        assert total == sum(parts) and parts[-1] > 0
    assert drafted.counters[FMHA_TILES["total"]] > plain.counters[FMHA_TILES["total"]]
    engine.counts_tiles = False
    again = engine.decode(Role(3), Budget(steps=12), ())
    assert again.tokens == drafted.tokens and FMHA_TILES["total"] not in again.counters
    torch.cuda.synchronize()

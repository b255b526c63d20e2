from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.retile import attention_specs, config_of, counted_tiles, retiled_buffers
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import (
    FmhaConfig,
)
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, tensors_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.contract import Budget, Role
from specgate.errors import UsageError
from tests.eagle3.cupy.bench.staged import no_launches, staged
from tests.eagle3.cupy.pairs import DRAFT, TARGET


def test_knobs_that_are_not_named_keep_their_default() -> None:
    assert config_of({"kv_tile": 256}) == FmhaConfig(kv_tile=256)
    assert config_of({}) == FmhaConfig()


@pytest.mark.parametrize(("knobs", "message"), [({"tile": 1}, "no knob 'tile'"), ({"kv_tile": 100}, "multiple of 64")])
def test_a_knob_or_value_that_attention_does_not_have_is_refused(knobs: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config_of(knobs)


def test_only_the_workspaces_of_attention_are_made_anew() -> None:
    sizes = Sizes(2, 4096, 4, FmhaConfig(512))
    b = Buffers.allocate(TARGET, DRAFT, sizes, "cpu")
    cut = retiled_buffers(b, TARGET, DRAFT, Sizes(2, 4096, 4, FmhaConfig(128)))
    assert b.draft is not None and cut.draft is not None
    made = {id(t) for t in tensors_of(cut)} - {id(t) for t in tensors_of(b)}
    assert made == {id(t) for t in (*cut.target.layer.partial, *cut.draft.layer.partial)}
    for before, after in ((b.target.layer, cut.target.layer), (b.draft.layer, cut.draft.layer)):
        assert [4 * len(t) for t in before.partial] == [len(t) for t in after.partial]


def test_all_attention_of_a_step_runs_again_to_count_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = no_launches(monkeypatch)
    stage = staged(2, device="cpu", context=64)
    launched.clear()
    assert set(asdict(counted_tiles(stage.cycle, stage.b, stage.reset)).values()) == {0}
    of_a_step = stage.geometry.target.layers + 2
    assert launched.count("attention") == 2 * of_a_step and launched.count("commit") == 1
    constants = [dict(spec.constants)["STATISTICS"] for spec in attention_specs(stage.cycle)]
    assert constants == ["0", "1"] * 3


@pytest.mark.gpu
def test_an_engine_decodes_the_same_greedy_tokens_however_its_attention_is_tiled() -> None:
    from tests.eagle3.cupy.gpu_pairs import RECIPE_A, checkpoints, engine_of, random_prompts, shape

    engine = engine_of(*checkpoints(shape(8, 2, 64), RECIPE_A), Sizes(2, 2048, 4))
    engine.prefill(random_prompts([700, 900]), draft=True)
    roles = [Role(0), Role(3)]
    configs = [{"kv_tile": 128, "warps": 2, "stages": 2}, {"kv_tile": 1024, "warps": 4, "stages": 3}]
    assert engine.prepare_attention(configs, roles) == [None, None]
    for config in configs:
        engine.retile_attention(config)
        assert engine.attention_config() == config
        plain, drafted = (engine.decode(role, Budget(steps=12), ()) for role in roles)
        for want, got in zip(plain.tokens, drafted.tokens, strict=True):
            assert got[: len(want)] == want[: len(got)]
        tiles = [engine.attention_tiles(role) for role in roles]
        for of_role in tiles:
            assert of_role.total == of_role.span_empty + of_role.mask_empty + of_role.executed
            assert of_role.executed > 0
        assert tiles[1].total > tiles[0].total
        again = engine.decode(roles[1], Budget(steps=12), ())
        assert again.tokens == drafted.tokens
    torch.cuda.synchronize()

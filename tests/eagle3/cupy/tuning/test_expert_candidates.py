from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.backends.eagle3.cupy.device import Multiprocessors
from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.tuning import expert_weight
from specgate.backends.eagle3.cupy.tuning.expert_weight import candidates, fits, retilings

# gpt-oss whole and in halves, and sizes that divide by little.
PUBLISHED = [(5760, 2880), (2880, 2880), (2880, 1440)]
SIZES = [*PUBLISHED, (128, 512), (512, 64), (96, 160)]
H200 = Multiprocessors(132, 228 * 1024, (9, 0))


@pytest.fixture(params=[None, H200], ids=["no GPU", "H200"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Multiprocessors | None:
    """Whose limits hold."""
    if request.param is not None:
        monkeypatch.setattr(expert_weight, "multiprocessors", lambda: request.param)
        for module in (expert_weight, expert_config):
            monkeypatch.setattr(module, "shared_memory_limit", lambda: 226 * 1024)
    gpu: Multiprocessors | None = request.param
    return gpu


def usual(n: int, k: int) -> ExpertConfig:
    return ExpertConfig.usual(k, n // TILE, 2)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_candidates_are_possible_each_once_and_fit(n: int, k: int, gpu: Multiprocessors | None) -> None:
    configs = candidates(n, k)
    assert len(set(configs)) == len(configs) > 0
    for config in configs:
        assert config.columns == k and config.possible(n // TILE) and config.fitted() == config
        assert ExpertConfig.from_stored(config.stored(), k) == config
        if gpu is not None:
            assert config.room * (config.shared_bytes + 1024) <= gpu.shared_memory
            assert config.room * config.warps * 32 <= 2048


# By hand: 2880 columns are 45 slabs, 1440 are 23. Four to nine warps leave few places of 45 empty; four, five, six
# and eight of 23. But where a warp has five slabs (nine warps of 45, five of 23) or seven (seven of 45), its ring holds
# one, with which too little is on its way, or all. Rings of five and of seven are left out, since some spill.
WARPS_OF = {2880: {4, 5, 6, 8}, 1440: {4, 6, 8}}


@pytest.mark.parametrize(("n", "k"), PUBLISHED)
def test_for_gpt_oss_there_are_several_ways_to_split_k_and_the_usual_one_is_among_them(
    n: int, k: int, gpu: Multiprocessors | None
) -> None:
    configs = candidates(n, k)
    assert usual(n, k) in configs and {config.split for config in configs} == {(warps,) for warps in WARPS_OF[k]}
    assert len({config.tiles for config in configs}) >= 2 and len({config.room for config in configs}) >= 2


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_work_is_moved_without_another_split(n: int, k: int, gpu: Multiprocessors | None) -> None:
    config = usual(n, k)
    moved = retilings(config, n)
    assert config in moved and {other.split for other in moved} == {config.split}
    assert all(other.possible(n // TILE) and fits(other) and other.blocks_per_sm <= other.room for other in moved)
    assert len({(other.room, other.blocks_per_sm) for other in moved}) > 3


def test_what_no_gpu_has_room_for_is_no_candidate() -> None:
    config = usual(5760, 2880)
    assert fits(config) and not fits(replace(config, ring=9, tiles=3)) and not fits(replace(config, room=4, warps=9))

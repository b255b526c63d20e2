from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.bench.run import SMALL, Group, groups_of, rotation, tag_of
from specgate.backends.eagle3.cupy.bench.timing import TIMES_L2
from tests.eagle3.cupy.bench.staged import no_launches, staged

CACHE = 1 << 20


def groups(k: int) -> list[Group]:
    stage = staged(k, slots=2, context=1024, device="cpu")
    return groups_of(stage.calls, stage.context)


def test_operands_take_turns_beyond_the_cache_unless_they_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    monkeypatch.setattr("specgate.backends.eagle3.cupy.bench.run.SMALL", 10_000)
    for group in groups(3):
        launches = rotation(group, CACHE)
        if group.account.size >= 10_000:
            assert len(launches) * group.account.size >= TIMES_L2 * CACHE
            largest = [max(launch.tensors, key=lambda t: t.nbytes) for launch in launches]
            if largest[0].nbytes <= 2 * group.account.size:
                assert len({t.data_ptr() for t in largest}) == len(largest), group.tag
        elif group.tag != "COMMIT_REWIND":
            assert launches == list(group.launches)


def test_copies_hold_what_the_originals_hold_and_share_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    made = next(g for g in groups(3) if g.tag == "EAGLE3_TOKEN").launches[0]
    small = sorted(t.nbytes for t in made.tensors)[-2]
    copy = made.copied(small)
    for mine, theirs in zip(copy.arguments.values(), made.arguments.values(), strict=True):
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            assert torch.equal(mine, theirs)
            assert (mine is theirs) == (theirs.nbytes > small)
        else:
            assert mine == theirs


def test_a_commit_moves_a_state_of_its_own_on(monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    group = next(g for g in groups(0) if g.tag == "COMMIT_REWIND")
    launches = rotation(group, CACHE)
    lengths = {launch.tensors[0].data_ptr() for launch in launches}
    assert len(lengths) == len(launches) > 1
    assert group.launches[0].tensors[0].data_ptr() not in lengths
    assert group.account.size < SMALL


@pytest.mark.parametrize(
    ("path", "tag"),
    [
        ("verify.layer.qkv", "TARGET_QKV"),
        ("verify.layer.gate_up", "TARGET_FFN_GATE_UP"),
        ("chain.step.down", "EAGLE3_FFN_DOWN"),
        ("chain.extension.attention", "EAGLE3_ATTENTION"),
        ("chain.lm_head", "EAGLE3_LM_HEAD_SMALLVOC"),
        ("verify.lm_head", "TARGET_LM_HEAD"),
        ("somewhere.new", "somewhere.new"),
    ],
)
def test_a_launcher_is_called_what_it_does_in_a_step(path: str, tag: str) -> None:
    assert tag_of(path) == tag

"""The benchmark of kernels over caches of codes: what attention moves, and how it is checked."""

from __future__ import annotations

from typing import Any

import pytest

from specgate.backends.eagle3.cupy.bench.accounts import account
from specgate.backends.eagle3.cupy.bench.run import bench_kernels
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.heads import OUTER_BYTES
from specgate.backends.eagle3.lib.kv.modes import KvModes
from specgate.backends.eagle3.nouns.kernel_bench import KernelBenchRequest
from specgate.contract import PairRef, Role
from specgate.errors import UsageError
from tests.eagle3.cupy.bench.staged import no_launches, staged
from tests.eagle3.cupy.kernels.codes.caches import CODES
from tests.pairs.tiny import write_random_pair

BOTH = [KvModes(mode, mode) for mode in CODES]


@pytest.mark.parametrize("kv", BOTH, ids=CODES)
def test_attention_moves_each_code_and_each_scale_once(monkeypatch: pytest.MonkeyPatch, kv: KvModes) -> None:
    """But for the outer scales of a slot, which are a few bytes."""
    no_launches(monkeypatch)
    slots, context = 3, 704
    stage = staged(3, slots, context, kv=kv)
    target = [call for call in stage.calls if isinstance(call.kernel, Attention)][-1]
    block = sum(target.operands[name][0].nbytes for name in ("k_pages", "v_pages", "scales"))
    if kv.target == "nvfp4":
        block -= OUTER_BYTES * target.operands["k_pages"].shape[1]
    new = slots * 4
    projections = target.operands["qkv"][:new].nbytes
    assert account(target, context)["attention"].size == slots * context * block / 64 + new * block / 64 + projections


def test_options_that_no_kernel_is_timed_for_are_refused(tmp_path: Any) -> None:
    pair = PairRef("p", *write_random_pair(tmp_path, seed=1))
    for options, text in (
        ({"graphs": "off"}, r"option graphs: not of the benchmark of kernels\n  known: kv, draft_kv"),
        ({"kv": "fp4"}, r"option kv = 'fp4'\n  known: bf16, fp8, nvfp4"),
        ({"draft_kv": "e5m2"}, r"option draft_kv = 'e5m2'\n  known: bf16, fp8, nvfp4"),
        ({"tree": "absent.yaml"}, r"absent\.yaml: "),
        ({"tree": "dynamic:100"}, r"option tree = dynamic:100: 100 draft tokens; back end cupy verifies at most 63"),
        ({"tree_width": "4"}, r"option tree_width"),
    ):
        with pytest.raises(UsageError, match=text):
            bench_kernels(KernelBenchRequest(pair, 128, 1, (Role(0), Role(3)), options))

"""One step of the engine: reserve, draft, verify, accept, commit. A baseline step has K = 0 and does not draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.launchers import Commit, KVReserve
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.chain import Chain, Drafting
from specgate.backends.eagle3.cupy.step.partial import PLAIN, Kind
from specgate.backends.eagle3.cupy.step.tree import Tree
from specgate.backends.eagle3.cupy.step.verification import VERIFICATIONS
from specgate.backends.eagle3.cupy.step.verify import Verify
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Configurations, Gemms
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED


def drafting_of(draft: Draft | None, sizes: Sizes, slots: int, k: int, gemms: Gemms) -> Drafting:
    """Return what spec-`k` drafts: nothing, a chain, or a tree's first levels. Raises ValueError without a draft."""
    if not k:
        return Drafting()
    if draft is None:
        raise ValueError(f"spec-{k} without a draft")
    shape = sizes.tree_of(k)
    return Tree(draft, sizes, slots, shape, gemms) if shape else Chain(draft, sizes, slots, k, gemms)


class Cycle:
    """A step of spec-`k` over `slots` slots: a drafting, a verification and a choice. Calling it makes the launches;
    it allocates, reads and awaits nothing.
    """

    def __init__(
        self,
        target: Target,
        draft: Draft | None,
        sizes: Sizes,
        slots: int,
        k: int,
        tuned: Configurations = NOTHING_TUNED,
        kind: Kind = PLAIN,
    ) -> None:
        """`tuned`: where the configurations of its products are looked up. `kind`: how it verifies. Raises ValueError
        for K without a draft, and for a part of the cache where the sizes have none.
        """
        if kind != PLAIN and (not k or sizes.partial is None):
            raise ValueError(f"spec-{k} is not verified in part: it takes drafts, and sizes that say what a part is")
        self.slots, self.k = slots, k
        self.gemms, self.way = Gemms(tuned, sizes.largest_step), VERIFICATIONS[kind](target, sizes, k)
        self.rows, self.reserved = self.way.rows, self.way.reserved
        self.reserve = KVReserve(sizes.slots, self.reserved, sizes.positions, sizes.max_blocks, sizes.blocks)
        self.drafting = drafting_of(draft, sizes, slots, k, self.gemms)
        self.verify = Verify(target, sizes, slots, self.gemms, self.way, draft if k else None)
        self.commit = Commit(sizes.slots, sizes.max_rows, sizes.positions, sizes.max_blocks, sizes.most_emitted)

    @property
    def name(self) -> str:
        return f"EAGLE_CYCLE_SPEC_{self.k}" if self.k else "BASE_DECODE_STEP"

    def kernels(self) -> Mapping[str, Kernel]:
        """Every launcher of the step by its path, such as `verify.layer.qkv`, in stream order.

        A launcher that a step calls several times stands where it is called first.
        """
        return {
            "reserve": self.reserve,
            **{f"{self.drafting.name}.{path}": kernel for path, kernel in self.drafting.kernels().items()},
            **{f"verify.{path}": kernel for path, kernel in self.verify.kernels().items()},
            "commit": self.commit,
        }

    def reserve_blocks(self, b: Buffers) -> None:
        """For all rows, which begin where the verification says."""
        self.reserve(b.kv, replace(b.slots, length=self.way.begins(b)))

    def __call__(self, b: Buffers) -> None:
        rows = b.slots.rows(self.slots, self.rows)
        with mark(self.name):
            with mark("EAGLE_KV_RESERVE"):
                self.reserve_blocks(b)
            self.drafting(b)
            self.verify(b, rows)
            with mark("EAGLE_ACCEPT"):
                self.verify.settle(b, rows)
            with mark("EAGLE_TAIL_COMMIT"):
                self.commit(b.kv, b.slots)

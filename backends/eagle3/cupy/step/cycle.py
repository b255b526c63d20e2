"""One step of the engine: reserve, draft, verify, accept, commit. A baseline step has K = 0 and does not draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.launchers import Commit, KVReserve
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.chain import Chain
from specgate.backends.eagle3.cupy.step.partial import FULL, PLAIN, Kind
from specgate.backends.eagle3.cupy.step.tree import Tree
from specgate.backends.eagle3.cupy.step.verify import Verify
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Configurations, Gemms
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED


class Cycle:
    """A step of spec-`k` over `slots` slots: of a chain, or of the first k levels of the sizes' tree. Calling it makes
    the launches; it allocates, reads and awaits nothing.
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
        if k and draft is None:
            raise ValueError(f"spec-{k} without a draft")
        if kind != PLAIN and (not k or sizes.partial is None):
            raise ValueError(f"spec-{k} is not verified in part: it takes drafts, and sizes that say what a part is")
        self.slots, self.k, self.kind = slots, k, kind
        self.gemms = Gemms(tuned)
        shape, self.rows = sizes.tree_of(k), sizes.full_rows_of(k) if kind == FULL else sizes.rows_of(k)
        self.reserved = sizes.reserved_of(k) if kind == FULL or sizes.partial is None else self.rows
        self.reserve = KVReserve(sizes.slots, self.reserved, sizes.positions, sizes.max_blocks, sizes.blocks)
        self.tree = Tree(draft, sizes, slots, shape, self.gemms) if draft and shape else None
        self.chain = Chain(draft, sizes, slots, k, self.gemms) if draft and k and not shape else None
        verified = draft if k else None
        self.verify = Verify(
            *(target, sizes, slots, self.rows, self.gemms, verified),
            tree=shape is not None,
            kind=kind,
            k=None if shape else k,
        )
        self.commit = Commit(sizes.slots, sizes.max_rows, sizes.positions, sizes.max_blocks, sizes.most_emitted)

    @property
    def name(self) -> str:
        return f"EAGLE_CYCLE_SPEC_{self.k}" if self.k else "BASE_DECODE_STEP"

    def kernels(self) -> Mapping[str, Kernel]:
        """Every launcher of the step by its path, such as `verify.layer.qkv`, in stream order.

        A launcher that a step calls several times stands where it is called first.
        """
        chain = self.chain.kernels() if self.chain else {}
        tree = self.tree.kernels() if self.tree else {}
        return {
            "reserve": self.reserve,
            **{f"chain.{path}": kernel for path, kernel in chain.items()},
            **{f"tree.{path}": kernel for path, kernel in tree.items()},
            **{f"verify.{path}": kernel for path, kernel in self.verify.kernels().items()},
            "commit": self.commit,
        }

    def reserve_blocks(self, b: Buffers) -> None:
        """For all rows: those of a full verification begin where the positions end that an earlier one has seen."""
        replayed = b.partial if self.kind == FULL else None
        self.reserve(b.kv, replace(b.slots, length=replayed.verified) if replayed else b.slots)

    def __call__(self, b: Buffers) -> None:
        rows = b.slots.rows(self.slots, self.rows)
        with mark(self.name):
            with mark("EAGLE_KV_RESERVE"):
                self.reserve_blocks(b)
            if self.chain:
                self.chain(b)
            if self.tree:
                self.tree(b)
            self.verify(b, rows)
            with mark("EAGLE_ACCEPT"):
                self.verify.settle(b, rows)
            with mark("EAGLE_TAIL_COMMIT"):
                self.commit(b.kv, b.slots)

"""Count how the attention kernels of a step use the tiles of the cache, beside its blocks (option `tile_stats`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.decoding import DecodingEngine
from specgate.backends.eagle3.cupy.kernels.attention.attention import STATISTICS, Attention
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.recording import recorded
from specgate.backends.eagle3.nouns.fmha import AttentionConfig
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.protocols import Decoded
from specgate.contract.samples.counters import FMHA_TILES
from specgate.errors import BackendError, UsageError


class TileCountingEngine(DecodingEngine):
    """An engine that, if `counts_tiles`, counts attention's tiles after each decode run, which cannot be extended."""

    counts_tiles = False

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """As `DecodingEngine.decode`; the tiles of one step that follows the prompts are counters of the run."""
        decoded = super().decode(role, budget, stop_token_ids)
        if not self.counts_tiles or not decoded.step_ns:
            return decoded
        as_ran = role if self.draft_error is None else BASELINE
        tiles = {FMHA_TILES[use]: count for use, count in self.attention_tiles(as_ran).items()}
        return replace(decoded, counters={**decoded.counters, **tiles})

    @torch.inference_mode()
    def attention_tiles(self, role: Role) -> Mapping[str, int]:
        """Tiles of all attention kernels of one step that follows the prompts, by their use.

        Raises BackendError where several GPUs share the target: the ranks of a step wait for each other.
        """
        if len(self.ranks) > 1:
            raise BackendError(f"attention's tiles are counted with tp=1 only, not with tp={len(self.ranks)}")
        prefilled, self._last_role = self._check_room(role, Budget(steps=1)), None
        rule = StopRule((), (), self.sizes.positions)
        cycle = Cycle(self.target, self.draft, self.sizes, len(prefilled.prompts), role.k, self.tuned)
        with self.stream.current():
            return counted_tiles(cycle, self.b, lambda: prefilled.rewind(self.b, rule))


def config_of(knobs: AttentionConfig) -> FmhaConfig:
    """The default configuration, but with `knobs`. Raises UsageError for names and values that do not exist."""
    known = [field.name for field in fields(FmhaConfig)]
    if unknown := [name for name in knobs if name not in known]:
        raise UsageError(f"attention has no knob {unknown[0]!r}", hint=f"known: {', '.join(known)}")
    try:
        return FmhaConfig(**knobs)
    except ValueError as error:
        raise UsageError(f"attention: {error}") from error


def counting(kernel: Attention) -> Attention:
    """The same launcher, made to count its tiles."""
    return Attention(
        kernel.heads,
        kernel.rows_per_slot,
        kernel.window,
        appended=kernel.appended,
        config=kernel.config,
        statistics=True,
        sinks=kernel.sinks,
        tree=kernel.tree,
        kept=kernel.kept,
    )


def counted_tiles(cycle: Cycle, b: Buffers, rewind: Callable[[], None]) -> dict[str, int]:
    """Count how the tiles of all attention of one step of `cycle` are used. `rewind` puts `b` to where the step begins.

    A step runs first. Then its attention runs again, counting, on what the step has left in its buffers. That is
    allowed, because the use of tiles depends on lengths alone, and because every step first writes the positions that
    attention writes here.
    """
    counted = torch.zeros(len(STATISTICS), dtype=torch.int32, device=b.slots.length.device)
    rewind()
    with recorded(cycle) as calls:
        cycle(b)
    rewind()
    cycle.reserve_blocks(b)
    for call in calls:
        if isinstance(call.kernel, Attention):
            out, qkv, rows, groups, operands = (
                call.named[name] for name in ("out", "qkv", "rows", "groups", "operands")
            )
            counting(call.kernel)(out, qkv, rows, *groups, **{**operands, "statistics": counted, "finished": None})
    return dict(zip(STATISTICS, counted.tolist(), strict=True))

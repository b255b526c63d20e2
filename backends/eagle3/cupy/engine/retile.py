"""Another tiling of attention for a loaded engine: its configuration by name, its workspaces, the use of its tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace

import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.decoding import DecodingEngine
from specgate.backends.eagle3.cupy.kernels.attention.attention import STATISTICS, Attention
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.compiling import compiler
from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.backends.eagle3.cupy.memory.buffers import (
    Buffers,
    LayerBuffers,
    draft_attention,
    partial_attentions,
    target_attention,
    workspace,
)
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.recording import recorded
from specgate.backends.eagle3.lib.specpv import SPECPV
from specgate.backends.eagle3.nouns.fmha import AttentionConfig, TileStatistics
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract import Budget, Role
from specgate.errors import BackendError, UsageError


class RetilingEngine(DecodingEngine):
    """Another tiling of attention while the prompts stay in the cache, as
    `eagle3.nouns.abilities.TunableEngine` has it.
    """

    def attention_config(self) -> AttentionConfig:
        return asdict(self.sizes.fmha)

    def attention_configs(self) -> Sequence[AttentionConfig]:
        return [asdict(config) for config in FmhaConfig.candidates(self.sizes.heads(self.target.geometry))]

    def prepare_attention(self, configs: Sequence[AttentionConfig], roles: Sequence[Role]) -> Sequence[str | None]:
        """Compile for all slots, in parallel. For each configuration, the compiler's first complaint, or None.

        Raises UsageError where chains are verified in part: those verifications have a tiling of their own.
        """
        if self.sizes.partial is not None:
            raise UsageError(f"option {SPECPV}: attention is tiled anew in engines without it", hint="leave it out")
        specs = []
        for config in configs:
            sizes = replace(self.sizes, fmha=config_of(config))
            cycles = (Cycle(self.target, self.draft, sizes, self.sizes.slots, role.k, self.tuned) for role in roles)
            specs.append([spec for cycle in cycles for spec in attention_specs(cycle)])
        with compiler() as compiling:
            complaints = compiling.compile(spec for of_config in specs for spec in of_config)
        return [next((complaints[spec] for spec in of_config if complaints[spec]), None) for of_config in specs]

    def retile_attention(self, config: AttentionConfig) -> None:
        """Decode with `config` from now on. Steps will be captured anew; the prompts stay in the cache."""
        self._last_role = None
        self.sizes = replace(self.sizes, fmha=config_of(config))
        draft = self.draft.geometry if self.draft else None
        for rank in self.ranks:
            rank.sizes = self.sizes
            rank.forget_steps()
            rank.b = retiled_buffers(rank.b, rank.target.geometry, draft, self.sizes)

    @torch.inference_mode()
    def attention_tiles(self, role: Role) -> TileStatistics:
        """Raises BackendError where several GPUs share the target: the ranks of a step wait for each other."""
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


def retiled_buffers(b: Buffers, target: TargetGeometry, draft: DraftGeometry | None, sizes: Sizes) -> Buffers:
    """`b` with other workspaces, which attention needs under `sizes`. Everything else stays where it is."""

    def layer_of(part: LayerBuffers, attention: Attention, beside: Sequence[Attention] = ()) -> LayerBuffers:
        return replace(part, partial=workspace(attention, sizes.slots, part.stream.device, beside))

    beside = partial_attentions(target, sizes)
    whole = layer_of(b.target.layer, target_attention(target, sizes), beside)
    retiled = replace(b, target=replace(b.target, layer=whole))
    if b.draft is None or draft is None:
        return retiled
    return replace(retiled, draft=replace(b.draft, layer=layer_of(b.draft.layer, draft_attention(draft, sizes))))


def attention_specs(cycle: Cycle) -> Iterator[Spec]:
    """Return the specs that are compiled for the attention of `cycle`: each launcher as it is, and made to count its
    tiles.
    """
    for kernel in cycle.kernels().values():
        if isinstance(kernel, Attention):
            yield kernel.spec
            yield counting(kernel).spec


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


def counted_tiles(cycle: Cycle, b: Buffers, rewind: Callable[[], None]) -> TileStatistics:
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
            counting(call.kernel)(**call.named, statistics=counted)
    return TileStatistics(**dict(zip(STATISTICS, counted.tolist(), strict=True)))

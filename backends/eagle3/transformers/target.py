"""A model of transformers as `backends.reference.loop.Target`: its own forward pass, over slots at any positions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from specgate.backends.eagle3.transformers.ragged_cache import RaggedCache, rows_at
from specgate.errors import CheckpointError

FEW_ROWS: Final = 1024
"""Rows of a prompt in one pass, where a pass over all of them would have a mask of rows by positions."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a target that a draft depends on (`checkpoints.geometry.TargetSizes`)."""

    layers: int
    hidden: int
    vocab: int
    max_positions: int


class TransformersTarget:
    """`model`, on `device`, with a cache for `max_batch` slots of `max_positions`.

    `prefill_rows`: rows of a prompt in one pass. None for whole prompts under `sdpa` where every layer attends to all
    positions, which takes no mask; `FEW_ROWS` otherwise.

    Raises CheckpointError for a model whose layers, embedding or LM head are not found, or cannot be rewound.
    """

    def __init__(
        self,
        model: Any,
        eos_token_ids: Sequence[int],
        *,
        max_batch: int,
        max_positions: int,
        device: str,
        prefill_rows: int | None,
    ) -> None:
        if getattr(model, "_is_stateful", False):
            raise CheckpointError(f"{model.config.model_type}: its state cannot be rewound when drafts are rejected")
        self.model, self.device, self.eos_token_ids = model, device, eos_token_ids
        self.cache = RaggedCache(model.config, max_batch, max_positions)
        whole = model.config._attn_implementation == "sdpa" and not self.cache.windowed
        self.prefill_rows = prefill_rows or (max_positions if whole else FEW_ROWS)
        self.layers = decoder_layers(model)
        self.embed, self.lm_head = matrix(model, "input"), matrix(model, "output")
        takes = inspect.signature(model.forward).parameters
        self._keeps = "logits_to_keep" in takes
        self._cache_name = "cache" if "cache" in takes else "past_key_values"  # renamed in transformers 5.24

    def forward(
        self,
        slots: slice,
        tokens: Tensor,
        positions: Tensor,
        boundaries: Sequence[int],
        rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `loop.Target.forward`. What `logits` takes are the model's own logits [B, len(rows), V]."""
        self.cache.begin(slots, positions)
        keep = None if rows is None else torch.tensor(list(rows), device=tokens.device)
        with rows_at(positions), captured(self.layers, boundaries) as streams:
            options: dict[str, Any] = {self._cache_name: self.cache}
            if self._keeps and keep is not None:
                options["logits_to_keep"] = keep
            logits = self.model(input_ids=tokens, position_ids=positions, use_cache=True, **options).logits
        if keep is not None and not self._keeps:
            logits = logits[:, keep]
        if not boundaries:
            return logits, None
        return logits, torch.cat([streams[b] for b in boundaries], dim=-1).to(self.embed.dtype)

    def logits(self, stream: Tensor) -> Tensor:
        """The model's logits, in float32."""
        return stream.float()


@contextmanager
def captured(layers: Sequence[nn.Module], boundaries: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Boundary → the residual stream there [B, T, H] of the pass within. Boundary b is the stream after b layers (0:
    the embedding).
    """
    streams = dict[int, Tensor]()

    def keep_output(boundary: int) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            streams[boundary] = output if isinstance(output, Tensor) else output[0]

        return hook

    def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        streams[0] = args[0] if args else kwargs["hidden_states"]

    with ExitStack() as hooks:
        for b in boundaries:
            handle = (
                layers[b - 1].register_forward_hook(keep_output(b))
                if b
                else layers[0].register_forward_pre_hook(keep_input, with_kwargs=True)
            )
            hooks.callback(handle.remove)
        yield streams


def decoder_layers(model: Any) -> Sequence[nn.Module]:
    """The decoder layers, first to last: the one list of as many modules as the config has layers."""
    config = model.config.get_text_config(decoder=True)
    decoder = model.get_decoder()
    lists = [m for m in decoder.children() if isinstance(m, nn.ModuleList) and len(m) == config.num_hidden_layers]
    if len(lists) != 1:
        raise CheckpointError(
            f"{config.model_type}: its {config.num_hidden_layers} decoder layers are not found in one list",
            hint="a decoder whose layers are a list of modules is needed",
        )
    return list(lists[0])


def matrix(model: Any, side: str) -> Tensor:
    """The embedding (`input`) or the LM head (`output`) [V, H]."""
    module = model.get_input_embeddings() if side == "input" else model.get_output_embeddings()
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise CheckpointError(f"{model.config.model_type}: it has no matrix of {side} embeddings")
    return weight.detach()

"""The acceptance table of a pair: one row per context length, measured on held-out text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.weights import pack_draft, pack_target
from specgate.backends.eagle3.pair_tools.train.data import token_stream
from specgate.backends.eagle3.pair_tools.train.evaluate import AcceptanceRow, acceptance_at, merged, spread_prompts
from specgate.backends.eagle3.pair_tools.train.own import TOKENS_AT_ONCE
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget, rope_rows_upto
from specgate.backends.eagle3.pair_tools.train.texts import TextCorpus, texts
from specgate.errors import UsageError

MOST_DRAFTS = 5


def acceptance_table(
    target_folder: Path,
    draft_folder: Path,
    corpora: Sequence[TextCorpus],
    contexts: Sequence[int],
    most_prompts: int,
    new_tokens: int,
    yarn: float | None,
    device: str,
) -> Iterator[AcceptanceRow]:
    """Yield a row for each of `contexts`, over up to `most_prompts` prompts per corpus.

    Computes in bfloat16 on CUDA and in float32 elsewhere. `yarn` lengthens the target's context by that factor. Raises
    UsageError where a context is longer than the target allows, or where no corpus is long enough for it.
    """
    from tokenizers import Tokenizer

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rope: dict[str, float | str] | None = None if yarn is None else {"rope_type": "yarn", "factor": yarn}
    checkpoint = load_target(target_folder, dtype, device, rope)
    draft = load_draft(draft_folder, checkpoint.geometry, dtype, device)
    positions = max(contexts) + new_tokens + MOST_DRAFTS
    if positions > checkpoint.geometry.max_positions:
        raise UsageError(
            f"a context of {max(contexts)} needs {positions} positions, the target has "
            f"{checkpoint.geometry.max_positions}",
            hint="choose a shorter context, or stretch the target with --yarn",
        )
    target = FrozenTarget(pack_target(checkpoint), checkpoint.geometry, draft.capture.boundaries)
    weights = pack_draft(draft, target.weights)
    target_rows = rope_rows_upto(checkpoint.geometry.rope, positions, device)
    draft_rows = rope_rows_upto(draft.geometry.rope, positions, device)
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    eos = checkpoint.geometry.eos_token_ids[0]
    streams = [token_stream(texts(corpus, "measure"), tokenizer, eos) for corpus in corpora]
    for context in contexts:
        rows = []
        for stream in streams:
            prompts = spread_prompts(stream, context, most_prompts)
            for part in torch.split(prompts.to(device), max(1, TOKENS_AT_ONCE[device] // context)):
                if len(part):
                    rows.append(
                        acceptance_at(
                            target, weights, draft.geometry, part, new_tokens, MOST_DRAFTS, target_rows, draft_rows
                        )
                    )
        if not rows:
            raise UsageError(f"no corpus holds {context} tokens to measure on", hint="name more with --corpus")
        yield merged(rows)

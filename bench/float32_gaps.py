"""Gaps in float32 between two tokens where texts of a stored run diverge, or a second engine would choose otherwise.

    python -m bench.float32_gaps RUN --pair planted-llama-3.1-8b-al3.0 --place 6,3 --place 5,1 --json gaps.json
    python -m bench.float32_gaps RUN --pair planted-llama-3.1-8b-al3.3 --scored --json gaps.json

RUN is a run with random prompts on a planted pair of Llama's geometry, and a place a prompt set and a slot of its first
round. `--scored` takes the texts in which a second engine scored a token that is not its choice, at all scored tokens.
The target is computed layer by layer, over prompt and text, with its weights made from the seed and everything else in
float32: 1 GB of memory at a time at 8B size, and what the states of the texts take. Most of the time goes into the
weights on a CPU: 10 minutes on two cores. An H200 takes 20 s for a text of 32K.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.lib.planted.source import PlantedTensors, planted_target
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import BASELINE, Block, Margin, RescoredText, Rescoring
from specgate.files.run_folder import RunFolder
from specgate.pairs.resolve import resolve_pair
from specgate.planning.prompts import random_prompts

NAMES = (
    *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids of a prompt and of what was decoded behind it, and the rows whose logits are wanted."""

    ids: list[int]
    rows: list[int]


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--pair", required=True, help="The planted pair that RUN measured.")
@click.option("--place", "places", multiple=True, metavar="SET,SLOT", help="Where the first round of this slot parts.")
@click.option("--scored", is_flag=True, help="Where a second engine would have chosen another token.")
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu or cuda.")
@click.option("--json", "out", type=click.Path(path_type=Path), required=True)
def main(run: Path, pair: str, places: tuple[str, ...], scored: bool, device: str, out: Path) -> None:
    """Print, for every place, both gaps and how far logits or log-probabilities lie off those in float32."""
    if not places and not scored:
        raise click.UsageError("name places with --place SET,SLOT, or take the scored tokens with --scored")
    torch.set_grad_enabled(False)
    config = read_config(Path(resolve_pair(pair, None, None).target))
    geometry = target_geometry(config)
    weights = planted_target(config, geometry)
    folder = RunFolder.open(run)
    margins = [place_of(folder, *map(int, place.split(","))) for place in places]
    doubted = not_all_chosen(folder) if scored else []
    parting = [text_of(folder, margin, geometry.vocab) for margin in margins]
    texts = [text for text, _, _ in parting] + [scored_text(folder, gaps, geometry.vocab) for gaps in doubted]
    logits = logits_behind(weights, geometry, texts, torch.device(device))
    first = zip(margins, parting, logits[: len(margins)], strict=True)
    gaps = [where_texts_part(margin, expected, got, of[0]) for margin, (_, expected, got), of in first]
    gaps += [where_scored(text, of) for text, of in zip(doubted, logits[len(margins) :], strict=True)]
    for text, one in zip(texts, gaps, strict=True):
        click.echo(f"{len(text.ids)} tokens: {json.dumps(one)}")
    out.write_text(json.dumps(gaps, indent=1) + "\n", encoding="utf-8")


def where_texts_part(margin: Margin, expected: int, got: int, logits: Tensor) -> dict[str, object]:
    exact, listed = torch.log_softmax(logits, 0), dict(zip(margin.top_tokens, margin.top, strict=True))
    off = [listed[token] - float(exact[token]) for token in margin.top_tokens[:8]]
    return {
        "prompt_set": margin.prompt_set,
        "slot": margin.slot,
        "position": margin.position,
        "tokens": [expected, got],
        "gap_float32": float(logits[expected] - logits[got]),
        "gap_engine": listed[expected] - listed[got],
        "off": off,
        "off_sd": statistics.pstdev(off),
    }


def where_scored(text: RescoredText, logits: Tensor) -> dict[str, object]:
    """Rescore the tokens in doubt in float32, and return errors of the second engine's logits of emitted tokens."""
    every = list(zip(text.positions, text.tokens, text.scores, logits, strict=True))
    off = [score.logit - float(row[token]) for _, token, score, row in every]
    return {
        "cell": text.cell,
        "prompt_set": text.prompt_set,
        "slot": text.slot,
        "in_doubt": [
            {
                "position": position,
                "tokens": [score.best, token],
                "gap_float32": float(row[score.best] - row[token]),
                "gap_scored": score.best_logit - score.logit,
                "best_float32": int(row.argmax()),
            }
            for position, token, score, row in every
            if score.best != token
        ],
        "scored": len(every),
        "chosen_in_float32": sum(int(row.argmax()) == token for _, token, _, row in every),
        "off_mean": statistics.fmean(off),
        "off_sd": statistics.pstdev(off),
    }


def place_of(folder: RunFolder, prompt_set: int, slot: int) -> Margin:
    """Return the first divergence of this slot's first round from its baseline."""
    here = (m for m in folder.journal().margins if (m.prompt_set, m.round, m.slot) == (prompt_set, 0, slot))
    return next(m for m in here if not m.cell.endswith(BASELINE.name))


def text_of(folder: RunFolder, place: Margin, vocab: int) -> tuple[Text, int, int]:
    """(prompt and the baseline's text up to the place, the baseline's token there, the other one)."""
    blocks = [b for b in folder.journal().blocks if not b.warmup and (b.prompt_set, b.round) == (place.prompt_set, 0)]
    baseline, spec = (next(b for b in blocks if b.role.speculative is speculative) for speculative in (False, True))
    plain, other = baseline.tokens[place.slot], spec.tokens[place.slot]
    assert plain[: place.position] == other[: place.position]
    ids = [*prompt_of(folder, baseline, place.slot, vocab), *plain[: place.position]]
    return Text(ids, [len(ids) - 1]), plain[place.position], other[place.position]


def not_all_chosen(folder: RunFolder) -> list[RescoredText]:
    """The scored texts with a token that is not the second engine's choice."""
    texts = [text for rescoring in folder.keyed(Rescoring).values() for text in rescoring.texts]
    return [t for t in texts if any(s.best != token for s, token in zip(t.scores, t.tokens, strict=True))]


def scored_text(folder: RunFolder, text: RescoredText, vocab: int) -> Text:
    where = (text.cell, text.prompt_set, text.round)
    block = next(b for b in folder.journal().blocks if not b.warmup and (b.cell.key, b.prompt_set, b.round) == where)
    prompt = prompt_of(folder, block, text.slot, vocab)
    ids = [*prompt, *block.tokens[text.slot][: text.positions[-1]]]
    return Text(ids, [len(prompt) + position - 1 for position in text.positions])


def prompt_of(folder: RunFolder, block: Block, slot: int, vocab: int) -> Sequence[int]:
    seed = folder.read_config().scenarios[block.point.scenario].workload.seed
    prompts = random_prompts(f"{seed}/measure", block.point.context, vocab)
    return next(itertools.islice(prompts, block.prompt_set * block.point.batch + slot, None)).token_ids


def logits_behind(weights: PlantedTensors, g: TargetGeometry, texts: list[Text], device: torch.device) -> list[Tensor]:
    """The logits at the wanted rows of every text, float32 [rows, vocab]."""
    embeddings = weights.read("model.embed_tokens.weight", device)
    states = [embeddings[torch.tensor(text.ids, device=device)].float() for text in texts]
    del embeddings
    cos, sin = (t.to(device) for t in cos_sin_table(g.rope, max(map(len, states))))
    for layer in range(g.layers):
        w = {name: weights.read(f"model.layers.{layer}.{name}.weight", device).float() for name in NAMES}
        states = [after_layer(x, w, g, cos[: len(x), None], sin[: len(x), None]) for x in states]
        click.echo(f"layer {layer + 1} of {g.layers}", err=True)
    norm, head = (weights.read(name, device).float() for name in ("model.norm.weight", "lm_head.weight"))
    return [(normed(x[text.rows], norm, g.rms_eps) @ head.T).cpu() for x, text in zip(states, texts, strict=True)]


def after_layer(x: Tensor, w: dict[str, Tensor], g: TargetGeometry, cos: Tensor, sin: Tensor) -> Tensor:
    h = normed(x, w["input_layernorm"], g.rms_eps)
    q, k, v = (
        (h @ w[f"self_attn.{name}_proj"].T).view(len(x), -1, g.head_dim).repeat_interleave(each, 1)
        for name, each in (("q", 1), ("k", g.heads // g.kv_heads), ("v", g.heads // g.kv_heads))
    )
    q, k, v = (t.transpose(0, 1)[None] for t in (rotated(q, cos, sin), rotated(k, cos, sin), v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1).reshape(len(x), -1)
    x = x + mixed @ w["self_attn.o_proj"].T
    h = normed(x, w["post_attention_layernorm"], g.rms_eps)
    return x + (F.silu(h @ w["mlp.gate_proj"].T) * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


if __name__ == "__main__":
    main()

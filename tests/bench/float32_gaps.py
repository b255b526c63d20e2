"""How far two tokens lie apart in float32 at places where texts of a stored run part.

    python -m tests.bench.float32_gaps RUN --pair planted-llama-3.1-8b-al3.0 --place 6,3 --place 5,1 --json gaps.json

RUN is a run with random prompts on a planted pair of Llama's geometry, and a place a prompt set and a slot of its first
round. The target is computed layer by layer, over prompt and the baseline's text up to the place, with its weights made
from the seed and everything else in float32: 1 GB of memory at a time at 8B size. Most of the time goes into the
weights: 10 minutes on two cores.
"""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import click
import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.core import BASELINE, Margin
from specgate.eagle3.geometry import TargetGeometry
from specgate.eagle3.hf.target import target_geometry
from specgate.eagle3.hf_keys import read_config
from specgate.eagle3.planted.source import PlantedTensors, planted_target
from specgate.eagle3.rope import cos_sin_table
from specgate.files.run_folder import RunFolder
from specgate.pairs.resolve import resolve_pair
from specgate.planning.prompts import random_prompts

NAMES = (
    *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--pair", required=True, help="The planted pair that RUN measured.")
@click.option("--place", "places", multiple=True, required=True, metavar="SET,SLOT")
@click.option("--json", "out", type=click.Path(path_type=Path), required=True)
def main(run: Path, pair: str, places: tuple[str, ...], out: Path) -> None:
    """Print, for every place, both gaps and how far the engine's largest log-probabilities lie off those in float32."""
    torch.set_grad_enabled(False)
    config = read_config(Path(resolve_pair(pair, None, None).target))
    geometry = target_geometry(config)
    weights = planted_target(config, geometry)
    asked = [tuple(map(int, place.split(","))) for place in places]
    folder = RunFolder.open(run)
    margins = [place_of(folder, prompt_set, slot) for prompt_set, slot in asked]
    texts = [text_of(folder, margin, geometry.vocab) for margin in margins]
    found = []
    for margin, (ids, expected, got), logits in zip(margins, texts, last_logits(weights, geometry, texts), strict=True):
        exact, shown = torch.log_softmax(logits, 0), dict(zip(margin.top_tokens, margin.top, strict=True))
        off = [shown[token] - float(exact[token]) for token in margin.top_tokens[:8]]
        found.append(
            {
                "prompt_set": margin.prompt_set,
                "slot": margin.slot,
                "position": margin.position,
                "tokens": [expected, got],
                "gap_float32": float(logits[expected] - logits[got]),
                "gap_engine": shown[expected] - shown[got],
                "off": off,
                "off_sd": statistics.pstdev(off),
            }
        )
        click.echo(f"{len(ids)} tokens: {json.dumps(found[-1])}")
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def place_of(folder: RunFolder, prompt_set: int, slot: int) -> Margin:
    """Where the first round of this slot parts from its baseline."""
    here = (m for m in folder.journal().margins if (m.prompt_set, m.round, m.slot) == (prompt_set, 0, slot))
    return next(m for m in here if not m.cell.endswith(BASELINE.name))


def text_of(folder: RunFolder, place: Margin, vocab: int) -> tuple[list[int], int, int]:
    """(prompt and the baseline's text up to the place, the baseline's token there, the other one)."""
    blocks = [b for b in folder.journal().blocks if not b.warmup and (b.prompt_set, b.round) == (place.prompt_set, 0)]
    baseline, spec = (next(b for b in blocks if b.role.speculative is speculative) for speculative in (False, True))
    seed = folder.read_config().scenarios[baseline.point.scenario].workload.seed
    prompts = random_prompts(f"{seed}/measure", baseline.point.context, vocab)
    number = place.prompt_set * baseline.point.batch + place.slot
    prompt = next(itertools.islice(prompts, number, None)).token_ids
    plain, other = baseline.tokens[place.slot], spec.tokens[place.slot]
    assert plain[: place.position] == other[: place.position]
    return [*prompt, *plain[: place.position]], plain[place.position], other[place.position]


def last_logits(weights: PlantedTensors, g: TargetGeometry, texts: list[tuple[list[int], int, int]]) -> list[Tensor]:
    """The logits behind every text, float32 [vocab]."""
    embeddings = weights.read("model.embed_tokens.weight")
    states = [embeddings[torch.tensor(ids)].float() for ids, _, _ in texts]
    del embeddings
    cos, sin = cos_sin_table(g.rope, max(map(len, states)))
    for layer in range(g.layers):
        w = {name: weights.read(f"model.layers.{layer}.{name}.weight").float() for name in NAMES}
        states = [after_layer(x, w, g, cos[: len(x), None], sin[: len(x), None]) for x in states]
        click.echo(f"layer {layer + 1} of {g.layers}", err=True)
    norm, head = weights.read("model.norm.weight").float(), weights.read("lm_head.weight").float()
    return [head @ normed(x[-1], norm, g.rms_eps) for x in states]


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

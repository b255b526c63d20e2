"""EAGLE-3 from its definition, for one request and without a cache: the oracle of drafts, in chains and in trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import load_draft, load_target


class Eagle3ByHand:
    """EAGLE-3 for one request, written from its definition with no cache: every step recomputes the whole draft input.

    Slot p of the draft holds (feature of position p, token p + 1): the target's feature where p is committed, the
    draft's own previous hidden where it is speculative. Attention is explicit; so are RoPE and the window.
    """

    def __init__(self, folders: tuple[Path, Path]) -> None:
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
        target = load_target(folders[0], torch.float32, "cpu")
        draft = load_draft(folders[1], target.geometry, torch.float32, "cpu")
        self.g, self.boundaries = draft.geometry, draft.capture.boundaries
        self.w = {name: t.float() for name, t in load_file(folders[1] / "model.safetensors").items()}
        self.embed = self.model.get_input_embeddings().weight.detach()

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.g.rms_eps).sqrt() * self.w[name]

    def rotate(self, x: Tensor, positions: range) -> Tensor:
        """x [P, D], a row for each of `positions`."""
        half = self.g.head_dim // 2
        angle = torch.tensor(positions)[:, None] * self.g.rope.base ** (-torch.arange(half).double() / half)
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def layer(self, tokens: list[int], hidden: Tensor) -> Tensor:
        """Output stream of the last slot, given the token and hidden of every slot."""
        g, count = self.g, len(tokens)
        x = torch.cat(
            (
                self.norm(self.embed[tokens], "midlayer.input_layernorm.weight"),
                self.norm(hidden, "midlayer.hidden_norm.weight"),
            ),
            dim=-1,
        )
        q = (self.w["midlayer.self_attn.q_proj.weight"] @ x[-1]).view(g.heads, g.head_dim)
        k = (x @ self.w["midlayer.self_attn.k_proj.weight"].t()).view(count, g.kv_heads, g.head_dim)
        v = (x @ self.w["midlayer.self_attn.v_proj.weight"].t()).view(count, g.kv_heads, g.head_dim)
        first = 0 if g.window is None else max(0, count - g.window)
        out = []
        for head in range(g.heads):
            group = head // (g.heads // g.kv_heads)
            keys = self.rotate(k[first:, group], range(first, count))
            query = self.rotate(q[head : head + 1], range(count - 1, count))[0]
            weights = (keys @ query / g.head_dim**0.5).softmax(0)
            out.append(weights @ v[first:, group])
        stream = hidden[-1] + self.w["midlayer.self_attn.o_proj.weight"] @ torch.cat(out)
        y = self.norm(stream, "midlayer.post_attention_layernorm.weight")
        gate, up = self.w["midlayer.mlp.gate_proj.weight"] @ y, self.w["midlayer.mlp.up_proj.weight"] @ y
        return stream + self.w["midlayer.mlp.down_proj.weight"] @ (torch.nn.functional.silu(gate) * up)

    @torch.inference_mode()
    def cycles(self, prompt: list[int], k: int, count: int, confidence: float = 0.0) -> list[tuple[list[int], int]]:
        """(draft tokens, how many of them were accepted) of each cycle. A chain ends before `k` drafts where the
        product of their probabilities falls below `confidence`.
        """
        ids = [*prompt, self.greedy(prompt)]
        cycles = []
        for _ in range(count):
            hidden, drafts, sure = self.features(ids), list[int](), 1.0
            while len(drafts) < k and (not drafts or sure >= confidence):
                ranked, stream = self.behind(ids, drafts, hidden)
                drafts.append(ranked[0][0])
                sure *= math.exp(ranked[0][1])
                hidden = torch.cat((hidden, stream[None]))
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == self.greedy([*ids, *drafts[:accepted]]):
                accepted += 1
            cycles.append((drafts, accepted))
            ids += drafts[:accepted]
            ids.append(self.greedy(ids))
        return cycles

    def features(self, ids: list[int]) -> Tensor:
        """The draft's hidden states of all committed positions but the last, [len(ids) − 1, Hd]."""
        states = self.model(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
        return torch.cat([states[b][0] for b in self.boundaries], dim=-1) @ self.w["fc.weight"].t()

    def behind(self, ids: list[int], drafts: list[int], hidden: Tensor) -> tuple[list[tuple[int, float]], Tensor]:
        """(all draft tokens with their log-probabilities, the likeliest first; the draft's hidden state) behind `ids`
        and `drafts`, whose hidden states are `hidden`.
        """
        stream = self.layer([*ids[1:], *drafts], hidden)
        scores = (self.w["lm_head.weight"] @ self.norm(stream, "norm.weight")).log_softmax(0)
        rows = scores.argsort(descending=True)
        tokens = rows + self.w["d2t"][rows].long()
        return [*zip(tokens.tolist(), scores[rows].tolist(), strict=True)], stream

    @torch.inference_mode()
    def tree(self, ids: list[int], paths: Sequence[tuple[int, ...]]) -> list[int]:
        """The draft token of every path of ranks: the draft is run anew on the whole text for each."""
        features = self.features(ids)
        return [self.along(ids, path, features)[0][-1] for path in paths]

    def along(self, ids: list[int], path: tuple[int, ...], hidden: Tensor) -> tuple[list[int], float]:
        """(the draft tokens on a path of ranks, the sum of their log-probabilities)."""
        drafts, score = list[int](), 0.0
        for rank in path:
            ranked, stream = self.behind(ids, drafts, hidden)
            drafts.append(ranked[rank][0])
            score += ranked[rank][1]
            hidden = torch.cat((hidden, stream[None]))
        return drafts, score

    @torch.inference_mode()
    def likeliest(self, ids: list[int], levels: int, width: int, nodes: int) -> list[tuple[int, ...]]:
        """The paths of the dynamic tree behind `ids`, level by level."""
        pool: list[tuple[float, tuple[int, ...]]] = []
        frontier: list[tuple[int, ...]] = [()]
        features = self.features(ids)
        for _ in range(levels):
            below = [(*path, rank) for path in frontier for rank in range(width)]
            scored = [(self.along(ids, path, features)[1], path) for path in below]
            pool += scored
            frontier = sorted(path for _, path in sorted(scored, reverse=True)[:width])
        best = [path for _, path in sorted(pool, reverse=True)[:nodes]]
        return sorted(best, key=lambda path: (len(path), path))

    def greedy(self, ids: list[int]) -> int:
        return int(self.model(torch.tensor([ids])).logits[0, -1].argmax())

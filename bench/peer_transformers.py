"""The reference engine beside `generate` of transformers: same weights, dtype, prompts and threads, in one run.

    python -m bench.peer_transformers [--context 1024] [--new-tokens 48] [--rounds 3]

Needs the demo pair (`specgate pairs fetch`) and transformers. Prints medians and ratios, and asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import BASELINE, Budget, Role
from specgate.pairs.resolve import resolve_pair
from specgate.planning.prompts import build_prompts
from specgate.planning.scenario import find


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    from transformers import AutoModelForCausalLM

    pair = resolve_pair("demo", None, None)
    assert pair.draft is not None
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    target = load_target(pair.target, torch.float32, "cpu")
    draft = load_draft(pair.draft, target.geometry, torch.float32, "cpu")
    room = options.context + options.new_tokens + 8
    engine = ReferenceEngine(target, draft, max_batch=1, max_positions=room, device="cpu")
    scenario = find("cpu-1k-single")
    scenario = replace(scenario, workload=replace(scenario.workload, prompt_sets=options.rounds))
    prompts = build_prompts(scenario, options.context, 1, pair.target / "tokenizer.json", target.geometry.vocab)

    rows: dict[str, list[float]] = {}
    for (prompt,) in (s.token_ids for s in prompts.measured):
        ids = torch.tensor([prompt])
        engine.prefill([prompt], draft=True)
        budget = Budget(new_tokens=options.new_tokens)
        decoded = {role: engine.decode(role, budget, ()) for role in (BASELINE, Role(3))}
        rows.setdefault("reference baseline", []).append(decoded[BASELINE].elapsed_ns / 1e6 / (options.new_tokens - 1))
        rows.setdefault("reference spec-3", []).append(decoded[Role(3)].elapsed_ns / 1e6 / (options.new_tokens - 1))
        rows.setdefault("transformers generate", []).append(generate_ms(model, ids, options.new_tokens))
    medians = {name: statistics.median(values) for name, values in rows.items()}
    for name, median in medians.items():
        ratio = medians["transformers generate"] / median
        print(f"{name:24} {median:7.2f} ms/token   {ratio:5.2f}x transformers")
    print(f"spec-3 over own baseline {medians['reference baseline'] / medians['reference spec-3']:5.2f}x")


def generate_ms(model: torch.nn.Module, ids: torch.Tensor, new_tokens: int) -> float:
    """Milliseconds per decoded token: the time of `new_tokens` tokens minus that of one, which is the prefill's."""

    def run(count: int) -> float:
        generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]  # mixed in by transformers
        began = time.perf_counter()
        generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        return time.perf_counter() - began

    return (run(new_tokens) - run(1)) * 1e3 / (new_tokens - 1)


if __name__ == "__main__":
    main()

"""Valid documents, small, and written by specgate itself where it writes such files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from specgate.ab.folder import RESULT, AbFolder, Asked, Processes, result_json
from specgate.ab.judging import result_of, schedules
from specgate.ab.schedule import plan_of as plan_of_side
from specgate.contract import State
from specgate.contract.tape import SCHEMA as TAPE
from specgate.contract.two_builds import SIDES, Margins, Process, Side
from specgate.files.run_folder import RunFolder
from specgate.machine.noise_profile import CellNoise, NoiseProfile
from specgate.promotion.ledger import Entry, Ledger
from tests.pairs.tiny import write_random_pair
from tests.support.command import ROOT
from tests.support.factories import POLICY as POLICY_OF_RUNS
from tests.support.factories import blocks_of, plan_of, run_of, scenario
from tests.support.stored_runs import store

SCENARIO = """\
# Does the whole path run?
schema: specgate.scenario/v1
extends: base/cpu
kind: micro
family: single
grid: {context: [24, 48], batch: [2], spec: [2, 3]}
workload: {prompt_sets: 4, source: random, seed: 7}
budget: {steps: 6}
schedule: {rounds: 2, warmup_rounds: 1}
timeout_s: 60.0
rope: {rope_type: yarn, factor: 4.0, beta_fast: 32.0}
"""
POLICY = """\
schema: specgate.policy/v1
micro: [cpu-1k-single]
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, role: spec-*, near_tie_margin: 1.0e-3}
  - {id: acceptance, gate: acceptance, required: true, min: 1.5, scenario: cpu-*}
  - {id: speed, gate: speed, required: false, min: 1.3}
"""
TREES = (
    "# a tree\nchoices:\n- [0]\n- [1]\n- [0, 0]\n- [0, 1]\n- [1, 0]\n- [0, 0, 0]\n",
    "parents: [0, 0, 1, 1, 2, 3]\n",
    "eagle_choices: [[0], [0, 2], [1]]\n",
)
BENCHMARK: dict[str, Any] = {
    "results": [
        {"name": "Baseline_Single_Context16K", "throughput_tokens_per_sec": {"mean": 50.5}},
        {
            "name": "Speculative_Batch4_Context16K_3tokens",
            "throughput_tokens_per_sec": {"mean": 110.2},
            "num_spec_tokens": 3,
            "eagle_speculation": {
                "num_drafts": 100,
                "total_draft_tokens": 300,
                "total_accepted_tokens": 150,
                "mean_acceptance_rate": 0.5,
                "mean_acceptance_length": 2.5,
            },
        },
    ]
}
VLLM_BENCH: dict[str, Any] = {
    "label": None,
    "completed": 8,
    "output_throughput": 94.8,
    "total_token_throughput": 174.8,
    "spec_decode_acceptance_rate": 45.0,
    "spec_decode_acceptance_length": 2.35,
    "spec_decode_num_drafts": 4000,
    "spec_decode_draft_tokens": 12000,
    "spec_decode_accepted_tokens": 5400,
    "spec_decode_per_position_acceptance_rates": [0.7, 0.42, 0.23],
}
TAPES: dict[str, Any] = {
    "schema": TAPE,
    "origin": {"run": "a", "point": "p"},
    "prompts_sha256": ["a", "b"],
    "accepted": {"spec-2": [[[0, 2], [1]], [[1], []]], "spec-3": [[[3]], [[0, 1]]]},
}
SHAPES = {
    "schema": "specgate.gemm-shapes/v1",
    "shapes": [{"tag": "EAGLE3_FC", "n": 64, "k": 192, "m": 8}, {"tag": "TARGET_QKV", "n": 128, "k": 64, "m": 16}],
}
GRID = {"schema": "specgate.sweep-grid/v1", "grid": {"env.TILE": [256, 512], "fmha": ["kv_tile:512,warps:4"]}}


def shipped_texts(folder: str) -> list[str]:
    """The YAML files of a folder that ships with specgate."""
    return [file.read_text(encoding="utf-8") for file in sorted((ROOT / folder).glob("*.yaml"))]


def tuned() -> dict[str, Any]:
    """The first two entries of the shipped file of tuned configurations."""
    whole: dict[str, Any] = json.loads((ROOT / "backends/eagle3/cupy/tuned/nvidia-h200.json").read_text())
    return {**whole, "gemms": whole["gemms"][:2]}


def json_of(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def a_run(folder: Path) -> Path:
    """A finished run with two cells and a handful of blocks."""
    return store(folder / "run", scenarios=(scenario(prompt_sets=2, steps=4, spec=(2,)),), steps=4)


def a_comparison(folder: Path) -> Path:
    """A comparison of two builds: three process pairs of a handful of blocks."""
    of = scenario(prompt_sets=2, steps=4, spec=(2,))
    settings = Asked(
        sides={name: Side(name, "fake") for name in SIDES},
        pair=run_of(plan_of(of), ()).pair,
        policy=POLICY_OF_RUNS,
        scenarios={of.name: of},
        pairs=3,
        visits=1,
        quads=1,
        margins=Margins(),
        prompts={},
        started="2026-11-22T10:00:00+00:00",
        argv=("specgate", "ab"),
        tool_version="0.1.0",
        looks=(2, 3),
    )
    for sub in (".", *SIDES):
        (folder / "ab" / sub / "samples").mkdir(parents=True)
    comparison = AbFolder(RunFolder(folder / "ab"))
    comparison.write_asked(settings)
    for pair in schedules(settings):
        for side in comparison.sides.values():
            for made in blocks_of(plan_of_side((of,), [pair], "fake"), steps=4):
                side.append(replace(made, worker_generation=pair.number))
    ended = tuple(Process(name, n, name == "old", 10**9) for n in range(3) for name in SIDES)
    comparison.write_processes(Processes(ended, ended="2026-11-22T10:01:00+00:00"))
    result = result_of(comparison, settings, comparison.journals(), comparison.processes())
    comparison.top.write_json(RESULT, result_json(result))
    return folder / "ab"


def a_ledger(folder: Path) -> Path:
    """A ledger with a few entries; the file of its lines."""
    ledger = Ledger(folder)
    for i in range(3):
        data = {"policy": "cpu", "pair": "demo"}
        print_ = {"source_tree_sha256": "a" * 64, "device": None}
        time = f"2026-11-22T10:00:0{i}+00:00"
        ledger.append(Entry(time, f"run-{i}", "micro", data, {"gate": "b" * 64}, print_, State.PASS, 0, 1, time))
    return ledger.file


def a_profile() -> NoiseProfile:
    cell = CellNoise(16, 0.01, 0.001, 0.0, 0.02, 0.0, -0.01, 0.01, State.PASS)
    return NoiseProfile(
        "2026-11-22T10:00:00+00:00", "run", "cpu", 2.0, {"device": "cpu", "driver": None}, {"a/b": cell}
    )


def a_pair(folder: Path) -> tuple[Path, Path]:
    return write_random_pair(folder, seed=8)


def a_gguf(file: Path) -> Path:
    """A llama model of two tiny layers, with a tokenizer, as GGUF."""
    import gguf
    import numpy as np
    from tokenizers import pre_tokenizers

    hidden, heads, kv_heads, layers, inner = 16, 2, 1, 2, 24
    merges = ["Ġ t", "h e", "Ġt he", "i n"]
    words = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    w = gguf.GGUFWriter(file, "llama")
    for add, value in (
        (w.add_block_count, layers),
        (w.add_context_length, 128),
        (w.add_embedding_length, hidden),
        (w.add_feed_forward_length, inner),
        (w.add_head_count, heads),
        (w.add_head_count_kv, kv_heads),
        (w.add_rope_freq_base, 5000.0),
        (w.add_layer_norm_rms_eps, 1e-5),
        (w.add_tokenizer_model, "gpt2"),
        (w.add_tokenizer_pre, "smollm"),
        (w.add_token_list, words),
        (w.add_token_types, [3 if word == "<end>" else 1 for word in words]),
        (w.add_token_merges, merges),
        (w.add_eos_token_id, 0),
        (w.add_chat_template, "{{ messages }}"),
    ):
        add(value)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(words), hidden), "output_norm.weight": (hidden,)}
    for i in range(layers):
        kv = hidden // heads * kv_heads
        q, up, norm = (hidden, hidden), (inner, hidden), (hidden,)
        layer: dict[str, tuple[int, ...]] = {"attn_norm": norm, "ffn_norm": norm, "attn_q": q}
        layer |= {"attn_k": (kv, hidden), "attn_v": (kv, hidden)}
        layer |= {"attn_output": q, "ffn_gate": up, "ffn_up": up, "ffn_down": (hidden, inner)}
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        w.add_tensor(name, np.ones(shape, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return file

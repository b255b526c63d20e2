"""Targets of the fuzzer: each reader, the documents that its inputs are made from, and the exit codes it may end with.

written.py       what people write
traces.py        what profilers write
stored.py        what specgate has stored
checkpoints.py   what other tools wrote
typed.py         what is typed
servers.py       what servers send
shared.py        exit codes, and inputs as bytes
"""

from __future__ import annotations

from typing import Final

from tests.archive.other_tools.test_reading import AIPERF, GUIDELLM, LLAMA, TRTLLM
from tests.fuzz import seeds
from tests.fuzz.attempt import Target
from tests.fuzz.targets.checkpoints import (
    corpus,
    draft_config,
    draft_vocabulary,
    draft_weights,
    generation_config,
    gguf,
    shards,
    target_config,
    tensor_headers,
    tokenizer,
    tokenizer_config,
    torch_weights,
)
from tests.fuzz.targets.command_lines import backend_options, command_line
from tests.fuzz.targets.servers import DIALECTS, counters, stream
from tests.fuzz.targets.stored_files import (
    checked,
    compared,
    edited_json,
    edited_lines,
    edited_yaml,
    ledger,
    ledger_entries,
    ledger_head,
    records,
    results_compared,
    stored,
    verified,
)
from tests.fuzz.targets.traces import trace
from tests.fuzz.targets.written import draft_tree, gemm_shapes, policy, prompts, scenario, sweep_grid, tape

TARGETS: Final = (
    Target("scenario", scenario),
    Target("policy", policy),
    Target("tape", tape, 100),
    Target("gemms", gemm_shapes),
    Target("trace", trace, 100),
    Target("sweep-grid", sweep_grid),
    Target("draft-tree", draft_tree),
    Target("config", stored("config.resolved.yaml", edited_yaml), 60),
    Target("run", stored("run.json", edited_json), 60),
    Target("journal", stored("samples/blocks.jsonl", edited_lines), 60),
    Target("engines", stored("samples/engines.jsonl", edited_lines), 60),
    Target("verified", verified, 30),
    *(Target(f"ab-{name}", compared(f"{name}.json"), 30) for name in ("asked", "processes")),
    Target("ab-blocks", compared("new/samples/blocks.jsonl"), 30),
    Target("ledger", ledger),
    Target("ledger-entries", ledger_entries),
    Target("ledger-head", ledger_head),
    Target("records", records, 100),
    Target("benchmark", checked(lambda folder: [seeds.BENCHMARK, seeds.BENCHMARK["results"], seeds.VLLM_BENCH]), 100),
    Target("other-tools", results_compared([TRTLLM, AIPERF, GUIDELLM, LLAMA]), 100),
    Target("target-config", target_config, 100),
    Target("draft-config", draft_config, 100),
    Target("generation-config", generation_config, 100),
    Target("draft-weights", draft_weights),
    Target("tensor-headers", tensor_headers, 100),
    Target("draft-vocabulary", draft_vocabulary),
    Target("torch-weights", torch_weights),
    Target("shards", shards, 100),
    Target("gguf", gguf),
    Target("tokenizer", tokenizer, 100),
    Target("tokenizer-config", tokenizer_config, 100),
    Target("prompts", prompts, 150),
    Target("corpus", corpus),
    *(Target(f"stream-{name}", stream(name), 60) for name in DIALECTS),
    *(Target(f"counters-{name}", counters(name), 60) for name in DIALECTS),
    Target("options", backend_options),
    Target("command-line", command_line, 30),
)

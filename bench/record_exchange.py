"""Record one answer of a real server, and its counters before and after: raw material for an adapter's test data.

    python -m bench.record_exchange --backend vllm --target T --draft D -o program=FILE FOLDER

Starts the server as a run would, sends one prompt at a draft length of 3, and writes stream.txt, before.txt and
after.txt. Of the counters, only the families that the adapter reads are kept. The expected result (expected.json) has
to be worked out by hand from these files.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from specgate.backends.servers.adapter import Launch
from specgate.backends.servers.client import StreamLimit
from specgate.backends.servers.engines import ADAPTERS, adapter_named
from specgate.backends.servers.exchange import Ask
from specgate.backends.servers.options import Options
from specgate.backends.servers.process import free_port
from specgate.backends.servers.server import Server
from specgate.commands.options import key_value
from specgate.contract import PairRef, Role
from specgate.pairs.resolve import resolve_pair

TEXT = "The three laws of motion were first stated by Isaac Newton in 1687. The first law says that"
NEW_TOKENS = 24
LIMIT = StreamLimit.of(NEW_TOKENS, cumulative=True)
KEPT = re.compile(
    r"^(?:# \w+ )?\w+:(?:spec_decode\w*_total|num_requests_(?:running|waiting)|requests_(?:processing|deferred)"
    r"|request_success_total|generation_tokens_total|tokens_predicted_total)\b"
)


def launch_of(args: argparse.Namespace, folder: Path) -> Launch:
    pair: PairRef = resolve_pair(None, args.target, args.draft)
    options = Options.parse(dict(map(key_value, args.option)), adapter_named(args.backend).own_options)
    return Launch(Role(3), pair, free_port(), args.dtype, 1, 256, options, folder)


def prompt_of(target: Path) -> tuple[int, ...]:
    from tokenizers import Tokenizer

    return tuple(Tokenizer.from_file(str(target / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids)


def counters(server: Server) -> str:
    return "".join(filter(KEPT.match, server.client.text("/metrics").splitlines(keepends=True)))


def record(server: Server, prompt: tuple[int, ...], folder: Path) -> None:
    """Record the second of two answers, because some counters appear only after the first."""
    path, body = server.adapter.request(Ask(server.model, prompt, NEW_TOKENS, ignore_eos=True))
    server.client.stream(path, [body], LIMIT)
    (folder / "before.txt").write_text(counters(server))
    (recording,) = server.client.stream(path, [body], LIMIT)
    (folder / "after.txt").write_text(counters(server))
    (folder / "stream.txt").write_bytes(b"".join(data for _, data in recording.pieces))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=ADAPTERS, required=True)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--option", "-o", action="append", default=[])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as logs:
        launch = launch_of(args, Path(logs))
        adapter = adapter_named(args.backend)
        server = Server(adapter, launch.role, Server.launched(adapter, launch), launch.options)
        try:
            prompt = prompt_of(launch.pair.target)
            record(server, prompt, args.folder)
        finally:
            server.stop()
    print(f"{len(prompt)} prompt tokens, {NEW_TOKENS} new ones, {server.version}: {args.folder}")


if __name__ == "__main__":
    main()

"""What servers send: streams of an answer, and Prometheus texts. They reach the readers as they would over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from hypothesis import strategies as st

from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.client import Client, Recording
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.exchange import Ask, Reading
from specgate.contract import BASELINE, Role
from specgate.contract.protocols import Decoded
from tests.fuzz.attempt import Ready
from tests.fuzz.mutation import ODD_TEXT, byte_strings, json_lines
from tests.fuzz.targets.shared import CHECKPOINT

FIXTURES: Final = Path(__file__).parents[2] / "backends" / "servers" / "fixtures"
DIALECTS: Final = {
    "vllm": "vllm-0.33",
    "sglang": "sglang-0.5.23",
    "llamacpp": "llamacpp-b11434",
    "lmdeploy": "lmdeploy-0.18",
}
LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b"\n: ping\n\n", b"\n\ndata:\n\n", b"\nid: 1\n\n")
FIELDS: Final = (
    b"data: ",
    b"data:",
    b"\xef\xbb\xbfdata: ",
    b"event: ping\ndata: ",
    b"event: error\ndata: ",
    b"error: ",
)
VALUES: Final = (
    *("9" * 20, "9" * 400, "9" * 5000, "-" + "9" * 400, "1e308", "1e400", "-1", "-0", "0.5", "NaN", "+Inf", "-Inf"),
    *("1_000", "0x10", "", "1 2 3", "1e9 1780000000000", "٣", "1" * 16),
)  # fmt: skip


def events_of(name: str) -> list[Any]:
    """The events of a fixture's stream."""
    lines = (FIXTURES / DIALECTS[name] / "stream.txt").read_text().splitlines()
    return [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: {")]


@st.composite
def streams(draw: Callable[..., Any], name: str) -> bytes:
    """A stream with an edited event, in one of the forms that lines and fields have."""
    end, field = (draw(st.sampled_from([forms[0]] * 3 + [*forms])) for forms in (LINES, FIELDS))
    odd = draw(st.integers(0, 30))
    lines: list[bytes] = draw(json_lines(events_of(name))).split(b"\n")
    return b"".join((field if i == odd else FIELDS[0]) + line + end for i, line in enumerate(lines) if line)


def stream(name: str) -> Callable[[Path], Ready]:
    """The target of one dialect: an answer is read, and becomes a block."""

    def prepare(folder: Path) -> Ready:
        expected = json.loads((FIXTURES / DIALECTS[name] / "expected.json").read_text())
        valid, file = (FIXTURES / DIALECTS[name] / "stream.txt").read_bytes(), folder / "fuzzed.txt"

        def read() -> None:
            answered(adapter_named(name), file, expected)

        odd = byte_strings([valid, valid.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + valid])
        return Ready(streams(name) | odd, valid, read, file, CHECKPOINT)

    return prepare


def answered(adapter: Adapter, file: Path, expected: dict[str, Any]) -> Decoded:
    """The block of an answer that arrives in pieces of some bytes."""
    from specgate.backends.servers.answers import refuse_strange_ids, understand
    from specgate.backends.servers.blocks import decoded, own_counts

    data, where = file.read_bytes(), file.name
    width = 1 + len(data) % 97
    pieces = tuple((1000 * (i + 1), data[i : i + width]) for i in range(0, len(data), width))
    ask = Ask("m", (1,) * expected["prompt"], expected["new_tokens"], ignore_eos=True)
    answer = understand(Recording(0, pieces), ask, adapter.read, where, expected["prompt"])
    refuse_strange_ids([answer], 1 << 40, where)
    role = Role(expected["k"]) if own_counts([answer]) else BASELINE
    return decoded(role, [answer], Reading(), where)


class Scraped:
    """The side of a client that a meter uses."""

    def __init__(self, file: Path) -> None:
        self.url, self.file = f"http://{file.name}", file

    def text(self, path: str) -> str:
        return self.file.read_bytes().decode("utf-8", errors="replace")


@st.composite
def scrapes(draw: Callable[..., Any], text: str) -> bytes:
    """A Prometheus text with odd values, labels and names, or lines that are repeated, cut or gone."""
    lines = text.splitlines()
    for _ in range(draw(st.sampled_from((1, 1, 2, 4)))):
        i = draw(st.integers(0, len(lines) - 1))
        sample, _, value = lines[i].rpartition(" ")
        match draw(st.sampled_from(("value", "value", "value", "label", "name", "repeat", "cut", "gone"))):
            case "value":
                lines[i] = f"{sample} {draw(st.sampled_from(VALUES) | st.sampled_from(ODD_TEXT))}"
            case "label":
                odd = draw(st.sampled_from(ODD_TEXT))
                lines[i] = f'{sample.partition("{")[0]}{{position="{odd}",engine="1"}} {value}'
            case "name":
                lines[i] = f"{draw(st.sampled_from(ODD_TEXT))}{lines[i]}"
            case "repeat":
                lines.insert(i, lines[i])
            case "cut":
                lines[i] = lines[i][: draw(st.integers(0, len(lines[i])))]
            case "gone" if len(lines) > 1:
                del lines[i]
    end: str = draw(st.sampled_from(("", "\n")))
    return ("\n".join(lines) + end).encode("utf-8", "surrogatepass")


def counters(name: str) -> Callable[[Path], Ready]:
    """The target of one engine's counters: they are read, and set beside those before."""

    def prepare(folder: Path) -> Ready:
        from specgate.backends.servers.blocks import between

        fixture, file = FIXTURES / DIALECTS[name], folder / "fuzzed.txt"
        valid, before = (fixture / "after.txt").read_bytes(), folder / "before.txt"
        before.write_bytes((fixture / "before.txt").read_bytes())
        meter = adapter_named(name).meter()
        first = meter.read(cast(Client, Scraped(before)))

        def read() -> None:
            between(first, meter.read(cast(Client, Scraped(file))), file.name)

        return Ready(scrapes(valid.decode()) | byte_strings([valid]), valid, read, file, CHECKPOINT)

    return prepare

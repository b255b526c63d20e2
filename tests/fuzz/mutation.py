"""Strategies that turn a valid document into a nearly valid one.

A document of random bytes is refused at its first character, and tests nothing behind it. So edits follow the
document's grammar: a value is replaced, moved, removed or scaled, a key is renamed, a line is repeated. Some of the
results have a few bytes changed on top.
"""

from __future__ import annotations

import copy
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hypothesis import strategies as st

Path = tuple[str | int, ...]
Draw = Callable[..., Any]

HUGE: Final = 10**400
"""An integer that no float can hold, and that Python still writes."""
ODD_TEXT: Final = (
    "",
    " ",
    "x" * 300,
    "x" * 70_000,
    "\x00",
    "a\x00b",
    "\x1b[31mred\x1b[0m",
    "\x85\u2028\x9b",
    "\ud800",
    "\u202eabc",
    "../../etc/passwd",
    "/",
    "~",
    "%s%n{0}",
    "nan",
    "1e999",
    "NaN",
    "yes",
    "-1",
    "0x10",
    "é" * 40,
    "👍",
    "spec-0",
    "spec-99999999999999999999",
    "spec-²",
)
ODD_NUMBERS: Final = (
    0, -1, 1, 2, 3, 7, 255, 65_536, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, 1 << 64, 10**19, 10**30, HUGE,
    -HUGE, 0.0, -0.0, 0.5, -0.5, 1e-320, 1e-9, 1e9, 1e18, 1.7e308, -1.7e308, float("nan"), float("inf"),
    -float("inf"),
)  # fmt: skip


def nested(depth: int, inner: object = 1) -> object:
    for _ in range(depth):
        inner = [inner]
    return inner


ODD: Final = st.one_of(
    st.sampled_from([None, True, False, *ODD_NUMBERS]),
    st.sampled_from(ODD_TEXT),
    st.sampled_from([[], {}, [[]], {"": {}}, [None], nested(70), {"a": nested(200)}, [1, "a", None, {}], [0] * 5000]),
    st.integers(-5, 300),
    st.floats(),
    st.text(max_size=8),
)
ODD_KEYS: Final = st.sampled_from([t for t in ODD_TEXT if len(t) < 1000]) | st.text(max_size=6)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def places(value: object, here: Path = ()) -> Iterator[Path]:
    """The path of every value inside a document, its root excepted."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*here, key)
            yield from places(inner, (*here, key))


def at(value: Any, place: Path) -> Any:
    for key in place:
        value = value[key]
    return value


def alike(draw: Draw, old: Any) -> Any:
    """Another value of the same type. What is refused for its type tests nothing behind that check."""
    match old:
        case bool():
            return not old
        case int():
            near = st.integers(-3, 3).map(lambda by: old + by)
            return draw(near | st.integers(-2, 70) | st.sampled_from([n for n in ODD_NUMBERS if isinstance(n, int)]))
        case float():
            scaled = st.sampled_from((-1.0, 0.5, 1.01, 10.0, 1e9)).map(lambda by: old * by)
            return draw(scaled | st.floats() | st.sampled_from([n for n in ODD_NUMBERS if isinstance(n, float)]))
        case str():
            return draw(st.sampled_from((old + "x", old[1:], old.upper(), old * 2)) | st.sampled_from(ODD_TEXT))
        case list():
            cut = draw(st.integers(0, len(old)))
            return draw(st.sampled_from((old[:cut], old[cut:], old + old[:cut], old[::-1])))
        case dict():
            return dict(draw(st.permutations(list(old.items())))[: draw(st.integers(0, len(old)))])
    return draw(st.sampled_from((0, 1, 0.5, "", [], {})))


def edit(draw: Draw, document: Any, mildly: bool) -> None:
    """Change one place of `document`; `mildly`: to a value of the same type."""
    if not (results := list(places(document))):
        return
    *above, key = draw(st.sampled_from(results))
    parent = at(document, tuple(above))
    old = parent[key]
    if mildly:
        parent[key] = copy.deepcopy(alike(draw, old))
        return
    match draw(st.sampled_from(("replace", "replace", "replace", "remove", "rename", "move", "wrap", "scale"))):
        case "replace":
            parent[key] = copy.deepcopy(draw(ODD))  # a later edit may reach into it
        case "remove":
            del parent[key]
        case "rename" if isinstance(parent, dict):
            parent[draw(ODD_KEYS)] = parent.pop(key)
        case "move":
            parent[key] = copy.deepcopy(at(document, draw(st.sampled_from(results))))
        case "wrap":
            parent[key] = draw(st.sampled_from(([old], {"a": old}, [old, old])))
        case "scale" if isinstance(old, int | float):
            parent[key] = old * draw(st.sampled_from((-1, 0, 2, 10, 1000, 10**6, 10**9, 10**18)))
        case _:
            parent[key] = copy.deepcopy(draw(ODD))


@st.composite
def edited(draw: Draw, documents: Sequence[Any]) -> Any:
    """One of the JSON documents, with one to four edits. Its root stays."""
    document, mildly = copy.deepcopy(draw(st.sampled_from(documents))), draw(st.booleans())
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3, 4)))):
        edit(draw, document, mildly)
    return document


RAW_JSON: Final = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000, "-", "0x1", "01", "tru", '"\\ud800"',
    '"\\u0000"', "'a'", "[" * 3000, '{"a":' * 3000, "[" * 100_000, "/* */", "\ufeff", "1_000", "",
)  # fmt: skip
TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')


def with_raw_token(draw: Draw, text: str, raw: Sequence[str], token: re.Pattern[str]) -> str:
    """`text` with one of its tokens replaced by raw text."""
    spans = [m.span() for m in token.finditer(text)]
    if not spans:
        return text
    start, end = draw(st.sampled_from(spans))
    token_instead: str = draw(st.sampled_from(raw))
    return text[:start] + token_instead + text[end:]


@st.composite
def json_texts(draw: Draw, documents: Sequence[Any]) -> bytes:
    """An edited document as JSON. Some have a token that is none in JSON, or changed bytes."""
    text = json.dumps(draw(edited(documents)))
    how = draw(st.integers(0, 9))
    if how == 0:
        text = with_raw_token(draw, text, RAW_JSON, TOKEN)
    data = text.encode("utf-8", "surrogatepass")
    return with_odd_bytes(draw, data) if how == 1 else data


@st.composite
def json_lines(draw: Draw, lines: Sequence[Any]) -> bytes:
    """Lines of JSON: one is edited, and sometimes lines are removed, repeated, swapped or cut."""
    made = [json.dumps(line).encode() for line in lines]
    i = draw(st.integers(0, len(made) - 1))
    made[i] = draw(json_texts([lines[i]]))
    how, j = draw(st.integers(0, 9)), draw(st.integers(0, len(made) - 1))
    if how == 0:
        del made[j]
    elif how == 1:
        made.insert(i, made[j])
    elif how == 2:
        made[i], made[j] = made[j], made[i]
    end = b"\n" if how != 3 else b""
    return b"\n".join(made) + end


# ── YAML ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

RAW_YAML: Final = (
    "1:2:3", "1:2:3:4:5", "yes", "no", "on", "off", "Yes", "010", "0o10", "0x1F", "0b11", "1_000", "1e5",
    "1.5e-3", "2026-11-22", "2026-02-31", "2026-11-22 10:00:00", ".nan", ".inf", "-.inf", "~", "", "null", "<<",
    "=", "&a 1", "*a", "!!int 3", "!!python/object/apply:os.getcwd []", "!!timestamp 2026-01-01", "{", "}", "[",
    "]", "[[[[]]]]", "{a: {b: {c: 1}}}", "1" * 5000, "1" * 90, "-" + "9" * 60, "400000000", "100000000",
    "99999999999999999999", "-1", "0", "1.0", '"\\ud800"', '"\\x00"', '"\\U00110000"', "'a", "|", ">", "@a",
    "`a", "%a", "? a", "- a", "a: b: c", "\t1", "#", "[" * 2000, "{a: " * 2000, "x" * 300, "x" * 5000,
    "[1, 2, 2]", "[3, 1]", "[" + "1, " * 3000 + "1]", "\x07", "\u2028", "é",
)  # fmt: skip
PLAIN_YAML: Final = (
    "0", "1", "2", "3", "4", "5", "8", "100", "4096", "65536", "0.5", "2.0", "1.0e+3", "true", "false", "micro",
    "full", "cpu", "gpu", "baseline", "spec-*", "*", "code", "random", "mixed", "speed", "tokens", "validity", "[1]",
    "[1, 2]", "[2, 4, 8]",
)  # fmt: skip
"""Values that some key takes."""
SCALAR: Final = re.compile(r"(?<=[:\[,{-] )[^\s,\]\}\{\[#][^,\]\}\n#]*|^\w+(?=:)|(?<=[{,] )\w+(?=:)", re.MULTILINE)


@st.composite
def yaml_texts(draw: Draw, texts: Sequence[str]) -> bytes:
    """One of the YAML texts with one to three scalars replaced. Some have lines moved, or changed bytes."""
    text, raw = draw(st.sampled_from(texts)), draw(st.sampled_from((RAW_YAML, PLAIN_YAML)))
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        text = with_raw_token(draw, text, raw, SCALAR)
    lines = text.split("\n")
    how, i = draw(st.integers(0, 9)), draw(st.integers(0, len(lines) - 1))
    if how == 0:
        del lines[i]
    elif how == 1:
        lines.insert(i, draw(st.sampled_from(lines)))
    elif how == 2:
        lines[i] = draw(st.sampled_from(("  ", "\t", "- ", "? ", "#", "---\n", "...\n"))) + lines[i]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return with_odd_bytes(draw, data) if how == 3 else data


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

ODD_BYTES: Final = (b"\x00", b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80", b"\x1b", b"\n", b'"', b"{", b"\xef\xbb\xbf")
ODD_INTEGERS: Final = (
    0, 1, 2, 7, 255, 256, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1,
)  # fmt: skip


def with_odd_bytes(draw: Draw, data: bytes, within: int | None = None) -> bytes:
    """`data` with one to three changes of bytes among its first `within`: set, inserted, removed, cut off, or an odd
    integer of 1, 4 or 8 bytes written over them.
    """
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, min(len(data), within or len(data)) - 1)))
        match draw(st.sampled_from(("set", "insert", "remove", "cut", "integer", "integer"))):
            case "set":
                data = data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
            case "insert":
                data = data[:place] + draw(st.sampled_from(ODD_BYTES)) + data[place:]
            case "remove":
                data = data[:place] + data[place + draw(st.integers(1, 16)) :]
            case "cut":
                data = data[:place]
            case _:
                size = draw(st.sampled_from((1, 4, 8)))
                value = draw(st.sampled_from(ODD_INTEGERS)) % (1 << 8 * size)
                data = data[:place] + value.to_bytes(size, "little") + data[place + size :]
    return data


@st.composite
def byte_strings(draw: Draw, seeds: Sequence[bytes], within: int | None = None) -> bytes:
    """One of `seeds` with odd bytes."""
    return with_odd_bytes(draw, draw(st.sampled_from(seeds)), within)


@st.composite
def safetensors(draw: Draw, seeds: Sequence[bytes]) -> bytes:
    """A safetensors file with an edited header, or with odd bytes."""
    data: bytes = draw(st.sampled_from(seeds))
    if draw(st.integers(0, 2)) == 0:
        return with_odd_bytes(draw, data, 600)
    length = struct.unpack("<Q", data[:8])[0]
    header: bytes = draw(json_texts([json.loads(data[8 : 8 + length])]))
    stated = draw(st.sampled_from((len(header),) * 8 + ODD_INTEGERS))
    return struct.pack("<Q", stated) + header + data[8 + length :]


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def arguments(draw: Draw, lines: Sequence[Sequence[str]]) -> bytes:
    """A command line with one to three odd arguments, joined by line feeds."""
    words = list(draw(st.sampled_from(lines)))
    for _ in range(draw(st.integers(1, 3))):
        i = draw(st.integers(0, len(words)))
        odd = draw(
            st.sampled_from([t for t in ODD_TEXT if "\n" not in t])
            | st.sampled_from(("1e400", "9" * 400, "-o", "--", "="))
        )
        match draw(st.sampled_from(("replace", "insert", "remove", "append"))):
            case "replace" if i < len(words):
                words[i] = odd
            case "remove" if i < len(words):
                del words[i]
            case "append" if i < len(words):
                words[i] += odd
            case _:
                words.insert(i, odd)
    return "\n".join(words).encode("utf-8", "surrogatepass")

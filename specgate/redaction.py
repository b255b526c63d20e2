"""Mask credentials, and show control characters as escapes.

Everything that is stored or printed passes through here, because strings of foreign origin (errors, logs, answers of
servers, names of files) may hold a key or a sequence that a terminal obeys.

What is masked: the values that `remember` was told, among them those of environment variables with a telling name, and
credentials that can be recognised by their form. The mask never shows how long a value is. Text without a credential
stays as it is, and masking twice is the same as masking once.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
SHORTEST: Final = 8
"""Characters of the shortest value that can be remembered: a shorter one cannot be told from ordinary text."""

# ── values that are known ────────────────────────────────────────────────────────────────────────────────────────────

_TELLING = re.compile(r"(TOKEN|KEYS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(?=_|$)")
_NAMES_A_PLACE = re.compile(r"_(PATH|FILE|DIR|ENV|NAME|URL)$")
_LONGEST_WORD: Final = 12
_known: set[str] = set()
_known_forms: tuple[str, ...] = ()
"""All forms of the known values, the longest first, so that none is left of a value that begins with another."""


def remember(*values: str) -> None:
    """Mask each of `values` from now on, wherever this process stores or prints it.

    Raises ValueError for a value of fewer than SHORTEST characters.
    """
    global _known_forms
    for value in values:
        if len(value) < SHORTEST:
            raise ValueError(f"a value of fewer than {SHORTEST} characters cannot be masked")
    if set(values) <= _known:
        return
    _known.update(values)
    forms = {form for value in _known for form in _forms(value)}
    _known_forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))


def remember_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Remember the value of every variable whose name says that it holds a credential.

    Left out are short values, files that exist, and single words: `*_KEY=disabled` must not mask a word of the report.
    """
    telling = (value for name, value in environment.items() if is_telling(name))
    remember(*(part for value in telling for part in (value, *re.split(r"[\s,;]+", value)) if _is_credential(part)))


def is_telling(name: str) -> bool:
    """True if the name of a variable says that its value is a credential: HF_TOKEN, but neither MAX_TOKENS nor
    TOKENIZERS_PARALLELISM.
    """
    name = name.upper()
    return _TELLING.search(name) is not None and _NAMES_A_PLACE.search(name) is None


def _is_credential(value: str) -> bool:
    if len(value) < SHORTEST or value.startswith("-----"):
        return False
    word = value.isalpha() and len(value) <= _LONGEST_WORD and (value[1:].islower() or value.isupper())
    return not word and not os.path.exists(os.path.expanduser(value.replace("\0", "")))


def _forms(value: str) -> Iterable[str]:
    """`value` as it stands in plain text, in URLs, in JSON and in HTML."""
    quoted = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    in_urls = {quote(value, safe=""), quote(value), quote_plus(value)}
    return {value, html.escape(value), repr(value)[1:-1]} | in_urls | quoted


def _without(form: str, text: str) -> str:
    """Of digits alone only as a number of its own: such a value must not be found within a hash."""
    return re.sub(rf"(?<!\w)(?<!\d\.){form}(?!\w|\.\d)", MASK, text) if form.isdigit() else text.replace(form, MASK)


# ── credentials that are known by their form ─────────────────────────────────────────────────────────────────────────

_Replace = str | Callable[[re.Match[str]], str]


def _if_random(match: re.Match[str]) -> str:
    """The mask in place of the last group where it looks random: with digits and letters, or long."""
    token = match[match.lastindex or 0]
    random = (any(c.isdigit() for c in token) and any(c.isalpha() for c in token)) or len(token) >= 20
    return match[0][: len(match[0]) - len(token)] + MASK if random else match[0]


_KINDS_OF_TOKEN: Final = ("hf", "auth", "access", "refresh", "bearer", "session")
_SECRET_NAME: Final = (
    rf"(?:api[_-]?key|(?:{'|'.join(_KINDS_OF_TOKEN)})[_-]?token|secret[_-]?(?:access[_-]?)?key|client[_-]?secret"
    r"|passwd|password)"
)
_NAMES_A_SECRET: Final = re.compile(_SECRET_NAME, re.IGNORECASE)
_QUERY_NAME: Final = r"(?:[\w-]*token|[\w-]*key|[\w-]*secret|password|passwd|pwd|sig|signature|[\w-]*auth)"
_IN_QUERIES: Final = ("token=", "key=", "secret=", "password=", "passwd=", "pwd=", "sig=", "signature=", "auth=")
_FORMS: Final[tuple[tuple[tuple[str, ...], re.Pattern[str], _Replace], ...]] = (
    # (texts of which one must occur, in lower case; pattern; what to put in its place). The texts make it cheap: nearly
    # no text has one. Every pattern takes time linear in the text.
    (
        ("private key-----",),
        re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:(?!-----)[\s\S])*(?:-----END [A-Z0-9 ]{0,40}-----)?"),
        MASK,
    ),
    (
        ("authorization",),
        re.compile(
            r"(?i)(authorization[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?:(?:bearer|basic|token|digest)\s{1,8})?+)[\w.~+/=:-]+"
        ),
        rf"\1{MASK}",
    ),
    (("bearer ",), re.compile(r"(?i)\bbearer\s{1,8}([\w.~+/=-]{8,})"), _if_random),
    (("://",), re.compile(r"(?i)(https?://)[^\s/?#\"'<>\\]{1,512}@"), rf"\1{MASK}@"),
    (("://",), re.compile(r"(://)[^\s/?#\"'<>\\:@]{0,128}:[^\s/?#\"'<>\\]{1,512}@"), rf"\1{MASK}@"),
    (_IN_QUERIES, re.compile(rf"(?i)((?:[?&]|&amp;){_QUERY_NAME}=)[^\s&#\"'<>*\\]+"), rf"\1{MASK}"),
    (
        (
            *("apikey", "api_key", "api-key", "secret", "passw"),
            *(f"{kind}{joint}token" for kind in _KINDS_OF_TOKEN for joint in ("", "_", "-")),
        ),
        re.compile(rf"(?i){_SECRET_NAME}[\"']?\s{{0,8}}[:=]\s{{0,8}}[\"'\[(]{{0,3}}([^\s\"'<>,;&*)\]\\]{{6,}})"),
        _if_random,
    ),
    (("hf_",), re.compile(r"hf_(?<![A-Za-z0-9]hf_)[A-Za-z0-9]{20,}"), MASK),
    (("sk-",), re.compile(r"sk-(?<![A-Za-z0-9_-]sk-)([A-Za-z0-9_-]{20,})"), lambda m: _sk(m)),
    (("gh",), re.compile(r"gh[pousr]_(?<![A-Za-z0-9]gh[pousr]_)[A-Za-z0-9]{20,}"), MASK),
    (("github_pat_",), re.compile(r"github_pat_[A-Za-z0-9_]{20,}"), MASK),
    (("glpat-",), re.compile(r"glpat-[A-Za-z0-9_-]{16,}"), MASK),
    (("nvapi-",), re.compile(r"nvapi-[A-Za-z0-9_-]{20,}"), MASK),
    (("xox",), re.compile(r"xox[abeoprs]-[A-Za-z0-9-]{10,}"), MASK),
    (("akia",), re.compile(r"AKIA(?<![A-Za-z0-9]AKIA)[A-Z0-9]{16}(?![A-Za-z0-9])"), MASK),
    (("asia",), re.compile(r"ASIA(?<![A-Za-z0-9]ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"), MASK),
    (("aiza",), re.compile(r"AIza(?<![A-Za-z0-9]AIza)[A-Za-z0-9_-]{35}"), MASK),
    (("eyj",), re.compile(r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), MASK),
)
_ANY_HINT: Final = re.compile("|".join(sorted({re.escape(hint) for hints, *_ in _FORMS for hint in hints})))


def _sk(match: re.Match[str]) -> str:
    """`sk-` begins words too: a key has 16 letters and digits on end, or digits and capitals."""
    token = match[1]
    random = re.search(r"[A-Za-z0-9]{16}", token) or (re.search("[A-Z]", token) and re.search("[0-9]", token))
    return MASK if random else match[0]


def masked(text: str) -> str:
    """`text` with MASK in the place of every credential."""
    for form in _known_forms:
        if form in text:  # a search for a string is an order of magnitude faster than one for a pattern
            text = _without(form, text)
    low = text.lower()
    if _ANY_HINT.search(low) is None:
        return text
    for hints, pattern, replace in _FORMS:
        if any(hint in low for hint in hints):
            text = pattern.sub(replace, text)
    return text


def masked_data(data: object, name: str = "") -> object:
    """JSON data with every string masked. Under a key such as `api_key` or `password`, named by `name`, the whole value
    is. Keys and numbers stay as they are.
    """
    if isinstance(data, str):
        return MASK if data and _NAMES_A_SECRET.fullmatch(name) else masked(data)
    if isinstance(data, Mapping):
        return {key: masked_data(value, str(key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked_data(value, name) for value in data]
    return data


def credentials_in(data: object, place: str = "") -> Iterator[str]:
    """The places (`options.url`) of JSON data that hold a credential, keys included."""
    if isinstance(data, str):
        if masked(data) != data:
            yield place
    elif isinstance(data, Mapping):
        for key, value in data.items():
            if masked(str(key)) != str(key):
                yield f"{place}.{masked(str(key))}".lstrip(".")
            yield from credentials_in(value, f"{place}.{masked(str(key))}".lstrip("."))
    elif isinstance(data, list | tuple):
        for number, value in enumerate(data):
            yield from credentials_in(value, f"{place}[{number}]")


# ── what a terminal would obey ───────────────────────────────────────────────────────────────────────────────────────

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(
    # C0 but tab and newline, DEL, C1; marks that turn the direction of text; line and paragraph separator; the byte
    # order mark; halves of surrogate pairs and codes that are no characters, which XML cannot hold
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)


def visible(text: str) -> str:
    r"""`text` with every character that a terminal obeys written as an escape: \x1b, \u202e. Tab and newline stay."""
    return _CONTROL.sub(lambda match: _escape(ord(match[0])), text)


def visible_but_colours(text: str) -> str:
    """As `visible`, but sequences that only set colours and styles stay."""
    colours, between = _COLOUR.findall(text), _COLOUR.split(text)
    return "".join(visible(part) + colour for part, colour in zip(between, [*colours, ""], strict=True))


def visible_json(text: str) -> str:
    r"""JSON with the characters of `visible` as JSON writes them (\u001b), so that it stays the same data."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cleaned(text: str) -> str:
    r"""Foreign text, such as a log: masked, without colours, with carriage returns as newlines and every other control
    character as an escape (\x1b).

    `text` should be whole lines: a credential that is cut in two is not found.
    """
    plain = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return visible(masked(plain))


remember_environment()

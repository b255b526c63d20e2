"""Credentials are masked and control characters shown, and ordinary text stays as it is."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import string
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate import redaction
from specgate.redaction import (
    MASK,
    cleaned,
    credentials_in,
    is_telling,
    masked,
    masked_data,
    remember,
    remember_environment,
    visible,
    visible_but_colours,
    visible_json,
)

LETTERS_AND_DIGITS = string.ascii_letters + string.digits


def random_text(length: int) -> st.SearchStrategy[str]:
    """With letters and digits, as issuers of keys draw them."""
    return st.text(LETTERS_AND_DIGITS, min_size=length, max_size=length).filter(
        lambda s: any(c.isdigit() for c in s) and any(c.isalpha() for c in s)
    )


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_known_forms", ())
    yield


# ── what is known ────────────────────────────────────────────────────────────────────────────────────────────────────

SURROUNDINGS = st.text(st.characters(exclude_characters="*", exclude_categories=["Cs"]), max_size=20)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=8, max_size=40), SURROUNDINGS, SURROUNDINGS)
def test_a_remembered_value_is_masked_in_every_form(value: str, before: str, after: str) -> None:
    if value.isdigit() or MASK in value or set(value) <= set(before + after):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_known", set())
        patch.setattr(redaction, "_known_forms", ())
        remember(value)
        forms = (value, quote(value, safe=""), html.escape(value), json.dumps(value), repr(value))
        for form in forms:
            text = masked(f"{before} {form} {after}")
            assert value not in text and MASK in text
            assert masked(text) == text


def test_the_mask_does_not_show_how_long_a_value_is() -> None:
    remember("short-key-1", "a-very-much-longer-key-than-the-first-2")
    assert masked("short-key-1") == masked("a-very-much-longer-key-than-the-first-2") == MASK


def test_of_two_values_where_one_begins_the_other_nothing_is_left() -> None:
    remember("abcdefgh1", "abcdefgh1-and-more")
    assert masked("<abcdefgh1-and-more>") == f"<{MASK}>"


def test_a_value_too_short_to_be_told_from_text_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer than 8 characters"):
        remember("abc")


def test_a_value_of_digits_is_not_found_within_a_hash_or_a_number() -> None:
    remember("12345678")
    assert masked("a12345678b 3.12345678 123456789 token 12345678.") == f"a12345678b 3.12345678 123456789 token {MASK}."


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "GITHUB_TOKEN", "OPENAI_API_KEY", "apikey", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "MY_SECRET"],
)
def test_the_value_of_a_variable_with_a_telling_name_is_masked(name: str) -> None:
    assert is_telling(name)
    remember_environment({name: "correct-horse-7"})
    assert masked("it said correct-horse-7!") == f"it said {MASK}!"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "not-parallel-1"),
        ("MAX_TOKENS", "1000000000"),
        ("KEYBOARD", "us-english-1"),
        ("SSL_KEY_FILE", "/etc/ssl/private-1.pem"),
        ("API_KEY_ENV", "OPENAI_API_KEY_2"),
        ("CACHE_KEY", "disabled"),
        ("CACHE_KEY", "baseline"),
        ("SHORT_TOKEN", "abc1"),
        ("SIGNING_KEY", __file__),
    ],
)
def test_what_only_looks_like_a_credential_is_no_reason_to_mask_words(name: str, value: str) -> None:
    remember_environment({name: value})
    assert masked(f"role {value} of it") == f"role {value} of it"


def test_each_of_several_keys_in_one_variable_is_masked() -> None:
    remember_environment({"API_KEYS": "first-key-1,second-key-2"})
    assert masked("second-key-2") == MASK


# ── what is known by its form ────────────────────────────────────────────────────────────────────────────────────────

SHAPES = st.one_of(
    random_text(34).map(lambda s: f"hf_{s}"),
    random_text(48).map(lambda s: f"sk-{s}"),
    random_text(40).map(lambda s: f"sk-proj-{s}"),
    st.tuples(st.sampled_from("pousr"), random_text(36)).map(lambda t: f"gh{t[0]}_{t[1]}"),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map(lambda s: f"AKIA{s}"),
    random_text(60).map(lambda s: f"github_pat_{s}"),
)


@given(SHAPES, st.sampled_from(["{}", "a {} b", '{{"x": "{}"}}', "({})", "'{}',", "key={}", "\t{}\n"]))
def test_a_credential_of_a_known_form_is_masked_wherever_it_stands(credential: str, around: str) -> None:
    text = masked(around.format(credential))
    assert credential not in text and credential[5:] not in text and MASK in text
    assert masked(text) == text


@given(random_text(24), random_text(24))
def test_a_signed_token_is_masked(body: str, signature: str) -> None:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    assert masked(f"cookie {head}.{body}.{signature}; x") == f"cookie {MASK}; x"


@given(st.text(LETTERS_AND_DIGITS + "-._~+/", min_size=1, max_size=40))
def test_an_authorization_header_is_masked_whatever_its_value(value: str) -> None:
    for text in (f"Authorization: Bearer {value}", f"'authorization': 'Basic {value}'", f"AUTHORIZATION={value}"):
        result = masked(text)
        assert result.rstrip("'").endswith(MASK) and value not in result[14:].replace("Basic", "").replace("Bearer", "")
        assert masked(result) == result


@given(random_text(12), random_text(12))
def test_the_user_of_a_url_is_masked(user: str, password: str) -> None:
    assert masked(f"at https://{user}:{password}@host:80/x?y=1") == f"at https://{MASK}@host:80/x?y=1"
    assert masked(f"git+https://{password}@host/x") == f"git+https://{MASK}@host/x"
    assert masked(f"postgres://{user}:{password}@host/x") == f"postgres://{MASK}@host/x"


@pytest.mark.parametrize("name", ["token", "api_key", "access_token", "X-Amz-Signature", "key", "password", "hf-token"])
def test_a_parameter_of_a_url_that_names_a_credential_is_masked(name: str) -> None:
    if name == "X-Amz-Signature":
        name = "signature"
    assert masked(f"GET /v1?a=1&{name}=abc#x") == f"GET /v1?a=1&{name}={MASK}#x"
    assert masked(html.escape(f"/v1?a=1&{name}=abc&b=2")) == html.escape(f"/v1?a=1&{name}={MASK}&b=2")


def test_a_private_key_is_masked_also_where_its_end_is_missing() -> None:
    lines = ("-----BEGIN RSA PRIVATE KEY-----", "MIIEowIBAAKCAQEA7", "bodybodybody")
    whole = "\n".join((*lines, "-----END RSA PRIVATE KEY-----", "after"))
    assert masked(whole) == f"{MASK}\nafter"
    assert masked("\\n".join(lines)) == MASK
    assert masked("-----BEGIN CERTIFICATE-----\nabc") == "-----BEGIN CERTIFICATE-----\nabc"


@pytest.mark.parametrize(
    "message",
    [
        "non-default args: {'api_key': 'horse-battery-9', 'port': 8000}",
        "Namespace(hf_token='horse-battery-9', port=8000)",
        "api_key=['horse-battery-9'], port=8000",
        "password: horse-battery-9",
        "Bearer horse-battery-9",
    ],
)
def test_what_servers_print_about_themselves_is_masked(message: str) -> None:
    assert "horse-battery-9" not in masked(message)


# ── what must stay ───────────────────────────────────────────────────────────────────────────────────────────────────

ORDINARY = st.one_of(
    st.binary(max_size=20).map(lambda b: hashlib.sha256(b).hexdigest()),
    st.binary(max_size=20).map(lambda b: hashlib.sha1(b).hexdigest()),
    st.lists(st.integers(0, 2**63), max_size=8).map(str),
    st.floats(allow_nan=False).map(repr),
    st.uuids().map(lambda u: f"GPU-{u}"),
    st.from_regex(r"[a-z]{1,8}(-[a-z0-9]{1,6}){0,3}\.(py|json|yaml|safetensors|gguf)", fullmatch=True),
    st.from_regex(r"(micro|full|base)/[a-z]{2,10}(-[a-z0-9]{1,6}){0,3}", fullmatch=True).filter(
        lambda name: "/sk-" not in name and "/xox" not in name  # these have the form of tokens
    ),
    st.from_regex(r"/[a-z]{1,8}(/[A-Za-z0-9_.-]{1,12}){0,5}", fullmatch=True).filter(lambda p: "sk-" not in p),
    st.sampled_from(
        [
            "bearer tokens are missing",
            "the key of the --config that this version lacks",
            "tokens all equal: 12345 of 12345",
            "option api_key_env = SERVER_KEY: the variable is not set",
            "-o api_key_env=NAME",
            "max_num_batched_tokens=8192, skip_tokenizer_init=True, api_key=None",
            "'hf_token': None, 'tokenizer': '/models/Llama-3.1-8B-Instruct'",
            "http://127.0.0.1:8000/v1/completions?stream=1",
            "https://example.org/a@b/c?page=2#key",
            "ssh://git@example.org/x.git",
            "task-eagle3-llama31-8b-instruct-long-context-2",
            "hf_config.json hf_quantizer",
            "password required",
            "num_speculative_tokens=3&k=4",
            "Llama-3.1-8B\tQwen2.5 ✓ 日本語 é",
        ]
    ),
)


@given(st.lists(ORDINARY, max_size=6), st.sampled_from([" ", "\n", ", ", "\t"]))
def test_ordinary_text_stays_as_it_is(parts: list[str], between: str) -> None:
    text = between.join(parts)
    assert masked(text) == text
    assert cleaned(text) == text
    assert list(credentials_in({"a": [text]})) == []


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ORDINARY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz_", max_size=8), inner, max_size=4),
)


@given(JSON_VALUES)
def test_ordinary_data_stays_as_it_is(data: object) -> None:
    assert masked_data(data) == data


@given(JSON_VALUES, SHAPES)
def test_masked_data_differs_in_strings_alone(data: object, credential: str) -> None:
    remember("12345678")
    hidden = masked_data({"data": data, "n": 12345678, "said": [f"a {credential}"], "api_key": "x", "12345678": 1})
    assert hidden == {"data": data, "n": 12345678, "said": [f"a {MASK}"], "api_key": MASK, "12345678": 1}
    assert masked_data(hidden) == hidden


def test_places_of_credentials_are_named_without_them() -> None:
    remember("horse-battery-9")
    data = {
        "options": {"url": "x", "args": "--x horse-battery-9", "horse-battery-9": 1},
        "list": [1, "horse-battery-9"],
    }
    assert list(credentials_in(data)) == ["options.args", f"options.{MASK}", "list[1]"]


# ── what a terminal would obey ───────────────────────────────────────────────────────────────────────────────────────


@given(st.text())
def test_what_is_visible_moves_no_cursor_and_turns_no_text(text: str) -> None:
    shown = visible(text)
    assert not [c for c in shown if c not in "\t\n" and (not c.isprintable() and ord(c) < 0xA0)]
    assert not set(shown) & set(
        "\x1b\r\x7f\x9b\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
    )
    assert visible(shown) == shown
    shown.encode("utf-8")


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_letters_of_every_script_stay(text: str) -> None:
    assert visible(text) == text


def test_escapes_are_written_out() -> None:
    assert visible("\x1b]0;title\x07\r\u202e\x9b2J") == r"\x1b]0;title\x07\x0d\u202e\x9b2J"


def test_colours_of_our_own_stay_and_nothing_else() -> None:
    assert (
        visible_but_colours("\x1b[1;31mred\x1b[0m \x1b[2J \x1b]8;;x\x07")
        == "\x1b[1;31mred\x1b[0m \\x1b[2J \\x1b]8;;x\\x07"
    )


@given(st.dictionaries(st.text(), st.text()))
def test_visible_json_is_the_same_data(data: dict[str, str]) -> None:
    text = visible_json(json.dumps(data, ensure_ascii=False))
    assert json.loads(text) == data and visible(text) == text


def test_a_log_loses_its_colours_and_its_carriage_returns_end_lines() -> None:
    assert cleaned("\x1b[32mINFO\x1b[0m 1%\r2%\r\ndone\x1b[K") == "INFO 1%\n2%\ndone\\x1b[K"


def test_a_credential_that_colours_cut_in_two_is_found() -> None:
    remember("horse-battery-9")
    assert cleaned("key horse-\x1b[31mbattery\x1b[0m-9") == f"key {MASK}"


@given(st.text())
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert cleaned(cleaned(text)) == cleaned(text)

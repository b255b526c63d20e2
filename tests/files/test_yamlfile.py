"""Reading YAML: what is refused, with file and line, and what is remembered."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from specgate.contract.types import dotted
from specgate.errors import UsageError
from specgate.files.yamlfile import Document, dump_yaml, load


def written(folder: Path, text: str | bytes, name: str = "file.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    return str(caught.value)


def test_every_key_and_item_keeps_its_line(tmp_path: Path) -> None:
    document = load(written(tmp_path, "# What?\na: 1\nb:\n  c:\n    - 5\n    - 6\n"))
    lines = {dotted(key): mark.line for key, mark in document.marks.items()}
    assert lines == {"": 1, "a": 2, "b": 3, "b.c": 4, "b.c[0]": 5, "b.c[1]": 6}
    assert document.data == {"a": 1, "b": {"c": [5, 6]}}


def test_the_first_comment_line_is_the_head(tmp_path: Path) -> None:
    assert load(written(tmp_path, "# What is asked?\na: 1\n")).head == "What is asked?"
    assert load(written(tmp_path, "a: 1\n# too late\n")).head is None
    assert load(written(tmp_path, "#\na: 1\n")).head is None


def test_a_missing_key_is_placed_at_the_mapping_that_lacks_it(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a: 1\nb:\n  c: 2\n"))
    assert document.where(("b", "absent", 3)).line == 2
    assert document.where(("absent",)).line == 1


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a: this key is already on line 1"),
        ("a:\n  b: 1\n  b: 2\n", 3, "a.b: this key is already on line 2"),
        ("a: 1\n b: 2\n", 2, "not valid YAML"),
        ("a: [1, 2\nb: 3\n", 2, "not valid YAML"),
        ("", 1, "an empty file"),
        ("# only a comment\n", 1, "an empty file"),
        ("# list\n- 1\n", 2, "a list where a mapping"),
        ("text\n", 1, "a single value where a mapping"),
        ("a: 1\n5: 2\n", 2, "key 5: not text"),
        ("a: 1\nyes: 2\n", 2, "key yes: not text"),
        ("a: 1\n? [x]\n: 2\n", 2, "key a list: not text"),
        ("a: &x 1\nb: *x\n", 1, "anchors and aliases"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", 1, "not valid YAML"),
        ("a: 1\nb: \x07\n", 2, "character U+0007"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = written(tmp_path, text)
    message = refused(path)
    assert message.startswith(f"{path}:{line}: ")
    assert says in message


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    path = written(tmp_path, b"a: 1\nb: caf\xe9\n")
    assert refused(path).startswith(f"{path}:2: byte 0xE9 is not UTF-8")


def test_a_date_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "not valid YAML" in refused(written(tmp_path, "a: 2026-02-31\n"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: cannot be read: No such file or directory"


def test_layers_merge_mappings_and_replace_lists(tmp_path: Path) -> None:
    base = load(written(tmp_path, "a: {x: 1, y: [1, 2]}\nb: 1\n", "base.yaml"))
    top = load(written(tmp_path, "# top\na:\n  y: [3]\nc: {z: 1}\n", "top.yaml"))
    both = top.over(base)
    assert both.data == {"a": {"x": 1, "y": [3]}, "b": 1, "c": {"z": 1}}
    assert both.where(("a", "x")) == (base.path, 1)
    assert both.where(("a", "y")) == (top.path, 3)
    assert both.head == "top"


KEYS = st.sampled_from(["a", "b", "c", "d"])
LEAVES = st.one_of(st.integers(), st.booleans(), st.lists(st.integers(), max_size=3))
TREES = st.recursive(
    st.dictionaries(KEYS, LEAVES), lambda inner: st.dictionaries(KEYS, st.one_of(LEAVES, inner)), max_leaves=8
)


@given(tree=TREES.filter(bool))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_loading_agrees_with_pyyaml_on_plain_data(tmp_path: Path, tree: dict[str, object]) -> None:
    text = yaml.safe_dump(tree)
    assert load(written(tmp_path, text)).data == yaml.safe_load(text) == tree


@given(base=TREES, middle=TREES, top=TREES)
def test_layering_is_associative_and_the_top_wins(
    base: dict[str, object], middle: dict[str, object], top: dict[str, object]
) -> None:
    a, b, c = (Document(Path("x"), None, data, {}) for data in (base, middle, top))
    assume(not shapes_clash(base, middle, top))
    assert c.over(b.over(a)).data == c.over(b).over(a).data
    for key, value in top.items():
        if not isinstance(value, dict):
            assert c.over(a).data[key] == value


def shapes_clash(*trees: object) -> bool:
    """True if a key is a mapping in one layer and a value in another: only then does the grouping matter."""
    mappings = [t for t in trees if isinstance(t, dict)]
    if mappings and len(mappings) < len(trees):
        return True
    keys = {k for m in mappings for k in m}
    return any(shapes_clash(*(m[k] for m in mappings if k in m)) for k in keys)


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("12", 12), ("+12", 12), ("-7", -7), ("0", 0), ("0o17", 15), ("0x1F", 31), ("1e5", 1e5), ("1.5e-3", 0.0015),
        (".5", 0.5), ("5.", 5.0), ("-.inf", float("-inf")), ("true", True), ("False", False), ("null", None),
        ("~", None), ("", None), ("yess", "yess"), ("1:2 3", "1:2 3"), ("12b", "12b"), ("0o8", "0o8"),
        ("'yes'", "yes"), ('"010"', "010"), ("'2026-11-22'", "2026-11-22"), ("y", "y"),
    ],
)  # fmt: skip
def test_unquoted_scalars_are_those_of_yaml_1_2(tmp_path: Path, scalar: str, value: object) -> None:
    data = load(written(tmp_path, f"a: {scalar}\n")).data["a"]
    assert data == value and type(data) is type(value)


@pytest.mark.parametrize(
    ("scalar", "says"),
    [
        ("yes", "reads true or false, version 1.2 text\n  write true or false, or put the text in quotes"),
        ("Off", "reads true or false"),
        ("1:2:3", "reads a number in another notation"),
        ("1:30.5", "reads a number in another notation"),
        ("1_000", "reads a number in another notation"),
        ("0b101", "reads a number in another notation"),
        ("2026-11-22", "reads a date, version 1.2 text\n  put text that looks like a date in quotes"),
        ("2026-11-22 10:00:00", "reads a date"),
        ("010", "octal in YAML 1.1\n  write 10, or 0o10 for octal, or put the text in quotes"),
        ("-08", "octal in YAML 1.1"),
        ("<<", "reads a merge key"),
        ("9" * 5000, "more than 100 digits"),
        ("!!str 5", "tags are not used here"),
        ("! 5", "tags are not used here"),
    ],
)
def test_a_scalar_that_two_versions_of_yaml_read_differently_is_refused(tmp_path: Path, scalar: str, says: str) -> None:
    path = written(tmp_path, f"b: 1\na:\n  c: {scalar}\n")
    message = refused(path)
    assert message.startswith(f"{path}:3: ") and says in message
    assert "a.c" in message or "tags" in message


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_deep_nesting_is_refused_before_it_is_built(tmp_path: Path, opening: str) -> None:
    assert ":1: not valid YAML: more than 32 levels deep" in refused(written(tmp_path, "a: " + opening * 50_000))


def test_a_file_that_is_too_long_is_not_parsed(tmp_path: Path) -> None:
    assert "more than 262144 bytes" in refused(written(tmp_path, "# " + "x" * 300_000))


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    assert "File name too long" in refused(tmp_path / ("x" * 300))
    assert "no name of a file: embedded null byte" in refused(tmp_path / "a\x00b")


@given(text=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_text_that_was_dumped_is_read_back_by_old_and_new_readers(tmp_path: Path, text: str) -> None:
    written_ = dump_yaml({"a": {"b": [text], "c": {text: 1}}})
    assert load(written(tmp_path, written_)).data == yaml.safe_load(written_) == {"a": {"b": [text], "c": {text: 1}}}


@pytest.mark.parametrize("text", ["1e5", "0o17", "yes", "1:30", "010", "2026-11-22", "", "~", "<<", "=", "1_0", ".5"])
def test_text_that_looks_like_something_else_is_dumped_in_quotes(tmp_path: Path, text: str) -> None:
    assert load(written(tmp_path, dump_yaml({"a": text}))).data == {"a": text}

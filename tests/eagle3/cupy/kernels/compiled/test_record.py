"""The record of compiled kernels: what is in it is not compiled again, and an edit is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.backends.eagle3.cupy.kernels.read_memory import ReadMemory
from tests.eagle3.cupy.kernels.compiled import compiler as module
from tests.eagle3.cupy.kernels.compiled.compiler import Compiler, Outcome, Use, key_of, with_constant

SPEC = ReadMemory().spec
EDITED = with_constant(SPEC, "LOADS", 4)
LOG = "{spill} bytes spill stores, 0 bytes spill loads\nUsed {registers} registers, 64 bytes smem"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "registers.json"


class StandIn:
    """Stands for the compiler, and keeps the architecture and the kernels of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Spec]]] = []
        self.spill = 0

    def __call__(self, architecture: str, specs: Sequence[Spec]) -> list[Outcome]:
        self.calls.append((architecture, [*specs]))
        return [Outcome(True, LOG.format(spill=self.spill, registers=dict(s.constants)["LOADS"])) for s in specs]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(module, "outcomes", stand_in)
    return stand_in


def test_what_was_compiled_once_is_not_compiled_again_and_an_edit_is(file: Path, stand_in: StandIn) -> None:
    assert Compiler(file, writes=True).uses_of("sm_90", [SPEC]) == [Use(8, 64)]
    again = Compiler(file, writes=True)
    assert again.uses_of("sm_90", [SPEC, EDITED]) == [Use(8, 64), Use(4, 64)]
    assert again.uses_of("sm_80", [SPEC]) == [Use(8, 64)]
    assert stand_in.calls == [("sm_90", [SPEC]), ("sm_90", [EDITED]), ("sm_80", [SPEC])]
    assert Compiler(file).uses_of("sm_90", [EDITED, SPEC]) == [Use(4, 64), Use(8, 64)]
    assert len(stand_in.calls) == 3
    assert json.loads(file.read_text())[key_of(SPEC)] == {"sm_80": [8, 64], "sm_90": [8, 64]}


def test_a_comment_is_no_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    before, text = key_of(SPEC), SPEC.source
    for other, same in ((f"{text}// another comment", True), (f"{text}int another;", False)):
        monkeypatch.setattr(Spec, "source", other)
        assert (key_of(SPEC) == before) == same


def test_who_only_reads_is_told_which_kernels_have_to_be_compiled_and_how(file: Path, stand_in: StandIn) -> None:
    Compiler(file, writes=True).uses_of("sm_90", [SPEC])
    for architecture, spec in (("sm_90", EDITED), ("sm_80", SPEC)):
        with pytest.raises(pytest.fail.Exception, match=rf"for {architecture} with NVRTC .* read_memory \(1\)") as fail:
            Compiler(file).uses_of(architecture, [spec])
        assert "./run_suite.sh kernels" in str(fail.value)
    assert len(stand_in.calls) == 1


def test_another_compiler_compiles_everything_anew(
    file: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for release in ("13.0.88", "13.0.90", "13.1.2"):
        monkeypatch.setattr(module, "version", lambda name, release=release: release)
        Compiler(file, writes=True).uses_of("sm_90", [SPEC])
    assert len(stand_in.calls) == 2


def test_what_spills_is_not_recorded_and_keeps_nothing_else_out(file: Path, stand_in: StandIn) -> None:
    stand_in.spill = 8
    with pytest.raises(AssertionError, match="sm_90: refused, or registers spilled"):
        Compiler(file, writes=True).uses_of("sm_90", [SPEC])
    assert json.loads(file.read_text()) == {}


def test_what_no_test_needs_leaves_the_record(file: Path, stand_in: StandIn) -> None:
    before = Compiler(file, writes=True)
    for architecture in ("sm_80", "sm_90"):
        before.uses_of(architecture, [SPEC, EDITED])
    after = Compiler(file, writes=True)
    after.uses_of("sm_90", [EDITED])
    after.forget_others()
    assert json.loads(file.read_text()) == {key_of(EDITED): {"sm_90": [4, 64]}}


def test_all_can_be_compiled_anew_but_once(file: Path, stand_in: StandIn) -> None:
    Compiler(file, writes=True).uses_of("sm_90", [SPEC])
    anew = Compiler(file, writes=True, anew=True)
    assert anew.uses_of("sm_90", [SPEC]) == anew.uses_of("sm_90", [SPEC])
    assert len(stand_in.calls) == 2


def test_registers_are_those_that_the_assembler_counts(file: Path) -> None:
    (use,) = Compiler(file, writes=True).uses_of("sm_90", [SPEC])
    assert 16 <= use.registers <= 255 and use.shared_bytes >= 0

"""`diagnose parity`: what it prints, writes and ends with; planted faults are seen where they are first felt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.checkpoints.folders import edit_config, edit_tensors
from tests.support.command import Cli

IDS = ",".join(str(7 * i % 256) for i in range(3, 27))
PROMPT = ("--prompt-ids", IDS)
Tensors = dict[str, Any]


def found(cli: Cli, *arguments: str | Path, pair: bool = True) -> tuple[int, dict[str, object]]:
    """(exit code, what is printed as JSON) of a comparison."""
    done = cli.run("diagnose", "parity", *arguments, "--json", pair=pair)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def spoilt(cli: Cli, spoil: Callable[[Path], object]) -> str:
    """The reference with a spoilt copy of the draft, as a side."""
    folder = cli.folder / "spoilt"
    shutil.copytree(cli.draft, folder)
    spoil(folder)
    return f"reference,draft={folder}"


def dump(cli: Cli, name: str = "a.safetensors") -> Path:
    done = cli.run("diagnose", "parity", "reference", "--dump", name, *PROMPT, code=0)
    assert done.stderr == f"wrote {name}: 24 prompt tokens, target, draft, step\n"
    return cli.folder / name


def changed(file: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a dump with changes."""
    tensors = load_file(file)
    change(tensors)
    copy = file.with_name("b.safetensors")
    save_file(tensors, copy)
    return copy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_two_dtypes_of_one_engine_agree(cli: Cli, dtype: str) -> None:
    done = cli.run("diagnose", "parity", "reference,dtype=float32", "reference", "--dtype", dtype, *PROMPT, code=0)
    assert f"\nAGREES 17 stages, to within what rounding in {dtype} explains\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_dump_of_an_engine_agrees_with_the_engine_bit_for_bit(cli: Cli) -> None:
    code, stored = found(cli, dump(cli), "reference")
    assert code == 0 and stored["schema"] == "specgate.parity/v1" and stored["agrees"] is True
    stages = stored["stages"]
    assert isinstance(stages, list) and {stage["distance"]["max_abs"] for stage in stages} == {0.0}
    assert stored["target_ids_compared"] is True and stored["prompt_tokens"] == 24


def test_transformers_agrees_with_the_reference(cli: Cli) -> None:
    code, stored = found(cli, "reference", "transformers", "--dtype", "float32", *PROMPT)
    assert code == 0 and stored["notes"] == [] and stored["target_ids_compared"] is True


def test_an_engine_whose_stages_are_no_numbers_has_failed(cli: Cli) -> None:
    def break_norm(folder: Path) -> None:
        edit_tensors(folder, lambda tensors: tensors["midlayer.self_attn.o_proj.weight"].mul_(3e38))

    done = cli.run("diagnose", "parity", spoilt(cli, break_norm), "reference", "--dtype", "float32", *PROMPT)
    assert done.returncode == 7 and "draft.attn_out" in done.stderr


def swap_fc(folder: Path) -> None:
    def swap(tensors: Tensors) -> None:
        low, middle, high = tensors["fc.weight"].chunk(3, dim=1)
        tensors["fc.weight"] = torch.cat((high, middle, low), dim=1)

    edit_tensors(folder, swap)


def other_rope(folder: Path) -> None:
    edit_config(folder, rope_theta=500000.0)


def other_final_norm(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors["norm.weight"].fill_(1.0))


def normed_residual(folder: Path) -> None:
    edit_config(folder, norm_before_residual=True)


def normed_output(folder: Path) -> None:
    edit_config(folder, norm_output=True)


def other_layers(folder: Path) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}  # outputs of layers: boundaries 2, 3, 4
    edit_config(folder, eagle_aux_hidden_state_layer_ids=[2, 3, 4], eagle_config=nested)


def head_rows(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].roll(1, 0)}))


@pytest.mark.parametrize(
    ("fault", "stage", "cause"),
    [
        (other_layers, "draft.features", "other layers are captured"),
        (swap_fc, "draft.fc_out", "the order of the captured layers"),
        (other_rope, "draft.attn_out", "RoPE of the draft"),
        (normed_residual, "draft.ffn_out", "the residual"),
        (other_final_norm, "draft.pre_head_hidden", "the final norm left out"),
        (head_rows, "draft.logits", "the LM head"),
        (normed_output, "step.hidden", "the hidden state that is handed on"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_departs_first_where_it_is_made(
    cli: Cli, fault: Callable[[Path], None], stage: str, cause: str
) -> None:
    arguments = (spoilt(cli, fault), "reference", "--dtype", "float32", *PROMPT)
    done = cli.run("diagnose", "parity", *arguments)
    assert done.returncode == 1 and f"\nDEPARTS first at {stage}\n" in done.stdout, done.stderr
    assert f"\n- {cause}" in done.stdout


def test_a_final_norm_that_is_left_out_departs_there(cli: Cli) -> None:
    """A dump whose head reads the stream itself: residual and both branches, added up here."""
    head = load_file(cli.draft / "model.safetensors")["lm_head.weight"]

    def leave_out(tensors: Tensors) -> None:
        stream = tensors["draft.fc_out"] + tensors["draft.attn_out"] + tensors["draft.ffn_out"]
        tensors |= {"draft.pre_head_hidden": stream, "draft.logits": stream @ head.T}

    a = dump(cli)
    code, stored = found(cli, a, changed(a, leave_out), pair=False)
    assert (code, stored["first_departing_stage"]) == (1, "draft.pre_head_hidden")
    stages = stored["stages"]
    assert isinstance(stages, list)
    assert [stage["stage"] for stage in stages if stage["departs"]] == ["draft.pre_head_hidden", "draft.logits"]


def test_a_head_in_another_layout_agrees_and_its_contradictions_are_warnings(cli: Cli) -> None:
    def relabel(folder: Path) -> None:
        edit_config(folder, num_hidden_layers=40)
        edit_tensors(folder, lambda t: [t.update({f"model.{name}": t.pop(name)}) for name in list(t)])

    done = cli.run("diagnose", "parity", "reference", spoilt(cli, relabel), *PROMPT, code=0)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("warning: "))
    assert "spoilt: the draft's config.json contradicts its weights" in line and "num_hidden_layers = 40" in line


def test_a_map_that_is_off_by_one_is_named_although_every_stage_agrees(cli: Cli) -> None:
    def shift(tensors: Tensors) -> None:
        tensors["draft.target_ids"] = tensors["draft.target_ids"] + 1

    a = dump(cli)
    done = cli.run("diagnose", "parity", a, changed(a, shift), pair=False, code=1)
    assert "\nOTHER TOKENS every stage agrees, but draft ids mean other tokens\n" in done.stdout
    assert "96 of 96 draft ids mean another target token" in done.stdout
    assert "B's ids are all off by 1" in " ".join(done.stdout.split())


def test_what_one_side_lacks_is_said_and_the_rest_compared(cli: Cli) -> None:
    a = dump(cli)
    wanted = ("prompt_ids", "draft.fc_out", "draft.attn_out", "draft.ffn_out", "draft.pre_head_hidden", "draft.logits")
    code, stored = found(
        cli, a, changed(a, lambda t: [t.pop(name) for name in list(t) if name not in wanted]), pair=False
    )
    assert code == 0 and stored["target_ids_compared"] is False
    notes = stored["notes"]
    assert isinstance(notes, list)
    assert [note.partition(":")[0] for note in notes] == ["target", "step", "draft.target_ids", "draft.features"]


def test_a_prompt_too_short_for_the_draft_is_said(cli: Cli) -> None:
    code, stored = found(cli, "reference", "reference", "--prompt-ids", "7")
    notes = stored["notes"]
    assert code == 0 and isinstance(notes, list)
    assert notes == [f"{part}: the prompt has 1 tokens, it takes {n}" for part, n in (("draft", 2), ("step", 3))]


def test_sides_without_a_stage_in_common_cannot_be_compared(cli: Cli) -> None:
    a = dump(cli)
    target = changed(a, lambda t: [t.pop(name) for name in list(t) if name.partition(".")[0] in ("draft", "step")])
    draft = cli.folder / "c.safetensors"
    save_file({n: x for n, x in load_file(a).items() if n.startswith(("draft", "prompt"))}, draft)
    done = cli.run("diagnose", "parity", target, draft, pair=False)
    assert done.returncode == 6 and "no stage in common" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reference",), "parity needs two sides"),
        (("reference", "reference", "--context", "9", "--prompt", "x"), "give one of them"),
        (("reference", "reference", "--prompt-ids", "1,x"), "token ids with commas"),
        (("reference", "reference", "--prompt-ids", "1,2,320"), "token 2 = 320"),
        (("reference,dtype=int8", "reference"), "one of float32, bfloat16, float16"),
        (("reference,dtype", "reference"), "is no KEY=VALUE"),
        (("reference,dtype=float32,dtype=float16", "reference"), "dtype is given twice"),
        (("fake", "reference"), "this engine shows no stages"),
        (("nowhere.safetensors", "reference"), "no such file"),
        (("reference", "--dump", "x.bin"), "a name that ends with .safetensors"),
        (("reference,pair=demo,draft=x", "reference"), "name the pair in one way"),
        (("nobody", "reference"), "nobody: neither a file FILE.safetensors nor a back end"),
    ],
)
def test_what_cannot_be_meant_ends_with_2(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli.run("diagnose", "parity", *arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_file_has_its_own_prompt(cli: Cli) -> None:
    done = cli.run("diagnose", "parity", dump(cli), "reference", *PROMPT)
    assert done.returncode == 2 and "has a prompt of its own" in done.stderr


def test_parts_of_a_value_after_commas_belong_to_it(cli: Cli) -> None:
    code, stored = found(cli, "reference,capture=0,1,2", "reference", *PROMPT, "--dtype", "float32")
    assert (code, stored["first_departing_stage"]) == (1, "draft.features")

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.planted import rows
from specgate.backends.eagle3.planted.recipe import Recipe
from tests.backends.eagle3.planted.recipes import RECIPE_A, RECIPE_B, made_draft, made_target

Maker = Callable[..., dict[str, Tensor]]
RECIPES = pytest.mark.parametrize("recipe", [RECIPE_A, RECIPE_B], ids=lambda r: r.name)


def digest(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in tensors.items():
        total.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@RECIPES
@pytest.mark.parametrize("made", [made_target, made_draft], ids=["target", "draft"])
def test_weights_do_not_depend_on_the_blocks_they_are_made_in(
    recipe: Recipe, made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = digest(made(recipe))
    monkeypatch.setattr(rows, "BLOCK", 3000)
    assert digest(made(recipe)) == whole


@pytest.mark.gpu
@RECIPES
@pytest.mark.parametrize("made", [made_target, made_draft], ids=["target", "draft"])
def test_a_gpu_makes_the_bits_that_a_cpu_makes(recipe: Recipe, made: Maker) -> None:
    on_cpu, on_gpu = made(recipe, "cpu"), made(recipe, "cuda")
    assert [name for name in on_cpu if not torch.equal(on_cpu[name], on_gpu[name].cpu())] == []


GOLDEN = {
    ("A", "target"): "G1",
    ("A", "draft"): "G2",
    ("B", "target"): "G3",
    ("B", "draft"): "G4",
}

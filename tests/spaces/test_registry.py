import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from advnas import Search, spaces
from advnas.space import SearchSpace
from advnas.spaces import SPACES

OPTIONS = {"recurrent_cell": {"vocabulary": 10, "hidden": 8}, "mobile": {"channels": 8}}
SMALL = {
    "toy_regression": {"decisions": 2, "candidates": 3},
    "nasbench201": {"channels": 4},
    "small_cells": {"channels": 4, "inputs": 3},
    "darts": {"channels": 4, "cells": 0},
    "mobile": {"channels": 4},
    "nasbench_macro": {"width": 4, "head": 8},
    "recurrent_cell": {"vocabulary": 10, "hidden": 8},
    "character_model": {"width": 8, "layers": 2, "context": 8},
}
DECISIONS = {
    "toy_regression": 10,
    "nasbench201": 6,
    "small_cells": 6,
    "darts": 28,
    "mobile": 21,
    "nasbench_macro": 8,
    "recurrent_cell": 6,
    "character_model": 16,
}


@pytest.mark.parametrize("name", SPACES)
def test_every_space_is_built_by_its_name(name):
    assert len(SearchSpace(spaces.get(name, **OPTIONS.get(name, {}))).decisions) == DECISIONS[name]


def loss_on_random_data(name):
    """A loss that fits the space, on one small minibatch."""
    text, images, classes = torch.randint(10, (5, 8)), torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
    if name == "toy_regression":
        return lambda model: model(images.new_ones(4, 1, 13, 13)).square().mean()
    if name == "recurrent_cell":
        return lambda model: model.loss(text, text)[0]
    if name == "character_model":
        return lambda model: F.cross_entropy(model(text), text)
    return lambda model: F.cross_entropy(model(images), classes)


@pytest.mark.parametrize("strategy", ["contrast", "advantage"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", SPACES)
def test_every_space_can_be_searched_in_less_precision(name, precision, strategy):
    torch.manual_seed(0)
    loss = loss_on_random_data(name)
    search = Search(spaces.get(name, **SMALL[name]), strategy, precision=precision)
    assert math.isfinite(search.weight_step(loss).loss)
    assert all(map(math.isfinite, search.architecture_step(loss).advantages.values()))


def test_a_space_is_in_the_file_of_its_name():
    assert all(space.path == f"advnas.spaces.{name}:build" for name, space in SPACES.items())


def test_a_misspelt_space_is_told_what_was_meant():
    with pytest.raises(
        ValueError, match=r"no space 'dart' \(did you mean 'darts'\?\)\. Choose one of toy_regression, "
    ):
        spaces.get("dart")


def test_a_misspelt_option_is_told_what_was_meant():
    with pytest.raises(
        ValueError, match=r"'small_cells' has no option 'chanels' \(did you mean 'channels'\?\); it takes"
    ):
        spaces.get("small_cells", chanels=3)


@pytest.mark.parametrize("room", ["spaces", "tasks"])
def test_a_registry_is_read_without_torch(room):
    check = f"import sys; from advnas.{room} import {room.upper()} as all_; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

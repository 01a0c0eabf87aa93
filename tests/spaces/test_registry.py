import subprocess
import sys

import pytest

from advnas import spaces
from advnas.space import SearchSpace
from advnas.spaces import SPACES

OPTIONS = {"recurrent_cell": {"vocabulary": 10, "hidden": 8}, "mobile": {"channels": 8}}
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

"""Imports go one way; the rooms of the house are those of the design."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import advnas

SOURCE = Path(advnas.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
NOUNS = (
    *("randomness", "arguments", "notebook", "architecture", "gates", "choice"),
    *("modes", "width", "distribution", "fresh", "ownership", "space", "task"),
)
SIDE_ROOMS = ("records", "parallel", "stores", "spaces", "tasks", "tables")  # they know only nouns, and each other
SIDE_BY_SIDE = {
    "parallel": {"records"},
    "stores": {"records"},
    "tasks": {"records", "spaces"},
    "tables": {"records", "tasks"},
}
CHAIN = ("strategies", "costs", "search", "retrain", "answers", "export", "studies", "paper", "reports")
MAY_IMPORT = {
    **{name: set(NOUNS[:place]) for place, name in enumerate(NOUNS)},
    **{name: {*NOUNS, *SIDE_BY_SIDE.get(name, ())} for name in SIDE_ROOMS},
    **{name: {*NOUNS, *SIDE_ROOMS, *CHAIN[:place]} for place, name in enumerate(CHAIN)},
    "strategies": {*NOUNS},
    "costs": {*NOUNS},
    "testing": {*NOUNS, "strategies", "costs", "search"},
    "paper": {*NOUNS, *SIDE_ROOMS, *CHAIN[: CHAIN.index("paper")], "testing"},
}
MAY_IMPORT_ANYTHING = {"__init__", "__main__", "cli"}


def room(path):
    """The first name below `advnas`: a module, or a folder."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms_imported(text, package):
    """The rooms of advnas that a source text imports, relative imports included."""
    rooms = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("advnas.")}
    return rooms


def package_of(path):
    return ["advnas", *path.relative_to(SOURCE).parts[:-1]]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    here = room(path)
    if here not in MAY_IMPORT_ANYTHING:
        assert here in MAY_IMPORT, f"say in this test what {here} may import"
        imported = rooms_imported(path.read_text(), package_of(path))
        assert imported <= MAY_IMPORT[here] | {here}


@pytest.mark.parametrize(
    ("text", "rooms"),
    [
        ("import advnas.search", {"search"}),
        ("from advnas import strategies, space", {"strategies", "space"}),
        ("from advnas.strategies.gdas import Gdas", {"strategies"}),
        ("from ..choice import Choice", {"choice"}),
        ("from .. import choice", {"choice"}),
        ("from . import task", {"tasks"}),
        ("def f():\n    import advnas.cli", {"cli"}),
        ("import torch\nfrom torch import nn\nimport advnas", set()),
    ],
)
def test_the_test_itself_sees_all_ways_to_import(text, rooms):
    assert rooms_imported(text, ["advnas", "tasks"]) == rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_there_is_no_corner_for_leftovers(path):
    assert not {"utils", "common", "core", "misc", "helpers"} & {
        part.removesuffix(".py") for part in path.relative_to(SOURCE).parts
    }


def test_importing_advnas_loads_no_plotting_library():
    check = "import sys, advnas; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

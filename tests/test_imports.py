"""Imports go one way; the rooms of the house are those of the design."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import advnas

SOURCE = Path(advnas.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
CHAIN = ("architecture", "gates", "choice", "distribution", "space", "weights", "strategies", "search")
UP_TO_CHOICE = set(CHAIN[: CHAIN.index("choice") + 1])
UP_TO_SEARCH = {*CHAIN, "spaces", "tasks", "retrain", "derive"}
LEAVES = {
    "randomness",
    "checkpoint",
    "restoring",
    "spelling",
    "memory",
    "data_folder",
    "device",
    "processes",
}  # they know nobody, and anybody may know them
MAY_IMPORT = {
    **{name: set(CHAIN[:place]) for place, name in enumerate(CHAIN)},
    **{name: set() for name in LEAVES},
    "preflight": {"architecture", "gates", "choice", "distribution", "space"},
    "reductions": {"architecture"},
    "search": {*CHAIN, "preflight", "reductions", "tasks"},
    "retrain": {*CHAIN, "tasks"},
    "derive": {*CHAIN, "tasks"},
    "export": {*CHAIN, "tasks", "derive", "retrain"},
    "spaces": UP_TO_CHOICE,
    "tasks": {*UP_TO_CHOICE, "spaces"},
    "benchmarks": {"architecture"},
    "experiments": UP_TO_SEARCH,
    "studies": UP_TO_SEARCH | {"experiments"},
    "reports": UP_TO_SEARCH | {"experiments", "studies", "benchmarks"},
    "testing": UP_TO_SEARCH,
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
        assert imported <= MAY_IMPORT[here] | LEAVES | {here}


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

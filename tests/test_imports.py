"""Imports go one way; the rooms of the house are those of the design."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import advnas

SOURCE = Path(advnas.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
CHAIN = ("architecture", "choice", "distribution", "space", "strategies", "search", "studies", "reports", "cli")
UP_TO_SEARCH = CHAIN[: CHAIN.index("search") + 1]
LEAVES = {
    "checkpoint": set(),
    "randomness": set(),
    "tasks": {"choice"},
    "spaces": {"choice"},
    "benchmarks": {"architecture"},
}


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


TURNED_AROUND = pytest.mark.xfail(
    strict=True, reason="the task knows the space that it is vectorised for, and Draw"
)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=TURNED_AROUND) if path.name == "teacher_regression.py" else path for path in MODULES],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_imports_go_one_way(path):
    here = room(path)
    imported = rooms_imported(path.read_text(), package_of(path)) - {here, "randomness"}
    if here in LEAVES:
        assert imported <= LEAVES[here]
    elif here in UP_TO_SEARCH:
        before = set(CHAIN[: CHAIN.index(here)])
        assert imported <= before | ({"checkpoint", "tasks"} if here == "search" else set())
    elif here in CHAIN:
        assert not imported & set(CHAIN[CHAIN.index(here) :])
    elif here in ("derive", "retrain", "export"):
        assert not imported & {"studies", "reports", "cli"}


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

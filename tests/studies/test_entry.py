"""A user's function is found and called, and what is wrong with it is shown as theirs."""

import pytest

from advnas.studies.entry import EntryFailed, make

GOOD = """
import advnas, torch
from torch import nn

def make_search(strategy, seed, *, width=4):
    model = nn.Sequential(nn.Linear(2, width), advnas.Choice({"a": nn.Linear(width, 2), "b": nn.Linear(width, 2)}))
    batches = [torch.zeros(1, 2)]
    return advnas.Search(model, strategy, seed=seed), advnas.Task(batches, batches, lambda model, x: model(x).sum())
"""
NO_CHOICE = """
import advnas
from torch import nn

def make_search(strategy, seed):
    model = nn.Linear(2, 2)
    return advnas.Search(model, strategy), None
"""


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Writes a module; its name is new each time, as Python imports a module once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"module_{abs(hash(request.node.name))}"

    def write(content):
        (tmp_path / f"{name}.py").write_text(content)
        return name

    return write


def test_a_good_function_is_called_with_strategy_seed_and_options(module):
    search, _ = make(f"{module(GOOD)}:make_search", "random", 3, {"width": 5})
    assert (search.seed, search.model[0].out_features) == (3, 5)


@pytest.mark.parametrize(
    ("passed", "told"),
    [
        ("seed=seed", "called with strategy 'random', and its search has 'contrast'"),
        ("strategy", "called with seed 3, and its search has 0"),
    ],
)
def test_a_function_that_does_not_pass_on_what_it_is_given_is_refused(module, passed, told):
    name = module(GOOD.replace("strategy, seed=seed)", f"{passed})"))
    with pytest.raises(ValueError, match=rf"{told}.*Search\(model, strategy, seed=seed\)\. Seeds are"):
        make(f"{name}:make_search", "random", 3, {})


@pytest.mark.parametrize(("second", "told"), [("'task'", "Search, str"), ("(batches, batches)", "Search, tuple")])
def test_a_second_value_that_is_no_task_is_refused(module, second, told):
    name = module(GOOD.replace("advnas.Task(batches, batches, lambda model, x: model(x).sum())", second))
    with pytest.raises(ValueError, match=f"must return a search and its task, got a tuple of {told}. End it with"):
        make(f"{name}:make_search", "random", 0, {})


@pytest.mark.parametrize("wrong", ["make_serch", "makesearch", "Make_Search"])
def test_a_misspelt_function_is_told_what_was_meant(module, wrong):
    with pytest.raises(ValueError, match=rf"has no '{wrong}' \(did you mean 'make_search'\?\)\.$"):
        make(f"{module(GOOD)}:{wrong}", "random", 0, {})


def test_a_misspelt_module_is_told_what_was_meant(module):
    name = module(GOOD)
    with pytest.raises(ValueError, match=rf"no module '{name[:-1]}' \(did you mean '{name}'\?\)"):
        make(f"{name[:-1]}:make_search", "random", 0, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "def make_search(strategy, seed):\n    return 1 / 0\n",
            ["ZeroDivisionError: division by zero", "return 1 / 0"],
        ),
        ("def make_search(strategy, seed:\n", ["SyntaxError: '(' was never closed", "line 1"]),
        ("import not_installed\n", ["ModuleNotFoundError: No module named 'not_installed'", "line 1"]),
        ("import torch\ntorch.no_such\n", ["AttributeError: module 'torch' has no attribute", "torch.no_such"]),
        ("import sys\nsys.exit(3)\n", ["SystemExit: 3", "sys.exit(3)"]),
        (NO_CHOICE, ["ValueError: Linear has no Choice, so there is nothing to search.", "line 7, in make_search"]),
    ],
)
def test_what_users_code_raises_is_shown_as_theirs_without_our_frames(module, content, words):
    name = module(content)
    with pytest.raises(EntryFailed) as raised:
        make(f"{name}:make_search", "random", 0, {})
    told = str(raised.value)
    assert told.startswith(f"{name}:make_search raised ")
    assert f"{name}.py" in told
    for word in words:
        assert word in told
    for ours in ("advnas/", "importlib", "entry.py"):
        assert ours not in told


def test_errors_of_built_in_searches_are_sentences_already():
    with pytest.raises(ValueError, match="no task 'digit'") as raised:
        make("advnas.studies.built_in:make_search", "random", 0, {"task": "digit"})
    assert not isinstance(raised.value, EntryFailed)

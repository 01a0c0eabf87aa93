"""The examples run as they are, with every strategy."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from advnas import Choice, strategies

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("strategy", strategies.names())
def test_your_own_network_is_searched_by_every_strategy(strategy, capsys):
    network = load("your_own_network").main(strategy, epochs=2)
    assert isinstance(network, nn.Module)
    assert not any(isinstance(module, Choice) for module in network.modules())
    assert network(torch.zeros(5, 16)).shape == (5, 2)
    assert capsys.readouterr().out.startswith(f"{strategy} {{'1.layer': ")


def test_your_own_network_marks_the_three_lines_that_differ():
    text = (EXAMPLES / "your_own_network.py").read_text()
    assert "three lines" in text
    assert sum(line.endswith("  #") for line in text.splitlines()) == 3

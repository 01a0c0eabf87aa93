"""The examples run as they are: the first with every strategy, the others with one of each kind."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from advnas import Choice, strategies

EXAMPLES = Path(__file__).parent.parent / "examples"
SOME = ["advantage", "gdas", "darts"]


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_plain(network):
    assert isinstance(network, nn.Module)
    assert not any(isinstance(module, Choice) for module in network.modules())


@pytest.mark.parametrize("strategy", strategies.names())
def test_your_own_network_is_searched_by_every_strategy(strategy, capsys):
    network = load("your_own_network").main(strategy, epochs=2)
    assert_plain(network)
    assert network(torch.zeros(5, 16)).shape == (5, 2)
    assert capsys.readouterr().out.startswith(f"{strategy} {{'1.layer': ")


def test_your_own_network_marks_the_three_lines_that_differ():
    text = (EXAMPLES / "your_own_network.py").read_text()
    assert "three lines" in text
    assert sum(line.endswith("  #") for line in text.splitlines()) == 3


@pytest.mark.parametrize("strategy", SOME)
def test_nested_choices_are_searched(strategy, capsys):
    network = load("nested_choices").main(strategy, epochs=2)
    assert_plain(network)
    assert network(torch.zeros(5, 4)).shape == (5, 2)
    assert capsys.readouterr().out.startswith(f"{strategy} {{'block': ")


@pytest.mark.parametrize("strategy", SOME)
def test_nested_decisions_move_only_where_they_are_reached(strategy, capsys):
    load("nested_choices").main(strategy, epochs=4)
    lines = capsys.readouterr().out.splitlines()[1:]
    moved = {line.split(":")[0]: int(re.search(r"moved in (\d+) of 48 steps", line)[1]) for line in lines}
    assert moved["block"] == 48
    assert moved["activation"] == moved["norm"]
    assert (moved["activation"] == 48) == (strategy == "darts")


@pytest.mark.parametrize("strategy", SOME)
def test_a_transformer_block_is_searched(strategy, capsys):
    network = load("transformer_block").main(strategy, epochs=1)
    assert_plain(network)
    mask = torch.ones(5, 9, dtype=torch.bool)
    assert network(torch.zeros(5, 9, 2), mask).shape == (5, 2)
    assert capsys.readouterr().out.startswith(f"{strategy} {{'attention': ")


def test_the_transformer_block_finds_that_it_must_see_far():
    attention = load("transformer_block").main(epochs=6).attention
    assert type(attention).__name__ == "Attention"
    assert attention.window is None


@pytest.mark.parametrize("strategy", SOME)
def test_two_heads_are_searched_and_retrained(strategy, capsys):
    network = load("two_heads").main(strategy, epochs=4)
    assert_plain(network)
    out = network(torch.zeros(5, 2))
    assert out["side"].shape == (5, 2)
    assert out["radius"].shape == (5,)
    assert "retrained: validation loss" in capsys.readouterr().out


def test_the_hybrid_language_model_chooses_mixers_and_widths(capsys):
    network = load("hybrid_language_model").main(layers=2, steps=4, epochs=2)
    assert_plain(network)
    assert network(torch.zeros(2, 64, dtype=torch.long)).shape == (2, 128, 64)
    assert re.search(r"layer 1: \w+, \d+ units", capsys.readouterr().out)


def test_lora_ranks_adapts_corrections_and_leaves_the_frozen_layers_alone(capsys, monkeypatch):
    example = load("lora_ranks")
    before = []
    plain = example.with_corrections
    monkeypatch.setattr(example, "with_corrections", lambda base: before.append(frozen(base)) or plain(base))
    network = example.main(layers=2, steps=4, epochs=2)
    assert_plain(network)
    after = {name.replace(".frozen", ""): weight for name, weight in network.named_parameters()}
    assert all(torch.equal(weight, after[name]) for name, weight in before[0].items())
    assert capsys.readouterr().out.count("rank") == 4


def frozen(base):
    return {name: weight.detach().clone() for name, weight in base.named_parameters()}

import copy
import pickle

import pytest
import torch
from torch import nn

from advnas import Architecture, Choice, Draw, SearchSpace
from advnas.answers import Scored

CELL = Architecture({"edge": "conv", "node": "sum"})


def test_an_architecture_reads_like_a_mapping():
    assert CELL["edge"] == "conv"
    assert list(CELL) == ["edge", "node"]
    assert len(CELL) == 2
    assert CELL == {"edge": "conv", "node": "sum"}
    assert repr(CELL) == "Architecture({'edge': 'conv', 'node': 'sum'})"


def test_an_architecture_cannot_be_changed():
    source = {"edge": "conv"}
    architecture = Architecture(source)
    source["edge"] = "skip"
    assert architecture["edge"] == "conv"
    with pytest.raises(TypeError):
        architecture["edge"] = "skip"


def test_the_order_of_decisions_makes_no_difference():
    other = Architecture({"node": "sum", "edge": "conv"})
    assert other == CELL
    assert hash(other) == hash(CELL)
    assert other.digest == CELL.digest
    assert {CELL: 1}[other] == 1


def test_the_digest_is_the_same_on_every_machine_and_tells_architectures_apart():
    assert CELL.digest == "ce9c0a981837"
    assert CELL.digest != Architecture({"edge": "skip", "node": "sum"}).digest


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))], ids=["copy", "pickle"])
def test_an_architecture_travels_between_processes(twin):
    assert twin(CELL) == CELL


def test_json_round_trip_keeps_the_order_of_decisions():
    again = Architecture.from_json(CELL.to_json())
    assert again == CELL
    assert list(again) == list(CELL)


@pytest.mark.parametrize("text", ["{", "[1, 2]", '"conv"', "null"])
def test_from_json_says_what_it_got(text):
    with pytest.raises(ValueError, match="must be a JSON object") as error:
        Architecture.from_json(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("operations", [{"edge": 1}, {1: "conv"}])
def test_names_are_strings(operations):
    with pytest.raises(TypeError, match=r"decision names to operation names.*Write for example"):
        Architecture(operations)


CHOSEN = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


def test_a_bare_draw_asks_for_no_slope_and_a_gated_one_does():
    bare, gated = Draw.bare(CHOSEN), Draw.gated(CHOSEN)
    assert not bare.weights.requires_grad
    assert gated.weights.requires_grad
    assert gated.weights.is_leaf
    assert torch.equal(bare.active, CHOSEN.bool())
    assert torch.equal(gated.active, CHOSEN.bool())
    assert not gated.detached().weights.requires_grad


def test_without_a_gradient_a_draw_has_no_rivals():
    draw = Draw.contrasted(CHOSEN, rivals=torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]))
    assert (draw.path, draw.rival_places) == ([(0, 1), (1, 0)], [(0, 0), (0, 2), (1, 1)])
    assert (draw.detached().path, draw.detached().rival_places) == ([(0, 1), (1, 0)], [])
    assert torch.equal(draw.detached().active, CHOSEN.bool())


def test_a_silent_operation_stays_active_without_a_gradient():
    silenced = next(iter(Draw.bare(CHOSEN).knock_outs()))
    assert torch.equal(Draw(silenced.weights.requires_grad_(), silenced.active).detached().active, CHOSEN.bool())


@pytest.mark.parametrize(
    ("weights", "one_hot"),
    [
        (CHOSEN, True),
        (CHOSEN / 2, False),
        (torch.tensor([[1.0, 1.0], [0.0, 1.0]]), False),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), False),
    ],
    ids=["one-hot", "scaled", "two operations", "nothing"],
)
def test_one_hot_means_exactly_one_architecture(weights, one_hot):
    assert Draw(weights, weights != 0).one_hot is one_hot


def test_knock_outs_silence_one_decision_each_and_run_nothing_else():
    knock_outs = Draw.gated(CHOSEN).knock_outs()
    assert knock_outs.weights.tolist() == [
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]],
    ]
    assert all(torch.equal(draw.active, CHOSEN.bool()) for draw in knock_outs)
    assert not knock_outs.weights.requires_grad


def test_knock_outs_of_several_searches_come_first():
    several = Draw.bare(torch.stack([CHOSEN, CHOSEN.flip(0)])).knock_outs()
    assert several.weights.shape == (2, 2, 2, 3)
    alone = Draw.bare(CHOSEN.flip(0)).knock_outs()
    assert torch.equal(several.weights[:, 1], alone.weights)


def test_iterating_gives_the_draws_along_the_first_dimension():
    draws = list(Draw(torch.stack([CHOSEN, 1 - CHOSEN]), torch.ones(2, 2, 3, dtype=torch.bool), constants=True))
    assert [draw.weights.tolist() for draw in draws] == [CHOSEN.tolist(), (1 - CHOSEN).tolist()]
    assert all(draw.constants for draw in draws)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Scored(CELL, 0.5, "argmax"), r"got a Scored\. Write its \.architecture"),
        ("conv", r"got 'conv'\. Write for example \{'edge': 'conv'\}"),
        ([CELL], r"got a list\. Write for example"),
    ],
)
@pytest.mark.parametrize("use", [Architecture, SearchSpace(Choice({"conv": nn.Identity()})).derive])
def test_what_is_no_mapping_is_refused_with_what_to_write(given, message, use):
    with pytest.raises(TypeError, match=f"An architecture maps decision names to operation names, {message}"):
        use(given)

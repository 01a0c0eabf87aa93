import pytest
import torch

from advnas import SearchSpace
from advnas.spaces.character_model import CharacterModel
from advnas.testing import check_space

OPERATIONS = ("attention", "conv3", "conv9", "mlp", "none")


def text(batch=2, time=12):
    return torch.randint(128, (batch, time), generator=torch.Generator().manual_seed(0))


def small(layers=2):
    return CharacterModel(width=8, layers=layers, context=12)


def test_every_layer_is_a_decision():
    space = SearchSpace(CharacterModel())
    assert [decision.name for decision in space.decisions] == [f"layer {number}" for number in range(16)]
    assert {decision.operations for decision in space.decisions} == {OPERATIONS}


def test_it_is_a_space_like_any_other():
    check_space(small, text(), architectures=8)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_character_sees_those_behind_it(operation):
    space = SearchSpace(small())
    network = space.derive({"layer 0": operation, "layer 1": operation})
    one = text(1)
    other = one.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 128
    first, second = network(one), network(other)
    assert first.shape == (1, 128, 12)
    torch.testing.assert_close(first[..., :7], second[..., :7])
    assert not torch.allclose(first[..., 7:], second[..., 7:])


def test_the_parameters_are_those_that_a_person_counts():
    space, width = SearchSpace(small(1)), 8
    fixed = 128 * width + 12 * width + 2 * width + 2 * width + 128 * width + 128
    layers = {
        "attention": 4 * width * width + 4 * width,
        "conv3": (3 + 1) * width + width * width + width,
        "conv9": (9 + 1) * width + width * width + width,
        "mlp": 8 * width * width + 5 * width,
        "none": 0,
    }
    for operation, own in layers.items():
        network = space.derive({"layer 0": operation})
        assert sum(weight.numel() for weight in network.parameters()) == fixed + own


def test_a_width_that_the_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="width must be a multiple of 4, the heads of the attention, got 30"):
        CharacterModel(width=30)

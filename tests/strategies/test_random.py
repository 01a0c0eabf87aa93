import pytest
import torch

from advnas import Draw
from advnas.strategies.random import Random
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[1.0, 1.0, -torch.inf], [1.0, 1.0, 1.0]])


@pytest.mark.parametrize("phase", Phase)
def test_draws_are_uniform_in_every_phase(generator, phase):
    drawn = Random().draw(LOGITS.expand(20_000, 2, 3), {}, phase, None, generator)
    expected = torch.tensor([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    assert torch.allclose(drawn.weights.mean(0), expected, atol=0.015)


def test_theta_never_moves(feedback):
    gradient, state = Random().gradient(feedback(loss=1.0), Draw.bare(torch.eye(3)[:2]), LOGITS, {})
    assert gradient is None
    assert state == {}
    assert torch.equal(Random().project(LOGITS, LOGITS, None, {}), LOGITS)

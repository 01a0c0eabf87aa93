import pytest
import torch

from advnas import Distribution, Draw
from advnas.strategies.reinforce import Reinforce
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[0.0, 1.0], [0.5, 0.0]])
CHOSEN = torch.tensor([[0.0, 1.0], [1.0, 0.0]])


def test_the_baseline_starts_at_the_first_reward_and_is_updated_after_it_is_used(feedback):
    strategy, state, score = Reinforce(decay=0.5), {}, Distribution(LOGITS).score(CHOSEN)
    for loss, advantage, baseline in (
        (4.0, 0.0, -4.0),  # the first reward is its own baseline
        (2.0, 2.0, -3.0),  # -2 - (-4), then half way from -4 to -2
        (5.0, -2.0, -4.0),
    ):
        gradient, state = strategy.gradient(feedback(loss=loss), Draw.bare(CHOSEN), LOGITS, state)
        assert torch.allclose(gradient, advantage * score)
        assert state["baseline"].item() == baseline


def test_the_default_decay_is_the_papers(feedback):
    strategy = Reinforce()
    _, state = strategy.gradient(feedback(loss=0.0), Draw.bare(CHOSEN), LOGITS, {})
    _, state = strategy.gradient(feedback(loss=-1.0), Draw.bare(CHOSEN), LOGITS, state)
    assert state["baseline"].item() == pytest.approx(0.05)


@pytest.mark.parametrize("phase", Phase)
def test_no_step_needs_gates(generator, phase):
    draw = Reinforce().draw(LOGITS, {}, phase, None, generator)
    assert draw.one_hot
    assert not draw.weights.requires_grad

import pytest
import torch

from advnas import Distribution, Draw
from advnas.strategies.exact_advantage import ExactAdvantage
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[0.0, 1.0], [0.5, 0.0]])
ZEROS = torch.tensor([[True, False], [False, False]])


def loss(draw):
    """Two decisions that only count together, and a cost for each operation."""
    outputs = (draw.weights * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(-1)
    return outputs.prod(-1) + outputs.sum(-1)


def test_the_advantage_is_what_the_reward_loses_without_the_decision(feedback):
    chosen = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # outputs 2 and 3: loss 11; without them 3 and 2
    draw = Draw.bare(chosen)
    strategy = ExactAdvantage()
    gradient, _ = strategy.gradient(feedback(loss=loss(draw), decisions=2, probe=loss), draw, LOGITS, {})
    advantages = torch.tensor([[3.0 - 11.0], [2.0 - 11.0]])
    assert torch.allclose(gradient, advantages * Distribution(LOGITS).score(chosen))


def test_a_zero_keeps_its_advantage_of_0_unless_the_rule_is_asked_for(feedback, generator):
    chosen = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    draw, flat = Draw.bare(chosen), lambda draw: torch.ones(draw.weights.shape[:-2])
    for rule, advantage in ((False, 0.0), (True, -5.0)):
        strategy = ExactAdvantage(zero_rule=rule)
        state = strategy.init(LOGITS, ZEROS, generator)
        if rule:
            state["average"] = torch.tensor([[9.0, -5.0], [0.0, 0.0]])
        gradient, _ = strategy.gradient(feedback(loss=1.0, decisions=2, probe=flat), draw, LOGITS, state)
        assert torch.allclose(gradient[0], advantage * Distribution(LOGITS).score(chosen)[0])


@pytest.mark.parametrize("phase", Phase)
def test_no_step_needs_gates(generator, phase):
    draw = ExactAdvantage().draw(LOGITS, {}, phase, None, generator)
    assert draw.one_hot
    assert not draw.weights.requires_grad

import pytest
import torch

from advnas import Draw
from advnas.strategies.advantage import Advantage
from advnas.strategies.strategy import Phase

# One decision, four candidates: zero, a, b, and padding.
LOGITS = torch.tensor([[1.0, 1.0, 1.0, -torch.inf]])
ZEROS = torch.tensor([[True, False, False, False]])
MU = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0]])


def chosen(column):
    return torch.eye(4)[column][None]


def step(strategy, state, feedback, column, advantage, reached=True):
    """The strategy's gradient when operation `column` was drawn and had this advantage."""
    reply = feedback(slope=-advantage * chosen(column), reached=[reached])
    return strategy.gradient(reply, Draw.gated(chosen(column)), LOGITS, state)


def test_gates_stand_only_in_architecture_steps(generator):
    strategy = Advantage()
    state = strategy.init(LOGITS, ZEROS, generator)
    draws = {phase: strategy.draw(LOGITS, state, phase, None, generator) for phase in Phase}
    assert draws[Phase.ARCHITECTURE].weights.requires_grad
    assert not draws[Phase.WEIGHTS].weights.requires_grad
    assert not draws[Phase.WARMUP].weights.requires_grad
    assert all(draw.one_hot for draw in draws.values())


@pytest.mark.parametrize("zero_rule", [True, False])
def test_the_gradient_is_the_advantage_times_the_score(feedback, generator, zero_rule):
    strategy = Advantage(zero_rule=zero_rule)
    gradient, _ = step(strategy, strategy.init(LOGITS, ZEROS, generator), feedback, 1, advantage=0.7)
    assert torch.allclose(gradient, 0.7 * (chosen(1) - MU))


def test_a_drawn_zero_gets_the_worst_average_of_the_other_operations(feedback, generator):
    strategy = Advantage(decay=0.5)
    state = strategy.init(LOGITS, ZEROS, generator)
    averages = []
    for column, advantage in ((1, 8.0), (2, -4.0), (1, 2.0)):
        _, state = step(strategy, state, feedback, column, advantage)
        averages.append(state["average"][0].tolist())
    assert averages == [[0, 4, 0, 0], [0, 4, -2, 0], [0, 3, -2, 0]]  # half way towards A, at the drawn operation
    gradient, state = step(strategy, state, feedback, 0, advantage=0.0)
    assert torch.allclose(gradient, -2.0 * (chosen(0) - MU))
    assert state["average"][0].tolist() == [0, 3, -2, 0]


def test_the_zero_operation_itself_and_padding_do_not_count_for_the_worst(feedback, generator):
    """All other averages are positive; the zero's own column and the padding would give 0."""
    strategy = Advantage(decay=0.5)
    state = strategy.init(LOGITS, ZEROS, generator)
    for column, advantage in ((1, 8.0), (2, 6.0)):
        _, state = step(strategy, state, feedback, column, advantage)
    gradient, _ = step(strategy, state, feedback, 0, advantage=0.0)
    assert torch.allclose(gradient, 3.0 * (chosen(0) - MU))


def test_the_default_decay_is_the_papers(feedback, generator):
    strategy = Advantage()
    _, state = step(strategy, strategy.init(LOGITS, ZEROS, generator), feedback, 1, advantage=1.0)
    assert state["average"][0, 1].item() == pytest.approx(0.05)


def test_the_average_rests_at_decisions_that_were_not_reached(feedback, generator):
    strategy = Advantage()
    state = strategy.init(LOGITS, ZEROS, generator)
    _, after = step(strategy, state, feedback, 1, advantage=1.0, reached=False)
    assert torch.equal(after["average"], state["average"])


def test_a_decision_between_zeros_only_keeps_its_advantage(feedback, generator):
    strategy = Advantage()
    state = strategy.init(LOGITS, torch.tensor([[True, True, True, False]]), generator)
    gradient, _ = step(strategy, state, feedback, 0, advantage=0.0)
    assert torch.equal(gradient, torch.zeros(1, 4))


def test_without_the_rule_a_drawn_zero_learns_nothing(feedback, generator):
    strategy = Advantage(zero_rule=False)
    state = strategy.init(LOGITS, ZEROS, generator)
    _, state = step(strategy, state, feedback, 1, advantage=-8.0)
    gradient, state = step(strategy, state, feedback, 0, advantage=0.0)
    assert not gradient.any()
    assert not state

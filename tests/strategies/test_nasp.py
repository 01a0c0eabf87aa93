import torch

from advnas import Draw
from advnas.strategies.nasp import Nasp
from advnas.strategies.strategy import Phase

START = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, -torch.inf]])
THETA = torch.tensor([[0.6, 1.4, 0.9], [1.2, 1.1, -torch.inf]])
ZEROS = torch.zeros(2, 3, dtype=torch.bool)


def test_theta_steps_run_all_operations_at_the_binary_point(generator):
    drawn = Nasp().draw(THETA, {}, Phase.ARCHITECTURE, None, generator)
    assert drawn.weights.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert drawn.weights.requires_grad
    assert torch.equal(drawn.active, THETA.isfinite())


def test_weight_steps_run_the_best_operation_only(generator):
    drawn = Nasp().draw(THETA, {}, Phase.WEIGHTS, None, generator)
    assert drawn.weights.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert torch.equal(drawn.active, drawn.weights != 0)
    assert not drawn.weights.requires_grad


def test_while_theta_is_fixed_weight_steps_run_random_operations(generator):
    drawn = [Nasp().draw(THETA, {}, Phase.WARMUP, None, generator) for _ in range(50)]
    assert all(draw.one_hot for draw in drawn)
    assert {draw.weights[0].argmax().item() for draw in drawn} == {0, 1, 2}
    assert {draw.weights[1].argmax().item() for draw in drawn} == {0, 1}


def test_the_gradient_is_the_slope_at_every_operation(feedback):
    slope = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])
    draw = Draw(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), THETA.isfinite())
    gradient, _ = Nasp().gradient(feedback(slope=slope), draw, THETA, {})
    assert torch.equal(gradient, -slope)


def test_theta_is_clipped_to_half_a_unit_around_its_start(generator):
    strategy = Nasp()
    state = strategy.init(START, ZEROS, generator)
    after = torch.tensor([[9.0, -9.0, 1.2], [1.5, 0.5, -torch.inf]])
    projected = strategy.project(START, after, Draw.bare(torch.zeros(2, 3)), state)
    assert torch.equal(projected, torch.tensor([[1.5, 0.5, 1.2], [1.5, 0.5, -torch.inf]]))

import math

import pytest
import torch

from advnas import Distribution, Draw
from advnas.strategies.enas import Enas
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[1.0, 1.0, -torch.inf], [1.0, 1.0, 1.0]])
ZEROS = torch.zeros(2, 3, dtype=torch.bool)
CHOSEN = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


@pytest.fixture
def strategy():
    return Enas(hidden=8, learning_rate=0.05)


def trained(strategy, feedback, generator, losses, chosen=CHOSEN, **reply):
    """The state after some steps on one architecture."""
    state = strategy.init(LOGITS, ZEROS, generator)
    for loss in losses:
        _, state = strategy.gradient(feedback(loss=loss, decisions=2, **reply), Draw.bare(chosen), LOGITS, state)
    return state


def test_the_controller_starts_nearly_uniform(strategy, generator):
    state = strategy.init(LOGITS, ZEROS, generator)
    theta = strategy.project(LOGITS, LOGITS, None, state)
    expected = torch.tensor([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    assert torch.allclose(Distribution(theta).probabilities, expected, atol=0.01)


def test_theta_mirrors_the_greedy_answer_of_the_controller(generator):
    """The row of a decision is conditional on the most likely operations before it."""
    strategy = Enas(hidden=8, tanh_constant=None, temperature=1.0)
    controller = 10 * strategy.init(LOGITS, ZEROS, generator)["controller"]  # a controller with firm opinions
    theta = strategy.project(LOGITS, LOGITS, None, {"controller": controller})
    assert torch.allclose(theta.exp().sum(-1), torch.ones(2))
    assert theta[0, 2] == -torch.inf

    many = {"controller": controller.expand(20_000, -1)}
    drawn = strategy.draw(LOGITS.expand(20_000, 2, 3), many, Phase.WEIGHTS, None, generator).weights
    assert torch.allclose(drawn[:, 0].mean(0), theta[0].exp(), atol=0.01)
    greedy = drawn[:, 0, theta[0].argmax()] == 1
    assert torch.allclose(drawn[greedy, 1].mean(0), theta[1].exp(), atol=0.02)
    assert not torch.allclose(drawn[~greedy, 1].mean(0), theta[1].exp(), atol=0.1)


def test_the_mode_of_theta_is_what_the_controller_was_taught(strategy, feedback, generator):
    state = trained(strategy, feedback, generator, [5.0, *[1.0] * 30])
    assert torch.equal(Distribution(strategy.project(LOGITS, LOGITS, None, state)).mode(), CHOSEN)


@pytest.mark.parametrize(("later", "rises"), [(1.0, True), (9.0, False)])
def test_a_reward_above_the_baseline_makes_its_architecture_more_likely(
    strategy, feedback, generator, later, rises
):
    probabilities = []
    for losses in ([], [5.0, later]):
        state = trained(strategy, feedback, torch.Generator().manual_seed(1), losses)
        probabilities.append((strategy.project(LOGITS, LOGITS, None, state).exp() * CHOSEN).sum(-1))
    assert (probabilities[1] > probabilities[0]).all() == rises
    assert (probabilities[1] != probabilities[0]).all()


def test_the_baseline_starts_at_the_first_reward_so_that_the_first_step_moves_nothing(feedback, generator):
    strategy = Enas(hidden=8, learning_rate=0.05, entropy_weight=0.0)
    start = strategy.init(LOGITS, ZEROS, torch.Generator().manual_seed(0))
    state = trained(strategy, feedback, generator, [5.0])
    assert torch.equal(state["controller"], start["controller"])
    assert state["baseline"].item() == -5
    assert trained(strategy, feedback, generator, [5.0, 4.0])["baseline"].item() == pytest.approx(-4.95)


def test_the_entropy_of_the_draw_is_a_part_of_the_reward(feedback, generator):
    """As in the original: the controller of the first step is nearly uniform, and its entropy log 2 + log 3."""
    strategy = Enas(hidden=8, entropy_weight=0.5)
    state = trained(strategy, feedback, generator, [5.0])
    assert state["baseline"].item() == pytest.approx(-5 + 0.5 * (math.log(2) + math.log(3)), abs=1e-3)


@pytest.mark.parametrize("constant", [0.5, 2.5])
def test_the_tanh_constant_bounds_the_probabilities(generator, constant):
    """However firm the controllers: the logits lie between -c and c."""
    strategy, many = Enas(hidden=8, tanh_constant=constant), LOGITS.expand(50, 2, 3)
    controllers = 1000 * strategy.init(many, ZEROS, generator)["controller"]
    theta = strategy.project(many, many, None, {"controller": controllers})[:, 1]
    spread = theta.amax(-1) - theta.amin(-1)
    assert spread.max().item() == pytest.approx(2 * constant, rel=1e-4)


def test_the_temperature_divides_the_logits(generator):
    state = {"controller": 10 * Enas(hidden=8).init(LOGITS, ZEROS, generator)["controller"]}
    cold, hot = (
        Enas(hidden=8, tanh_constant=None, temperature=temperature).project(LOGITS, LOGITS, None, state)[0, :2]
        for temperature in (1.0, 5.0)
    )
    assert (cold[0] - cold[1]).item() == pytest.approx(5 * (hot[0] - hot[1]).item(), rel=1e-4)


def test_without_brakes_the_controller_decides_sooner(feedback):
    entropies = []
    for brakes in ({}, {"tanh_constant": None, "temperature": 1.0}):
        strategy = Enas(hidden=8, learning_rate=0.05, **brakes)
        state = trained(strategy, feedback, torch.Generator().manual_seed(0), [5.0, *[1.0] * 30])
        entropies.append(Distribution(strategy.project(LOGITS, LOGITS, None, state)).entropy())
    assert (entropies[0] > entropies[1]).all()


@pytest.mark.parametrize("option", ["temperature", "tanh_constant"])
def test_brakes_that_are_not_positive_are_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be positive, got 0"):
        Enas(**{option: 0})


def test_a_decision_that_was_not_reached_does_not_train_its_own_softmax(strategy, feedback, generator):
    start = strategy.init(LOGITS, ZEROS, torch.Generator().manual_seed(0))
    state = trained(strategy, feedback, generator, [5.0, 1.0], reached=[True, False])
    shapes = strategy._shapes(2, 3)
    before, after = (
        torch.split(controller, [torch.Size(shape).numel() for shape in shapes.values()])[2].reshape(shapes["head"])
        for controller in (start["controller"], state["controller"])
    )
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])

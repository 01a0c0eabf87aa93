"""Every strategy's gradient against a central difference of what it says it is the gradient of; float64."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from advnas import Draw, Search
from advnas.paper import problems
from advnas.search import constant
from advnas.strategies import Phase, get
from advnas.testing.enumeration import every_architecture, feedback, network_objective, random_logits

SPACE, LOSS_OF = problems.small_network()
OBJECTIVE = network_objective(SPACE, LOSS_OF)
LOGITS = random_logits(SPACE.sizes, problems.seeded(1))
PROGRESS = 0.3

assert_close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-8)


def difference(function, at, step=1e-5):
    """d function / d at, by central differences; 0 at padding."""
    slopes = torch.zeros_like(at)
    for place in at.isfinite().nonzero().tolist():
        shift = torch.zeros_like(at)
        shift[tuple(place)] = step
        slopes[tuple(place)] = (function(at + shift) - function(at - shift)) / (2 * step)
    return slopes


def reward(draw):
    with torch.no_grad():
        return -OBJECTIVE(draw)[0]


def answer(strategy, seed=0, state=None):
    """One architecture step: its draw, what came back, and the gradient of J."""
    leaf = LOGITS.clone().requires_grad_()
    state = strategy.init(LOGITS, SPACE.zeros, problems.seeded(seed)) if state is None else state
    draw = strategy.draw(leaf, state, Phase.ARCHITECTURE, PROGRESS, problems.seeded(seed))
    seen = feedback(OBJECTIVE, draw)
    gradient, state = strategy.gradient(seen, draw, leaf, state)
    return draw, seen, gradient, state


def log_probability(logits, chosen):
    return (logits.log_softmax(-1)[chosen == 1]).sum()


def slopes_of_weights(draw):
    """dr/dweights, every weight a candidate may have."""
    weights = draw.weights.detach()
    return difference(lambda moved: reward(Draw(moved, draw.active, draw.constants)), weights)


@pytest.mark.parametrize("chosen", every_architecture(SPACE.sizes))
def test_the_advantage_is_the_slope_of_its_gate_at_1(chosen):
    draw = Draw.gated(chosen)
    gradient, _ = get("advantage", zero_rule=False).gradient(feedback(OBJECTIVE, draw), draw, LOGITS, {})
    advantage = (slopes_of_weights(draw) * chosen).sum(-1, keepdim=True)
    assert_close(gradient, advantage * (chosen - LOGITS.softmax(-1)))


@pytest.mark.parametrize("seed", range(5))
def test_reinforce_follows_the_log_probability(seed):
    draw, seen, gradient, _ = answer(get("reinforce"), seed, state={"baseline": torch.tensor(-0.4).double()})
    slope = difference(lambda logits: log_probability(logits, draw.weights), LOGITS)
    assert_close(gradient, (-seen.loss + 0.4) * slope, rtol=1e-5)


def test_parsec_follows_the_weighted_log_probability_of_the_draws_of_one_minibatch():
    strategy, run = get("parsec", samples=4, examples=8), []

    def objective(draw):
        run.append(draw.weights)
        return OBJECTIVE(draw)

    draw = Draw.bare(every_architecture(SPACE.sizes)[0])
    state = strategy.init(LOGITS, SPACE.zeros, problems.seeded(0))
    gradient, _ = strategy.gradient(feedback(objective, draw), draw, LOGITS, state)
    draws = torch.stack(run)
    importance = (-8 * torch.stack([OBJECTIVE(Draw.bare(chosen))[0] for chosen in draws]).detach()).softmax(0)

    def surrogate(logits):
        return sum(w * log_probability(logits, chosen) for w, chosen in zip(importance, draws, strict=True))

    assert len(draws) == 4
    assert_close(gradient, difference(surrogate, LOGITS), rtol=1e-5)


def test_parsec_with_a_minibatch_per_draw_follows_the_weighted_log_probability_of_its_draws():
    """At every decision, of the draws that came to it."""
    strategy = get("parsec", samples=4, examples=8, minibatch_per_draw=True)
    state, draws, replies = None, [], []
    for seed in range(4):
        draw, seen, gradient, state = answer(strategy, seed, state)
        draws.append(draw.weights)
        replies.append(seen)
        assert (gradient is None) == (seed < 3)
    importance = (-8 * torch.stack([seen.loss for seen in replies])).softmax(0)
    assert not torch.stack([seen.reached for seen in replies]).all()

    def surrogate(logits):
        rows = [logits.log_softmax(-1)[chosen == 1] for chosen in draws]
        return sum(w * row[seen.reached].sum() for w, row, seen in zip(importance, rows, replies, strict=True))

    assert_close(gradient, difference(surrogate, LOGITS))


def test_darts_follows_the_reward_of_the_mixture():
    _, _, gradient, _ = answer(get("darts"))
    assert_close(gradient, difference(lambda theta: reward(Draw(theta.softmax(-1), theta.isfinite())), LOGITS))


def test_second_order_darts_follows_the_reward_after_a_step_of_the_weights():
    """d/dtheta of valid(w - xi grad_w train(w, theta), theta); through Search, whose theta is float32."""
    space, valid_of = problems.small_network()
    generator = problems.seeded(5)
    x, y = (problems.uniform(8, *rest, low=-1, high=1, generator=generator) for rest in ((4,), ()))
    weights, xi = list(space.model.parameters()), 0.3

    def train_of(model):
        return F.mse_loss(model(x), y)

    def reward_ahead(theta):
        origin = [weight.detach().clone() for weight in weights]
        with space.running(Draw(theta.softmax(-1), theta.isfinite())):
            gradients = torch.autograd.grad(train_of(space.model), weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight -= xi * gradient
                ahead = -valid_of(space.model)
                for weight, start in zip(weights, origin, strict=True):
                    weight.copy_(start)
        return ahead

    def gradient(**options):
        search = Search(
            space.model,
            get("darts", **options),
            weight_optimizer=partial(torch.optim.SGD, lr=xi),
            architecture_optimizer=partial(torch.optim.SGD, lr=1.0),
            annealing=constant,
            architecture_clip=None,
        )
        search.theta.assign(LOGITS)
        before = search.theta.logits().detach()
        search.architecture_step(valid_of, training_loss_of=train_of)
        moved = search.theta.logits().detach() - before
        return moved.nan_to_num(0).double()

    exact = difference(reward_ahead, LOGITS.float().double())
    assert_close(gradient(second_order=True), exact, rtol=1e-3, atol=1e-5)
    assert (gradient() - exact).norm() > 0.1 * exact.norm()


@pytest.mark.parametrize("seed", range(3))
def test_snas_follows_the_reward_of_its_relaxed_draw(seed):
    """With the noise held fixed."""
    strategy = get("snas")
    _, _, gradient, _ = answer(strategy, seed)

    def reward_of(theta):
        return reward(strategy.draw(theta, {}, Phase.ARCHITECTURE, PROGRESS, problems.seeded(seed)))

    assert_close(gradient, difference(reward_of, LOGITS), rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_gdas_follows_its_relaxation_with_the_slopes_of_the_hard_draw(seed):
    strategy = get("gdas")
    draw, seen, gradient, _ = answer(strategy, seed)
    real = LOGITS.isfinite()
    assert draw.one_hot
    assert_close(-seen.slopes[real], slopes_of_weights(draw)[real])
    gumbel = -torch.empty_like(LOGITS).exponential_(generator=problems.seeded(seed)).log()
    temperature = 10 + PROGRESS * (0.1 - 10)
    assert_close(
        gradient,
        difference(lambda theta: (-seen.slopes * ((theta + gumbel) / temperature).softmax(-1)).sum(), LOGITS),
    )


@pytest.mark.parametrize("both_active", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_proxyless_follows_the_softmax_of_its_pair_with_the_slopes_of_the_gates(seed, both_active):
    draw, seen, gradient, _ = answer(get("proxyless", both_active=both_active), seed)
    assert draw.one_hot != both_active
    assert_close(-seen.slopes, slopes_of_weights(draw) * draw.active)

    def surrogate(theta):
        return (-seen.slopes * theta.masked_fill(~draw.active, -torch.inf).softmax(-1)).sum()

    assert_close(gradient, difference(surrogate, LOGITS))


@pytest.mark.parametrize("seed", range(5))
def test_contrast_follows_the_reward_from_the_drawn_gates_towards_those_of_the_rival(seed):
    draw, _, gradient, _ = answer(get("contrast"), seed)
    chosen, towards = draw.weights.detach(), draw.rivals - draw.weights.detach()
    gains = (slopes_of_weights(draw) * towards).sum(-1, keepdim=True)
    not_drawn = 1 - (LOGITS.softmax(-1) * chosen).sum(-1, keepdim=True)
    assert_close(gradient, 0.5 * not_drawn * gains * towards)


def test_nasp_follows_the_reward_at_the_binary_point():
    """Also at the operations whose weight is 0 there."""
    draw, _, gradient, _ = answer(get("nasp"))
    assert draw.one_hot
    assert_close(gradient, slopes_of_weights(draw))


def enas_ascent(strategy, state, loss, chosen, logits):
    """The gradient behind the first Adam step, whose mean is a tenth of it."""
    seen = feedback(lambda draw: (loss, torch.ones(len(chosen), dtype=torch.bool)), Draw.bare(chosen))
    _, after = strategy.gradient(seen, Draw.bare(chosen), logits, state)
    return after["mean"] / 0.1


def enas_rows(strategy, controller, chosen, logits):
    """The controller's conditional log-probabilities along an architecture."""
    return strategy._decode({"controller": controller}, logits, lambda row, scores: chosen[row])[1]


def enas_setting(**options):
    strategy = get("enas", hidden=3, **options)
    logits = random_logits((3, 2), problems.seeded(0))
    state = strategy.init(logits, torch.zeros(2, 3, dtype=torch.bool), problems.seeded(1))
    state["controller"] = problems.uniform(*state["controller"].shape, low=-1, high=1, generator=problems.seeded(2))
    return strategy, logits, {**state, "baseline": torch.tensor(-0.5, dtype=torch.float64)}


@pytest.mark.parametrize("chosen", every_architecture((3, 2)))
def test_enas_follows_the_log_probability_with_the_entropy_in_its_reward(chosen):
    strategy, logits, state = enas_setting(entropy_weight=0.2)
    loss = torch.tensor(1.3, dtype=torch.float64)
    along = enas_rows(strategy, state["controller"], chosen, logits)
    entropy = -(along.exp() * along.clamp_min(-1e9)).sum()

    def surrogate(controller):
        rows = enas_rows(strategy, controller, chosen, logits)
        return (-loss + 0.2 * entropy + 0.5) * rows[chosen == 1].sum()

    ascent = enas_ascent(strategy, state, loss, chosen, logits)
    assert_close(ascent, difference(surrogate, state["controller"]), rtol=1e-5)


def test_enas_is_unbiased_for_the_expected_reward_of_its_controller():
    """Sum over all architectures of p(a) delta(a) = d/dcontroller of sum p(a) r(a)."""
    strategy, logits, state = enas_setting(entropy_weight=0.0)
    architectures = every_architecture((3, 2))
    losses = problems.uniform(6, low=0, high=2, generator=problems.seeded(3))

    def probabilities(controller):
        return torch.stack([enas_rows(strategy, controller, a, logits)[a == 1].sum().exp() for a in architectures])

    pairs = zip(losses, architectures, strict=True)
    estimates = torch.stack([enas_ascent(strategy, state, loss, chosen, logits) for loss, chosen in pairs])
    assert probabilities(state["controller"]).sum() == pytest.approx(1)
    mean = probabilities(state["controller"]) @ estimates
    assert_close(mean, difference(lambda c: -(probabilities(c) * losses).sum(), state["controller"]), rtol=1e-5)

import pytest
import torch
from torch import nn

from advnas import Choice, Distribution, Draw, Search, Task
from advnas.strategies import Feedback
from advnas.strategies.parsec import Parsec
from advnas.strategies.strategy import Phase
from advnas.testing.enumeration import every_architecture

LOGITS = torch.tensor([[0.0, 1.0, 0.5]])
NO_ZEROS = torch.zeros(1, 3, dtype=torch.bool)
SAMPLES = [torch.eye(3)[column][None] for column in (0, 1, 2, 1)]
LOSSES = [0.3, 0.1, 0.2, 0.15]


def test_the_mean_gradient_is_the_sum_over_all_sets_of_draws(generator):
    """K = 2: the sum over all pairs of architectures, against many searches within 5 standard errors."""
    logits = torch.tensor([[0.3, -0.2, 0.9], [0.5, 0.0, -torch.inf]], dtype=torch.float64)
    losses = torch.rand(3, 2, generator=generator, dtype=torch.float64)
    architectures, strategy, searches = every_architecture((3, 2)), Parsec(samples=2, examples=4), 400_000

    def loss_of(weights):
        return torch.einsum("...i,...j,ij->...", weights[..., 0, :], weights[..., 1, :2], losses)

    probability = (Distribution(logits).probabilities * architectures).sum(-1).prod(-1)
    score, values = Distribution(logits).score(architectures), loss_of(architectures)
    first = torch.sigmoid(4 * (values[None, :] - values[:, None]))[..., None, None]
    pairs = first * score[:, None] + (1 - first) * score[None, :]
    exact = torch.einsum("a,b,abij->ij", probability, probability, pairs)

    side_by_side = logits.expand(searches, 2, 3).contiguous()
    state = strategy.init(side_by_side, torch.zeros(2, 3, dtype=torch.bool), generator)
    draw = strategy.draw(side_by_side, state, Phase.ARCHITECTURE, None, generator)
    reply = Feedback(
        loss=loss_of(draw.weights),
        slope=None,
        reached=torch.ones(2, dtype=torch.bool),
        probe=lambda draws: loss_of(draws.weights),
        unrolled=None,
    )
    estimates, _ = strategy.gradient(reply, draw, side_by_side, state)
    error = estimates.std(0) / searches**0.5
    assert ((estimates.mean(0) - exact).abs() <= 5 * error).all()
    assert exact.norm() > 100 * error.max()


def winners(strategy, generator, rounds=200):
    """How often the best of the draws gets the most weight, where minibatches differ more than architectures."""
    logits = torch.zeros(1, 8)
    qualities = 0.1 * torch.arange(8.0)  # one operation is the better by 0.1, one minibatch the harder by about 1
    state, right, taken = strategy.init(logits, torch.zeros(1, 8, dtype=torch.bool), generator), [], []
    while len(right) < rounds:
        difficulty, draw = torch.randn((), generator=generator), Distribution(logits).sample(generator)

        def loss_of(weights, difficulty=difficulty):
            taken.extend(weights.argmax(-1).flatten().tolist())
            return difficulty + (weights * qualities).sum((-2, -1))

        seen = torch.ones(1, dtype=torch.bool)
        reply = Feedback(loss_of(draw), None, seen, lambda draws: loss_of(draws.weights), None)
        gradient, state = strategy.gradient(reply, Draw.bare(draw), logits, state)
        if gradient is not None:
            assert len(taken) == 8
            right.append((gradient + 1 / 8).argmax().item() == min(taken))
            taken.clear()
    return sum(right) / rounds


def test_the_best_draw_gets_the_most_weight_though_minibatches_differ(generator):
    assert winners(Parsec(), generator) == 1.0
    assert winners(Parsec(minibatch_per_draw=True), generator) < 0.6


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return x * self.factor


def network():
    return nn.Sequential(Choice({"a": Scale(1.0), "b": Scale(2.0)}))


def run(strategy, schedule):
    """A search of 4 + 16 turns: how many forward passes each kind of minibatch saw, and the search."""
    passes = {"training": [], "validation": []}

    def loss(model, batch):
        passes[batch[0]].append(batch[1])
        return (model(batch[2]) - 1.5).square().mean()

    x = torch.ones(4)
    task = Task([("training", n, x) for n in range(4)], [("validation", n, x) for n in range(4)], loss)
    search = Search(network(), strategy, schedule=schedule)
    search.run(task, epochs=5, warmup=1)
    return passes, search


def test_a_search_costs_as_many_forward_passes_as_with_other_strategies():
    passes, search = run("parsec", "alternate")
    others, _ = run("reinforce", "alternate")
    assert {kind: len(seen) for kind, seen in passes.items()} == {kind: len(seen) for kind, seen in others.items()}
    assert search.architecture_steps == 2
    assert all(len(set(passes["validation"][start : start + 8])) == 1 for start in (0, 8))


def test_a_joint_search_takes_plain_weight_steps_in_between():
    passes, search = run("parsec", "joint")
    assert (search.weight_steps, search.architecture_steps) == (20, 2)
    assert len(passes["training"]) == 20 + 2 * 7  # one of the eight draws trains the weights too


def test_the_learning_rate_of_theta_falls_over_the_whole_search():
    _, search = run("parsec", "alternate")
    assert search.progress.of_theta == 1.0


def test_the_draws_of_a_step_depend_on_the_seed_and_on_the_step(generator):
    strategy, seen = Parsec(samples=4), []
    logits = torch.zeros(5, 6)

    def probe(draws):
        seen.append(draws.weights)
        return torch.zeros(3)

    reply = Feedback(torch.tensor(0.0), None, torch.ones(5, dtype=torch.bool), probe, None)
    draw = Draw.bare(Distribution(logits).sample(generator))
    for seed in (1, 1, 2):
        state = strategy.init(logits, torch.zeros(5, 6, dtype=torch.bool), torch.Generator().manual_seed(seed))
        for _ in range(2):
            _, state = strategy.gradient(reply, draw, logits, state)
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not any(torch.equal(seen[0], other) for other in (seen[1], seen[4]))
    assert not torch.equal(seen[0][0], seen[0][1])


# A minibatch per draw, as in released code


def gather(strategy, feedback, generator):
    """All gradients, one per draw."""
    state = strategy.init(LOGITS, NO_ZEROS, generator)
    gradients = []
    for chosen, loss in zip(SAMPLES, LOSSES, strict=True):
        gradient, state = strategy.gradient(feedback(loss=loss), Draw.bare(chosen), LOGITS, state)
        gradients.append(gradient)
    return gradients, state


def test_the_gradient_is_the_importance_weighted_sum_of_scores(feedback, generator):
    gradients, state = gather(Parsec(samples=4, examples=10, minibatch_per_draw=True), feedback, generator)
    assert gradients[:3] == [None, None, None]
    likelihood = [torch.tensor(-10 * loss).exp() for loss in LOSSES]
    expected = sum(
        weight / sum(likelihood) * Distribution(LOGITS).score(chosen)
        for weight, chosen in zip(likelihood, SAMPLES, strict=True)
    )
    assert torch.allclose(gradients[3], expected)
    assert len(state["draws"]) == len(state["rewards"]) == 0


def test_every_handful_starts_empty(feedback, generator):
    first, second = gather(Parsec(samples=2, examples=10, minibatch_per_draw=True), feedback, generator)[0][1::2]
    alone, _ = gather(Parsec(samples=4, examples=10, minibatch_per_draw=True), feedback, generator)
    assert first is not None
    assert second is not None
    assert not torch.allclose(second, alone[3])


def test_theta_rests_while_eight_draws_are_gathered():
    """Even under momentum and weight decay, which would move it without a gradient."""
    optimizer = lambda theta: torch.optim.Adam(theta, lr=0.1, weight_decay=0.1)  # noqa: E731
    search = Search(network(), Parsec(minibatch_per_draw=True), architecture_optimizer=optimizer)
    moved = []
    for _ in range(24):
        before = search.distribution.logits
        step = search.architecture_step(lambda model: model(torch.ones(1)).sum())
        moved.append(not torch.equal(before, search.distribution.logits))
        assert (step.gradient_norm is not None) == moved[-1]
    assert moved == ([False] * 7 + [True]) * 3


@pytest.mark.parametrize("last", [True, False])
def test_a_decision_learns_from_the_draws_that_reached_it(feedback, generator, last):
    """Draw 0 did not come to the decision, so the gradient is that of draws 1 to 3."""
    strategy = Parsec(samples=4, examples=10, minibatch_per_draw=True)
    state = strategy.init(LOGITS, NO_ZEROS, generator)
    draws = list(zip(SAMPLES, LOSSES, [False, True, True, True], strict=True))
    for chosen, loss, reached in draws if last else reversed(draws):
        reply = feedback(loss=loss, reached=[reached])
        gradient, state = strategy.gradient(reply, Draw.bare(chosen), LOGITS, state)
    importance = (-10 * torch.tensor(LOSSES)).softmax(0)
    scores = torch.stack([Distribution(LOGITS).score(chosen) for chosen in SAMPLES])
    assert torch.allclose(gradient, (importance[1:, None, None] * scores[1:]).sum(0))

import pytest
import torch
from torch import nn

from advnas import Choice, Distribution, Draw, Search
from advnas.strategies.parsec import Parsec

LOGITS = torch.tensor([[0.0, 1.0, 0.5]])
SAMPLES = [torch.eye(3)[column][None] for column in (0, 1, 2, 1)]
LOSSES = [0.3, 0.1, 0.2, 0.15]


def gather(strategy, feedback, generator):
    """All gradients, one a draw."""
    state = strategy.init(LOGITS, torch.zeros(1, 3, dtype=torch.bool), generator)
    gradients = []
    for chosen, loss in zip(SAMPLES, LOSSES, strict=True):
        gradient, state = strategy.gradient(feedback(loss=loss), Draw.bare(chosen), LOGITS, state)
        gradients.append(gradient)
    return gradients, state


def test_the_gradient_is_the_importance_weighted_sum_of_scores(feedback, generator):
    gradients, state = gather(Parsec(samples=4, examples=10), feedback, generator)
    assert gradients[:3] == [None, None, None]
    likelihood = [torch.tensor(-10 * loss).exp() for loss in LOSSES]
    expected = sum(
        weight / sum(likelihood) * Distribution(LOGITS).score(chosen)
        for weight, chosen in zip(likelihood, SAMPLES, strict=True)
    )
    assert torch.allclose(gradients[3], expected)
    assert len(state["draws"]) == len(state["rewards"]) == 0


def test_every_handful_starts_empty(feedback, generator):
    first, second = gather(Parsec(samples=2, examples=10), feedback, generator)[0][1::2]
    alone, _ = gather(Parsec(samples=4, examples=10), feedback, generator)
    assert first is not None
    assert second is not None
    assert not torch.allclose(second, alone[3])


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return x * self.factor


def network():
    return nn.Sequential(Choice({"a": Scale(1.0), "b": Scale(2.0)}))


def test_theta_rests_while_eight_draws_are_gathered():
    """Even under momentum and weight decay, which would move it without a gradient."""
    optimizer = lambda theta: torch.optim.Adam(theta, lr=0.1, weight_decay=0.1)  # noqa: E731
    search = Search(network(), "parsec", architecture_optimizer=optimizer)
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
    strategy = Parsec(samples=4, examples=10)
    state = strategy.init(LOGITS, torch.zeros(1, 3, dtype=torch.bool), generator)
    draws = list(zip(SAMPLES, LOSSES, [False, True, True, True], strict=True))
    for chosen, loss, reached in draws if last else reversed(draws):
        reply = feedback(loss=loss, reached=[reached])
        gradient, state = strategy.gradient(reply, Draw.bare(chosen), LOGITS, state)
    importance = (-10 * torch.tensor(LOSSES)).softmax(0)
    scores = torch.stack([Distribution(LOGITS).score(chosen) for chosen in SAMPLES])
    assert torch.allclose(gradient, (importance[1:, None, None] * scores[1:]).sum(0))

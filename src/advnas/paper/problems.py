"""Problems small enough to enumerate, and the estimators that docs/theory.md compares on them."""

from collections.abc import Callable, Mapping
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.choice import Choice, Zero
from advnas.space import SearchSpace
from advnas.strategies.advantage import Advantage
from advnas.strategies.exact_advantage import ExactAdvantage
from advnas.strategies.reinforce import Reinforce
from advnas.testing.enumeration import (
    Enumeration,
    network_objective,
    random_logits,
    reward_objective,
    table_reward,
)

# --- The examples ---------------------------------------------------------------------------------------------


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for every example."""
    return torch.Generator().manual_seed(seed)


def uniform(*shape: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Independent draws from [low, high), in float64."""
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def random_table(
    sizes: tuple[int, ...], seed: int, *, low: float = -1.0, high: float = 1.0, scale: float = 1.0
) -> Enumeration:
    """Independent rewards for all architectures, and for all with missing outputs."""
    generator = seeded(seed)
    table = uniform(*(size + 1 for size in sizes), low=low, high=high, generator=generator)
    return Enumeration(random_logits(sizes, generator, scale=scale), reward_objective(table_reward(table)))


def linear_problem(coefficients: Tensor, logits: Tensor) -> Enumeration:
    """The paper's example: r(a) = sum_i r_i^T a_i. coefficients: [edges, operations]."""
    return Enumeration(logits, reward_objective(lambda weights: (coefficients * weights).sum()))


def random_linear(edges: int, operations: int, seed: int, *, low: float = -1.0, high: float = 1.0) -> Enumeration:
    """The paper's example with random coefficients and a random theta."""
    generator = seeded(seed)
    coefficients = uniform(edges, operations, low=low, high=high, generator=generator)
    return linear_problem(coefficients, random_logits((operations,) * edges, generator))


def squared_error(outputs: Tensor, target: float, logits: Tensor) -> Enumeration:
    """r(a) = -(target - sum_i o_i^T a_i)^2: edges that add up to a prediction. outputs: [edges, operations]."""
    return Enumeration(logits, reward_objective(lambda weights: -(target - (outputs * weights).sum()).square()))


class SmallNetwork(nn.Module):
    """Decisions of 3, 2 and 4 operations; the first has a zero operation and is used twice, the last is nested."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self._tied(), self._tied()
        inner = {
            "linear": nn.Linear(4, 4),
            "tanh": nn.Tanh(),
            "gelu": nn.Sequential(nn.Linear(4, 4), nn.GELU()),
            "identity": nn.Identity(),
        }
        nested = nn.Sequential(nn.Linear(4, 4), Choice(inner, name="inner"))
        self.outer = Choice({"nested": nested, "tanh": nn.Tanh()}, name="outer")
        self.head = nn.Linear(4, 1)

    def _tied(self) -> Choice:
        candidates = {
            "linear": nn.Linear(4, 4, bias=False),
            "tanh": nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
            "zero": Zero(),
        }
        return Choice(candidates, name="tied")

    def forward(self, x: Tensor) -> Tensor:
        """One prediction for each row of x."""
        x = torch.tanh(x + self.first(x))
        x = x + self.second(x)
        prediction: Tensor = self.head(x + self.outer(x)).squeeze(-1)
        return prediction


def small_network(seed: int = 0) -> tuple[SearchSpace, Callable[[nn.Module], Tensor]]:
    """SmallNetwork in float64 and its mean squared error on one minibatch of 8."""
    generator = seeded(seed)
    network = randomise(SmallNetwork(), generator)
    x, y = (uniform(8, *rest, low=-1, high=1, generator=generator) for rest in ((4,), ()))
    return SearchSpace(network), lambda model: F.mse_loss(model(x), y)


def small_network_problem(seed: int = 0) -> Enumeration:
    """SmallNetwork at a random theta."""
    space, loss_of = small_network(seed)
    return Enumeration(random_logits(space.sizes, seeded(seed + 1)), network_objective(space, loss_of))


def randomise(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The model in float64 with weights uniform in [-0.8, 0.8]."""
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(uniform(*parameter.shape, low=-0.8, high=0.8, generator=generator))
    return model


class Cell(nn.Module):
    """NAS-Bench-201's cell (four nodes, an edge between every two), global average pooling and a linear head."""

    def __init__(self, candidates: Callable[[], Mapping[str, nn.Module]]) -> None:
        super().__init__()
        pairs = combinations(range(4), 2)
        self.edges = nn.ModuleDict({f"{i}->{j}": Choice(candidates(), name=f"{i}->{j}") for i, j in pairs})
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One prediction for each image of x, [batch, 3, height, width]."""
        nodes = [x]
        for target in range(1, 4):
            incoming = [self.edges[f"{source}->{target}"](node) for source, node in enumerate(nodes)]
            nodes.append(torch.stack(incoming).sum(0))
        prediction: Tensor = self.head(nodes[-1].mean((-2, -1))).squeeze(-1)
        return prediction


def relu_conv_norm(kernel: int, eps: float) -> nn.Module:
    """NAS-Bench-201's convolution, as a search runs it: BatchNorm without affine, on batch statistics."""
    convolution = nn.Conv2d(3, 3, kernel, padding=kernel // 2, bias=False)
    norm = nn.BatchNorm2d(3, eps=eps, affine=False, track_running_stats=False)
    return nn.Sequential(nn.ReLU(), convolution, norm)


def two_convolutions(eps: float = 1e-14) -> dict[str, nn.Module]:
    """Candidates whose outputs do not depend on the scale of their input."""
    return {"conv 1x1": relu_conv_norm(1, eps), "conv 3x3": relu_conv_norm(3, eps)}


def convolution_or_skip(eps: float = 1e-14) -> dict[str, nn.Module]:
    """One candidate whose output does not depend on the scale of its input, and one whose output does."""
    return {"conv 3x3": relu_conv_norm(3, eps), "skip": nn.Identity()}


def cell_problem(
    candidates: Callable[[], Mapping[str, nn.Module]], seed: int = 0
) -> tuple[SearchSpace, Enumeration]:
    """A Cell in float64 with its mean squared error on one minibatch of 4 images, at a random theta."""
    generator = seeded(seed)
    space = SearchSpace(randomise(Cell(candidates), generator))
    x, y = (uniform(4, *rest, low=-1, high=1, generator=generator) for rest in ((3, 4, 4), ()))
    objective = network_objective(space, lambda model: F.mse_loss(model(x), y))
    return space, Enumeration(random_logits(space.sizes, generator), objective)


# --- The estimators -------------------------------------------------------------------------------------------


def exact_advantage(problem: Enumeration) -> Tensor:
    """(r(a) - r(s_i, 0)) (a_i - mu_i), eq. adv-e."""
    return problem.estimates(ExactAdvantage())


def approximate_advantage(problem: Enumeration) -> Tensor:
    """(dr/dO_i)^T O_i (a_i - mu_i), eq. adv-new."""
    return problem.estimates(Advantage(zero_rule=False))


def reinforce(problem: Enumeration, baseline: float | Tensor = 0.0) -> Tensor:
    """(r(a) - b) (a - mu) with a constant b; eq. pg has b = 0."""
    return problem.estimates(Reinforce(), {"baseline": torch.as_tensor(baseline, dtype=torch.float64)})


def centred_reinforce(problem: Enumeration) -> Tensor:
    """REINFORCE with the baseline that its moving average aims at, b = J(theta)."""
    return reinforce(problem, problem.expected_reward())


def advantages(problem: Enumeration, estimates: Tensor) -> Tensor:
    """A_i of every architecture, from estimates A_i (a_i - mu_i): [architectures, decisions]."""
    score = problem.architectures - problem.logits.softmax(-1)
    return (estimates * score).sum(-1) / score.square().sum(-1)


def with_zero_rule(problem: Enumeration, zeros: Tensor) -> Tensor:
    """The approximate advantage with the rule for zero operations, its moving average settled at its mean.

    EMA(i, j) = E[A_i | a_i = j]
    """
    credit = advantages(problem, approximate_advantage(problem)).unsqueeze(-1)
    drawn = problem.probabilities()[:, None, None] * problem.architectures
    average = (drawn * credit).sum(0) / drawn.sum(0).clamp_min(1e-300)
    others = ~zeros & problem.logits.isfinite()
    return problem.estimates(Advantage(), {"average": average, "zeros": zeros, "others": others})

"""Problems small enough to enumerate, and the estimators that docs/theory.md compares on them."""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.architecture import Draw
from advnas.choice import Choice, Zero
from advnas.distribution import Distribution
from advnas.space import SearchSpace
from advnas.strategies.advantage import Advantage
from advnas.strategies.contrast import Contrast
from advnas.strategies.exact_advantage import ExactAdvantage
from advnas.strategies.exact_contrast import ExactContrast
from advnas.strategies.proxyless import Proxyless
from advnas.strategies.reinforce import Reinforce
from advnas.testing.enumeration import (
    Enumeration,
    Estimates,
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


def of_one_output(reward: Callable[[Tensor], Tensor], outputs: tuple[float, ...]) -> Enumeration:
    """One decision between operations that return numbers, at uniform theta. reward: of the number."""
    values = torch.tensor(outputs, dtype=torch.float64)
    objective = reward_objective(lambda weights: reward(weights[0] @ values))
    return Enumeration(torch.zeros(1, len(outputs), dtype=torch.float64), objective)


def tied_product(places: int, outputs: tuple[float, ...]) -> Enumeration:
    """r = -(1 - o^places)^2: one decision in several places in series, each of which multiplies by o."""
    return of_one_output(lambda output: -(1 - output**places).square(), outputs)


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


class LinearChain(nn.Module):
    """Three decisions in series between linear maps, and no nonlinearity anywhere."""

    def __init__(self) -> None:
        super().__init__()
        names = ("first", "second", "third")
        self.layers = nn.Sequential(*(Choice(self._candidates(), name=name) for name in names))
        self.head = nn.Linear(3, 1)

    def _candidates(self) -> dict[str, nn.Module]:
        return {"linear": nn.Linear(3, 3), "pool": nn.AvgPool1d(3, 1, 1), "skip": nn.Identity(), "zero": Zero()}

    def forward(self, x: Tensor) -> Tensor:
        """One prediction for each row of x."""
        prediction: Tensor = self.head(self.layers(x)).squeeze(-1)
        return prediction


def linear_chain_problem(seed: int = 0) -> Enumeration:
    """LinearChain and its mean squared error on 8 examples: quadratic in the output of every decision."""
    generator = seeded(seed)
    space = SearchSpace(randomise(LinearChain(), generator))
    x, y = (uniform(8, *rest, low=-1, high=1, generator=generator) for rest in ((3,), ()))
    objective = network_objective(space, lambda model: F.mse_loss(model(x), y))
    return Enumeration(random_logits(space.sizes, generator), objective)


class Chain(nn.Module):
    """Decisions in series: Linear-BN-ReLU, an average over neighbouring features, or nothing at all.

    places: in how many layers each decision stands, one behind the other; each has weights of its own.
    """

    def __init__(self, decisions: int = 3, places: int = 1) -> None:
        super().__init__()
        names = [str(decision) for decision in range(decisions)] * places
        self.stem = nn.Linear(4, 6)
        self.layers = nn.Sequential(*(Choice(self._candidates(), name=name) for name in names))
        self.head = nn.Linear(6, 3)

    def _candidates(self) -> dict[str, nn.Module]:
        norm = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
        dense = nn.Sequential(nn.Linear(6, 6, bias=False), norm, nn.ReLU())
        return {"dense": dense, "pool": nn.AvgPool1d(3, 1, 1), "skip": nn.Identity()}

    def forward(self, x: Tensor) -> Tensor:
        """Three logits for each row of x."""
        logits: Tensor = self.head(self.layers(self.stem(x)))
        return logits


@cache
def chain_problem(steps: int, *, places: int = 1, seed: int = 0) -> Enumeration:
    """A Chain at uniform theta after `steps` steps of training by uniform draws, as in a warm-up.

    64 examples with the classes that a random two-layer network gives them; cross entropy on all of them.
    """
    generator = seeded(seed)
    space = SearchSpace(randomise(Chain(places=places), generator))
    x = uniform(64, 4, low=-1, high=1, generator=generator)
    hidden = (x @ uniform(4, 8, low=-3, high=3, generator=generator)).tanh()
    classes = (hidden @ uniform(8, 3, low=-1, high=1, generator=generator)).argmax(-1)
    logits = torch.zeros(len(space), 3, dtype=torch.float64)
    problem = Enumeration(logits, network_objective(space, lambda model: F.cross_entropy(model(x), classes)))
    warm_up(problem, space.model, steps, generator)
    return problem


def warm_up(problem: Enumeration, model: nn.Module, steps: int, generator: torch.Generator) -> None:
    """Train the weights by Adam, one drawn architecture per step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss, _ = problem.objective(Draw.bare(Distribution(problem.logits).sample(generator)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


# --- The estimators -------------------------------------------------------------------------------------------


def exact_advantage(problem: Enumeration) -> Estimates:
    """(r(a) - r(s_i, 0)) (a_i - mu_i), eq. adv-e."""
    return problem.estimates(ExactAdvantage())


def approximate_advantage(problem: Enumeration) -> Estimates:
    """(dr/dO_i)^T O_i (a_i - mu_i), eq. adv-new."""
    return problem.estimates(Advantage(zero_rule=False))


def contrast(problem: Enumeration, rivals: int | None = 1) -> Estimates:
    """1/2 (1 - p_a) <dr/dO_i, O_ib - O_ia> (e_b - e_a), b ~ p(. | not a)."""
    return problem.estimates(Contrast(rivals=rivals))


def all_rivals(problem: Enumeration) -> Estimates:
    """The same with every other operation as a rival, each by its probability."""
    return contrast(problem, rivals=None)


def exact_contrast(problem: Enumeration) -> Estimates:
    """1/2 (1 - p_a) (r(a with b at i) - r(a)) (e_b - e_a), b ~ p(. | not a)."""
    return problem.estimates(ExactContrast())


def proxyless(problem: Enumeration) -> Estimates:
    """The gradient of the two-way softmax of a pair, by the slopes at its active operation."""
    return problem.estimates(Proxyless())


def reinforce(problem: Enumeration, baseline: float | Tensor = 0.0) -> Estimates:
    """(r(a) - b) (a - mu) with a constant b; eq. pg has b = 0."""
    return problem.estimates(Reinforce(), {"baseline": torch.as_tensor(baseline, dtype=torch.float64)})


def centred_reinforce(problem: Enumeration) -> Estimates:
    """REINFORCE with the baseline that its moving average aims at, b = J(theta)."""
    return reinforce(problem, problem.expected_reward())


def advantages(problem: Enumeration, estimates: Estimates) -> Tensor:
    """A_i of every architecture, from estimates A_i (a_i - mu_i): [architectures, decisions]."""
    score = problem.architectures - problem.logits.softmax(-1)
    return (estimates.values * score).sum(-1) / score.square().sum(-1)


def with_zero_rule(problem: Enumeration, zeros: Tensor) -> Estimates:
    """The approximate advantage with the rule for zero operations, its moving average settled at its mean.

    EMA(i, j) = E[A_i | a_i = j]
    """
    credit = advantages(problem, approximate_advantage(problem)).unsqueeze(-1)
    drawn = problem.probabilities()[:, None, None] * problem.architectures
    average = (drawn * credit).sum(0) / drawn.sum(0).clamp_min(1e-300)
    others = ~zeros & problem.logits.isfinite()
    return problem.estimates(Advantage(), {"average": average, "zeros": zeros, "others": others})

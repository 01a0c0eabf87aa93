"""The figures of docs/theory.md, by exact enumeration: `python -m advnas.paper.theory`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    Moments,
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


# --- Theorem 2 ------------------------------------------------------------------------------------------------


def relative_bias(problem: Enumeration, estimates: Tensor) -> float:
    """|E[delta] - grad J| / |grad J|."""
    truth = problem.gradient
    bias = problem.moments(estimates).mean - truth
    return float(bias.norm() / truth.norm())


def alignment(problem: Enumeration, estimates: Tensor) -> float:
    """The cosine of E[delta] and grad J; not a number where E[delta] = 0."""
    mean, truth = problem.moments(estimates).mean, problem.gradient
    return float((mean * truth).sum() / (mean.norm() * truth.norm()))


def zero_or(output: float) -> Enumeration:
    """One edge, target 1, uniform theta: an operation that returns 0, or one that returns `output`."""
    outputs = torch.tensor([[0.0, output]], dtype=torch.float64)
    return squared_error(outputs, 1.0, torch.zeros(1, 2, dtype=torch.float64))


def random_squared_error() -> Enumeration:
    """Three edges with three operations, outputs uniform in [-1, 1], target 1."""
    generator = seeded(3)
    outputs = uniform(3, 3, low=-1, high=1, generator=generator)
    return squared_error(outputs, 1.0, random_logits((3, 3, 3), generator))


def bias_table() -> str:
    """Relative bias and cosine of every estimator on every example."""
    problems = {
        "random table (3 x 2 x 4 operations)": random_table((3, 2, 4), seed=0),
        "linear reward (4 edges, 3 operations)": random_linear(4, 3, seed=0),
        "squared error of a sum (3 edges, 3 operations)": random_squared_error(),
        "squared error, one edge, output 0 or 1.0 (target 1)": zero_or(1.0),
        "squared error, one edge, output 0 or 1.5 (target 1)": zero_or(1.5),
        **network_examples(),
    }
    rows = [[name, *_biases(problem)] for name, problem in problems.items()]
    network = small_network_problem()
    ruled = with_zero_rule(network, small_network()[0].zeros)
    cells = [number(relative_bias(network, ruled)), number(alignment(network, ruled))]
    rows.append(["the same small network, zero rule on", "", "", *cells])
    return markdown(["example", "REINFORCE, b = J", "exact advantage", "approximate", "its cosine"], rows)


def _biases(problem: Enumeration) -> list[str]:
    """The cells of one row."""
    estimators = (centred_reinforce, exact_advantage, approximate_advantage)
    biases = [number(relative_bias(problem, estimator(problem))) for estimator in estimators]
    return [*biases, number(alignment(problem, approximate_advantage(problem)))]


# --- The variance example -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EdgeFormulas:
    """The formulas of the section "Variance Reduction Effect: An Example" for one edge of a linear reward."""

    squared_norm: float
    adv: float
    base: float


def formula_example() -> tuple[Tensor, Enumeration]:
    """Three edges with three operations; coefficients in [-1, 1]."""
    generator = seeded(5)
    coefficients = uniform(3, 3, low=-1, high=1, generator=generator)
    return coefficients, linear_problem(coefficients, random_logits((3, 3, 3), generator))


def printed_formulas(coefficients: Tensor, logits: Tensor, edge: int) -> EdgeFormulas:
    """As printed.

    squared_norm = sum_j r_j^2 mu_j^2 (1 - mu_j)^2
    adv          = sum_j mu_j r_j^2 (1 - 2 mu_j + |mu|^2)
    base         = adv + (1 - |mu|^2) sum_{k != i} sum_j r_kj^2 mu_kj
    """
    mu = logits.softmax(-1)
    r, m = coefficients[edge], mu[edge]
    others = torch.arange(len(mu)) != edge
    adv = (m * r.square() * (1 - 2 * m + m.square().sum())).sum()
    gap = (1 - m.square().sum()) * (coefficients.square() * mu)[others].sum()
    return EdgeFormulas((r * m * (1 - m)).square().sum().item(), adv.item(), (adv + gap).item())


def corrected_formulas(coefficients: Tensor, logits: Tensor, edge: int, *, baseline: float = 0.0) -> EdgeFormulas:
    """What holds for every theta, coefficients and constant baseline b of REINFORCE.

    squared_norm = sum_j mu_j^2 (r_j - rho)^2,                                       rho = sum_j mu_j r_j
    adv          = sum_j mu_j r_j^2 (1 - 2 mu_j + |mu|^2) - squared_norm
    base         = adv + (1 - |mu|^2) (sum_{k != i} V_k + c^2)                       c = sum_{k != i} rho_k - b
                   + 2 c sum_j mu_j r_j (1 - 2 mu_j + |mu|^2)                        V_k = Var[r_k^T a_k]
    """
    mu = logits.softmax(-1)
    r, m = coefficients[edge], mu[edge]
    others = torch.arange(len(mu)) != edge
    rho = (mu * coefficients).sum(-1)
    spread = (mu * coefficients.square()).sum(-1) - rho.square()
    distance = 1 - 2 * m + m.square().sum()
    squared_norm = (m * (r - rho[edge])).square().sum()
    adv = (m * r.square() * distance).sum() - squared_norm
    c = rho[others].sum() - baseline
    gap = (1 - m.square().sum()) * (spread[others].sum() + c.square()) + 2 * c * (m * r * distance).sum()
    return EdgeFormulas(squared_norm.item(), adv.item(), (adv + gap).item())


def formula_table() -> str:
    """Edge 1 of the example: printed, corrected, enumerated."""
    coefficients, problem = formula_example()
    printed = printed_formulas(coefficients, problem.logits, 0)
    corrected = corrected_formulas(coefficients, problem.logits, 0)
    adv, base = problem.moments(exact_advantage(problem)), problem.moments(reinforce(problem))
    norm, moment = problem.gradient[0].square().sum().item(), corrected.adv + corrected.squared_norm
    rows = [
        ["squared norm of grad_i J", *map(number, (printed.squared_norm, corrected.squared_norm, norm))],
        ["Var[delta_adv]", *map(number, (printed.adv, corrected.adv, adv.variance[0].item()))],
        ["second moment of delta_adv", "", *map(number, (moment, adv.second_moment[0].item()))],
        ["Var[delta_base], b = 0", *map(number, (printed.base, corrected.base, base.variance[0].item()))],
    ]
    return markdown(["edge 1", "as printed", "corrected", "enumerated"], rows)


def repeated_edge(edges: int, mean: float) -> Enumeration:
    """The same edge `edges` times: rewards mean + (-1, 0, 1), uniform theta."""
    coefficients = torch.tensor([[-1.0, 0.0, 1.0]], dtype=torch.float64).repeat(edges, 1) + mean
    return linear_problem(coefficients, torch.zeros(edges, 3, dtype=torch.float64))


def edge_variances(problem: Enumeration) -> tuple[float, float, float, float]:
    """At edge 1: |grad_i J|^2, Var[delta_adv], and what REINFORCE adds to it with b = 0 and with b = J."""
    adv = problem.moments(exact_advantage(problem)).variance[0]
    gaps = [problem.moments(f(problem)).variance[0] - adv for f in (reinforce, centred_reinforce)]
    squared_norm = problem.gradient[0].square().sum()
    return squared_norm.item(), adv.item(), gaps[0].item(), gaps[1].item()


def growth_table() -> str:
    """Var[delta_base] - Var[delta_adv] at one edge, as edges are added."""
    rows = []
    for edges in range(1, 7):
        zero, shifted = (edge_variances(repeated_edge(edges, mean)) for mean in (0.0, 1.0))
        rows.append([str(edges), *map(number, zero[:3]), *map(number, shifted[1:])])
    head = ["edges", "norm^2", "adv, mean 0", "gap, b = 0", "adv, mean 1", "gap, b = 0", "gap, b = J"]
    return markdown(head, rows)


def less_variance_share(edges: int, low: float, *, centred: bool, count: int = 200) -> float:
    """Among random linear rewards with coefficients in [low, 1]: how often Var[delta_adv] < Var[delta_base].

    Three operations an edge; variances summed over the edges; b = J where centred, else b = 0.
    """
    wins = 0
    for seed in range(count):
        generator = seeded(seed)
        coefficients = uniform(edges, 3, low=low, high=1.0, generator=generator)
        logits = random_logits((3,) * edges, generator)
        baseline = (coefficients * logits.softmax(-1)).sum().item() if centred else 0.0
        found = [corrected_formulas(coefficients, logits, edge, baseline=baseline) for edge in range(edges)]
        wins += sum(formulas.base - formulas.adv for formulas in found) > 1e-12
    return wins / count


def share_table() -> str:
    """The share of random linear rewards for which the advantage has less variance than REINFORCE."""
    columns = [(low, centred) for low in (-1.0, 0.0) for centred in (False, True)]
    rows = [
        [str(edges), *(f"{less_variance_share(edges, low, centred=centred):.0%}" for low, centred in columns)]
        for edges in (1, 2, 4, 8)
    ]
    head = [f"r in [{low:g}, 1], b = {'J' if centred else '0'}" for low, centred in columns]
    return markdown(["edges", *head], rows)


def relative_error(problem: Enumeration, estimates: Tensor) -> float:
    """E|delta - grad J|^2 / |grad J|^2; the variance, for an unbiased estimator."""
    distances = (estimates - problem.gradient).square().sum((-2, -1))
    return float(problem.probabilities() @ distances / problem.gradient.square().sum())


def network_examples() -> dict[str, Enumeration]:
    """The examples that are networks."""
    return {
        "NAS-Bench-201 cell, two convolutions": cell_problem(two_convolutions)[1],
        "NAS-Bench-201 cell, convolution or skip": cell_problem(convolution_or_skip)[1],
        "small network (tied, nested, zero)": small_network_problem(),
    }


def error_table() -> str:
    """The mean squared error of every estimator on the networks."""
    estimators = (reinforce, centred_reinforce, exact_advantage, approximate_advantage)
    rows = [
        [name, *(number(relative_error(problem, estimator(problem))) for estimator in estimators)]
        for name, problem in network_examples().items()
    ]
    return markdown(["example", "REINFORCE, b = 0", "b = J", "exact advantage", "approximate"], rows)


# --- Theorem 1 ------------------------------------------------------------------------------------------------


def improvement(problem: Enumeration, estimates: Tensor, step: float, *, shift: float = 0.0) -> float:
    """E[log J(theta + step delta)] - log J(theta), with J + shift in place of J."""
    moved = (problem.expected_reward(problem.logits + step * estimates) + shift).log()
    return (problem.probabilities() @ moved - (problem.expected_reward() + shift).log()).item()


def improvement_bound(
    problem: Enumeration, estimates: Tensor, step: float, *, shift: float = 0.0, curvature: float = 1.0
) -> float:
    """Theorem 1's right-hand side, (step / J - c step^2 / 2) |grad J|^2 - c step^2 / 2 Var[delta].

    curvature: c, the bound on the largest eigenvalue of Cov[a_i]. The paper takes 1; 1/2 is enough.
    """
    total = problem.expected_reward().item() + shift
    norm, variance = problem.gradient.square().sum().item(), problem.moments(estimates).variance.sum().item()
    return (step / total - curvature * step**2 / 2) * norm - curvature * step**2 / 2 * variance


STEPS = (0.01, 0.1, 1.0, 10.0)
ESTIMATORS: Mapping[str, Callable[[Enumeration], Tensor]] = {
    "REINFORCE, b = 0": reinforce,
    "REINFORCE, b = J": centred_reinforce,
    "exact advantage": exact_advantage,
}


def positive_problems(count: int) -> list[Enumeration]:
    """Random tables (3 x 2 x 2 operations) and linear rewards (3 edges, 2 operations) in turn, all rewards > 0."""
    return [
        random_table((3, 2, 2), seed, low=0.1, high=2.0, scale=2.0)
        if seed % 2
        else random_linear(3, 2, seed, low=0.1, high=2.0)
        for seed in range(count)
    ]


def two_armed(rewards: tuple[float, float]) -> Enumeration:
    """One decision between two operations at uniform theta."""
    return linear_problem(torch.tensor([rewards], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))


def margin(problem: Enumeration, estimates: Tensor, step: float, *, curvature: float = 1.0) -> float:
    """How far above Theorem 1's bound the expected improvement is."""
    return improvement(problem, estimates, step) - improvement_bound(problem, estimates, step, curvature=curvature)


def improvement_table() -> str:
    """The least margin over 60 random problems with positive rewards."""
    problems = positive_problems(60)
    rows = []
    for name, estimator in ESTIMATORS.items():
        cases = [(problem, estimator(problem)) for problem in problems]
        least = [min(margin(*case, step) for case in cases) for step in STEPS]
        sharper = min(margin(*case, step, curvature=0.5) for case in cases for step in STEPS)
        rows.append([name, *map(number, least), number(sharper)])
    return markdown(["estimator", *(f"step {step}" for step in STEPS), "any of them, 1/4 for 1/2"], rows)


def counter_example_table() -> str:
    """One decision with two rewards, uniform theta, REINFORCE with b = 0."""
    cases = [
        ((1.0, -0.9), 0.0, 1.0),
        ((1.0, -0.9), 1.0, 1.0),
        ((-1.0, -2.0), 0.0, 1.0),
        ((-1.0, -2.0), 3.0, 1.0),
        ((1.0, 2.0), 0.0, 100.0),
    ]
    rows = []
    for rewards, shift, step in cases:
        problem = two_armed(rewards)
        sides = [f(problem, reinforce(problem), step, shift=shift) for f in (improvement, improvement_bound)]
        rows.append([f"{rewards[0]}, {rewards[1]}", f"{shift:g}", f"{step:g}", *map(number, sides)])
    return markdown(["rewards", "added to J", "step", "improvement", "bound"], rows)


# --- Scale invariance -----------------------------------------------------------------------------------------


def invariance_table() -> str:
    """Every edge of a cell: the true gradient and the mean of the approximate advantage's estimate."""
    spaces = [cell_problem(candidates) for candidates in (two_convolutions, convolution_or_skip)]
    moments: list[Moments] = [problem.moments(approximate_advantage(problem)) for _, problem in spaces]
    rows = []
    for row, decision in enumerate(spaces[0][0].decisions):
        pairs = zip(spaces, moments, strict=True)
        cells = [(problem.gradient[row].norm(), moment.mean[row].norm()) for (_, problem), moment in pairs]
        rows.append([decision.name, *(number(norm.item()) for pair in cells for norm in pair)])
    head = ["edge", "two convolutions: grad J", "approximate", "convolution or skip: grad J", "approximate"]
    return markdown(head, rows)


# --- Writing --------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three significant digits, and 0 for what is only rounding error."""
    if value != value:
        return "none"
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "Bias": bias_table,
    "Printed and corrected formulas": formula_table,
    "Growth with the number of edges": growth_table,
    "Which estimator has less variance": share_table,
    "Error on networks": error_table,
    "Theorem 1": improvement_table,
    "Theorem 1 where its conditions fail": counter_example_table,
    "Scale invariance": invariance_table,
}


def report() -> str:
    """All tables of docs/theory.md."""
    return "\n\n".join(f"{title}\n\n{table()}" for title, table in TABLES.items())


if __name__ == "__main__":
    torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other
    print(report())

"""The figures of docs/theory.md, by exact enumeration: `python -m advnas.paper.theory`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from advnas.paper.measures import alignment, markdown, number, relative_bias, relative_error
from advnas.paper.problems import (
    all_rivals,
    approximate_advantage,
    cell_problem,
    centred_reinforce,
    chain_problem,
    contrast,
    convolution_or_skip,
    exact_advantage,
    exact_contrast,
    linear_chain_problem,
    linear_problem,
    random_linear,
    random_table,
    reinforce,
    seeded,
    small_network,
    small_network_problem,
    squared_error,
    two_convolutions,
    uniform,
    with_zero_rule,
)
from advnas.paper.series import invisible_table, places_table, series_table, slope_table
from advnas.testing.enumeration import (
    Enumeration,
    Estimates,
    random_logits,
)

# --- Theorem 2 ------------------------------------------------------------------------------------------------


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
    rows.append(["the same small network, zero rule on", "", "", *cells, "", ""])
    head = ["example", "REINFORCE, b = J", "exact advantage", "approximate", "its cosine", "contrast", "its cosine"]
    return markdown(head, rows)


def _biases(problem: Enumeration) -> list[str]:
    """The cells of one row."""
    unbiased = [relative_bias(problem, estimator(problem)) for estimator in (centred_reinforce, exact_advantage)]
    biased = [approximate_advantage(problem), all_rivals(problem)]  # the mean of any number of rivals
    pairs = [(relative_bias(problem, estimates), alignment(problem, estimates)) for estimates in biased]
    return [number(value) for value in (*unbiased, *(cell for pair in pairs for cell in pair))]


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
    adv, base = exact_advantage(problem), reinforce(problem)
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
    adv = exact_advantage(problem).variance[0]
    gaps = [f(problem).variance[0] - adv for f in (reinforce, centred_reinforce)]
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

    Three operations per edge; variances summed over the edges; b = J where centred, else b = 0.
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


def network_examples() -> dict[str, Enumeration]:
    """The examples that are networks."""
    return {
        "NAS-Bench-201 cell, two convolutions": cell_problem(two_convolutions)[1],
        "NAS-Bench-201 cell, convolution or skip": cell_problem(convolution_or_skip)[1],
        "small network (tied, nested, zero)": small_network_problem(),
        "linear layers in series (3 decisions, 4 operations)": linear_chain_problem(),
        "chain with BatchNorm, untrained": chain_problem(0),
        "chain with BatchNorm, 300 steps of training": chain_problem(300),
        "the same, each decision in 3 places": chain_problem(300, places=3),
    }


def error_table() -> str:
    """The mean squared error of every estimator on the networks."""
    estimators = (
        reinforce,
        centred_reinforce,
        exact_advantage,
        approximate_advantage,
        contrast,
        all_rivals,
        exact_contrast,
    )
    rows = [
        [name, *(number(relative_error(problem, estimator(problem))) for estimator in estimators)]
        for name, problem in network_examples().items()
    ]
    head = ["REINFORCE, b = 0", "b = J", "exact advantage", "approximate", "contrast, one rival", "all rivals"]
    head += ["exact contrast"]
    return markdown(["example", *head], rows)


# --- Theorem 1 ------------------------------------------------------------------------------------------------


def improvement(problem: Enumeration, estimates: Estimates, step: float, *, shift: float = 0.0) -> float:
    """E[log J(theta + step delta)] - log J(theta), with J + shift in place of J."""
    moved = (problem.expected_reward(problem.logits + step * estimates.values) + shift).log()
    return (estimates.probabilities @ moved - (problem.expected_reward() + shift).log()).item()


def improvement_bound(
    problem: Enumeration, estimates: Estimates, step: float, *, shift: float = 0.0, curvature: float = 1.0
) -> float:
    """Theorem 1's right-hand side, (step / J - c step^2 / 2) |grad J|^2 - c step^2 / 2 Var[delta].

    curvature: c, the bound on the largest eigenvalue of Cov[a_i]. The paper takes 1; 1/2 is enough.
    """
    total = problem.expected_reward().item() + shift
    norm, variance = problem.gradient.square().sum().item(), estimates.variance.sum().item()
    return (step / total - curvature * step**2 / 2) * norm - curvature * step**2 / 2 * variance


STEPS = (0.01, 0.1, 1.0, 10.0)
ESTIMATORS: Mapping[str, Callable[[Enumeration], Estimates]] = {
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


def margin(problem: Enumeration, estimates: Estimates, step: float, *, curvature: float = 1.0) -> float:
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
    moments: list[Estimates] = [approximate_advantage(problem) for _, problem in spaces]
    rows = []
    for row, decision in enumerate(spaces[0][0].decisions):
        pairs = zip(spaces, moments, strict=True)
        cells = [(problem.gradient[row].norm(), moment.mean[row].norm()) for (_, problem), moment in pairs]
        rows.append([decision.name, *(number(norm.item()) for pair in cells for norm in pair)])
    head = ["edge", "two convolutions: grad J", "approximate", "convolution or skip: grad J", "approximate"]
    return markdown(head, rows)


# --- The report --------------------------------------------------------------------------------------------------


TABLES: Mapping[str, Callable[[], str]] = {
    "Bias": bias_table,
    "Printed and corrected formulas": formula_table,
    "Growth with the number of edges": growth_table,
    "Which estimator has less variance": share_table,
    "Error on networks": error_table,
    "Theorem 1": improvement_table,
    "Theorem 1 where its conditions fail": counter_example_table,
    "Scale invariance": invariance_table,
    "Against nothing, against a rival": slope_table,
    "Behind a normalisation": invisible_table,
    "Choices in series": series_table,
    "Tied places": places_table,
}


def report() -> str:
    """All tables of docs/theory.md."""
    return "\n\n".join(f"{title}\n\n{table()}" for title, table in TABLES.items())


if __name__ == "__main__":
    torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other
    print(report())

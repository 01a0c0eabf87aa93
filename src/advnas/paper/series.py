"""Choices in series: what an operation is worth against nothing, and against a rival (docs/theory.md)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from advnas.architecture import Draw
from advnas.paper.measures import alignment, markdown, number
from advnas.paper.problems import (
    all_rivals,
    approximate_advantage,
    chain_problem,
    contrast,
    of_one_output,
    seeded,
    tied_product,
    uniform,
)
from advnas.testing.enumeration import Enumeration, Estimates, feedback, reward_objective

OUTPUTS = (0.5, 0.9)
TIED_OUTPUTS = (0.93, 1.035)


def squared_distance(output: Tensor) -> Tensor:
    """r = -(1 - O)^2: what a regression layer with target 1 is worth."""
    return -(1 - output).square()


def cubic(output: Tensor) -> Tensor:
    """r = -O/2 + 3 O^2 - 2 O^3: between 0 and 1 it climbs by 1/2, and falls at both ends."""
    return -output / 2 + 3 * output**2 - 2 * output**3


def slopes(problem: Enumeration) -> Tensor:
    """dr/dw at every architecture of a single decision, gates of 0 included: [chosen, candidate]."""
    others = [Draw.contrasted(chosen, 1 - chosen) for chosen in problem.architectures]
    return -torch.stack([feedback(problem.objective, draw).slopes[0] for draw in others])


def believed_gain(problem: Enumeration) -> float:
    """What contrast believes the second of two operations to be worth against the first, on average."""
    found = slopes(problem)
    return ((found[:, 1] - found[:, 0]).mean()).item()


def slope_table() -> str:
    """One decision, target 1, outputs 0.5 and 0.9: rewards, advantages and the swap to the other operation."""
    problem = of_one_output(squared_distance, OUTPUTS)
    found, rewards = slopes(problem), problem.rewards.tolist()
    rows = []
    for own, other in ((0, 1), (1, 0)):
        swap = (found[own, other] - found[own, own]).item()
        true = rewards[other] - rewards[own]
        rows.append([f"{OUTPUTS[own]:g}", *map(number, (rewards[own], found[own, own].item(), swap, true))])
    return markdown(
        ["output of a", "reward", "advantage of a", "swap to the other, from the slope at a", "measured"], rows
    )


def normalised(outputs: Tensor, targets: Tensor) -> Enumeration:
    """One decision with BatchNorm behind it and a squared error. outputs: [operations, examples]."""

    def reward(weights: Tensor) -> Tensor:
        mixed = weights[0] @ outputs
        return -F.mse_loss(F.batch_norm(mixed[:, None], None, None, training=True, eps=1e-14)[:, 0], targets)

    return Enumeration(torch.zeros(1, len(outputs), dtype=torch.float64), reward_objective(reward))


def invisible_table() -> str:
    """Three operations with a normalisation behind them: rewards, and what each estimator does on average."""
    generator = seeded(0)
    outputs, targets = (uniform(*shape, 16, low=-1, high=1, generator=generator) for shape in ((3,), ()))
    problem = normalised(outputs, targets)
    means = [problem.gradient, *(estimator(problem).mean for estimator in (approximate_advantage, contrast))]
    rows = [
        [str(row + 1), number(problem.rewards[row].item()), *(number(mean[0, row].item()) for mean in means)]
        for row in range(3)
    ]
    return markdown(["operation", "reward", "grad J", "approximate advantage", "contrast"], rows)


def series_table() -> str:
    """Cosines with grad J on chains of three decisions: three networks each, by the length of their training."""
    columns: list[tuple[Callable[[Enumeration], Estimates], int]] = [
        (estimator, places) for places in (1, 3) for estimator in (approximate_advantage, all_rivals)
    ]
    rows = [
        [str(steps), *(_cosines(estimator, steps, places) for estimator, places in columns)]
        for steps in (0, 100, 300)
    ]
    head = [f"{name}, {where}" for where in ("one place", "three places") for name in ("approximate", "contrast")]
    return markdown(["steps of training", *head], rows)


def _cosines(estimator: Callable[[Enumeration], Estimates], steps: int, places: int) -> str:
    """Of the networks 0, 1 and 2."""
    networks = [chain_problem(steps, places=places, seed=seed) for seed in range(3)]
    return ", ".join(f"{alignment(problem, estimator(problem)):.2f}" for problem in networks)


def places_table() -> str:
    """One decision in more and more places in series: what the better operation is worth, measured and believed."""
    rows = []
    for places in (1, 2, 3, 5, 9):
        problem = tied_product(places, TIED_OUTPUTS)
        gain = (problem.rewards[1] - problem.rewards[0]).item()
        rows.append([str(places), *map(number, (*problem.rewards.tolist(), gain, believed_gain(problem)))])
    head = [f"reward of {output:g}" for output in TIED_OUTPUTS]
    return markdown(["places", *head, "swap, measured", "swap, by contrast"], rows)

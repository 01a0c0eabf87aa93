"""How much faster is the vectorised toy study than a plain loop over its trials?

The same architecture steps of `advantage`, with the paper's 10 trials of 10 edges: all trials at once, as the study
runs them, and one trial and one edge after the other, as networks with Choices run them. Both are measured in one
run, in turn, on the same minibatches, and first it is checked that they compute the same.

    .venv/bin/python benchmarks/toy_throughput.py --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from advnas import Distribution, Draw, SearchSpace
from advnas.paper.toy import ToySearch, ToySettings
from advnas.randomness import generator
from advnas.spaces.toy_regression import FILTER, MAP, SIDE, STRIDE, ToyRegression
from advnas.tasks.teacher_regression import Minibatch, TeacherRegression

WARMUP = 20  # iterations before the clock starts


def main() -> None:
    options = parse_arguments()
    speeds = measure(ToySettings(), options.iterations)
    if options.json:
        print(json.dumps(speeds))
        return
    print(f"vectorised {speeds['vectorised']:.1f} iterations/s, plain loop {speeds['plain_loop']:.1f} iterations/s")
    print(f"ratio {speeds['ratio']:.1f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--iterations", type=int, default=300, help="timed steps of each of the two")
    options = parser.parse_args()
    if options.iterations < 1:
        parser.error(f"--iterations must be a positive integer, got {options.iterations}")
    return options


def measure(settings: ToySettings, iterations: int) -> dict[str, float]:
    """Iterations a second, from the median time of one: an architecture step in each of the trials."""
    task = settings.task()
    vectorised = ToySearch("advantage", task, settings)
    plain = [PlainSearch(trial, settings) for trial in range(settings.trials)]
    check_equal(task, plain)
    times: dict[str, list[float]] = {"vectorised": [], "plain_loop": []}
    for iteration in range(WARMUP + iterations):
        minibatch = task.minibatch()  # made outside the clock, like its images: both get it for nothing
        batches = split(minibatch)
        taken = {
            "vectorised": seconds(partial(vectorised.step, minibatch, iteration / (WARMUP + iterations))),
            "plain_loop": seconds(partial(step_all, plain, batches)),
        }
        if iteration >= WARMUP:
            for name, time_taken in taken.items():
                times[name].append(time_taken)
    speeds = {name: 1 / statistics.median(of_one) for name, of_one in times.items()}
    return {**speeds, "ratio": speeds["vectorised"] / speeds["plain_loop"]}


@dataclass(frozen=True)
class Batch:
    """One trial's share of a minibatch: images [batch, 1, 13, 13] and the teacher's answers [batch]."""

    images: Tensor
    targets: Tensor


class PlainSearch:
    """One trial by itself: a network with Choices, autograd, and Adam on theta."""

    def __init__(self, trial: int, settings: ToySettings) -> None:
        # The stream that the task takes this trial's weights from; `check_equal` would notice another.
        weights = generator(settings.seed, 1, trial)
        self.network = ToyRegression(settings.decisions, settings.candidates, generator=weights)
        self.space = SearchSpace(self.network)
        self._theta = nn.Parameter(torch.ones(settings.decisions, settings.candidates))
        self._optimizer = torch.optim.Adam([self._theta], lr=settings.learning_rate, betas=settings.betas)
        self._generator = generator(settings.seed, 2, trial)

    def step(self, batch: Batch) -> None:
        """A_i (a_i - mu_i), and a step of Adam."""
        distribution = Distribution(self._theta.detach())
        chosen = distribution.sample(self._generator)
        _, slope = self.loss_and_slope(chosen, batch)
        advantage = -(slope * chosen).sum(-1, keepdim=True)
        self._theta.grad = -advantage * distribution.score(chosen)
        self._optimizer.step()

    def loss_and_slope(self, chosen: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of an architecture, and d loss / d gates: [decisions, candidates]."""
        draw = Draw.gated(chosen)
        with self.space.running(draw):
            loss = (self.network(batch.images) - batch.targets).square().mean()
        (slope,) = torch.autograd.grad(loss, draw.weights)
        return loss.detach(), slope


def step_all(searches: list[PlainSearch], batches: list[Batch]) -> None:
    for search, batch in zip(searches, batches, strict=True):
        search.step(batch)


def check_equal(task: TeacherRegression, searches: list[PlainSearch]) -> None:
    """The same draw on the same minibatch has the same loss and the same slopes in both."""
    minibatch = task.minibatch()
    draw = Draw.gated(Distribution(torch.ones(task.shape)).sample(generator(0)))
    losses = task.loss(draw, minibatch)
    (slopes,) = torch.autograd.grad(losses.sum(), draw.weights)
    rows = zip(searches, draw.weights.detach(), split(minibatch), strict=True)
    found = [search.loss_and_slope(chosen, batch) for search, chosen, batch in rows]
    assert torch.allclose(torch.stack([loss for loss, _ in found]), losses, rtol=1e-4)
    assert torch.allclose(torch.stack([slope for _, slope in found]), slopes, rtol=1e-3, atol=1e-6)


def split(minibatch: Minibatch) -> list[Batch]:
    """Every trial's images, put together again from their patches."""
    trials, batch = minibatch.targets.shape
    patches = minibatch.patches.reshape(trials, batch, MAP, MAP, FILTER, FILTER)
    images = patches.new_empty(trials, batch, 1, SIDE, SIDE)
    for row in range(MAP):
        for column in range(MAP):
            down, right = STRIDE * row, STRIDE * column
            images[:, :, 0, down : down + FILTER, right : right + FILTER] = patches[:, :, row, column]
    return [Batch(*pair) for pair in zip(images, minibatch.targets, strict=True)]


def seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

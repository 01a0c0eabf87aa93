"""The toy regression study: how fast does each strategy find the teacher when the weights are fixed?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from advnas import strategies
from advnas.arguments import check_count
from advnas.randomness import generator
from advnas.search import Policy
from advnas.strategies import Feedback, Phase
from advnas.tasks.teacher_regression import HeldOut, Minibatch, TeacherRegression


@dataclass(frozen=True)
class ToySettings:
    """Everything that decides the outcome. The defaults are the paper's."""

    iterations: int = 2000
    trials: int = 10
    seed: int = 0
    decisions: int = 10
    candidates: int = 10
    batch: int = 100
    learning_rate: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    measure_every: int = 10
    held_out: int = 1000

    def __post_init__(self) -> None:
        for name in ("iterations", "trials", "decisions", "candidates", "batch", "measure_every", "held_out"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, least=0)

    def task(self) -> TeacherRegression:
        """The teachers and their data, from the start."""
        return TeacherRegression(
            trials=self.trials,
            decisions=self.decisions,
            candidates=self.candidates,
            batch=self.batch,
            seed=self.seed,
        )


# The paper has 10 trials, whose medians are so noisy that the order of the strategies depends on the seed.
PRESETS = {"quick": ToySettings(iterations=300, trials=3), "paper": ToySettings(trials=100)}


Losses = list[list[float]]
"""Test loss x 100 of the answer, [measurements][trials]."""


def curves_of(settings: ToySettings, losses: Losses) -> dict[str, list[Any]]:
    """Median and quartiles over the trials, and every trial's last loss; plain numbers, ready for JSON."""
    table = torch.tensor(losses, dtype=torch.float64)
    q25, median, q75 = (table.quantile(q, dim=1).tolist() for q in (0.25, 0.5, 0.75))
    iterations = list(range(0, settings.iterations + 1, settings.measure_every))
    return {"iterations": iterations, "median": median, "q25": q25, "q75": q75, "final": losses[-1]}


def are_losses(settings: ToySettings, losses: object) -> bool:
    """Whether something read from a file is what `run_toy` gives for one strategy."""
    measurements = settings.iterations // settings.measure_every + 1
    return (
        isinstance(losses, list)
        and len(losses) == measurements
        and all(isinstance(row, list) and len(row) == settings.trials for row in losses)
        and all(isinstance(loss, float) for row in losses for loss in row)
    )


def run_toy(
    settings: ToySettings,
    names: Sequence[str],
    on_iteration: Callable[[int, "dict[str, ToySearch]"], object] | None = None,
) -> dict[str, Losses]:
    """Run all strategies side by side on the same teachers and minibatches.

    Measures the most likely architecture, and for `random`, whose theta never moves, its process best.
    """
    task = settings.task()
    searches = {name: ToySearch(name, task, settings) for name in names}
    held_out = HeldOut(task, settings.held_out)
    measured: dict[str, Losses] = {name: [] for name in names}
    for iteration in range(settings.iterations + 1):
        if iteration % settings.measure_every == 0:
            for name, search in searches.items():
                measured[name].append((100 * held_out.loss(search.answer())).tolist())
        if iteration < settings.iterations:
            minibatch = task.minibatch()
            for search in searches.values():
                search.step(minibatch, iteration / settings.iterations)
        if on_iteration is not None:
            on_iteration(iteration, searches)
    return measured


class ToySearch:
    """Algorithm 1 without its weight step, for all trials of one strategy at once."""

    def __init__(self, name: str, task: TeacherRegression, settings: ToySettings) -> None:
        trials, decisions, candidates = task.shape
        self._task = task
        self.strategy = strategies.for_task(name, examples=settings.batch, controller_rate=settings.learning_rate)
        if not self.strategy.takes_architecture_steps:
            raise ValueError(f"The toy study takes architecture steps only, and {name} takes none. Leave it out.")
        self._policy = Policy(
            self.strategy,
            [candidates] * decisions,
            torch.zeros(decisions, candidates, dtype=torch.bool),
            optimizer=partial(torch.optim.Adam, lr=settings.learning_rate, betas=settings.betas),
            # The same noise for every strategy: those that sample alike draw alike until their thetas part.
            generator=generator(settings.seed),
            batch=(trials,),
        )
        self._reached = torch.ones(decisions, dtype=torch.bool)
        self._turns = 0
        self.loss = torch.full((trials,), torch.nan)

    def step(self, minibatch: Minibatch, progress: float) -> None:
        """Take one architecture step in every trial, if one is due."""
        self._turns += 1
        if self._turns % self.strategy.architecture_every:
            return
        draw = self._policy.draw(Phase.ARCHITECTURE, progress)
        loss = self._task.loss(draw, minibatch)
        slope = None
        if draw.weights.requires_grad:
            (slope,) = torch.autograd.grad(loss.sum(), draw.weights)
        self.loss = loss.detach()
        feedback = Feedback(
            loss=self.loss,
            slope=slope,
            reached=self._reached,
            probe=partial(self._task.probe, minibatch=minibatch),
            unrolled=lambda: feedback.slopes,  # the weights are fixed: a virtual step changes nothing
        )
        self._policy.learn(feedback, draw, progress)

    def answer(self) -> Tensor:
        """Return the architecture of each trial as it stands: one-hot [trials, decisions, candidates]."""
        if self.strategy.answer == "process_best" and self._policy.has_best:
            return self._policy.best
        return self._policy.distribution.mode()

    @property
    def logits(self) -> Tensor:
        """theta as it stands, [trials, decisions, candidates]."""
        return self._policy.distribution.logits

    def entropy(self) -> float:
        """Mean over trials and decisions, in nats."""
        return self._policy.distribution.entropy().mean().item()

"""Searches that are made to run given architectures, so that the cost of their steps can be compared."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from advnas import Architecture, Search, SearchSpace
from advnas.distribution import Distribution
from advnas.randomness import generator
from advnas.search import LossOf


class AimedSearch:
    """A search whose theta is moved onto an architecture and its rivals before every step."""

    def __init__(self, model: nn.Module, strategy: str, limit: dict[str, str] | None = None) -> None:
        steps = 1_000_000  # so long that temperatures and learning rates stay as they are at the start
        self._search = Search(model, strategy, steps=steps, limit=limit)

    def aim(self, architecture: Architecture, rivals: Architecture) -> None:
        space = self._search.space
        self._search.theta.assign(50 * space.one_hot(architecture) + 25 * space.one_hot(rivals))

    def steps(self, loss_of: LossOf) -> dict[str, Callable[[], object]]:
        search = self._search
        return {
            "architecture_step": partial(search.architecture_step, loss_of, training_loss_of=loss_of),
            "weight_step": partial(search.weight_step, loss_of),
            "joint_step": partial(search.joint_step, loss_of),
        }


def draw_architectures(model: nn.Module, count: int, seed: int) -> Iterator[tuple[Architecture, Architecture]]:
    """Uniformly drawn architectures, and for each another operation at every decision: the rivals."""
    space = SearchSpace(model)
    uniform = Distribution(torch.zeros(len(space), max(space.sizes)))
    random, random_rivals = generator(seed, 1), generator(seed, 2)
    for _ in range(count):
        chosen = uniform.sample(random)
        yield space.architecture(chosen), space.architecture(uniform.without(chosen).sample(random_rivals))

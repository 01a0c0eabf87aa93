"""Train one architecture alone: what its validation score is without a search."""

from collections.abc import Callable

from torch import nn

from advnas.architecture import Architecture
from advnas.randomness import seeded
from advnas.retrain import Recipe, retrain
from advnas.search import Search
from advnas.task import Task

Fresh = Callable[[], nn.Module]
"""Makes a new model with the Choices of the searched one, from torch's global generator."""


def train_alone(
    search: Search,
    architecture: Architecture,
    task: Task,
    *,
    epochs: int,
    recipe: Recipe,
    fresh: Fresh | None,
    seed: int,
) -> float:
    """Train an architecture from fresh weights and return the best validation score.

    Args:
        search: of whose space it is.
        architecture: which one.
        task: data and loss.
        epochs: of the training.
        recipe: how it is trained.
        fresh: makes the model whose weights it starts from; every layer's own `reset_parameters` where
            None, which leaves frozen weights as they are.
        seed: of weights and data; torch's global generator starts from it when `fresh` is called.
    """
    with seeded(seed):
        model = search.derive(architecture, fresh=seed if fresh is None else fresh)
    return retrain(model, task, epochs=epochs, recipe=recipe, seed=seed).best.score

"""The search of `advnas search` without a network of one's own: any built-in space on any task that fits it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from advnas import spaces, strategies, tasks
from advnas.arguments import did_you_mean, find
from advnas.randomness import seed_of, seeded
from advnas.search import Search
from advnas.spaces import SPACES
from advnas.task import Task
from advnas.tasks import TASKS

MAKE_SEARCH = f"{__name__}:make_search"
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "adamw": partial(torch.optim.AdamW, fused=True),
}
"""Of the weights; they are called with a learning rate too."""
_CONTROLLER = 10  # how many times smaller than theta's the learning rate of a strategy's own controller is


def make_search(
    strategy: str,
    seed: int,
    *,
    task: str,
    space: str | None = None,
    processes: int = 1,
    weight_rate: float | None = None,
    theta_rate: float | None = None,
    **options: Any,
) -> tuple[Search, Task]:
    """Make a search of a built-in space on a built-in task.

    Args:
        strategy: its name.
        seed: of the weights and of the search.
        task: one of `TASKS`.
        space: one of `SPACES`; that of the task if not given.
        processes: how many search together, each with a minibatch of its own.
        weight_rate: learning rate of the weights; that of the task if not given.
        theta_rate: learning rate of theta; that of the task if not given.
        options: of the task and of the space, by name.

    Returns:
        The search at its beginning, and its task.
    """
    entry = find("task", TASKS, task)
    weight_rate = entry.weight_rate if weight_rate is None else weight_rate
    theta_rate = entry.theta_rate if theta_rate is None else theta_rate
    of_space, of_task = _divided(options, task, space or entry.space)
    made, network = tasks.get(task, **of_task), _network(space or entry.space, seed, {**entry.network, **of_space})
    facts = {"examples": _times(made.examples, processes), "controller_rate": theta_rate / _CONTROLLER}
    search = Search(
        network,
        strategies.for_task(strategy, **facts),
        weight_optimizer=partial(OPTIMIZERS[entry.optimizer], lr=weight_rate),
        architecture_optimizer=partial(torch.optim.Adam, lr=theta_rate, betas=(0.5, 0.999), fused=True),
        seed=seed,
    )
    return search, made


def _divided(options: Mapping[str, Any], task: str, space: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give each option to the space or to the task; ValueError where neither takes it."""
    of_space, of_task = find("space", SPACES, space).options(), TASKS[task].options()
    missing = [name for name in TASKS[task].network if name not in of_space]
    if missing:
        raise ValueError(
            f"The space {space!r} is not for the task {task!r}: it does not take {', '.join(missing)}. "
            f"Leave out --space, or take {TASKS[task].space}."
        )
    known = (*of_space, *of_task, "weight_rate", "theta_rate")
    for name in options:
        if name not in known:
            raise ValueError(
                f"{space} on {task} has no option {name!r}{did_you_mean(name, known)}; it takes {', '.join(known)}."
            )
    return (
        {name: value for name, value in options.items() if name in of_space},
        {name: value for name, value in options.items() if name in of_task},
    )


def _network(space: str, seed: int, options: Mapping[str, Any]) -> nn.Module:
    """Build the network, its weights those of the seed."""
    with seeded(seed_of(seed)):
        return spaces.get(space, **options)


def _times(examples: int | None, processes: int) -> int | None:
    return None if examples is None else examples * processes

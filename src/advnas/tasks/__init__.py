"""Tasks by name: data and a loss to search with. Adding one: write its file, and give it a line below."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advnas.arguments import Builder, build

if TYPE_CHECKING:
    from advnas.task import Task


@dataclass(frozen=True)
class TaskBuilder(Builder):
    """A task, and what a search of it starts from where nothing else is asked for.

    space: the name of the network. network: what the task decides about any network, as arguments of its space.
    epochs: how long a search is; warmup: in how many of them theta is fixed, a third by default; retrain_epochs:
    how long an answer is trained, as long as theta learns by default. optimizer, weight_rate: how the weights are
    trained; see `advnas.studies.built_in.OPTIMIZERS`. theta_rate: learning rate of theta. seeds: how many searches.
    """

    space: str
    network: Mapping[str, Any]
    epochs: int
    warmup: int | None = None
    retrain_epochs: int | None = None
    optimizer: str = "sgd"
    weight_rate: float = 0.1
    theta_rate: float = 0.05
    seeds: int = 3


TASKS: dict[str, TaskBuilder] = {
    "python_source": TaskBuilder(
        "advnas.tasks.python_source:build",
        "the source code of Python's standard library, character by character; it is on every machine",
        space="character_model",
        network={"characters": 128},
        epochs=8,
        warmup=4,
        retrain_epochs=7,
        optimizer="adamw",
        weight_rate=3e-3,
        theta_rate=0.1,
        seeds=8,
    ),
    "digits": TaskBuilder(
        "advnas.tasks.digits:build",
        "1,797 handwritten digits of 8 x 8 pixels that come with the package",
        space="small_cells",
        network={"inputs": 1, "classes": 10},
        epochs=60,
    ),
    "cifar10": TaskBuilder(
        "advnas.tasks.cifar10:build",
        "60,000 photographs of 32 x 32 pixels in 10 classes; `advnas data get cifar10` fetches them",
        space="nasbench201",
        network={"inputs": 3, "classes": 10},
        epochs=24,
    ),
    "penn_treebank": TaskBuilder(
        "advnas.tasks.penn_treebank:build",
        "a language model of the Wall Street Journal; the texts must be there",
        space="recurrent_cell",
        network={},
        epochs=4,
    ),
}
"""What there is, without importing any of it."""


def get(name: str, **options: Any) -> "Task":
    """Build a task, e.g. get("digits", batch=64).

    Args:
        name: one of `TASKS`.
        options: arguments of its builder.

    Raises:
        ValueError: there is no such task, or it has no such option.
    """
    task: Task = build("task", TASKS, name, options)
    return task

"""Train a derived module from scratch: any module, any task; keeps the best weights and survives being stopped."""

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from advnas.arguments import check_count
from advnas.choice import Choice
from advnas.gates.buffers import BufferSnapshot
from advnas.notebook import table
from advnas.randomness import seed_of, seeded
from advnas.records.restoring import (
    check_form,
    check_optimizer,
    check_settings,
    load_optimizer,
    optimizer_settings,
    rolled_back_on_failure,
)
from advnas.records.unsaved import UnsavedBuffers
from advnas.search import PAPER_WEIGHTS, NonFiniteLoss, OptimizerOf, Recorder, advance, cosine
from advnas.search.device import PRECISIONS, on_device
from advnas.search.precision import Precision
from advnas.search.schedule import Rates
from advnas.search.step import check_loss, clip_gradient, make_optimizer
from advnas.task import Task, length_of, mean_over

Score = Callable[[nn.Module], float]

_SAMPLES = (0.0, 0.25, 0.5, 0.75)  # where annealings are compared: functions have no names of their own


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training data gave. score: on the validation data, the lower the better."""

    number: int
    training_loss: float
    score: float


@dataclass(frozen=True)
class Retrained:
    """model: with its best weights, in evaluation mode. best: the epoch they are from. history: all epochs."""

    model: nn.Module
    best: Epoch
    history: tuple[Epoch, ...]

    def __repr__(self) -> str:
        epochs = f"{len(self.history)} epochs, best {self.best.number} with score {self.best.score:.4g}"
        return f"Retrained({type(self.model).__name__}, {epochs})"

    def _repr_html_(self) -> str:
        rows = ((one.number, f"{one.training_loss:.4g}", f"{one.score:.4g}") for one in self.history)
        return table(repr(self), rows, ("epoch", "training loss", "score"))


@dataclass(frozen=True)
class Recipe:
    """How a module is trained, and which epoch is kept.

    optimizer: called with all parameters. annealing: maps progress in [0, 1] to a factor on the learning rates.
    clip: largest norm of the gradient, or None. score: of the model after an epoch, the lower the better; the mean
    loss on the task's validation data by default. precision: "float32", "bf16" or "fp16", as of a search.
    accumulate: how many minibatches make up a step, with the memory of one; the last step of an epoch may have
    fewer. device: moves the model and all minibatches there, such as "cuda"; where they are by default.
    """

    optimizer: OptimizerOf = PAPER_WEIGHTS
    annealing: Callable[[float], float] = cosine
    clip: float | None = 1.0
    score: Score | None = None
    precision: str = "float32"
    accumulate: int = 1
    device: str | None = None


def retrain(
    model: nn.Module,
    task: Task,
    *,
    epochs: int,
    recipe: Recipe = Recipe(),
    seed: int = 0,
    folder: Path | str | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> Retrained:
    """Train all weights of a plain module.

    Args:
        model: it ends with the weights of its best epoch, in evaluation mode.
        task: data and loss.
        epochs: passes over the training data.
        recipe: the optimiser and how it is used; the paper's settings by default.
        seed: of everything random. Every epoch starts torch's global generator from the seed and its own number, so
            the order of a shuffling DataLoader (without a generator of its own) and dropout depend on nothing else.
        folder: a run folder, with a checkpoint per epoch; the same call again goes on from there, bit for bit.
        on_epoch: called with every epoch.

    Returns:
        The module and its history.

    Raises:
        TypeError: model, task or recipe is something else.
    """
    check_count("epochs", epochs)
    _check_call(model, task, recipe)
    if recipe.device is not None:
        task = on_device(task, recipe.device)
        model.to(recipe.device)
    training = _Training(model, task, recipe, epochs, seed)
    if folder is None:
        advance(training, until=epochs, every=1, on_step=on_epoch)
        return training.result()
    asked = {"kind": "retraining", **training.settings}
    with Recorder(Path(folder), training, asked=asked, resume=True) as recorder:
        advance(training, until=epochs, every=1, recorder=recorder, on_step=on_epoch)
    return training.result()


def _check_call(model: object, task: object, recipe: object) -> None:
    choices = isinstance(model, nn.Module) and any(isinstance(part, Choice) for part in model.modules())
    if choices or not isinstance(model, nn.Module):
        got = "a network whose Choices are open" if choices else f"a {type(model).__name__}"
        raise TypeError(
            f"retrain takes a plain module, got {got}. Write retrain(search.derive(), task, epochs=...)."
        )
    if not isinstance(task, Task):
        raise TypeError(
            f"retrain takes a task, got a {type(task).__name__}. Write retrain(model, advnas.Task(training, "
            "validation, loss), epochs=...)."
        )
    if not isinstance(recipe, Recipe):
        raise TypeError(
            f"recipe must be a Recipe, got a {type(recipe).__name__}. Write for example "
            "recipe=Recipe(partial(torch.optim.Adam, lr=1e-3))."
        )
    check_count("accumulate", recipe.accumulate)


class _Training:
    """A module, its optimiser and its history: what the loop advances, one epoch per turn."""

    def __init__(self, model: nn.Module, task: Task, recipe: Recipe, epochs: int, seed: int) -> None:
        self._model, self._task, self._recipe = model, task, recipe
        self._epochs, self._seed = epochs, seed
        # An architecture of skips alone has no weights, and an optimiser refuses to have none.
        parameters = list(model.parameters()) or [nn.Parameter(torch.zeros(0))]
        self._optimizer = make_optimizer(recipe.optimizer, parameters)
        self._precision = Precision(recipe.precision)
        self.settings = {
            "epochs": epochs,
            "seed": seed,
            "optimizer": optimizer_settings(self._optimizer),
            "clip": recipe.clip,
            "precision": str(PRECISIONS[recipe.precision] or torch.float32).removeprefix("torch."),
            "annealing": [round(float(recipe.annealing(progress)), 6) for progress in _SAMPLES],
            **({} if recipe.accumulate == 1 else {"accumulate": recipe.accumulate}),
        }
        self._unsaved = UnsavedBuffers(model)
        self._rates = Rates(self._optimizer, recipe.annealing)
        self._history: list[Epoch] = []
        self._told = False
        self._best: dict[str, Any] = copy.deepcopy(model.state_dict())

    @property
    def position(self) -> int:
        """Epochs that are over."""
        return len(self._history)

    def turn(self) -> Iterator[Epoch]:
        """Train for one epoch, and keep its weights if they are the best so far."""
        number = self.position + 1
        with seeded(seed_of(self._seed, number), *{weight.device for weight in self._model.parameters()}):
            loss = self._train()
            score = self._recipe.score
            value = _validation_loss(self._model, self._task) if score is None else _number(score(self._model))
        self._history.append(Epoch(number, loss, value))
        if self._best_epoch is self._history[-1]:
            self._best = copy.deepcopy(self._model.state_dict())
        yield self._history[-1]

    def _train(self) -> float:
        """One pass over the training data; its mean loss."""
        data = self._task.training
        batches = data if isinstance(data, Sized) and length_of(data) is not None else list(data)
        parameters, losses, together = list(self._model.parameters()), list[float](), self._recipe.accumulate
        self._model.train()
        for number, part in enumerate(_in_groups(batches, together)):
            self._rates.anneal((self.position + number / math.ceil(len(batches) / together)) / self._epochs)
            loss, norm = self._scaled_backward(part, parameters)
            _check_finite(loss, norm, number)
            self._optimizer.step()
            self._precision.succeed()
            losses.extend([loss.item()] * len(part))
        if not losses:
            raise ValueError("The training data are empty, or an iterator that can be read only once.")
        return sum(losses) / len(losses)

    def _scaled_backward(self, batches: list[Any], parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
        """The same as `_backward`, once more with a smaller loss scale wherever the scaled gradient overflows."""
        buffers = BufferSnapshot(self._model.modules() if self._precision.scale > 1 else ())
        loss, norm = self._backward(batches, parameters)
        while not norm.isfinite() and self._precision.lower():
            buffers.put_back()  # running statistics count every minibatch once
            loss, norm = self._backward(batches, parameters)
        return loss, norm

    def _backward(self, batches: list[Any], parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
        """Put the clipped gradient on some minibatches into place; their mean loss, and the norm before clipping.

        Nothing is trained where no weight decides the loss; that is told once, and the loss is what it is.
        """
        device = parameters[0].device if parameters else torch.device("cpu")
        total, trained = torch.zeros((), device=device), False
        for number, batch in enumerate(batches):
            with self._precision.computing(device):
                loss = check_loss(self._task.loss(self._model, batch)) / len(batches)
            if number == 0:
                self._optimizer.zero_grad(set_to_none=True)
            if loss.requires_grad:
                self._precision.scaled(loss).backward()  # type: ignore[no-untyped-call]
                trained = True
            total = total + loss.detach()
        self._precision.unscale(parameters)
        if not (trained or self._history or self._told):
            self._tell_untrained()
        return total, clip_gradient(parameters, self._recipe.clip)

    def _tell_untrained(self) -> None:
        self._told = True
        weights = any(parameter.requires_grad for parameter in self._model.parameters())
        why = "The loss does not depend on the weights" if weights else "No weights can be trained"
        warnings.warn(f"{why}: the module is evaluated as it is.", stacklevel=2)

    @property
    def _best_epoch(self) -> Epoch:
        return min(self._history, key=lambda epoch: (math.isnan(epoch.score), epoch.score, epoch.number))

    def record(self) -> None:
        """Every epoch is a line of the journal already."""

    def state(self, folder: Path) -> dict[str, Any]:
        """Weights, optimiser, history, and the best weights so far."""
        self._unsaved.tell()
        return {
            "settings": self.settings,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "history": [asdict(epoch) for epoch in self._history],
            "epochs": self.position,
            "best": self._best,
        } | self._precision.state()

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Load a state completely, or raise ValueError and change nothing."""
        now = self.state(folder) | {"settings": {}, "optimizer": {}, "history": [asdict(Epoch(1, 0.0, 0.0))]}
        check_form(state, [now, {**now, "history": []}], "it")
        check_settings(*({"accumulate": 1, **settings} for settings in (self.settings, state["settings"])))
        check_optimizer(self._optimizer, state["optimizer"], "optimizer")
        numbers = [line["number"] for line in state["history"]]
        if not numbers or numbers != list(range(1, check_count("epochs", state["epochs"], least=0) + 1)):
            raise ValueError(f"its history should count {state['epochs']} epochs from 1, not {numbers}")
        with rolled_back_on_failure(partial(self._put, copy.deepcopy(self.state(folder)))):
            self._model.load_state_dict(state["best"])  # only to see that it fits
            self._put(state)

    def _put(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        load_optimizer(self._optimizer, state["optimizer"])
        self._history = [Epoch(**line) for line in state["history"]]
        self._best = copy.deepcopy(state["best"])
        self._precision.restore(state)

    def result(self) -> Retrained:
        """The module with its best weights, in evaluation mode whether it was trained just now or before."""
        self._model.load_state_dict(self._best)
        self._model.eval()
        return Retrained(self._model, self._best_epoch, tuple(self._history))


def _in_groups(batches: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """The minibatches, so many at a time; the last may be fewer."""
    remaining = iter(batches)
    while group := list(islice(remaining, count)):
        yield group


def _number(score: object) -> float:
    try:
        return float(score)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"Recipe.score must return one number, the lower the better, got {score!r:.80}. Return for example "
            "float(error.mean())."
        ) from None


def _check_finite(loss: Tensor, norm: Tensor, number: int) -> None:
    if not (loss.isfinite() and norm.isfinite()):
        raise NonFiniteLoss(
            f"The loss is {loss.item()} and its gradient has norm {norm.item()} at step {number + 1} of the epoch. "
            "The last checkpoint is whole; a lower learning rate often helps."
        )


def _validation_loss(model: nn.Module, task: Task) -> float:
    model.eval()
    return mean_over(model, task.validation, task.loss)

"""Train a derived module from scratch: any module, any task; keeps the best weights and survives being stopped."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from advnas.arguments import check_count
from advnas.randomness import seed_of
from advnas.records.checkpoints import Checkpoints
from advnas.records.restoring import blank_step, put_optimizer, take_over
from advnas.search import PAPER_WEIGHTS, NonFiniteLoss, OptimizerOf, cosine
from advnas.task import Task, mean_over

Score = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training data gave. score: on the validation data, the lower the better."""

    number: int
    training_loss: float
    score: float


@dataclass(frozen=True)
class Retrained:
    """model: with its best weights. best: the epoch they are from. history: all epochs."""

    model: nn.Module
    best: Epoch
    history: tuple[Epoch, ...]


def retrain(
    model: nn.Module,
    task: Task,
    *,
    epochs: int,
    score: Score | None = None,
    optimizer: OptimizerOf = PAPER_WEIGHTS,
    annealing: Callable[[float], float] = cosine,
    clip: float | None = 1.0,
    seed: int = 0,
    folder: Path | str | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> Retrained:
    """Train all weights of a plain module for `epochs` passes over the task's training data.

    score: of the model after an epoch, the lower the better; the mean loss on the task's validation data if not
        given. The model ends with the weights of its best epoch.
    folder: keeps a checkpoint after every epoch; the same call again goes on from there, bit for bit. Every epoch
        starts torch's global generator from the seed and its own number, so the order of a shuffling DataLoader
        (without a generator of its own) and dropout depend on nothing else.
    """
    check_count("epochs", epochs)
    weight_optimizer = optimizer(list(model.parameters()))
    rates = [group["lr"] for group in weight_optimizer.param_groups]  # before a checkpoint brings annealed ones
    run = _Run(model, weight_optimizer, Checkpoints(folder) if folder is not None else None)
    for number in range(len(run.history) + 1, epochs + 1):
        with torch.random.fork_rng(devices=_devices(model)):
            torch.manual_seed(seed_of(seed, number))

            def anneal(part: float, before: int = number - 1) -> None:
                for group, rate in zip(run.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * annealing((before + part) / epochs)

            loss = _train(model, task, run.optimizer, clip, anneal)
            run.end_epoch(Epoch(number, loss, score(model) if score is not None else _validation_loss(model, task)))
        if on_epoch is not None:
            on_epoch(run.history[-1])
    return run.result()


class _Run:
    """The module, its optimiser and its history, with what was saved of them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, checkpoints: Checkpoints | None) -> None:
        self._model, self.optimizer, self._checkpoints = model, optimizer, checkpoints
        self.history: list[Epoch] = []
        self._best: dict[str, Any] = copy.deepcopy(model.state_dict())
        if checkpoints is not None:
            checkpoints.resume(self._go_on)

    def _go_on(self, saved: dict[str, Any]) -> None:
        if not saved.get("history"):
            raise ValueError("it has no history of epochs")
        take_over(saved, now=self._state(), put=self._put, moved=self._moved)

    def _put(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["best"])  # only to see that it fits
        self._model.load_state_dict(state["model"])
        put_optimizer(self.optimizer, state["optimizer"])
        self._best = copy.deepcopy(state["best"])
        numbers = [line["number"] for line in state["history"]]
        if numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"its history should count the epochs from 1, not {numbers}")
        self.history = [Epoch(**line) for line in state["history"]]

    def _moved(self) -> dict[str, Any]:
        blank_step(self.optimizer)
        return {**self._state(), "history": [asdict(Epoch(1, 0.0, 0.0))]}

    def _state(self) -> dict[str, Any]:
        return {
            "model": self._model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": [asdict(epoch) for epoch in self.history],
            "best": self._best,
        }

    @property
    def best(self) -> Epoch:
        return min(self.history, key=lambda epoch: (epoch.score, epoch.number))

    def end_epoch(self, epoch: Epoch) -> None:
        self.history.append(epoch)
        if self.best is epoch:
            self._best = copy.deepcopy(self._model.state_dict())
        if self._checkpoints is not None:
            self._checkpoints.save(self._state(), epoch.number)

    def result(self) -> Retrained:
        self._model.load_state_dict(self._best)
        return Retrained(self._model, self.best, tuple(self.history))


def _train(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    clip: float | None,
    anneal: Callable[[float], None],
) -> float:
    """One pass over the training data; its mean loss."""
    batches = list(task.training) if not hasattr(task.training, "__len__") else task.training
    parameters, losses = list(model.parameters()), list[float]()
    model.train()
    for number, batch in enumerate(batches):
        anneal(number / len(batches))  # type: ignore[arg-type]
        loss = task.loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if clip is None else clip)
        _check_finite(loss, norm, number)
        optimizer.step()
        losses.append(loss.item())
    if not losses:
        raise ValueError("The training data are empty, or an iterator that can be read only once.")
    return sum(losses) / len(losses)


def _check_finite(loss: Tensor, norm: Tensor, number: int) -> None:
    if not (loss.isfinite() and norm.isfinite()):
        raise NonFiniteLoss(
            f"The loss is {loss.item()} and its gradient has norm {norm.item()} at minibatch {number + 1} of the "
            "epoch. The last checkpoint is whole; a lower learning rate often helps."
        )


def _validation_loss(model: nn.Module, task: Task) -> float:
    model.eval()
    return mean_over(model, task.validation, task.loss)


def _devices(model: nn.Module) -> list[torch.device]:
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
